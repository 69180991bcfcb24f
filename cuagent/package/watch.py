"""Notice within a microsecond that a module changed since its kernel was bound to it.

Travels with an exported or applied kernel, next to `replace.py`. A watch compares the identity of
each parameter, buffer, submodule and attribute that a verified call reads, the address and number
of elements of each tensor, the number of hooks, and the items of attributes that are small objects,
dicts and lists. Not covered: changes inside of larger ones, and deeper changes.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .forms import PLAIN
from .likeness import GLOBAL_HOOKS, INTERNAL
from .reads import Reads, reads
from .state import HOOKS, state_names

HELD = ("_parameters", "_buffers", "_modules")
UNWATCHED = INTERNAL - {"training"}
"""Names of attributes that are not compared."""
MOST_ITEMS = 16
"""Largest number of items of an attribute that are compared in each call."""


class Watch:
    """Snapshot of a module's attributes, tensors and submodules, to detect later changes."""

    def __init__(self, module: nn.Module, read: Reads | None = None) -> None:
        """`read` are the attributes that a verified call reads; None if they are unknown."""
        entries: list[tuple[Any, Any, Any]] = []
        holders: list[Any] = []
        for path, inner in module.named_modules():
            own = inner.__dict__
            entries += [
                (own[name], key, value) for name in HELD for key, value in own[name].items()
            ]
            for key, value in own.items():
                if key in UNWATCHED or not reads(read, path, key):
                    continue
                entries.append((own, key, value))
                if items := _items(value):
                    entries += [(items[0], at, inner) for at, inner in items[1]]
                    holders.append(items[0])
            holders += [own, own["_modules"]]
            if inner is not module:  # hooks of the module itself run around its forward
                holders += [own[name] for name in HOOKS]
        if module._modules:
            holders += GLOBAL_HOOKS
        self._entries = entries
        self._lengths = [(holder, len(holder)) for holder in holders]
        self.tensors = state_names(module)[1]
        self.plain = all(tensor.__class__ in PLAIN for tensor in self.tensors)
        plain = self.tensors if self.plain else []
        self._pointers = [(tensor, tensor.data_ptr(), tensor.numel()) for tensor in plain]
        # With the same address, only tensors of several dimensions can have other strides.
        self._packed = [(tensor, tensor.is_contiguous()) for tensor in plain if tensor.ndim > 1]

    def unchanged(self) -> bool:
        """Return True if nothing was replaced, added, removed or moved to other memory.

        Every call of an optimized module runs this. Loops take half the time of `map` here.
        """
        try:
            for owner, key, value in self._entries:
                if owner[key] is not value:
                    return False
        except LookupError:
            return False
        for tensor, place, count in self._pointers:
            if _pointer(tensor) != place or _count(tensor) != count:
                return False
        for holder, length in self._lengths:
            if len(holder) != length:
                return False
        for tensor, packed in self._packed:  # noqa: SIM110  a generator takes longer
            if _is_packed(tensor) is not packed:
                return False
        return True


def _items(value: Any) -> tuple[Any, list[tuple[Any, Any]]] | None:
    """Return the dict or list of a mutable attribute and its (key, value) pairs; None for others
    and for a large one."""
    if type(value) is list:
        return (value, list(enumerate(value))) if len(value) <= MOST_ITEMS else None
    held = value if type(value) is dict else None
    if held is None and not isinstance(value, (type, Tensor, nn.Module)) and not callable(value):
        held = getattr(value, "__dict__", None)
    small = type(held) is dict and len(held) <= MOST_ITEMS
    return (held, list(held.items())) if held and small else None


_pointer = Tensor.data_ptr
_count = Tensor.numel
_is_packed = Tensor.is_contiguous
