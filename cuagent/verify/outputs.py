"""Compare outputs of a candidate bit for bit, with one another and with the poison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.worker.memory.arena import POISONS, STRETCH, same_bytes
from cuagent.worker.memory.fingerprint import Fingerprint

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KeptOutput:
    """An earlier output: its tensors, or the fingerprint of a large one."""

    tensors: Sequence[Tensor] = ()
    prints: Sequence[Sequence[int]] = ()
    key: Fingerprint | None = None

    @staticmethod
    def of(output: Sequence[Tensor], key: Fingerprint | None) -> KeptOutput:
        """Keep the fingerprint by `key`; the output itself if that is None."""
        return KeptOutput(output) if key is None else KeptOutput(prints=key.of_all(output), key=key)

    def equals(self, output: Sequence[Tensor]) -> bool:
        """Return True if `output` is equal bit for bit."""
        if self.key is None:
            return are_equal(output, self.tensors)
        return self.key.of_all(output) == self.prints


def are_equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Return True if tensors are equal bit for bit. Poison differs per draw, so unwritten ones
    differ."""
    return all(same_bytes(_words(a), _words(b)) for a, b in zip(first, second, strict=True))


def _words(tensor: Tensor) -> Tensor:
    import torch

    return tensor.reshape(-1).view(torch.uint8)


def holds_poison(outputs: Sequence[Tensor], expected: Sequence[Tensor], byte: int) -> bool:
    """Return True if a tensor holds the poison in some element.

    As an integer 0xFF.. is -1, a usual value, so it counts only in floating tensors. Where NaN is
    expected it may be the candidate's own, since vectorized maxima return NaN of these bytes.
    """
    for tensor, right in zip(outputs, expected, strict=True):
        poison_is_unusual = tensor.is_floating_point() or byte != POISONS[0]
        if tensor.numel() and tensor.element_size() > 1 and poison_is_unusual:
            words = _words(tensor).view(-1, tensor.element_size())
            pairs = zip(
                words.split(STRETCH // 8), right.reshape(-1).split(STRETCH // 8), strict=True
            )
            if any(bool(((w == byte).all(dim=1) & ~r.isnan()).any()) for w, r in pairs):
                return True
    return False
