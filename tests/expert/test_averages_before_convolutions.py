"""Pools of means come before pointwise convolutions, of which they then need fewer places."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from shares import slow_after

from cuagent.expert.candidate import Options

TASK = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.c, self.p = nn.BatchNorm2d(6), {conv}, {pool}
        self.to(torch.{dtype})
    def forward(self, x):
        return {forward}
def get_inputs(): return [(torch.randn(3, 6, 9, 10) + 2).to(torch.{dtype})]
def get_init_inputs(): return []
"""
CONV, FORWARD = "nn.Conv2d(6, 16, 1)", "self.p(self.c(F.relu(self.n(x))))"
MOVED = [
    ("nn.AvgPool2d(2)", CONV, FORWARD),
    ("nn.AvgPool2d(3, 2, 1, count_include_pad=False)", CONV, FORWARD),
    ("nn.AvgPool2d((2, 3), ceil_mode=True)", CONV, "torch.sigmoid(self.p(self.c(x)))"),
    ("nn.AdaptiveAvgPool2d((4, 3))", "nn.Conv2d(6, 16, 1, bias=False, groups=2)", FORWARD),
]
KEPT = [
    ("nn.AvgPool2d(2, padding=1)", CONV, FORWARD),
    ("nn.AvgPool2d(3, 1)", CONV, FORWARD),
    ("nn.MaxPool2d(2)", CONV, FORWARD),
    ("nn.AvgPool2d(2)", "nn.Conv2d(6, 16, 3)", FORWARD),
    ("nn.AvgPool2d(2)", "nn.Conv2d(6, 16, 1, stride=2)", FORWARD),
    ("nn.AvgPool2d(2)", CONV, "self.p(F.relu(self.c(x)))"),
    ("nn.AvgPool2d(2)", CONV, "(lambda y: (self.p(y), y))(self.c(x))"),
]


def text_of(pool: str, conv: str, forward: str, dtype: str = "float32") -> str:
    return TASK.format(pool=pool, conv=conv, forward=forward, dtype=dtype)


def pools_first(candidate) -> bool:
    text = candidate.files["model_new.py"]
    return any(f"{word}_before" in text for word in ("avg_pool2d", "adaptive_avg_pool2d"))


@pytest.mark.parametrize(("pool", "conv", "forward"), slow_after(2, MOVED))
def test_pool_moves_before_a_pointwise_convolution(generate, pool, conv, forward):
    text = text_of(pool, conv, forward)
    assert pools_first(generate(text))
    assert not pools_first(generate(text, options=Options(fold=False)))


@pytest.mark.parametrize(("pool", "conv", "forward"), slow_after(4, KEPT))
def test_pool_that_does_not_commute_stays(generate, pool, conv, forward):
    assert not pools_first(generate(text_of(pool, conv, forward)))


def test_pool_of_halves_stays(generate):
    assert not pools_first(generate(text_of(*MOVED[0], dtype="float16")))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("case", MOVED)
def test_moved_pool_agrees_with_fp64(generate, interpreted, case):
    interpreted(generate(text_of(*case)))
