"""Tests of the poison and the guard bands of uninitialised tensors."""

from __future__ import annotations

import pytest
import torch

from cuagent.worker.memory import uninitialized
from cuagent.worker.memory.uninitialized import Allocations


def test_new_tensors_are_poisoned_and_writes_past_them_are_found() -> None:
    allocations = Allocations(0x7F)
    with allocations:
        tensor = torch.empty(16, dtype=torch.uint8)
        assert set(tensor.tolist()) == {0x7F}
    assert not allocations.overrun()
    memory = tensor.untyped_storage()
    memory[tensor.storage_offset() + 16] = 0
    assert allocations.overrun()


def test_tensors_of_a_call_that_a_cuda_graph_captures_have_no_guards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocations = Allocations(0x7F)
    with allocations:
        monkeypatch.setattr(uninitialized, "_captured", lambda tensor: True)
        captured = torch.empty(16, dtype=torch.uint8)
    assert captured.untyped_storage().nbytes() == 16
    assert not allocations.overrun()
