"""Which loops of a kernel for the CPU the compiler vectorised, and why not the others.

g++ is asked again, with the flags of the build and nothing kept but its report, which lies beside
the library from then on. Not covered: other compilers, which report in another form, and headers.
Invariant: as in the build, the text of an attempt meets a compiler only inside `confine`.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cuagent.attempt import Attempt
from cuagent.build.builder import runner
from cuagent.build.confine import Confine, sandboxed
from cuagent.build.result import Library
from cuagent.kernels import compiler

ASKED = ("-fopt-info-vec-optimized", "-fopt-info-vec-missed")
MOST_TEXT = 4 << 20
"""Characters of a report that are read: inlined headers make it long."""
_LINE = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?P<kind>\w+):\s+(?P<said>.*)$")
_BYTES = re.compile(r"loop vectorized using (\d+) byte vectors")


@dataclass(frozen=True)
class Loop:
    """One loop of a source."""

    source: str
    line: int
    vector_bytes: int
    """Of the widest version; 0 where it stays scalar."""
    reason: str = ""
    """Why it is scalar, in the compiler's words."""
    text: str = ""
    """Its line in the source."""

    def __str__(self) -> str:
        said = f"{self.vector_bytes}-byte vectors" if self.vector_bytes else "not vectorised"
        return f"{self.source}:{self.line} {self.text}: {said}{self.reason and f', {self.reason}'}"


def vectorised(
    attempt: Attempt, library: Library, *, confine: Confine = sandboxed
) -> tuple[Loop, ...]:
    """The loops of a library's source; none where the compiler is not g++ or says nothing."""
    if not library.source.endswith(".cpp"):
        return ()
    report = library.path.with_suffix(".vectors")
    with tempfile.TemporaryDirectory(prefix="cuagent-vectors-") as folder:
        attempt.write(Path(folder))
        source = Path(folder) / library.source
        if not report.is_file():
            text = _asked(source, Path(folder), confine)
            if text is None:
                return ()
            report.write_text(text)
        return read(report.read_text(), library.source, source.read_text())


def _asked(source: Path, folder: Path, confine: Confine) -> str | None:
    """What the compiler says of the loops; None where it does not compile so."""
    how = compiler.recipe(source)
    tools = compiler.toolchain(how.form)
    with tempfile.TemporaryDirectory(prefix="cuagent-compile-") as scratch:
        argv = tools.argv(how, Path(scratch) / "unused.so", Path(scratch))
        try:
            status, text = runner(folder, confine)([*argv, *ASKED], Path(scratch))
        except compiler.CompileFailed:
            return None
    return None if status else text[:MOST_TEXT].replace(f"{source.parent}/", "")


def read(text: str, source: str, code: str) -> tuple[Loop, ...]:
    """The loops that a report of g++ names in `source`, by line; `code` is its text."""
    lines = code.splitlines()
    widest: dict[int, int] = {}
    scalar: dict[int, str] = {}
    pending: int | None = None
    for match in filter(None, map(_LINE.match, text.splitlines())):
        line, said = int(match["line"]), match["said"].strip()
        if Path(match["file"]).name != Path(source).name or not 0 < line <= len(lines):
            continue
        if width := _BYTES.match(said):
            widest[line] = max(widest.get(line, 0), int(width[1]))
        elif said.startswith("couldn't vectorize loop"):
            pending = line
            scalar.setdefault(line, "")
        elif said.startswith("not vectorized:") and pending is not None:
            scalar[pending] = scalar[pending] or said.removeprefix("not vectorized:").strip(" .")
            pending = None
    return tuple(
        Loop(
            source,
            line,
            widest.get(line, 0),
            "" if line in widest else scalar[line],
            lines[line - 1].strip()[:60],
        )
        for line in sorted(widest.keys() | scalar.keys())
    )
