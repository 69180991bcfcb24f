"""Record which attributes of its modules a call of the original reads.

Travels with an exported or applied kernel, next to `replace.py`. Two modules of one class that
agree in all attributes that a call reads run the same code, so other attributes (the number of a
layer, a name) may differ. If a call never reads `training`, the module's mode does not matter.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

ALL = "*"
"""Attribute name that means all attributes of a module; recorded if code reads its `__dict__`."""
Reads = set[tuple[str, str]]
"""Pairs of a module's path and an attribute's name."""
_TORCH = str(Path(torch.__file__).parent)


@contextmanager
def recorded_reads(module: nn.Module) -> Iterator[Reads]:
    """Yield a set; each attribute that the `with` body reads from `module` is added to it.

    The submodules have a subclass of their class meanwhile.
    """
    paths: dict[int, list[str]] = {}
    for path, inner in module.named_modules(remove_duplicate=False):
        paths.setdefault(id(inner), []).append(path)
    found: Reads = set()
    kinds = [(inner, type(inner)) for inner in module.modules()]
    try:
        for inner, kind in kinds:
            inner.__class__ = _recording(kind, paths[id(inner)], found)
        yield found
    finally:
        for inner, kind in kinds:
            inner.__class__ = kind


def reads(found: Reads | None, path: str, name: str) -> bool:
    """Return True if a call may read the attribute; always True if `found` is None (unknown)."""
    return found is None or (path, name) in found or (path, ALL) in found


def _recording(kind: Any, paths: list[str], found: Reads) -> Any:
    def read(self: Any, name: str) -> Any:
        if name == "__dict__":
            # Reads of `__dict__` by torch itself are only look-ups of parameters.
            if not sys._getframe(1).f_code.co_filename.startswith(_TORCH):
                found.update((path, ALL) for path in paths)
        elif not (name == "training" and _never_drops(self)):
            found.update((path, name) for path in paths)
        return kind.__getattribute__(self, name)

    body = {"__getattribute__": read, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), body | {"__qualname__": kind.__qualname__})


def _never_drops(module: nn.Module) -> bool:
    """Return True for a dropout or recurrent module with rate 0; `training` has no effect on it."""
    own = object.__getattribute__(module, "__dict__")
    if isinstance(module, nn.RNNBase):
        return bool(own.get("dropout") == 0)
    return isinstance(module, nn.modules.dropout._DropoutNd) and own.get("p") == 0
