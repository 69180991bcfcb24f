"""Reduce the output of a compiler to the few messages that an agent needs.

Covers g++ (`file:line:col: error: ...`), nvcc and NVRTC (`file(line): error: ...`), ptxas and the
linker. Notes, instantiation chains and carets are dropped; the source line comes from the attempt.
Invariant: a failed compile yields at least one error, and every text is short.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cuagent.attempt import Attempt
from cuagent.build.resources import short_name
from cuagent.build.result import Diagnostic

MOST_ERRORS = 5
MOST_WARNINGS = 3
MOST_FOUND = 200
"""Largest number of messages that are parsed before the first few are selected."""
LONGEST = 300
"""Largest number of characters of a message that is shown."""
MOST_LINES, LONGEST_LINE = 20_000, 2_000
"""Largest number of lines of compiler output, and of characters in a line, that are parsed. A
source can make a compiler print any amount."""

NO_TORCH = (
    'torch headers are not needed: export extern "C" launchers that take raw pointers and sizes, '
    "and call them with tensors through cuagent.kernels.load"
)

_GXX = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d{1,9}):(?:\d+:)? "
    r"(?:fatal )?(?P<kind>error|warning): (?P<text>.*)"
)
_NVCC = re.compile(
    r"^(?P<file>[^\s(][^(]*)\((?P<line>\d{1,9})\): (?:catastrophic )?(?P<kind>error|warning)"
    r"(?: #[\w-]+)?: (?P<text>.*)"
)
_PTXAS = re.compile(r"^ptxas (?:[^,]*, line \d+; )?(?P<kind>error|fatal|warning)\s*: (?P<text>.*)")
_LINKER = re.compile(
    r"(?P<text>undefined reference to .*|cannot find -l.*|multiple definition of [^;]*)"
)
_OTHER = re.compile(
    r"^(?:nvcc|nvrtc|\S*cc1plus|g\+\+|c\+\+)(?:[^:]*:)? ?"
    r"(?P<kind>fatal error|error|fatal|warning)\s*: (?P<text>.*)"
)
_REQUIRED = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d{1,9}):\d+:   required from here"
    r"|instantiation of .* at line (?P<at>\d{1,9})(?: of (?P<of>\S+))?"
)
_FOREIGN = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](torch|ATen|c10|pybind11|Python\.h)\b", re.MULTILINE
)


def foreign_headers(source: str, text: str) -> list[Diagnostic]:
    """Return an error for the first include of a torch or Python header, in a list; [] if there is
    none.

    Such a header takes a minute to compile and is not needed.
    """
    match = _FOREIGN.search(text)
    if match is None:
        return []
    line = text.count("\n", 0, match.end()) + 1
    return [Diagnostic(source, line, NO_TORCH, text.splitlines()[line - 1].strip())]


def diagnose(output: str, attempt: Attempt, source: str, folder: Path) -> list[Diagnostic]:
    """Return the first errors in the compiler's output for `source`, or its first warnings if no
    errors.

    `folder` contained the attempt; relative names in the output start from the source's folder.
    Source lines come from the attempt: no file that the output names is opened.
    """
    text = _Text(folder, source, dict(attempt.files))
    found: dict[Diagnostic, None] = {}
    lines = [line[:LONGEST_LINE] for line in output.splitlines()[:MOST_LINES]]
    for at, line in enumerate(lines):
        if sum(d.severity == "error" for d in found) >= MOST_ERRORS or len(found) > MOST_FOUND:
            break
        if (match := _GXX.match(line) or _NVCC.match(line)) is not None:
            file, number = match["file"], int(match["line"])
            if not text.has_file(file):
                file, number = _own_line(lines, at, text) or ("", 0)
            found[text.diagnostic(file, number, match["text"], match["kind"])] = None
        elif (match := _PTXAS.match(line)) is not None and "aborted" not in line:
            message = f"ptxas: {_demangled(match['text'])}"
            found[text.diagnostic("", 0, message, match["kind"])] = None
        elif (match := _LINKER.search(line)) is not None:
            found[text.diagnostic("", 0, f"linker: {match['text']}", "error")] = None
        elif (match := _OTHER.match(line)) is not None:
            found[text.diagnostic("", 0, match["text"], match["kind"])] = None
    errors = [d for d in found if d.severity == "error"]
    warnings = [d for d in found if d.severity == "warning"]
    if not errors and not warnings and output.strip() and "ptxas info" not in output:
        errors = [Diagnostic(source, 0, " ".join(output.split())[:LONGEST], "")]
    return errors[:MOST_ERRORS] + warnings[: 0 if errors else MOST_WARNINGS]


@dataclass(frozen=True)
class _Text:
    """The compiled attempt: its folder, the name of the compiled source, and the texts of its files
    by name."""

    folder: Path
    source: str
    texts: Mapping[str, str]

    def name(self, file: str) -> str:
        """Return the name, within the attempt, of a file in a compiler's message; "" for other
        files."""
        path = os.path.normpath(self.folder / Path(self.source).parent / file)
        inside = path.removeprefix(f"{self.folder}/")
        return inside if inside in self.texts else ""

    def has_file(self, file: str) -> bool:
        return bool(self.name(file))

    def diagnostic(self, file: str, line: int, message: str, kind: str) -> Diagnostic:
        name = (file and self.name(file)) or self.source
        return Diagnostic(
            file=name,
            line=line,
            message=message.replace(f"{self.folder}/", "")[:LONGEST],
            source_line=self._line(name, line)[:LONGEST],
            severity="warning" if kind == "warning" else "error",
        )

    def _line(self, name: str, line: int) -> str:
        lines = self.texts.get(name, "").splitlines() if line else []
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def _own_line(lines: list[str], at: int, text: _Text) -> tuple[str, int] | None:
    """Return the file and line of the attempt's code that led to the error at `lines[at]` in a
    system header.

    Returns None if no line of the output near it names such a file.
    """
    for line in lines[max(0, at - 30) : at + 30]:
        match = _REQUIRED.match(line) or _REQUIRED.search(line)
        if match is None:
            continue
        file = match["file"] or match["of"]
        if file and text.has_file(file):
            return file, int(match["line"] or match["at"])
    return None


def _demangled(text: str) -> str:
    return re.sub(r"_Z\w+", lambda m: short_name(m[0]), text)
