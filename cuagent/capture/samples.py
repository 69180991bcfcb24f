"""Copy the inputs of a call within a quota, and sum up floating inputs as quantiles.

Integer, boolean and mask tensors keep their values; a floating tensor with few distinct or with
infinite values counts as a mask. Runs in the user's process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

QUANTILES = 33
"""Number of quantiles that describe the values of a floating input."""
SAMPLED = 8192
"""Largest number of elements of one call that are sampled for the quantiles."""
MASK_VALUES = 4
"""A floating tensor with at most this many distinct values, and more elements, counts as a mask."""
KEPT = 4
"""Number of calls whose integer and mask tensors are stored."""


class TooLarge(Exception):
    """The copies exceed the quota. The message is one line."""


@dataclass
class Quota:
    """Limit in bytes on all copies of a capture together."""

    limit: int
    used: int = 0

    def take(self, count: int, what: str) -> None:
        """Count `count` bytes for `what`. Raises TooLarge if the limit is exceeded."""
        if self.used + count > self.limit:
            raise TooLarge(
                f"{what} takes {(self.used + count) / 2**20:.0f} MiB, over the quota of "
                f"{self.limit / 2**20:.0f} MiB; name a smaller module, or give --quota MIB"
            )
        self.used += count


@dataclass
class Input:
    """Values and statistics of one input over the recorded calls."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    drawn: bool
    """True if the task draws this input from quantiles; False if recorded values are used."""
    requires_grad: bool = False
    kept: list[Tensor] = field(default_factory=list)
    pieces: list[Tensor] = field(default_factory=list)
    """Elements sampled for the quantiles, one float64 tensor for each call."""
    low: float = 0.0
    high: float = 0.0
    other_strides: bool = False

    def add(self, tensor: Tensor, quota: Quota) -> None:
        """Add the values of a further call, as far as the quota allows."""
        self.other_strides |= tuple(tensor.stride()) != self.stride
        if self.drawn:
            _add_floats(self, tensor)
        elif len(self.kept) < KEPT and quota.used + tensor.nbytes <= quota.limit:
            quota.take(tensor.nbytes, self.name)
            self.kept.append(copy(tensor))

    def quantiles(self) -> list[float]:
        """Return `QUANTILES` quantiles of the values, from the smallest to the largest value."""
        import torch

        values = torch.cat(self.pieces).sort().values
        at = torch.linspace(0, values.numel() - 1, QUANTILES).round().long()
        points = [float(f"{float(v):.6g}") for v in values[at]]
        return [min(self.low, points[0]), *points[1:-1], max(self.high, points[-1])]


def new_input(name: str, tensor: Tensor, quota: Quota) -> Input:
    """Return the record of an input with its first values. Raises TooLarge."""
    found = Input(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        device=tensor.device.type,
        drawn=_is_drawn(tensor),
        requires_grad=tensor.requires_grad,
    )
    quota.take(0 if found.drawn else tensor.nbytes, f"input {name}")
    found.add(tensor, quota)
    return found


def copy(tensor: Tensor) -> Tensor:
    """Return a contiguous copy on the CPU."""
    import torch

    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _is_drawn(tensor: Tensor) -> bool:
    import torch

    halves = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if tensor.dtype not in halves or not tensor.numel():
        return False
    flat = tensor.detach().reshape(-1)
    if not bool(flat.isfinite().all()):
        return False
    few = flat[: 1 << 20].unique().numel() <= MASK_VALUES
    return not few or tensor.numel() <= MASK_VALUES


def _add_floats(found: Input, tensor: Tensor) -> None:
    import torch

    flat = tensor.detach().reshape(-1)
    low, high = (float(x) for x in torch.aminmax(flat.float()))
    first = not found.pieces
    found.low, found.high = (
        (low if first else min(found.low, low)),
        (high if first else max(found.high, high)),
    )
    step = max(1, flat.numel() // SAMPLED)
    values = flat[::step][:SAMPLED].to("cpu", torch.float64)
    found.pieces.append(values[values.isfinite()])
