"""Report which loops of a CPU kernel the compiler vectorised, and why it left the others scalar.

g++ writes a report during the build, and it is stored next to the library. If the loader compiled
the library, without a report, the source is compiled again for it.

Not covered: other compilers, which report in another form, and loops in headers.

Invariant: as in the build, a compiler reads the text of an attempt only inside `confine`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cuagent.attempt import Attempt
from cuagent.build.confine import Confine, runner, sandboxed, write_sources
from cuagent.build.result import Library
from cuagent.kernels import compiler

MOST_TEXT = 4 << 20
"""Largest number of characters of a report that are parsed; inlined headers make reports long."""
_LINE = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?P<kind>\w+):\s+(?P<text>.*)$")
_BYTES = re.compile(r"loop vectorized using (\d+) byte vectors")
_LOOP = re.compile(r"\b(?:for|while|do)\b")
NEAR = 3
"""Largest distance in lines between the first line of a loop and the line that g++ reports for
it."""
NESTS = ("loop nest", "multiple nested loops", "outer loop", "nested loop")
"""Beginnings of g++'s reasons that only say that a loop contains other loops. The inner loops have
reports of their own."""
REASONS = (
    (
        "no vectype for stmt",
        "an operation in it has no vector form (a call such as exp, or a type)",
    ),
    ("relevant stmt not supported", "an operation in it has no vector form"),
    ("op not supported", "an operation in it has no vector form"),
    ("statement clobbers memory", "it calls a function that is not inlined"),
    ("unsupported data-type", "no vector size suits it: a sum needs `#pragma omp simd reduction`"),
    ("unsupported use in stmt", "each iteration needs the previous one: use several accumulators"),
    ("complicated access pattern", "it does not access consecutive memory"),
    ("not suitable for gather", "it reads at computed indices"),
    ("control flow in loop", "control flow in it (a break, or a branch that stores or calls)"),
    ("number of iterations cannot", "the number of iterations is not known at its start"),
    ("bad data dependence", "a store may change what a later iteration reads: use __restrict__"),
    ("possible alias", "a store may change what a later iteration reads: use __restrict__"),
)
"""Explanations of g++'s most frequent reasons: pairs (beginning of g++'s text, explanation). Other
reasons are shown in g++'s words."""
_CALL = re.compile(r"statement clobbers memory: (?:\w+ = )?(?:__builtin_)?(\w+) \(")
SHORTEST_TEXT = 16
"""Number of characters below which a loop's source text is omitted, because it would say too
little."""


@dataclass(frozen=True)
class Loop:
    """Vectorisation of one loop, or of all loops that start in the same line."""

    source: str
    line: int
    vector_bytes: int
    """Size in bytes of the widest vectors that the loop uses; 0 if it is scalar."""
    reason: str = ""
    """Why the loop, or a part of it, is scalar; "" if unknown or if all of it is vectorised."""
    text: str = ""
    """Source text of the loop's first line."""

    def __str__(self) -> str:
        return self.shown(None)

    def shown(self, width: int | None) -> str:
        """Describe the loop in one line: place, result and reason, then source text up to `width`
        characters."""
        if self.vector_bytes and self.reason:
            result = f"{self.vector_bytes}-byte vectors in part; the rest is scalar: {self.reason}"
        elif self.vector_bytes:
            result = f"{self.vector_bytes}-byte vectors"
        else:
            result = "not vectorised" + (f": {self.reason}" if self.reason else "")
        line = f"{self.source}:{self.line}: {result}"
        room = len(self.text) if width is None else width - len(line) - len(" in ``")
        if not self.text or room < min(SHORTEST_TEXT, len(self.text)):
            return line
        text = self.text if len(self.text) <= room else f"{self.text[: room - 4].rstrip()} ..."
        return f"{line} in `{text}`"


def with_vector_report(run: compiler.Run, source: Path, library: Path) -> compiler.Run:
    """Return a variant of `run` that also stores g++'s report on loops next to `library`."""

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
    """Return True if this compiler reports vectorised loops in the form of g++."""
    return tools.form == "g++" and "clang" not in tools.version


def vectorised(
    attempt: Attempt, library: Library, *, confine: Confine = sandboxed
) -> tuple[Loop, ...]:
    """Return the loops of a library's source; () if the compiler is not g++ or there is no
    report."""
    report = library.path.with_suffix(".vectors")
    if not report.is_file() and library.source.endswith(".cpp"):
        with suppress(compiler.CompileFailed):
            _compile_for_report(attempt, library, confine)
    if not report.is_file():
        return ()
    return parse_report(report.read_text(), library.source, dict(attempt.files)[library.source])


def _compile_for_report(attempt: Attempt, library: Library, confine: Confine) -> None:
    """Compile a source again, only to store g++'s vectorisation report. Raises CompileFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="cuagent-vectors-") as folder,
        tempfile.TemporaryDirectory(prefix="cuagent-compile-") as scratch,
    ):
        write_sources(attempt, Path(folder))
        source = Path(folder) / library.source
        recipe = compiler.read_recipe(source)
        tools = compiler.toolchain(recipe.form)
        if has_vector_report(tools):
            run = with_vector_report(runner(Path(folder), confine), source, library.path)
            argv = tools.argv(recipe, Path(scratch) / "unused.so", Path(scratch))
            run(argv, Path(scratch), source.parent)


def parse_report(text: str, source: str, code: str) -> tuple[Loop, ...]:
    """Return the loops of `source` in a report of g++, sorted by line; `code` is the source's text.

    One loop can have several reports: for the copies that inlining and templates make, for its
    vector body and its remainder, at its pragma and at its first line. They are merged by line.
    """
    lines = code.splitlines()
    widest: dict[int, int] = {}
    scalar: dict[int, list[str]] = {}
    pending: int | None = None
    for match in filter(None, map(_LINE.match, text.splitlines())):
        line, message = int(match["line"]), match["text"].strip()
        if pending is not None and (call := _CALL.match(message)):
            # the call may stand in a header
            scalar[pending].append(f"it calls {call[1]}, which has no vector form")
            pending = None
            continue
        if Path(match["file"]).name != Path(source).name or not 0 < line <= len(lines):
            continue
        if width := _BYTES.match(message):
            head = _loop_head(lines, line)
            widest[head] = max(widest.get(head, 0), int(width[1]))
        elif message.startswith("couldn't vectorize loop"):
            pending = _loop_head(lines, line)
            scalar.setdefault(pending, [])
        elif message.startswith("not vectorized:") and pending is not None:
            scalar[pending].append(message.removeprefix("not vectorized:").strip(" ."))
            pending = None
    scalar = {
        line: reasons
        for line, reasons in scalar.items()
        if not (reasons and all(reason.startswith(NESTS) for reason in reasons))
    }
    return tuple(
        Loop(
            source,
            line,
            widest.get(line, 0),
            _reason(scalar.get(line, [])),
            lines[line - 1].strip(),
        )
        for line in sorted(widest.keys() | scalar.keys())
    )


def _loop_head(lines: Sequence[str], line: int) -> int:
    """Return the number of the loop's first line, given the line that g++ reports.

    g++ may report a pragma above the loop or a line in its body.
    """
    text = lines[line - 1]
    if _LOOP.search(text) and not text.lstrip().startswith("#"):
        return line
    below = range(line + 1, min(line + NEAR, len(lines)) + 1)
    above = range(line - 1, max(line - NEAR, 1) - 1, -1)
    candidates = below if text.lstrip().startswith("#") else above
    for at in candidates:
        if _LOOP.search(lines[at - 1]) and not lines[at - 1].lstrip().startswith("#"):
            return at
    return line


def _reason(reasons: Sequence[str]) -> str:
    """Return the first of g++'s reasons that concerns the loop itself, explained if it is a known
    one."""
    for reason in reasons:
        if reason.startswith(NESTS):
            continue
        known = next((plain for start, plain in REASONS if reason.startswith(start)), None)
        return known or reason.partition(": _")[0].rstrip(" :.;")
    return ""
