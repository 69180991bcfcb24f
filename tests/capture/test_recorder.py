"""The recorder, called as the patch of `nn.Module` calls it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from cuagent.capture.recorder import Recorder


class Halved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> Any:
        if len(x) > 4:
            raise MemoryError("the batch is too large")
        return x * self.weight


class Odd(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        result: list[Any] = [x]
        result.append(result)
        return result


def called(recorder: Recorder, module: nn.Module, x: torch.Tensor) -> Any:
    run = functools.partial(nn.Module.__call__, module)
    return recorder._call(run, module, (x,), {})


@pytest.fixture
def recorder() -> Recorder:
    return Recorder("Halved", calls=20, quota=1 << 30, stop=False)


def test_a_call_that_raises_is_left_out(recorder: Recorder) -> None:
    module = Halved()
    for rows in (8, 4, 4):
        try:
            called(recorder, module, torch.randn(rows, 8))
        except MemoryError:
            assert rows == 8
    (shape,) = recorder.shapes.values()
    assert (shape.count, shape.with_gradients, recorder.timed["Halved"].count) == (2, 2, 2)
    assert shape.example is not None
    assert len(shape.example.outputs) == 1
    assert recorder.problem == ""


def test_a_module_whose_calls_all_raise_is_not_recorded(recorder: Recorder) -> None:
    with pytest.raises(MemoryError):
        called(recorder, Halved(), torch.randn(8, 8))
    assert recorder.failed
    assert recorder.snapshot is None


def test_a_result_that_cannot_be_described_does_not_end_the_script() -> None:
    recorder = Recorder("Odd", calls=20, quota=1 << 30, stop=False)
    assert len(called(recorder, Odd(), torch.randn(2))) == 2
    assert recorder.problem.startswith("its result: RecursionError")


def test_what_cannot_be_recorded_is_named(recorder: Recorder) -> None:
    called_again = functools.partial(called, recorder, Halved())
    torch.func.vmap(called_again)(torch.randn(2, 4, 8))
    assert "inside a transform of torch.func" in recorder.problem
    recorder = Recorder("Halved", calls=20, quota=1 << 30, stop=False)
    del called_again
    called(recorder, Halved().to("meta"), torch.empty(4, 8, device="meta"))
    assert "on the meta device" in recorder.problem
