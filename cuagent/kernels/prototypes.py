"""Prototypes read from the text of a source: the exported functions and their parameters.

Not a C++ parser: it understands `extern "C"` definitions, single or in blocks, whose parameters
are scalars and pointers to scalars, and refuses the rest by name. Macros are not expanded.
Invariant: the time taken grows in proportion to the text, whatever it says; who wrote it is not
trusted. So every character is passed once, and no pattern here can fail after a long way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


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

MOST_CHARACTERS = 1 << 20
"""Of one source: forty times the longest kernel of CUTLASS's examples."""

_NOISE = re.compile(
    r"""
      //[^\n]*
    | /\*(?:[^*]|\*(?!/))*(?:\*/|\Z)
    | R"(?P<fence>[^()\\\s"]{0,16})\(.*?(?:\)(?P=fence)"|\Z)
    | "(?:\\.|[^"\\\n])*"?
    | \b\d[\w.']*
    | '(?:\\.|[^'\\\n])*'?
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\\\n]|\\.)*", re.MULTILINE | re.DOTALL)
_TOKEN = re.compile(r'"C"|\w+|::|[^\s\w]')
_ATTRIBUTES = {"__launch_bounds__", "__cluster_dims__", "__attribute__", "__maxnreg__"}
_IDLE = {"noexcept", "__host__"}
_ALIAS_TOKENS = 12
"""Of the longest alias that names a scalar type."""
_QUALIFIERS = re.compile(
    r"\b(?:const|volatile|struct|__restrict__|__restrict|restrict|__grid_constant__)\b"
)


class _Token(NamedTuple):
    text: str
    begin: int
    end: int


def parse(text: str, file: str) -> tuple[Prototype, ...]:
    """The exported functions of a source, in order. Raises PrototypeError, also where none is."""
    if len(text) > MOST_CHARACTERS:
        raise PrototypeError(
            f"{file}: {len(text)} characters; split it, no more than {MOST_CHARACTERS} are read"
        )
    text = _DIRECTIVE.sub("", _NOISE.sub(_quieted, text))
    tokens = [_Token(match[0], match.start(), match.end()) for match in _TOKEN.finditer(text)]
    aliases = dict(_aliases(tokens))
    found: dict[str, Prototype] = {}
    for header in _headers(tokens):
        prototype = _prototype(text, header, aliases, file)
        if prototype is not None:
            found[prototype.name] = prototype
    if not found:
        raise PrototypeError(f'{file}: no extern "C" function is defined; export at least one')
    return tuple(found.values())


def _quieted(match: re.Match[str]) -> str:
    """A blank for comments and literals; numbers stay, so that 1'000 opens no literal."""
    kept = match[0] == '"C"' or match[0][0].isdigit()
    return match[0] if kept else " "


def _aliases(tokens: list[_Token]) -> Iterator[tuple[str, str]]:
    """`using NAME = TYPE;` and `typedef TYPE NAME;`"""
    for at, token in enumerate(tokens):
        if token.text not in ("using", "typedef"):
            continue
        words = [other.text for other in tokens[at + 1 : at + _ALIAS_TOKENS]]
        if ";" not in words:
            continue
        words = words[: words.index(";")]
        if token.text == "using" and words[1:2] == ["="]:
            yield words[0], _spelled(words[2:])
        elif token.text == "typedef" and len(words) > 1:
            yield words[-1], _spelled(words[:-1])


def _spelled(words: list[str]) -> str:
    return " ".join(words).replace(" :: ", "::")


def _headers(tokens: list[_Token]) -> Iterator[list[_Token]]:
    """What stands before the body of each function defined under extern "C"."""
    scopes: list[bool] = []  # of the open braces: whether they are a block of extern "C"
    header: list[_Token] = []
    exported = False
    body = 0  # braces of a function that is passed over
    for at, token in enumerate(tokens):
        if body:
            body += (token.text == "{") - (token.text == "}")
        elif token.text == '"C"' and at and tokens[at - 1].text == "extern":
            header, exported = [], True
        elif token.text == "{":
            if header and (exported or (scopes and scopes[-1])):
                yield header
                body = 1
            else:
                scopes.append(exported)
            header, exported = [], False
        elif token.text in ("}", ";"):
            if token.text == "}" and scopes:
                scopes.pop()
            header, exported = [], False
        else:
            header.append(token)


def _prototype(
    text: str, header: list[_Token], aliases: dict[str, str], file: str
) -> Prototype | None:
    """None for what is not exported: static and device functions, types, variables."""
    header = _without_attributes(header)
    words = [token.text for token in header]
    opening = words.index("(") if "(" in words else 0
    if opening < 2 or words[-1] != ")" or not _is_word(words[opening - 1]):
        return None
    returns, name = words[: opening - 1], words[opening - 1]
    if not all(_is_word(word) or word in ("::", "*", "&") for word in returns):
        return None
    kernel = "__global__" in returns
    if "static" in returns or "__device__" in returns or "inline" in returns:
        return None
    result = _spelled([word for word in returns if word != "__global__"])
    if result != "void" and (kernel or result not in STATUS):
        raise PrototypeError(f"{file}: {name} returns {result}; return void, int or cudaError_t")
    written = text[header[opening].end : header[-1].begin].strip()
    pieces = [] if written in ("", "void") else [" ".join(p.split()) for p in written.split(",")]
    stream = bool(pieces) and STREAM in pieces[-1].split()
    if stream:
        pieces.pop()
    parameters = tuple(
        _parameter(piece, position, f"{file}: {name}", aliases)
        for position, piece in enumerate(pieces, 1)
    )
    return Prototype(name, parameters, stream, result in STATUS, kernel)


def _without_attributes(header: list[_Token]) -> list[_Token]:
    """Without launch bounds, `__attribute__((...))`, `[[...]]` and other words for the compiler."""
    kept: list[_Token] = []
    depth, pending = 0, False
    for at, token in enumerate(header):
        double = token.text == "[" and [t.text for t in header[at + 1 : at + 2]] == ["["]
        if depth:
            depth += (token.text in "([") - (token.text in ")]")
        elif pending and token.text == "(":
            depth, pending = 1, False
        elif double:
            depth = 1
        elif token.text in _ATTRIBUTES:
            pending = True
        elif token.text not in _IDLE:
            kept.append(token)
    return kept


def _is_word(text: str) -> bool:
    return text.isidentifier()


def _parameter(text: str, position: int, where: str, aliases: dict[str, str]) -> Parameter:
    bare = _QUALIFIERS.sub(" ", text.split("=")[0])
    stars = bare.count("*") + bare.count("[")
    words = re.sub(r"\[[^\[\]]*\]|\*", " * ", bare.replace("std::", "")).split()
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
