"""Which loops of a kernel for the CPU the compiler vectorised, and why not the others.

g++ writes its report while it builds, and the report lies beside the library from then on; where
the loader made the library, g++ is asked again. Not covered: other compilers, which report in
another form, and headers. Invariant: as in the build, the text of an attempt meets a compiler only
inside `confine`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
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


_LOOP = re.compile(r"\b(?:for|while|do)\b")
NEAR = 3
"""Lines between a loop's head and the place at which g++ reports it."""
NESTS = ("loop nest", "multiple nested loops", "outer loop", "nested loop")
"""How a reason begins that says only that a loop holds others: those are reported themselves."""
REASONS = (
    (
        "no vectype for stmt",
        "an operation in it has no vector form (a call such as exp, or a type)",
    ),
    ("relevant stmt not supported", "an operation in it has no vector form"),
    ("op not supported", "an operation in it has no vector form"),
    ("statement clobbers memory", "it calls a function that is not inlined"),
    ("unsupported use in stmt", "a value goes from one pass to the next: use several accumulators"),
    ("complicated access pattern", "it does not go through memory in consecutive places"),
    ("not suitable for gather", "it reads at computed places"),
    ("control flow in loop", "control flow in it (a break, or a branch that stores or calls)"),
    ("number of iterations cannot", "the number of passes is not known at its beginning"),
    ("bad data dependence", "a store may change what a later pass reads: use __restrict__"),
    ("possible alias", "a store may change what a later pass reads: use __restrict__"),
)
"""What the most frequent reasons of g++ mean; others are told in its own words."""
SHORTEST_TEXT = 16
"""Columns; less of a line of code tells nothing."""


@dataclass(frozen=True)
class Loop:
    """One loop of a source, or all that begin in the same line."""

    source: str
    line: int
    vector_bytes: int
    """Of the widest version; 0 where it stays scalar."""
    reason: str = ""
    """Why it, or a part of it, is scalar."""
    text: str = ""
    """Its line in the source."""

    def __str__(self) -> str:
        return self.shown(None)

    def shown(self, width: int | None) -> str:
        """What was made of it and why, whole; then as much of its text as `width` has room for."""
        if self.vector_bytes and self.reason:
            said = f"{self.vector_bytes}-byte vectors in part; the rest is scalar: {self.reason}"
        elif self.vector_bytes:
            said = f"{self.vector_bytes}-byte vectors"
        else:
            said = "not vectorised" + (f": {self.reason}" if self.reason else "")
        line = f"{self.source}:{self.line}: {said}"
        room = len(self.text) if width is None else width - len(line) - len(" in ``")
        if not self.text or room < min(SHORTEST_TEXT, len(self.text)):
            return line
        text = self.text if len(self.text) <= room else f"{self.text[: room - 4].rstrip()} ..."
        return f"{line} in `{text}`"


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
    """The loops that a report of g++ names in `source`, by line; `code` is its text.

    One loop may be reported several times: as the copies that inlining and templates make, as its
    vector body and its rest, by its pragma and its head. What is said of a line is put together.
    """
    lines = code.splitlines()
    widest: dict[int, int] = {}
    scalar: dict[int, list[str]] = {}
    pending: int | None = None
    for match in filter(None, map(_LINE.match, text.splitlines())):
        line, said = int(match["line"]), match["said"].strip()
        if Path(match["file"]).name != Path(source).name or not 0 < line <= len(lines):
            continue
        if width := _BYTES.match(said):
            head = _head(lines, line)
            widest[head] = max(widest.get(head, 0), int(width[1]))
        elif said.startswith("couldn't vectorize loop"):
            pending = _head(lines, line)
            scalar.setdefault(pending, [])
        elif said.startswith("not vectorized:") and pending is not None:
            scalar[pending].append(said.removeprefix("not vectorized:").strip(" ."))
            pending = None
    scalar = {
        line: reasons
        for line, reasons in scalar.items()
        if not (reasons and all(reason.startswith(NESTS) for reason in reasons))
    }
    return tuple(
        Loop(source, line, widest.get(line, 0), _why(scalar.get(line, [])), lines[line - 1].strip())
        for line in sorted(widest.keys() | scalar.keys())
    )


def _head(lines: Sequence[str], line: int) -> int:
    """The line in which the loop begins that g++ reports at `line`: at a pragma, or its body."""
    text = lines[line - 1]
    if _LOOP.search(text) and not text.lstrip().startswith("#"):
        return line
    below = range(line + 1, min(line + NEAR, len(lines)) + 1)
    above = range(line - 1, max(line - NEAR, 1) - 1, -1)
    near = below if text.lstrip().startswith("#") else above
    for at in near:
        if _LOOP.search(lines[at - 1]) and not lines[at - 1].lstrip().startswith("#"):
            return at
    return line


def _why(reasons: Sequence[str]) -> str:
    """The first reason that is about the loop itself, in plain words."""
    for reason in reasons:
        if reason.startswith(NESTS):
            continue
        known = next((plain for said, plain in REASONS if reason.startswith(said)), None)
        return known or reason.partition(": _")[0].rstrip(" :.;")
    return ""
