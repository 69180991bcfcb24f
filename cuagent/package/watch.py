"""Notice within a microsecond that a module changed since its kernel was bound to it.

Travels with an exported or applied kernel, next to `replace.py`. A watch compares the identity of
each parameter, buffer, submodule and attribute, and the place of each tensor's memory. Not covered:
an attribute that is a mutable object and changes without being replaced.
"""

from __future__ import annotations

from operator import is_

from torch import Tensor, nn

from .boundary import state_names
from .forms import PLAIN

HELD = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class Watch:
    """The attributes, tensors and submodules of a module at one time."""

    def __init__(self, module: nn.Module) -> None:
        owners, keys, values, holders = [], [], [], []
        for inner in module.modules():
            own = inner.__dict__
            entries = [(own[name], key, value) for name in HELD for key, value in own[name].items()]
            entries += [(own, key, value) for key, value in own.items() if key[:1] != "_"]
            holders += [own, own["_modules"]]
            if inner is not module:  # hooks of the module itself run around its forward
                holders += [own[name] for name in HOOKS]
            owners += [entry[0] for entry in entries]
            keys += [entry[1] for entry in entries]
            values += [entry[2] for entry in entries]
        self._owners, self._keys, self._values, self._holders = owners, keys, values, holders
        self._lengths = [len(holder) for holder in holders]
        self.tensors = state_names(module)[1]
        self.plain = all(tensor.__class__ in PLAIN for tensor in self.tensors)
        self._pointers = [tensor.data_ptr() for tensor in self.tensors] if self.plain else []
        # Memory of one place can be seen with other strides only if there are several dimensions.
        self._matrices = [t for t in self.tensors if self.plain and t.ndim > 1]
        self._packed = [tensor.is_contiguous() for tensor in self._matrices]

    def unchanged(self) -> bool:
        """Return True if nothing was replaced, added, removed or moved."""
        return (
            [*map(_pointer, self.tensors)] == self._pointers
            and [*map(len, self._holders)] == self._lengths
            and all(map(is_, map(_get, self._owners, self._keys), self._values))
            and (not self._packed or [*map(_is_packed, self._matrices)] == self._packed)
        )


_get = dict.get
_pointer = Tensor.data_ptr
_is_packed = Tensor.is_contiguous
