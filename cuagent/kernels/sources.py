"""Detect that a parameter of a module was replaced or changed, in 0.2 us for each."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_changes = operator.attrgetter("_version")


@dataclass(frozen=True)
class Watched:
    """Recorded state of some parameters and buffers of a module, and of the submodules that hold
    them."""

    holders: list[dict[str, Any]]
    """The dicts that contain the submodules, then those that contain the tensors."""
    names: list[str]
    """The keys in these dicts."""
    held: list[Any]
    """The submodules and tensors."""
    tensors: list[torch.Tensor]
    addresses: list[int]
    changes: list[int]
    """torch's counts of in-place changes of the tensors."""


def watch(module: torch.nn.Module, names: Sequence[str]) -> Watched | None:
    """Record the current state of the parameters and buffers with these names, for `unchanged`.

    Returns None if one of them has no count of changes (an inference tensor) or is computed at each
    access.
    """
    import torch

    modules: dict[str, tuple[dict[str, Any], str, Any]] = {}
    places: list[tuple[dict[str, Any], str, Any]] = []
    for name in names:
        *path, last = name.split(".")
        owner = module
        for k, part in enumerate(path):
            held: dict[str, Any] = owner._modules
            modules[".".join(path[: k + 1])] = (held, part, held[part])
            owner = held[part]
        found: tuple[dict[str, Any], ...] = (owner._parameters, owner._buffers, owner.__dict__)
        place: dict[str, Any] | None = next((p for p in found if last in p), None)
        if place is None or place[last].is_inference():
            return None
        places.append((place, last, place[last]))
    every = [*modules.values(), *places]
    tensors = [tensor for _, _, tensor in places]
    return Watched(
        [holder for holder, _, _ in every],
        [name for _, name, _ in every],
        [item for _, _, item in every],
        tensors,
        list(map(torch.Tensor.data_ptr, tensors)),
        list(map(_changes, tensors)),
    )


def unchanged(watched: Watched) -> bool:
    """Return True if the module still has the same tensors at the same addresses, and none was
    changed in place since `watch`.

    The loops are those of `map`, which take half the time of Python's.
    """
    import torch

    now = map(dict.get, watched.holders, watched.names)
    return (
        all(map(operator.is_, now, watched.held))
        and list(map(torch.Tensor.data_ptr, watched.tensors)) == watched.addresses
        and list(map(_changes, watched.tensors)) == watched.changes
    )
