"""Which loops of a kernel for the CPU the compiler vectorised, and why not the others.

g++ writes its report while it builds, and the report lies beside the library from then on; where
the loader made the library, g++ is asked again. Not covered: other compilers, which report in
another form, and headers. Invariant: as in the build, the text of an attempt meets a compiler only
inside `confine`.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cuagent.attempt import Attempt
from cuagent.build.confine import Confine, lay_down, runner, sandboxed
from cuagent.build.result import Library
from cuagent.kernels import compiler

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
        why = f", {self.reason}" if self.reason else ""
        return f"{self.source}:{self.line}: {said}{why}: {self.text}"  # who cuts it loses the text


def reporting(run: compiler.Run, source: Path, library: Path) -> compiler.Run:
    """`run` for g++, whose report is put beside `library`."""

    def asked(argv: list[str], scratch: Path, folder: Path) -> tuple[int, str]:
        report = scratch / "vectors"
        status, text = run([*argv, f"-fopt-info-vec-optimized-missed={report}"], scratch, folder)
        if not status and report.is_file():
            with report.open(errors="replace") as file:
                said = file.read(MOST_TEXT).replace(f"{source.parent}/", "")
            library.with_suffix(".vectors").write_text(said)
        return status, text

    return asked


def reports(tools: compiler.Toolchain) -> bool:
    """Whether this compiler says what it vectorised in the form that is read here."""
    return tools.form == "g++" and "clang" not in tools.version


def vectorised(
    attempt: Attempt, library: Library, *, confine: Confine = sandboxed
) -> tuple[Loop, ...]:
    """The loops of a library's source; none where the compiler is not g++ or says nothing."""
    report = library.path.with_suffix(".vectors")
    if not report.is_file() and library.source.endswith(".cpp"):
        with suppress(compiler.CompileFailed):
            _ask(attempt, library, confine)
    if not report.is_file():
        return ()
    return read(report.read_text(), library.source, dict(attempt.files)[library.source])


def _ask(attempt: Attempt, library: Library, confine: Confine) -> None:
    """Compile once more, for the report. Raises CompileFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="cuagent-vectors-") as folder,
        tempfile.TemporaryDirectory(prefix="cuagent-compile-") as scratch,
    ):
        lay_down(attempt, Path(folder))
        source = Path(folder) / library.source
        how = compiler.read_recipe(source)
        tools = compiler.toolchain(how.form)
        if reports(tools):
            run = reporting(runner(Path(folder), confine), source, library.path)
            argv = tools.argv(how, Path(scratch) / "unused.so", Path(scratch))
            run(argv, Path(scratch), source.parent)


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
