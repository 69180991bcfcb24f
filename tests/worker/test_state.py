"""Comparison of a model's state dict with the weights that were loaded."""

from __future__ import annotations

import math

import pytest
import torch

from cuagent.worker.state import changed_name


def test_changed_name_is_that_of_the_first_changed_weight() -> None:
    model = torch.nn.Linear(3, 2)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert changed_name(model, state) is None
    model.bias.data.add_(1e-6)
    assert changed_name(model, state) == "bias"
    model.bias.data.copy_(state["bias"])
    model.weight.data = model.weight.data.half()
    assert changed_name(model, state) == "weight"


def test_layout_and_nan_are_no_change() -> None:
    model = torch.nn.Linear(3, 3)
    with torch.no_grad():
        model.bias[0] = math.nan
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.weight.data = model.weight.data.T.contiguous().T
    assert not model.weight.is_contiguous()
    assert changed_name(model, state) is None
    with torch.no_grad():
        model.bias[1] = math.nan
    assert changed_name(model, state) == "bias"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.uint8])
def test_any_type_and_size_is_compared(dtype: torch.dtype) -> None:
    for size in (0, 1, 7, 33):
        model = torch.nn.Module()
        model.register_buffer("buffer", torch.ones(size).to(dtype))
        state = {"buffer": torch.ones(size).to(dtype)}
        assert changed_name(model, state) is None
        if size:
            state["buffer"][-1] = 0
            assert changed_name(model, state) == "buffer"


def test_number_without_axes_is_compared() -> None:
    norm = torch.nn.BatchNorm1d(2)
    state = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    assert changed_name(norm, state) is None
    norm.num_batches_tracked += 1
    assert changed_name(norm, state) == "num_batches_tracked"
