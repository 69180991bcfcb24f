"""Large random fills are repeated from memory with the same numbers and the same later state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cuagent.task import random_fills
from cuagent.task.random_fills import RandomFills


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_fills, "LEAST", 64)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 32)
        self.conv = nn.Conv2d(4, 8, 3)
        self.weight = nn.Parameter(torch.randn(16, 8))
        self.start = torch.rand((8, 8)) + torch.rand(8, 8)
        self.table = nn.Embedding(10, 16)
        nn.init.trunc_normal_(self.linear.weight)
        nn.init.orthogonal_(self.conv.weight)
        self.last = torch.randn(3)

    def numbers(self) -> list[Tensor]:
        return [*self.state_dict().values(), self.start, self.last, torch.randn(3)]


def built(seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    return Layers().numbers()


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(map(torch.equal, first, second))


def count_of(fills: RandomFills) -> int:
    return len(fills._known)


def test_models_of_one_seed_are_the_same_as_without_memory() -> None:
    """The small tensors after a large one show that the generator's state is the same too."""
    right, other = built(1), built(2)
    fills = RandomFills()
    for _ in range(3):
        with fills.remembered():
            assert equal(built(1), right)
        known = count_of(fills)
        assert known == count_of(fills) > 5
    with fills.remembered():
        assert equal(built(2), other)
        assert equal(built(1), right)
    assert equal(built(1), right), "outside of the context all is as before"


class Counted(TorchFunctionMode):
    """Counts the fills that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        self.count += name in ("kaiming_uniform_", "uniform_", "normal_", "randn", "rand")
        return function(*args, **(kwargs or {}))


def test_fills_are_computed_once() -> None:
    fills, counts = RandomFills(), []
    for _ in range(3):
        torch.manual_seed(5)
        with Counted() as counted, fills.remembered():
            nn.Linear(16, 32, bias=False)
            torch.randn(8, 16)
            torch.empty(100).normal_()
        counts.append(counted.count)
    assert counts == [3, 0, 0]


def test_fills_of_the_last_seeds_are_kept_while_there_is_room() -> None:
    counts = []
    for room, seeds in ((8192, (1, 2, 1)), (2048, (1, 2, 2, 1))):
        fills = RandomFills(most_bytes=room)
        for seed in seeds:
            torch.manual_seed(seed)
            with Counted() as counted, fills.remembered():
                nn.Linear(16, 32, bias=False)
            counts.append(counted.count)
        assert fills._bytes <= room
    assert counts == [1, 1, 0, 1, 1, 0, 1]


def test_change_of_a_tensor_does_not_change_the_memory() -> None:
    fills = RandomFills()
    for _ in range(3):
        torch.manual_seed(5)
        with fills.remembered():
            tensor, given = torch.empty(100).normal_(), torch.randn(100)
        torch.manual_seed(5)
        assert torch.equal(tensor, torch.empty(100).normal_())
        assert torch.equal(given, torch.randn(100))
        tensor.zero_()
        given.zero_()


@pytest.mark.parametrize(
    "unusual",
    [
        lambda: torch.empty(100).uniform_(generator=torch.Generator().manual_seed(3)),
        lambda: torch.randn(100, dtype=torch.float64),
        lambda: torch.randn(100, generator=torch.Generator().manual_seed(3)),
        lambda: torch.randn(100, device="meta"),
        lambda: torch.empty(100, device="meta").uniform_(),
        lambda: torch.empty(100, 2).t().uniform_(),
        lambda: torch.rand(7),
        lambda: torch.rand(()),
        lambda: torch.rand(100, out=torch.empty(100)),
    ],
)
def test_other_calls_run_as_usual(unusual: Callable[[], Tensor]) -> None:
    fills = RandomFills()
    for _ in range(2):
        torch.manual_seed(1)
        right, after = unusual(), torch.rand(3)
        torch.manual_seed(1)
        with fills.remembered():
            found = unusual()
            assert count_of(fills) == 0
        assert found.shape == right.shape
        assert found.device.type == "meta" or torch.equal(found, right)
        assert torch.equal(torch.rand(3), after)


def test_default_device_and_gradients_are_respected() -> None:
    fills = RandomFills()
    with fills.remembered(), torch.device("meta"):
        assert torch.randn(100).device.type == "meta"
    with fills.remembered(), pytest.raises(RuntimeError, match="leaf Variable"):
        torch.empty(100, requires_grad=True).uniform_()
    assert count_of(fills) == 0


def test_memory_is_limited() -> None:
    right = built(1)
    fills = RandomFills(most_bytes=16 * 32 * 4)
    for _ in range(2):
        with fills.remembered():
            assert equal(built(1), right)
    assert fills._bytes <= 16 * 32 * 4
    assert count_of(fills) == 1


def test_context_ends_with_an_error() -> None:
    with pytest.raises(ValueError, match="constructor"), RandomFills().remembered():
        raise ValueError("constructor")
    assert torch.overrides._get_current_function_mode() is None
