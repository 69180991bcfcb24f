"""Copy the inputs of recorded calls within a size limit, and describe floating-point inputs by
quantiles.

Integer, boolean and mask tensors are copied. A floating-point tensor with few distinct values or
with infinite values is handled as a mask. This code runs in the user's process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

QUANTILES = 33
"""Number of quantiles by which the values of a floating-point input are described."""
SAMPLED = 8192
"""Largest number of elements of one call that are sampled for the quantiles."""
MASK_VALUES = 4
"""Largest number of distinct values of a floating-point tensor that is handled as a mask."""
KEPT = 4
"""Largest number of calls whose integer and mask tensors are stored."""


class TooLarge(Exception):
    """Error: the copies exceed the quota. The message is one line."""


@dataclass
class Quota:
    """Limit in bytes of all copies that one capture makes."""

    limit: int
    used: int = 0

    def take(self, count: int, what: str) -> None:
        """Add `count` bytes to the used amount. Raises TooLarge, which names `what`, if the limit
        is exceeded."""
        if self.used + count > self.limit:
            raise TooLarge(
                f"{what} takes {(self.used + count) / 2**20:.0f} MiB, over the quota of "
                f"{self.limit / 2**20:.0f} MiB; name a smaller module, or give --quota MIB"
            )
        self.used += count


@dataclass
class Input:
    """Values and statistics of one input tensor over the recorded calls of a shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    drawn: bool
    """True if the task draws this input at random from the quantiles; False if it uses recorded
    values."""
    requires_grad: bool = False
    kept: list[Tensor] = field(default_factory=list)
    pieces: list[Tensor] = field(default_factory=list)
    """Elements sampled for the quantiles, one float64 tensor for each call."""
    low: float = 0.0
    high: float = 0.0
    other_strides: bool = False

    def add(self, tensor: Tensor, quota: Quota) -> None:
        """Add the values of this input in another call; values over the quota are left out."""
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
    """Return the description of an input, started with the values of `tensor`. Raises TooLarge."""
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
    """Return a contiguous copy of the tensor on the CPU."""
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
