"""Map a call of the user's module to the flat tensor inputs that the kernel takes.

Travels with an exported or applied kernel, next to `replace.py`. The task of a captured module has
one input for each tensor of the recorded call. Other arguments must equal the recorded constants.
torch.compile traces `CallForm.inputs`, so it uses plain tuples only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

_ABSENT = object()


class CallForm:
    """The recorded form of a call: arguments by position and by name.

    Each argument is the index of a task input, a constant, or a list, tuple or dict of these.
    """

    def __init__(self, call: dict[str, Any], forward: Callable[..., Any]) -> None:
        self.count: int = call["inputs"]
        self._positional = tuple(_form(item) for item in call["positional"])
        self._named = tuple((name, _form(item)) for name, item in call["named"].items())
        self._keys = tuple(name for name, _ in self._named)
        self._names, self._defaults = _parameters(forward)
        self._all = dict(zip(self._names, self._positional, strict=False)) | dict(self._named)
        self._by_name = len(self._positional) <= len(self._names)
        forms = (*self._positional, *(form for _, form in self._named))
        # True for the usual call: only distinct tensors, in the order of the task's inputs.
        self._plain = forms == tuple(("tensor", number) for number in range(self.count))

    def inputs(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return the tensors of a call in the task's order; None if the call has another form."""
        if self._plain and len(args) == len(self._positional) and tuple(named) == self._keys:
            return (*args, *named.values()) if named else args
        found: list[Any] = [None] * self.count
        if len(args) == len(self._positional) and tuple(named) == self._keys:
            for value, form in zip(args, self._positional, strict=True):
                if not _taken(value, form, found):
                    return None
            for name, form in self._named:
                if not _taken(named[name], form, found):
                    return None
            return tuple(found)
        if not self._by_name or len(args) > len(self._names):
            return None
        given = dict(zip(self._names, args, strict=False))
        for name in named:
            if name in given:
                return None
        given.update(named)
        for name, form in self._all.items():
            value = given[name] if name in given else self._defaults.get(name, _ABSENT)
            if not _taken(value, form, found):
                return None
        for name, value in given.items():
            if name not in self._all:
                if name not in self._defaults:
                    return None
                default = self._defaults[name]
                if value is not default and not _equal(value, default):
                    return None
        return tuple(found)


def _form(item: dict[str, Any]) -> tuple[Any, ...]:
    """Return one recorded argument as nested tuples (kind, value or items)."""
    (kind, value), *_ = item.items()
    if kind in ("list", "tuple"):
        return (kind, tuple(_form(inner) for inner in value))
    if kind == "dict":
        return (kind, tuple((key, _form(inner)) for key, inner in value.items()))
    return (kind, value)


def _taken(value: Any, form: tuple[Any, ...], found: list[Any]) -> bool:
    """Store the tensors of an argument in `found`, at their input's index.

    Returns False if the argument does not have the recorded form.
    """
    kind, inner = form
    if kind == "tensor":
        if not isinstance(value, Tensor):
            return False
        if found[inner] is not None and found[inner] is not value:
            return False
        found[inner] = value
        return True
    if kind == "const":
        return _equal(value, inner)
    if kind == "dict":
        if type(value) is not dict or len(value) != len(inner):
            return False
        for key, part in inner:
            if key not in value or not _taken(value[key], part, found):
                return False
        return True
    if type(value) is not (list if kind == "list" else tuple) or len(value) != len(inner):
        return False
    return all(_taken(item, part, found) for item, part in zip(value, inner, strict=True))


def _equal(value: Any, other: Any) -> bool:
    if value is None or other is None:
        return value is other
    if isinstance(value, Tensor):
        return False
    return type(value) is type(other) and bool(value == other)


def _parameters(forward: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the names of the positional parameters and the default values, without `self`."""
    try:
        found = list(inspect.signature(forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return (), {}
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(p.name for p in found if p.kind in by_position)
    return names, {p.name: p.default for p in found if p.default is not inspect.Parameter.empty}
