"""Describe the arguments of a recorded call as JSON, for an exported package.

An argument is {"tensor": input number}, {"const": value}, or {"list"|"tuple"|"dict": arguments}.
Not covered: other objects, such as caches and dataclasses.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from cuagent.capture.calls import PLACE, Call

INPUT = "__input_{}"
PLACES = re.compile(re.escape(PLACE).replace(r"\{\}", r"(\d+)"))


def call_spec(call: Call) -> dict[str, Any] | None:
    """Return the arguments of a call in the JSON form of this module; None if an argument contains
    another kind of object."""
    try:
        return {
            "inputs": len(call.names),
            "positional": [_spec(text) for text in call.positional],
            "named": {name: _spec(text) for name, text in call.named.items()},
        }
    except (ValueError, SyntaxError):
        return None


def objects_of(call: Call) -> list[str]:
    """Return the arguments that hold other objects, by name or as `argument N`."""
    found = []
    numbered = [(f"argument {number}", text) for number, text in enumerate(call.positional)]
    for name, text in [*numbered, *call.named.items()]:
        try:
            _spec(text)
        except (ValueError, SyntaxError):
            found.append(name)
    return found


def _spec(text: str) -> dict[str, Any]:
    return _node(
        ast.parse(PLACES.sub(lambda found: INPUT.format(found[1]), text), mode="eval").body
    )


def _node(node: ast.expr) -> dict[str, Any]:
    """Return the JSON form of an expression that `Encoder` wrote. Raises ValueError."""
    match node:
        case ast.Name(id=name) if found := re.fullmatch(INPUT.format(r"(\d+)"), name):
            return {"tensor": int(found[1])}
        case ast.List(elts=items):
            return {"list": [_node(item) for item in items]}
        case ast.Tuple(elts=items):
            return {"tuple": [_node(item) for item in items]}
        case ast.Dict(keys=keys, values=values):
            names = [ast.literal_eval(key) for key in keys if key is not None]
            if all(isinstance(name, str) for name in names):
                pairs = zip(names, values, strict=True)
                return {"dict": {name: _node(value) for name, value in pairs}}
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str() as text)]):
            return {"const": float(text)}
        case ast.Constant() | ast.UnaryOp():
            value = ast.literal_eval(node)
            if value is None or isinstance(value, (bool, int, float, str)):
                return {"const": value}
    raise ValueError(ast.unparse(node))
