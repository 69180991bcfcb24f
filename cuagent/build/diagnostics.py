"""From what a compiler printed to the few messages that an agent needs.

Covers g++ (`file:line:col: error: ...`), nvcc and NVRTC (`file(line): error: ...`), ptxas and the
linker. Notes, instantiation chains and carets are dropped; the source line is read from the file.
Invariant: a failed compile yields at least one error, and every text is short.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cuagent.build.resources import short_name
from cuagent.build.result import Diagnostic

MOST_ERRORS = 5
MOST_WARNINGS = 3
LONGEST = 300
"""Characters of one message."""

NO_TORCH = (
    'torch headers are not needed: export extern "C" launchers that take raw pointers and sizes, '
    "and call them with tensors through cuagent.kernels.load"
)

_GXX = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:\d+:)? "
    r"(?:fatal )?(?P<kind>error|warning): (?P<text>.*)"
)
_NVCC = re.compile(
    r"^(?P<file>[^\s(][^(]*)\((?P<line>\d+)\): (?:catastrophic )?(?P<kind>error|warning)"
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
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):\d+:   required from here"
    r"|instantiation of .* at line (?P<at>\d+)(?: of (?P<of>\S+))?"
)
_FOREIGN = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](torch|ATen|c10|pybind11|Python\.h)\b", re.MULTILINE
)


def foreign_headers(source: str, text: str) -> list[Diagnostic]:
    """An error for the first include of torch, which would cost a minute and is never needed."""
    match = _FOREIGN.search(text)
    if match is None:
        return []
    line = text.count("\n", 0, match.end()) + 1
    return [Diagnostic(source, line, NO_TORCH, text.splitlines()[line - 1].strip())]


def diagnose(output: str, folder: Path, source: str) -> list[Diagnostic]:
    """The first errors and warnings in the compiler's output for `folder / source`.

    Relative names in it are taken as seen from the source's own folder.
    """
    text = _Text(folder.resolve(), (folder / source).resolve())
    found: list[Diagnostic] = []
    lines = output.splitlines()
    for at, line in enumerate(lines):
        if (match := _GXX.match(line) or _NVCC.match(line)) is not None:
            file, number = match["file"], int(match["line"])
            if not text.holds(file):
                file, number = _own_line(lines, at, text) or ("", 0)
            found.append(text.diagnostic(file, number, match["text"], match["kind"]))
        elif (match := _PTXAS.match(line)) is not None and "aborted" not in line:
            found.append(
                text.diagnostic("", 0, f"ptxas: {_demangled(match['text'])}", match["kind"])
            )
        elif (match := _LINKER.search(line)) is not None:
            found.append(text.diagnostic("", 0, f"linker: {match['text']}", "error"))
        elif (match := _OTHER.match(line)) is not None:
            found.append(text.diagnostic("", 0, match["text"], match["kind"]))
    unique = list(dict.fromkeys(found))
    errors = [d for d in unique if d.severity == "error"]
    warnings = [d for d in unique if d.severity == "warning"]
    if not errors and not warnings and output.strip() and "ptxas info" not in output:
        errors = [Diagnostic(source, 0, " ".join(output.split())[:LONGEST], "")]
    return errors[:MOST_ERRORS] + warnings[: 0 if errors else MOST_WARNINGS]


@dataclass(frozen=True)
class _Text:
    """The attempt as laid down for the compiler: its folder and the source that was compiled."""

    folder: Path
    source: Path

    def path(self, file: str) -> Path:
        return (self.source.parent / file).resolve() if file else self.source

    def holds(self, file: str) -> bool:
        return self.path(file).is_relative_to(self.folder)

    def diagnostic(self, file: str, line: int, message: str, kind: str) -> Diagnostic:
        path = self.path(file) if self.holds(file) else self.source
        texts = path.read_text(errors="replace").splitlines() if line and path.is_file() else []
        return Diagnostic(
            file=path.relative_to(self.folder).as_posix(),
            line=line,
            message=message.replace(f"{self.folder}/", "")[:LONGEST],
            source_line=texts[line - 1].strip()[:LONGEST] if 0 < line <= len(texts) else "",
            severity="warning" if kind == "warning" else "error",
        )


def _own_line(lines: list[str], at: int, text: _Text) -> tuple[str, int] | None:
    """Where the attempt's own text caused an error inside a system header."""
    for line in lines[max(0, at - 30) : at + 30]:
        match = _REQUIRED.match(line) or _REQUIRED.search(line)
        if match is None:
            continue
        file = match["file"] or match["of"]
        if file and text.holds(file):
            return file, int(match["line"] or match["at"])
    return None


def _demangled(text: str) -> str:
    return re.sub(r"_Z\w+", lambda m: short_name(m[0]), text)
