"""Parse the prototypes of a source's exported functions: names and parameters.

This is not a C++ parser. It understands `extern "C"` definitions, single or in blocks, whose
parameters are scalars and pointers to scalars; any other raises an error that names it. It does not
expand macros.

Invariant: the time grows linearly with the text, because the text is not trusted. The scan visits
every character once, and no regular expression here backtracks far.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class PrototypeError(ValueError):
    """Error: an exported function cannot be called from Python. The message is one line."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of an exported function.

    `type` is a canonical name (`float`, `int64`, `half`, ...); for a pointer, of what it points to.
    """

    name: str
    type: str
    pointer: bool
    text: str
    """Declaration as written in the source, for error messages."""


@dataclass(frozen=True)
class Prototype:
    """Name and parameters of one exported function."""

    name: str
    parameters: tuple[Parameter, ...]
    stream: bool
    """True if the function has a last parameter for the current stream, which is not in
    `parameters`."""
    returns_status: bool
    kernel: bool
    """True for a `__global__` kernel."""


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

MAX_CHARACTERS = 1 << 20
"""Largest number of characters of a source that is parsed: forty times the longest kernel of
CUTLASS's examples."""

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
_IGNORED = {"noexcept", "__host__"}
_ALIAS_TOKENS = 12
"""Largest number of tokens from `using` or `typedef` to the end of an alias for a scalar type."""
_QUALIFIERS = re.compile(
    r"\b(?:const|volatile|struct|__restrict__|__restrict|restrict|__grid_constant__)\b"
)


class _Token(NamedTuple):
    text: str
    begin: int
    end: int


def parse(text: str, file: str) -> tuple[Prototype, ...]:
    """Return the exported functions of a source text, in order; `file` is its name in errors.

    Raises PrototypeError, also if the source exports no function.
    """
    if len(text) > MAX_CHARACTERS:
        raise PrototypeError(
            f"{file}: it has {len(text)} characters; the limit is {MAX_CHARACTERS}, so split it"
        )
    text = _DIRECTIVE.sub("", _NOISE.sub(_blanked, text))
    tokens = [_Token(match[0], match.start(), match.end()) for match in _TOKEN.finditer(text)]
    aliases = dict(_aliases(tokens))
    found: dict[str, Prototype] = {}
    for header in _headers(tokens):
        prototype = _prototype(text, header, aliases, file)
        if prototype is not None:
            found[prototype.name] = prototype
    if not found:
        raise PrototypeError(f'{file}: it defines no extern "C" function; export at least one')
    return tuple(found.values())


def _blanked(match: re.Match[str]) -> str:
    """Replace a comment or a literal by a blank.

    Numbers stay, because the quote in 1'000 must not open a character literal.
    """
    keep = match[0] == '"C"' or match[0][0].isdigit()
    return match[0] if keep else " "


def _aliases(tokens: list[_Token]) -> Iterator[tuple[str, str]]:
    """Yield (NAME, TYPE) for each `using NAME = TYPE;` and `typedef TYPE NAME;`."""
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
    """Yield, for each function defined under extern "C", the tokens before its body."""
    scopes: list[bool] = []  # for each open brace, True if it opens a block of extern "C"
    header: list[_Token] = []
    exported = False
    body = 0  # open braces of the function body that is skipped
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
    """Parse the tokens before a function's body.

    Returns None for static, inline and device functions, and for anything that is not a function.
    """
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
    """Remove launch bounds, `__attribute__((...))`, `[[...]]` and other compiler attributes."""
    plain: list[_Token] = []
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
        elif token.text not in _IGNORED:
            plain.append(token)
    return plain


def _is_word(text: str) -> bool:
    return text.isidentifier()


def _parameter(text: str, position: int, where: str, aliases: dict[str, str]) -> Parameter:
    bare = _QUALIFIERS.sub(" ", text.split("=")[0])
    stars = bare.count("*") + bare.count("[")
    words = re.sub(r"\[[^\[\]]*\]|\*", " * ", bare.replace("std::", "")).split()
    type_words = [word for word in words if word != "*"]
    name = f"#{position}"
    # A last word that cannot end a type name is the name of the parameter.
    last = type_words[-1] if len(type_words) > 1 else "int"
    if last not in CANONICAL and last not in ("int", "long"):
        name = type_words.pop()
    spelled = " ".join(type_words)
    spelled = aliases.get(spelled, spelled).replace("std::", "")
    kind = CANONICAL.get(spelled)
    if STREAM in type_words:
        raise PrototypeError(f"{where}: {STREAM} must be the last parameter")
    if kind is None or stars > 1 or "&" in bare:
        raise PrototypeError(
            f"{where}: parameter {position} `{text}` cannot be passed from Python; "
            "take scalars and pointers to plain element types, and cast inside the function"
        )
    if not stars and kind in NO_SCALAR:
        raise PrototypeError(
            f"{where}: parameter {position} `{text}` cannot be passed by value; take float or int"
        )
    return Parameter(name, kind, bool(stars), text)
