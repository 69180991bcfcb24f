"""Describe the arguments and the result of a recorded call as JSON, for an exported package.

A form is {"tensor": input number}, {"output": number}, {"const": value} or {"torch": name of a
dtype}, {"device": name}, {"kind": class number}; or one of these with forms inside:
{"list"|"tuple"|"dict"|"pairs": forms}, {"call": class number, "items": forms} for a named tuple or
an enum, {"object": class number, "items": attributes}, {"node": class number, "items", "context"}
for an object that torch's pytrees know, {"cache": class number, "items": attributes, "layer": form}
for a cache of which a module uses one layer. {"argument": number} is an object of the arguments.
Not covered: objects that `Encoder` writes as a pickle, sets and slices.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from cuagent.capture.calls import OUTPUT, PLACE, Call
from cuagent.capture.encode import TOKEN

Form = dict[str, Any]
NAME = "__{}_{}"
"""Identifier in a parsed text: of an input, an output, an argument or a class."""
MARKS = (("input", PLACE), ("output", OUTPUT))
TOKENS = re.compile(re.escape(TOKEN).replace(r"\{\}", "(.*?)"))


class Forms:
    """Reader of the texts that `Encoder` writes; collects the classes that occur in them."""

    def __init__(self, is_library: Callable[[str], bool]) -> None:
        self._is_library = is_library
        self.kinds: list[dict[str, Any]] = []
        """Classes and functions by their number: module, name, True if it is a library's."""

    def read(self, text: str) -> Form:
        """Return the form of a text. Raises ValueError or SyntaxError if it holds anything else."""
        for name, mark in MARKS:
            pattern = re.escape(mark).replace(r"\{\}", r"(\d+)")
            text = re.sub(pattern, NAME.format(name, r"\1"), text)
        text = TOKENS.sub(lambda found: NAME.format("kind", self._kind(*found.groups())), text)
        return self._node(ast.parse(text, mode="eval").body)

    def _kind(self, module: str, name: str) -> int:
        kind = {"module": module, "name": name, "library": self._is_library(module)}
        if kind not in self.kinds:
            self.kinds.append(kind)
        return self.kinds.index(kind)

    def _node(self, node: ast.expr) -> Form:
        match node:
            case ast.Name(id=name):
                return _named(name)
            case ast.List(elts=items):
                return {"list": [self._node(item) for item in items]}
            case ast.Tuple(elts=items):
                return {"tuple": [self._node(item) for item in items]}
            case ast.Dict(keys=keys, values=values):
                names = [ast.literal_eval(key) for key in keys if key is not None]
                forms = [self._node(value) for value in values]
                pairs = list(zip(names, forms, strict=True))
                if all(isinstance(name, str) for name in names):
                    return {"dict": dict(pairs)}
                if all(isinstance(name, str | int) for name in names):
                    return {"pairs": [list(pair) for pair in pairs]}
            case ast.Call():
                return self._call(node)
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                return {"torch": name}
            case ast.Constant() | ast.UnaryOp():
                value = ast.literal_eval(node)
                if value is None or isinstance(value, (bool, int, float, str)):
                    return {"const": value}
        raise ValueError(ast.unparse(node))

    def _call(self, node: ast.Call) -> Form:
        match node.func, node.args:
            case ast.Name(id="float"), [ast.Constant(value=str() as text)]:
                return {"const": float(text)}
            case ast.Attribute(value=ast.Name(id="torch"), attr="device"), [device]:
                return {"device": ast.literal_eval(device)}
            case ast.Name(id="_object"), [kind, attributes]:
                return {"object": self._number(kind), "items": self._node(attributes)["dict"]}
            case ast.Name(id="_node"), [kind, items, context]:
                inner = self._node(items)["list"]
                return {"node": self._number(kind), "items": inner, "context": self._node(context)}
            case ast.Name(id="_cache"), [kind, attributes, layer, _]:
                rest = self._node(attributes)["dict"]
                return {"cache": self._number(kind), "items": rest, "layer": self._node(layer)}
            case ast.Name() as kind, items if not node.keywords:
                return {"call": self._number(kind), "items": [self._node(item) for item in items]}
        raise ValueError(ast.unparse(node))

    def _number(self, node: ast.expr) -> int:
        form = self._node(node)
        if "kind" not in form:
            raise ValueError(ast.unparse(node))
        return int(form["kind"])


def _named(name: str) -> Form:
    if found := re.fullmatch(NAME.format("(input|output|argument|kind)", r"(\d+)"), name):
        kind = "tensor" if found[1] == "input" else found[1]
        return {kind: int(found[2])}
    raise ValueError(name)


def call_spec(call: Call, forms: Forms) -> Form:
    """Return the arguments of a call in the JSON form of this module.

    Raises ValueError or SyntaxError if an argument contains another kind of object.
    """
    return {
        "inputs": len(call.names),
        "positional": [forms.read(text) for text in call.positional],
        "named": {name: forms.read(text) for name, text in call.named.items()},
    }


def objects_of(call: Call, is_library: Callable[[str], bool]) -> list[str]:
    """Return the arguments that cannot be described, by name or as `argument N`."""
    found = []
    numbered = [(f"argument {number}", text) for number, text in enumerate(call.positional)]
    for name, text in [*numbered, *call.named.items()]:
        try:
            Forms(is_library).read(text)
        except (ValueError, SyntaxError):
            found.append(name)
    return found
