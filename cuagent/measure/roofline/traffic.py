"""Compute compulsory traffic: inputs and weights that outputs depend on, and the outputs.

Tensors are compared by the addresses of their storages, so all storages stay allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Traffic:
    """Log of the reads and writes of all operators, from which the compulsory traffic is
    computed."""

    def __init__(self) -> None:
        self.storages_in_use: list[torch.Tensor] = []
        """References to all logged tensors, so that no storage is freed and its address used
        again."""
        self.created: set[int] = set()
        """Addresses of storages that did not exist before the call."""
        self.operators_run: list[tuple[set[int], list[tuple[torch.Tensor, int]]]] = []
        """Operators in order: the addresses of the storages that each writes, and the tensors that
        it reads, each with the bytes read. An empty set of storages marks an operator that is
        always needed."""

    def add_created(self, fresh: list[torch.Tensor]) -> None:
        """Note that the storages of these tensors did not exist before the call."""
        self.created.update(t.untyped_storage()._cdata for t in fresh)

    def log(
        self,
        reads: list[tuple[torch.Tensor, int]],
        outs: list[torch.Tensor],
        *,
        changing: bool,
    ) -> None:
        """Log an operator: the tensors that it reads with the bytes read, and its results.

        `changing`: the operator also writes to tensors that it reads.
        """
        self.storages_in_use += [tensor for tensor, _ in reads]
        changed = [tensor for tensor, _ in reads] if changing else []
        writes = {t.untyped_storage()._cdata for t in [*outs, *changed]}
        # A change to a tensor that existed before the call is always needed.
        self.operators_run.append((writes if writes <= self.created else set(), reads))

    def compulsory(
        self, outputs: list[torch.Tensor], among: Sequence[torch.Tensor] | None = None
    ) -> int:
        """Return the bytes that must be read: of tensors that existed before the call and that the
        outputs depend on. With `among` only tensors that share memory with one of these count."""
        needed_storages = {leaf.untyped_storage()._cdata for leaf in outputs}
        needed: list[tuple[torch.Tensor, int]] = []
        for writes, reads in reversed(self.operators_run):
            if writes and not writes & needed_storages:
                continue
            needed_storages |= {tensor.untyped_storage()._cdata for tensor, _ in reads}
            needed += [(t, n) for t, n in reads if t.untyped_storage()._cdata not in self.created]
        if among is not None:
            counted = {tensor.untyped_storage()._cdata for tensor in among}
            needed = [(t, n) for t, n in needed if t.untyped_storage()._cdata in counted]
        return _distinct(needed)

    def written(self, outputs: list[torch.Tensor]) -> int:
        """Return the bytes that must be written: of outputs that did not exist before the call."""
        created = [x for x in outputs if x.untyped_storage()._cdata in self.created]
        return _distinct([(leaf, bytes_behind(leaf)) for leaf in created])


def _distinct(parts: Iterable[tuple[torch.Tensor, int]]) -> int:
    """Return the total of the bytes needed of each tensor, without counting memory twice.

    `parts` are pairs of a tensor and the bytes needed of it. Equal views count once, with the
    largest need; a storage counts at most with its size.
    """
    views: dict[int, dict[tuple[Any, ...], int]] = {}
    size: dict[int, int] = {}
    for tensor, needed in parts:
        storage = tensor.untyped_storage()
        known = views.setdefault(storage._cdata, {})
        known[_view(tensor)] = max(known.get(_view(tensor), 0), needed)
        size[storage._cdata] = storage.nbytes()
    return sum(min(sum(v.values()), size[key]) for key, v in views.items())


def _view(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())


def share_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if both tensors are views of one storage."""
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def bytes_behind(tensor: torch.Tensor) -> int:
    """Return the bytes of memory that a view covers; a dimension with stride 0 counts once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= 1 if stride == 0 else size
    return (0 if tensor.numel() == 0 else count) * tensor.element_size()
