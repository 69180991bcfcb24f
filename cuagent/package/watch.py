"""Notice within a microsecond that a module changed since its kernel was bound to it.

Travels with an exported or applied kernel, next to `replace.py`. A watch compares the identity of
each parameter, buffer, submodule and attribute, and the address of each tensor. Not covered:
an attribute that is a mutable object and changes without being replaced.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .forms import PLAIN
from .state import state_names

HELD = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class Watch:
    """Snapshot of a module's attributes, tensors and submodules, to detect later changes."""

    def __init__(self, module: nn.Module) -> None:
        entries: list[tuple[dict[str, Any], str, Any]] = []
        holders: list[Any] = []
        for inner in module.modules():
            own = inner.__dict__
            entries += [
                (own[name], key, value) for name in HELD for key, value in own[name].items()
            ]
            entries += [(own, key, value) for key, value in own.items() if key[:1] != "_"]
            holders += [own, own["_modules"]]
            if inner is not module:  # hooks of the module itself run around its forward
                holders += [own[name] for name in HOOKS]
        self._entries = entries
        self._lengths = [(holder, len(holder)) for holder in holders]
        self.tensors = state_names(module)[1]
        self.plain = all(tensor.__class__ in PLAIN for tensor in self.tensors)
        plain = self.tensors if self.plain else []
        self._pointers = [(tensor, tensor.data_ptr()) for tensor in plain]
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
        except KeyError:
            return False
        for tensor, place in self._pointers:
            if _pointer(tensor) != place:
                return False
        for holder, length in self._lengths:
            if len(holder) != length:
                return False
        for tensor, packed in self._packed:  # noqa: SIM110  a generator takes longer
            if _is_packed(tensor) is not packed:
                return False
        return True


_pointer = Tensor.data_ptr
_is_packed = Tensor.is_contiguous
