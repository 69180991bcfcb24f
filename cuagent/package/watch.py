"""Notice within a microsecond that a module changed since its kernel was bound to it.

Travels with an exported or applied kernel, next to `replace.py`. A watch compares the identity of
each parameter, buffer, submodule and attribute, and the place of each tensor's memory. Not covered:
an attribute that is a mutable object and changes without being replaced.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .boundary import state_names
from .forms import PLAIN

HELD = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class Watch:
    """The attributes, tensors and submodules of a module at one time."""

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
        # Memory of one place can be seen with other strides only if there are several dimensions.
        self._packed = [(tensor, tensor.is_contiguous()) for tensor in plain if tensor.ndim > 1]

    def unchanged(self) -> bool:
        """Return True if nothing was replaced, added, removed or moved.

        Each call of an optimized module waits for this; loops take half the time of `map` here.
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
