"""Pack the rows of a batch one after the other into a single row, without padding.

A forward pass over the packed row computes real tokens only. Positions restart at 0 with each row,
and attention stays within a row (`policy/packed_attention.py`), so every token gets the outputs
that it has in the padded batch, up to rounding.
Not covered: which rows share a pass (`batch.packed_microbatches`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """A packed batch: the T real tokens of B rows in one row, with the position of each token."""

    ids: Tensor
    """[1, T] int64: token ids."""
    positions: Tensor
    """[1, T] int64: position of each token in its original row."""
    starts: Tensor
    """[B + 1] int32: index in the packed row where each row starts, and T at the end."""
    slots: Tensor
    """[T] int64: index of each token in the flattened padded batch, [B * L]."""
    drawn: Tensor
    """[N] int64: indices of the N action tokens in the packed row."""
    lengths: tuple[int, ...]
    """Number of tokens of each row. Kept on the host, so that no kernel launch waits for the
    GPU."""

    def to(self, device: torch.device | str) -> Packing:
        names = ("ids", "positions", "starts", "slots", "drawn")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def pack(ids: Tensor, real: Tensor, drawn: Tensor) -> Packing:
    """Pack the token ids [B, L] at which `real` [B, L] is True. `drawn` [N]: see `Batch.drawn`."""
    flat = real.flatten()
    slots = flat.nonzero().flatten()
    lengths = real.sum(1)
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    starts[1:] = lengths.cumsum(0)
    positions = torch.arange(ids.shape[1]).expand(ids.shape)
    return Packing(
        ids.flatten()[slots][None],
        positions.flatten()[slots][None],
        starts,
        slots,
        (flat.cumsum(0) - 1)[drawn],
        tuple(lengths.tolist()),
    )
