"""Fingerprints of large tensors."""

from __future__ import annotations

import pytest
import torch

from cuagent.worker.memory.fingerprint import STRETCH, Fingerprint


@pytest.mark.parametrize("count", [0, 1, 3, 4, 4 * STRETCH["cpu"] - 1, 8 * STRETCH["cpu"] + 7])
def test_fingerprint_changes_with_any_byte(count: int) -> None:
    key = Fingerprint.random("cpu")
    tensor = torch.randint(0, 256, (count,), dtype=torch.uint8)
    before = key.of(tensor)
    assert key.of(tensor.clone()) == before
    for place in {0, count // 2, count - 1} if count else ():
        changed = tensor.clone()
        changed[place] ^= 0x80
        assert key.of(changed) != before


def test_fingerprint_changes_if_two_equal_changes_cancel_in_a_plain_sum() -> None:
    key, tensor = Fingerprint.random("cpu"), torch.zeros(64, dtype=torch.int32)
    changed = tensor.clone()
    changed[3], changed[9] = 1 << 30, -(1 << 30)
    assert key.of(changed) != key.of(tensor)


def test_keys_are_random() -> None:
    tensor = torch.ones(1000)
    assert Fingerprint.random("cpu").of(tensor) != Fingerprint.random("cpu").of(tensor)


def test_fingerprint_is_of_the_elements_in_order_for_any_strides() -> None:
    key, tensor = Fingerprint.random("cpu"), torch.randn(30, 50)
    assert key.of(tensor.t()) == key.of(tensor.t().contiguous())
    assert key.of(tensor.t()) != key.of(tensor)
