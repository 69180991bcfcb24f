"""Prototypes read from the text of a source: the exported functions and their parameters.

Not a C++ parser: it understands `extern "C"` definitions, single or in blocks, whose parameters
are scalars and pointers to scalars, and refuses the rest by name. Macros are not expanded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


class PrototypeError(ValueError):
    """An exported function has a form that cannot be called from Python. One line."""


@dataclass(frozen=True)
class Parameter:
    """`type` is canonical (`float`, `int64`, `half`, ...); a pointer points to it."""

    name: str
    type: str
    pointer: bool
    text: str
    """As written, for error messages."""


@dataclass(frozen=True)
class Prototype:
    """One exported function. `kernel` marks a `__global__` one; `stream` is not a parameter."""

    name: str
    parameters: tuple[Parameter, ...]
    stream: bool
    returns_status: bool
    kernel: bool


CANONICAL = {
    "float": "float",
    "double": "double",
    "half": "half",
    "__half": "half",
    "_Float16": "half",
    "__nv_bfloat16": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "__bf16": "bfloat16",
    "__nv_fp8_e4m3": "float8_e4m3fn",
    "__nv_fp8_e5m2": "float8_e5m2",
    "bool": "bool",
    "char": "int8",
    "signed char": "int8",
    "int8_t": "int8",
    "unsigned char": "uint8",
    "uint8_t": "uint8",
    "short": "int16",
    "int16_t": "int16",
    "unsigned short": "uint16",
    "uint16_t": "uint16",
    "int": "int32",
    "signed": "int32",
    "int32_t": "int32",
    "unsigned": "uint32",
    "unsigned int": "uint32",
    "uint32_t": "uint32",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "long long int": "int64",
    "int64_t": "int64",
    "ptrdiff_t": "int64",
    "ssize_t": "int64",
    "unsigned long": "uint64",
    "unsigned long long": "uint64",
    "uint64_t": "uint64",
    "size_t": "uint64",
    "void": "void",
}
NO_SCALAR = {"half", "bfloat16", "float8_e4m3fn", "float8_e5m2", "void", "int8", "int16", "uint16"}
STREAM = "cudaStream_t"
STATUS = {"int", "cudaError_t", "int32_t"}

_NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_ALIAS = re.compile(r"\busing\s+(\w+)\s*=\s*([\w: ]+?)\s*;|\btypedef\s+([\w: ]+?)\s+(\w+)\s*;")
_ATTRIBUTE = re.compile(r"\b(?:__launch_bounds__|__cluster_dims__|__attribute__|__maxnreg__)\s*\(")
_HEADER = re.compile(
    r"^(?P<returns>[\w\s:*&]+?)\b(?P<name>\w+)\s*\((?P<parameters>.*)\)$", re.DOTALL
)
_QUALIFIERS = re.compile(
    r"\b(?:const|volatile|struct|__restrict__|__restrict|restrict|__grid_constant__)\b"
)


def parse(text: str, file: str) -> tuple[Prototype, ...]:
    """The exported functions of a source, in order. Raises PrototypeError, also where none is."""
    text = _NOISE.sub(lambda m: '"C"' if m[0] == '"C"' else " ", text)
    text = _DIRECTIVE.sub("", text)
    aliases = {m[1] or m[4]: m[2] or m[3] for m in _ALIAS.finditer(text)}
    found: dict[str, Prototype] = {}
    for header in _headers(text):
        prototype = _prototype(header, aliases, file)
        if prototype is not None:
            found[prototype.name] = prototype
    if not found:
        raise PrototypeError(f'{file}: no extern "C" function is defined; export at least one')
    return tuple(found.values())


def _headers(text: str) -> list[str]:
    """The text before the body of each function defined under extern "C"."""
    headers = []
    for match in re.finditer(r'\bextern\s*"C"\s*', text):
        rest = text[match.end() :]
        if rest.startswith("{"):
            headers += _top_level(rest[1 : _closing(rest, 0)])
        else:
            header = re.match(r"[^{;]*", rest)
            if header and rest[header.end() : header.end() + 1] == "{":
                headers.append(header[0])
    return headers


def _top_level(block: str) -> list[str]:
    headers, start, at = [], 0, 0
    while at < len(block):
        if block[at] == ";":
            start = at + 1
        elif block[at] == "{":
            headers.append(block[start:at])
            at = _closing(block, at)
            start = at + 1
        at += 1
    return headers


def _closing(text: str, opening: int, pair: str = "{}") -> int:
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == pair[0]) - (text[at] == pair[1])
        if depth == 0:
            return at
    return len(text)


def _prototype(header: str, aliases: dict[str, str], file: str) -> Prototype | None:
    """None for what is not exported: static and device functions, types, variables."""
    while attribute := _ATTRIBUTE.search(header):
        end = _closing(header, attribute.end() - 1, "()") + 1
        header = header[: attribute.start()] + header[end:]
    header = re.sub(r"\bnoexcept\b|\b__host__\b|\[\[.*?\]\]", " ", header).strip()
    match = _HEADER.match(header)
    if match is None:
        return None
    returns = match["returns"].split()
    kernel = "__global__" in returns
    if "static" in returns or "__device__" in returns or "inline" in returns:
        return None
    name, written = match["name"], match["parameters"].strip()
    result = " ".join(word for word in returns if word != "__global__")
    if result != "void" and (kernel or result not in STATUS):
        raise PrototypeError(f"{file}: {name} returns {result}; return void, int or cudaError_t")
    pieces = [] if written in ("", "void") else [" ".join(p.split()) for p in written.split(",")]
    stream = bool(pieces) and STREAM in pieces[-1].split()
    if stream:
        pieces.pop()
    parameters = tuple(
        _parameter(piece, position, f"{file}: {name}", aliases)
        for position, piece in enumerate(pieces, 1)
    )
    return Prototype(name, parameters, stream, result in STATUS, kernel)


def _parameter(text: str, position: int, where: str, aliases: dict[str, str]) -> Parameter:
    bare = _QUALIFIERS.sub(" ", text.split("=")[0])
    stars = bare.count("*") + bare.count("[")
    words = re.sub(r"\[[^\]]*\]|\*", " * ", bare.replace("std::", "")).split()
    before = [word for word in words if word != "*"]
    name = f"#{position}"
    # A last word that is not part of a type name is the parameter's own name.
    if len(before) > 1 and before[-1] not in CANONICAL and before[-1] not in ("int", "long"):
        name = before.pop()
    spelled = " ".join(before)
    spelled = aliases.get(spelled, spelled).replace("std::", "")
    kind = CANONICAL.get(spelled)
    if STREAM in before:
        raise PrototypeError(f"{where}: {STREAM} must be the last parameter")
    if kind is None or stars > 1 or "&" in bare:
        raise PrototypeError(
            f"{where}: parameter {position} `{text}` cannot be passed from Python; "
            "take scalars and pointers to plain element types, and cast inside"
        )
    if not stars and kind in NO_SCALAR:
        raise PrototypeError(
            f"{where}: parameter {position} `{text}` cannot be passed by value; take float or int"
        )
    return Parameter(name, kind, bool(stars), text)
