"""Report which loops of a CPU kernel the compiler vectorised, and why it left the others scalar.

g++ writes its report during the build, and the report is stored next to the library. If the loader
made the library, the source is compiled again for the report.
Not covered: other compilers, which report in another form, and loops in headers.
Invariant: as in the build, a compiler reads the text of an attempt only inside `confine`.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cuagent.attempt import Attempt
from cuagent.build.confine import Confine, runner, sandboxed, write_sources
from cuagent.build.result import Library
from cuagent.kernels import compiler

MOST_TEXT = 4 << 20
"""Characters of a report that are read; inlined headers make reports long."""
_LINE = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?P<kind>\w+):\s+(?P<text>.*)$")
_BYTES = re.compile(r"loop vectorized using (\d+) byte vectors")


@dataclass(frozen=True)
class Loop:
    """One loop of a source."""

    source: str
    line: int
    vector_bytes: int
    """Vector width of the widest version in bytes; 0 if the loop is scalar."""
    reason: str = ""
    """Reason why the loop is scalar, in the compiler's words."""
    text: str = ""
    """Source text of the line."""

    def __str__(self) -> str:
        form = f"{self.vector_bytes}-byte vectors" if self.vector_bytes else "not vectorised"
        why = f", {self.reason}" if self.reason else ""
        # The source text comes last, so that a caller that truncates the line keeps the rest.
        return f"{self.source}:{self.line}: {form}{why}: {self.text}"


def with_vector_report(run: compiler.Run, source: Path, library: Path) -> compiler.Run:
    """Return `run` with the options of g++ that store its report next to `library`."""

    def run_with_report(argv: list[str], scratch: Path, folder: Path) -> tuple[int, str]:
        report = scratch / "vectors"
        status, text = run([*argv, f"-fopt-info-vec-optimized-missed={report}"], scratch, folder)
        if not status and report.is_file():
            with report.open(errors="replace") as file:
                content = file.read(MOST_TEXT).replace(f"{source.parent}/", "")
            library.with_suffix(".vectors").write_text(content)
        return status, text

    return run_with_report


def has_vector_report(tools: compiler.Toolchain) -> bool:
    """True if this compiler reports vectorised loops in the form of g++."""
    return tools.form == "g++" and "clang" not in tools.version


def vectorised(
    attempt: Attempt, library: Library, *, confine: Confine = sandboxed
) -> tuple[Loop, ...]:
    """Return the loops of a library's source; none if the compiler is not g++ or has no report."""
    report = library.path.with_suffix(".vectors")
    if not report.is_file() and library.source.endswith(".cpp"):
        with suppress(compiler.CompileFailed):
            _compile_for_report(attempt, library, confine)
    if not report.is_file():
        return ()
    return parse_report(report.read_text(), library.source, dict(attempt.files)[library.source])


def _compile_for_report(attempt: Attempt, library: Library, confine: Confine) -> None:
    """Compile the source again for the report. Raises CompileFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="cuagent-vectors-") as folder,
        tempfile.TemporaryDirectory(prefix="cuagent-compile-") as scratch,
    ):
        write_sources(attempt, Path(folder))
        source = Path(folder) / library.source
        recipe = compiler.recipe(source)
        tools = compiler.toolchain(recipe.form)
        if has_vector_report(tools):
            run = with_vector_report(runner(Path(folder), confine), source, library.path)
            argv = tools.argv(recipe, Path(scratch) / "unused.so", Path(scratch))
            run(argv, Path(scratch), source.parent)


def parse_report(text: str, source: str, code: str) -> tuple[Loop, ...]:
    """Return the loops of `source` in a report of g++, sorted by line; `code` is its text."""
    lines = code.splitlines()
    widest: dict[int, int] = {}
    scalar: dict[int, str] = {}
    pending: int | None = None
    for match in filter(None, map(_LINE.match, text.splitlines())):
        line, message = int(match["line"]), match["text"].strip()
        if Path(match["file"]).name != Path(source).name or not 0 < line <= len(lines):
            continue
        if width := _BYTES.match(message):
            widest[line] = max(widest.get(line, 0), int(width[1]))
        elif message.startswith("couldn't vectorize loop"):
            pending = line
            scalar.setdefault(line, "")
        elif message.startswith("not vectorized:") and pending is not None:
            scalar[pending] = scalar[pending] or message.removeprefix("not vectorized:").strip(" .")
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
