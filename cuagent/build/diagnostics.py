"""From what a compiler printed to the few messages that an agent needs.

Covers g++ (`file:line:col: error: ...`), nvcc and NVRTC (`file(line): error: ...`), ptxas and the
linker. Notes, instantiation chains and carets are dropped; the source line is read from the file.
Invariant: a failed compile yields at least one error, and every text is short.
"""

from __future__ import annotations

import re
from pathlib import Path

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
    """The first errors and warnings in the compiler's output for `folder / source`."""
    found: list[Diagnostic] = []
    lines = output.splitlines()
    for at, line in enumerate(lines):
        if (match := _GXX.match(line) or _NVCC.match(line)) is not None:
            file, number = match["file"], int(match["line"])
            if not _inside(file, folder):
                file, number = _user_line(lines, at, folder) or (source, 0)
            found.append(_diagnostic(folder, file, number, match["text"], match["kind"]))
        elif (match := _PTXAS.match(line)) is not None and "aborted" not in line:
            text = f"ptxas: {_demangled(match['text'])}"
            found.append(_diagnostic(folder, source, 0, text, match["kind"]))
        elif (match := _LINKER.search(line)) is not None:
            found.append(_diagnostic(folder, source, 0, f"linker: {match['text']}", "error"))
        elif (match := _OTHER.match(line)) is not None:
            found.append(_diagnostic(folder, source, 0, match["text"], match["kind"]))
    unique = list(dict.fromkeys(found))
    errors = [d for d in unique if d.severity == "error"]
    warnings = [d for d in unique if d.severity == "warning"]
    if not errors and not warnings and output.strip() and "ptxas info" not in output:
        errors = [Diagnostic(source, 0, " ".join(output.split())[:LONGEST], "")]
    return errors[:MOST_ERRORS] + warnings[: 0 if errors else MOST_WARNINGS]


def _diagnostic(folder: Path, file: str, line: int, text: str, kind: str) -> Diagnostic:
    path = folder / file
    shown = ""
    if line and path.is_file():
        texts = path.read_text(errors="replace").splitlines()
        shown = texts[line - 1].strip()[:LONGEST] if line <= len(texts) else ""
    name = path.relative_to(folder).as_posix() if _inside(file, folder) else file
    text = text.replace(f"{folder}/", "")[:LONGEST]
    return Diagnostic(name, line, text, shown, "warning" if kind == "warning" else "error")


def _inside(file: str, folder: Path) -> bool:
    return (folder / file).resolve().is_relative_to(folder.resolve())


def _user_line(lines: list[str], at: int, folder: Path) -> tuple[str, int] | None:
    """Where the attempt's own text caused an error inside a system header."""
    for line in lines[max(0, at - 30) : at + 30]:
        match = _REQUIRED.match(line.strip()) or _REQUIRED.search(line)
        if match is None:
            continue
        file, number = (
            (match["file"], match["line"]) if match["file"] else (match["of"], match["at"])
        )
        if file and _inside(file, folder):
            return file, int(number)
    return None


def _demangled(text: str) -> str:
    from cuagent.build.resources import short_name

    return re.sub(r"_Z\w+", lambda m: short_name(m[0]), text)
