"""Tasks with smaller sizes (`benchmarks/reduced_tasks.py`)."""

from __future__ import annotations

import math

import pytest
import reduced_tasks  # type: ignore[import-not-found]
import torch

TASK = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, channels, features, size, groups):
        super().__init__()
        self.layer = nn.Conv2d(channels, features, size, groups=groups)
    def forward(self, x):
        return self.layer(x)
batch_size = 128
in_channels, out_channels = 64, 32
height = width = 512
kernel_size = 7
groups = 8
def get_inputs(): return [torch.rand(batch_size, in_channels, height, width)]
def get_init_inputs(): return [in_channels, out_channels, kernel_size, groups]
"""


def assigned(text: str) -> dict[str, int]:
    """Return the integers that a text assigns to names."""
    names: dict[str, object] = {}
    exec(compile(text, "task", "exec"), names)
    return {k: v for k, v in names.items() if type(v) is int}


@pytest.mark.parametrize("size", reduced_tasks.SIZES)
def test_batch_and_spatial_sizes_shrink_and_windows_stay(size):
    found = assigned(reduced_tasks.reduced(TASK, size))
    assert found["batch_size"] <= 3
    assert found["height"] == found["width"] < 64
    assert (found["kernel_size"], found["groups"]) == (7, 8)


def test_odd_channels_are_multiples_of_the_groups_alone():
    found = assigned(reduced_tasks.reduced(TASK, "odd"))
    assert found["in_channels"] != found["out_channels"]
    for name in ("in_channels", "out_channels"):
        assert math.gcd(found[name], 64) == 8


def test_mild_reduction_keeps_all_but_batch_and_outermost_size():
    found = assigned(reduced_tasks.reduced(TASK, "even", mild=True))
    assert (found["batch_size"], found["in_channels"]) == (2, 64)


def test_module_in_another_dtype_has_inputs_of_it():
    text, name = reduced_tasks.in_dtype(TASK, "Model", "bfloat16")
    names: dict[str, object] = {}
    exec(compile(text.replace("512", "9"), "task", "exec"), names)
    (x,) = names["get_inputs"]()  # type: ignore[operator]
    model = names[name](*names["get_init_inputs"]())  # type: ignore[operator]
    assert model(x).dtype is x.dtype is torch.bfloat16
