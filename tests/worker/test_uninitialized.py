"""Tests of `Allocations`, which poisons and guards uninitialised tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuagent.worker.memory import uninitialized
from cuagent.worker.memory.arena import ALIGNMENT, GUARD
from cuagent.worker.memory.uninitialized import Allocations

POISON = 0x5A
MAKERS: list[Callable[[], Any]] = [
    lambda: torch.empty(3, 5),
    lambda: torch.empty_like(torch.zeros(3, 5)),
    lambda: torch.empty_strided((3, 5), (1, 3)),
    lambda: torch.zeros(1).new_empty((3, 5)),
]
NAMES = ["empty", "empty_like", "empty_strided", "new_empty"]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return all bytes of a tensor's memory."""
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return memory.set_(tensor.untyped_storage())  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("make", MAKERS, ids=NAMES)
def test_uninitialised_tensors_are_poisoned_and_guarded(make: Callable[[], torch.Tensor]) -> None:
    allocations = Allocations(POISON)
    with allocations:
        tensor = make()
    assert (bytes_of(tensor)[ALIGNMENT:-ALIGNMENT] == POISON).all()
    assert not allocations.overrun()
    bytes_of(tensor)[-ALIGNMENT] = 0
    assert allocations.overrun()


def test_timed_calls_get_the_tensors_of_torch() -> None:
    with Allocations(None):
        tensor = torch.empty(3, 5)
    assert tensor.untyped_storage().nbytes() == 60


def test_allocations_of_a_captured_graph_are_not_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uninitialized, "_is_captured", lambda _: True)
    allocations = Allocations(POISON)
    with allocations:
        tensor = torch.empty(3, 5)
    assert tensor.untyped_storage().nbytes() == 60
    assert not allocations.overrun()


@pytest.mark.gpu
def test_capture_of_a_graph_is_no_overrun() -> None:
    allocations, graph = Allocations(POISON), torch.cuda.CUDAGraph()
    with allocations:
        torch.empty(8, device="cuda")
        with torch.cuda.graph(graph):
            result = torch.empty(8, device="cuda").fill_(1)
    assert not allocations.overrun()
    graph.replay()
    assert result.tolist() == [1] * 8
    with allocations:
        after = torch.empty(8, device="cuda")
    assert (bytes_of(after)[:ALIGNMENT] == GUARD).all()
