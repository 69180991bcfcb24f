"""Convert nested values with tensors to a flat list and a JSON description ("spec"), and back.

Such a tree is the arguments or the result of a module: tensors in nested lists, tuples, named
tuples and dicts, with plain scalars. The spec crosses process boundaries as text, so nothing is
unpickled. torch.utils._pytree is not used: its JSON form is private, names Python classes to
import, and accepts any registered class.

Invariant: `unflatten(*flatten(tree))` equals `tree`, with dict keys in sorted order. So two equal
dicts have equal specs, regardless of the order in which they were filled.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Spec = dict[str, Any]
"""JSON description of a tree: {"kind": "tensor" | "const" | "list" | "tuple" | "namedtuple" |
"dict", ...}."""

DEEPEST = 64
"""Largest depth of nested containers in a tree."""


class TreeError(TypeError):
    """Error: a value is not a tree of tensors. The message is one line that names the offending
    part."""


def flatten(tree: Any, name: str = "value") -> tuple[list[Tensor], Spec]:
    """Return the tensors of a tree from left to right, and the spec of the rest. Raises TreeError.

    `name` is the tree's name in an error, such as `output[1]['x'] is a set`.
    """
    leaves: list[Tensor] = []
    return leaves, _describe(tree, leaves, name, 0)


def unflatten(leaves: Sequence[Any], spec: Spec) -> Any:
    """Return the tree of `spec` with `leaves` in place of its tensors.

    Raises TreeError if their number differs.
    """
    wanted = count(spec)
    if len(leaves) != wanted:
        raise TreeError(f"{len(leaves)} tensors for a tree of {wanted}")
    return _rebuild(iter(leaves), spec)


def count(spec: Spec) -> int:
    """Return the number of tensors in the tree that `spec` describes."""
    return 1 if spec["kind"] == "tensor" else sum(map(count, spec.get("items", ())))


def _describe(value: Any, leaves: list[Tensor], name: str, depth: int) -> Spec:
    import torch

    if depth > DEEPEST:
        raise TreeError(f"{name} is nested more than {DEEPEST} deep")
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return {"kind": "tensor"}
    if value is None or type(value) in (bool, int, float, str):
        return {"kind": "const", "value": value}
    if isinstance(value, Mapping):
        if not all(type(key) in (str, int) for key in value):
            raise TreeError(f"{name} is a dict with keys that are neither str nor int")
        keys = sorted(value, key=lambda key: (type(key).__name__, key))
        items = [_describe(value[key], leaves, f"{name}[{key!r}]", depth + 1) for key in keys]
        return {"kind": "dict", "keys": keys, "items": items}
    if isinstance(value, list | tuple):
        items = [
            _describe(item, leaves, f"{name}[{index}]", depth + 1)
            for index, item in enumerate(value)
        ]
        if fields := getattr(value, "_fields", None):
            kind = type(value).__name__
            return {"kind": "namedtuple", "name": kind, "fields": list(fields), "items": items}
        # torch.return_types (of torch.max and others) act as tuples for a caller.
        return {"kind": "list" if isinstance(value, list) else "tuple", "items": items}
    raise TreeError(f"{name} is a {type(value).__name__}, not a tensor or a container of tensors")


def _rebuild(leaves: Iterator[Any], spec: Spec) -> Any:
    if spec["kind"] == "tensor":
        return next(leaves)
    if spec["kind"] == "const":
        return spec["value"]
    items = [_rebuild(leaves, item) for item in spec["items"]]
    if spec["kind"] == "list":
        return items
    if spec["kind"] == "dict":
        return dict(zip(spec["keys"], items, strict=True))
    if spec["kind"] == "namedtuple":
        return namedtuple(spec["name"], spec["fields"])(*items)
    return tuple(items)
