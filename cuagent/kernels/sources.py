"""Detect in a fraction of a microsecond that a parameter of a module was replaced or changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Watched = tuple[
    list[tuple[dict[str, Any], str, Any]], list[tuple[dict[str, Any], str, Any, int, int]]
]
"""Recorded state of a module: submodules as (dict that contains it, key there, module), and tensors
as (dict, key there, tensor, address, count of in-place changes)."""


def watch(module: torch.nn.Module, names: Sequence[str]) -> Watched | None:
    """Record the current state of the parameters and buffers with these names, for `unchanged`.

    Returns None if one of them has no count of changes (an inference tensor) or is computed at each
    access.
    """
    modules: dict[str, tuple[dict[str, Any], str, Any]] = {}
    tensors: list[tuple[dict[str, Any], str, Any, int, int]] = []
    for name in names:
        *path, last = name.split(".")
        owner = module
        for k, part in enumerate(path):
            held: dict[str, Any] = owner._modules
            modules[".".join(path[: k + 1])] = (held, part, held[part])
            owner = held[part]
        places: tuple[dict[str, Any], ...] = (owner._parameters, owner._buffers, owner.__dict__)
        place: dict[str, Any] | None = next((p for p in places if last in p), None)
        if place is None or place[last].is_inference():
            return None
        tensor = place[last]
        tensors.append((place, last, tensor, tensor.data_ptr(), tensor._version))
    return list(modules.values()), tensors


def unchanged(watched: Watched) -> bool:
    """Return True if the module still has the same tensors at the same addresses, and none was
    changed in place since `watch`."""
    for held, name, module in watched[0]:
        if held.get(name) is not module:
            return False
    for place, name, tensor, address, version in watched[1]:
        now: Any = place.get(name)
        if now is not tensor or now.data_ptr() != address or now._version != version:
            return False
    return True
