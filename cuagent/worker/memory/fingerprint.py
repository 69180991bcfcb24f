"""Detect changes of large tensors by fingerprints, without keeping a copy.

A tensor's fingerprint has one number for each stretch of the tensor: the sum of its 32-bit words
times secret 64-bit keys, modulo 2^64 (Carter and Wegman's universal hashing). Two stretches that
differ have equal sums with a probability of at most 2^-33. The keys never leave the process, so a
candidate cannot construct such a pair.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

STRETCH = {"cpu": 1 << 18, "cuda": 1 << 22}
"""Number of 32-bit words (a stretch of the tensor) that one number of a fingerprint covers, by
device type."""
WORD = 4
"""Bytes of a word."""


@dataclass(frozen=True)
class Fingerprint:
    """Secret random keys on one device, and the fingerprints computed with them."""

    keys: Tensor
    """int64[STRETCH of the device]."""

    @staticmethod
    def random(device: str) -> Fingerprint:
        """Draw new keys from a secret seed."""
        import torch

        generator = torch.Generator(device=device).manual_seed(secrets.randbits(63))
        low, high = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
        shape = (STRETCH[torch.device(device).type],)
        return Fingerprint(
            torch.randint(low, high, shape, generator=generator, device=device, dtype=torch.int64)
        )

    def of(self, tensor: Tensor) -> list[int]:
        """Return the fingerprint of a tensor's bytes, one number for each STRETCH words.

        A tensor that is not contiguous is copied first.
        """
        import torch

        flat = tensor.contiguous().reshape(-1).view(torch.uint8)
        end = flat.numel() // WORD * WORD
        if flat.storage_offset() % WORD:
            flat = flat.clone()
        words = [*flat[:end].view(torch.int32).split(self.keys.numel()), flat[end:]]
        # int32 sign-extends to int64, so words differ as 64-bit numbers by less than 2^32.
        sums = [(part.long() * self.keys[: part.numel()]).sum() for part in words if part.numel()]
        return [int(number) for number in torch.stack(sums).tolist()] if sums else []

    def of_all(self, tensors: Sequence[Tensor]) -> list[list[int]]:
        """Return the fingerprints of all tensors."""
        return [self.of(tensor) for tensor in tensors]
