"""Compare outputs of a candidate bit for bit with earlier outputs and with the poison pattern."""

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
    """An earlier output, stored to compare later outputs with.

    `tensors` is the output itself. For a large output only its fingerprint is stored.
    """

    tensors: Sequence[Tensor] = ()
    prints: Sequence[Sequence[int]] = ()
    key: Fingerprint | None = None

    @staticmethod
    def of(output: Sequence[Tensor], key: Fingerprint | None) -> KeptOutput:
        """Store the fingerprint of `output` under `key`; without a key, store `output` itself."""
        return KeptOutput(output) if key is None else KeptOutput(prints=key.of_all(output), key=key)

    def equals(self, output: Sequence[Tensor]) -> bool:
        """Return True if `output` equals the stored output bit for bit."""
        if self.key is None:
            return are_equal(output, self.tensors)
        return self.key.of_all(output) == self.prints


def are_equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Return True if all tensors are equal bit for bit.

    Elements that neither of two calls wrote differ if the poison of the calls differed.
    """
    return all(same_bytes(_words(a), _words(b)) for a, b in zip(first, second, strict=True))


def _words(tensor: Tensor) -> Tensor:
    import torch

    return tensor.reshape(-1).view(torch.uint8)


def holds_poison(outputs: Sequence[Tensor], expected: Sequence[Tensor], byte: int) -> bool:
    """Return True if some element of an output consists of the poison `byte`.

    The poison 0xFF.. is -1 in an integer tensor, a usual value, so it counts only in floating
    tensors. Elements whose expected value is NaN do not count: vectorized maxima return a NaN of
    these bytes themselves.
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
