"""Count the elements that operators such as gather, index and interpolate must read of their
tensors.

These operators need not read a tensor whole. The roofline uses the counts, so that an
implementation that reads only the necessary rows, samples or windows is not suspect. The number of
distinct rows depends on the values of the indices, which are known if the index tensor is an input
or a buffer.

Not covered: cache lines (reading one element loads a whole line).

Invariant: `needed` never exceeds what a correct implementation must read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

ROWS = ("embedding", "_embedding_bag", "_embedding_bag_forward_only", "index_select")
INDEXED = ("index", "_unsafe_index")
SAMPLES = ("gather", "take", "nll_loss_forward", "nll_loss2d_forward")
ELEMENTS_PER_DIMENSION = {"nearest": 1, "linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 4}
"""Number of input elements along one dimension that an interpolated element depends on, by the mode
of interpolation, without antialiasing."""

Values = Mapping[int, "Tensor"]
"""Map from the storage address of a fake tensor to the real tensor that it stands for."""


@dataclass(frozen=True)
class Part:
    """Number of elements that an operator reads of one tensor."""

    tensor: Tensor
    needed: int
    """Number of distinct elements that must be read; 0 if the indices are unknown."""
    asked: int
    """Number of elements that eager mode reads; an element that is read repeatedly counts each
    time."""


def part_read(name: str, args: Sequence[Any], out: Tensor, values: Values) -> Part | None:
    """Return which part of its tensor the operator `name` reads; None if it reads every tensor
    whole.

    `out` is the operator's first result.
    """
    if name in ROWS:
        table, index = args[0], args[2 if name == "index_select" else 1]
        row = table.numel() // max(table.shape[args[1] if name == "index_select" else 0], 1)
        return Part(table, row * _distinct_indices([index], values), row * index.numel())
    if name in INDEXED:
        indices = [index for index in args[1] if index is not None]
        asked = prod(_indexed_shape(indices))
        row = out.numel() // max(asked, 1)
        return Part(args[0], row * _distinct_indices(indices, values), out.numel())
    if name in SAMPLES:
        return _samples(name, args, values)
    windows = _windows(name, args, out)
    if windows is None:
        return None
    source = args[0]
    outer = prod(source.shape[: source.dim() - len(windows)])
    sizes = zip(source.shape[-len(windows) :], out.shape[-len(windows) :], windows, strict=True)
    read = outer * prod(min(size, made * window) for size, made, window in sizes)
    return Part(source, read, read) if read < source.numel() else None


def _samples(name: str, args: Sequence[Any], values: Values) -> Part:
    index = args[2] if name == "gather" else args[1]
    values_known = _value_of(index, values)
    if values_known is None or not values_known.numel():
        distinct = 0
    elif name == "take":
        distinct = int(values_known.unique().numel())
    elif name == "gather":
        line = (
            values_known.reshape(1)
            if values_known.dim() == 0
            else values_known.movedim(args[1], -1)
        )
        differs = line.sort(-1).values.diff(dim=-1) != 0
        distinct = int(differs.sum()) + line.numel() // line.shape[-1]
    else:
        distinct = int((values_known != args[4]).sum())  # every position has a different row
    return Part(args[0], distinct, index.numel())


def _windows(name: str, args: Sequence[Any], out: Tensor) -> list[int] | None:
    """Return for each spatial dimension the most input elements that one output element depends on;
    None if unknown."""
    if name == "convolution":
        return None if args[6] else list(args[1].shape[2:])
    if name.startswith(("max_pool", "avg_pool")) and "backward" not in name:
        spatial = int(name.partition("pool")[2][0])
        return [args[1][-1 if len(args[1]) == 1 else i] for i in range(spatial)]
    if name.startswith("upsample_") and not name.endswith("_aa"):
        kind = name.removeprefix("upsample_").rstrip("123d")
        return (
            [ELEMENTS_PER_DIMENSION[kind]] * (out.dim() - 2)
            if kind in ELEMENTS_PER_DIMENSION
            else None
        )
    return None


def _distinct_indices(indices: Sequence[Tensor], values: Values) -> int:
    """Return the number of distinct positions that the index tensors together address; 0 if
    unknown."""
    import torch

    values_known = [_value_of(index, values) for index in indices]
    real = [index for index in values_known if index is not None]
    if len(real) < len(values_known) or not real:
        return 0
    if any(index.dtype == torch.bool for index in real):
        return prod(_indexed_shape(real)) if len(real) == 1 else 1
    every = torch.stack([index.flatten() for index in torch.broadcast_tensors(*real)])
    return int(torch.unique(every, dim=1).shape[1])


def _indexed_shape(indices: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the shape of the result of indexing; for a boolean mask its number of True
    elements."""
    import torch

    if len(indices) == 1 and indices[0].dtype == torch.bool:
        return (int(indices[0].sum()),)
    return tuple(torch.broadcast_shapes(*(index.shape for index in indices)))


def _value_of(index: Tensor, values: Values) -> Tensor | None:
    """Return the real values of a possibly fake index tensor; None if they are unknown."""
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(index, FakeTensor):
        return index
    real = values.get(index.untyped_storage()._cdata)
    if real is None:
        return None
    return real.as_strided(index.shape, index.stride(), index.storage_offset())
