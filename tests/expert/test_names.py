"""Arguments and parameters of a module that are called like the variables of a kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]
from known_names import unknown_names  # type: ignore[import-not-found]

from cuagent import expert
from cuagent.expert.streaming.expressions import identifier

PLANE, DEPTHWISE = "4, 8, 16, 16", "self.c = nn.Conv2d(8, 8, 3, padding=1, groups=8)"
CASES = {
    "conv x y": (DEPTHWISE, "torch.relu(self.c(x)) + y", PLANE),
    "conv x p": (DEPTHWISE, "torch.relu(self.c(x * p))", PLANE),
    "conv first start": (DEPTHWISE, "torch.relu(self.c(first)) * start", PLANE),
    "resample x blended": ("pass", "resample(x) * resample(blended)", PLANE),
    "resample weight2 real2": ("pass", "resample(weight2 * real2)", PLANE),
    "pool p2 result": ("pass", "F.max_pool2d(p2 * result, 3)", PLANE),
    "pool x joined": ("pass", "F.avg_pool2d(x * joined, 3)", PLANE),
    "scan x carry": ("pass", "torch.cumsum(x, dim=-1) * carry", "64, 256"),
    "scan step first": ("pass", "torch.cumsum(step * first, dim=0)", "64, 256"),
    "peaks element x": (
        "pass",
        "F.max_pool2d(element.sigmoid() + x, 3, 1, 1) * 2 + x",
        PLANE,
    ),
    "topk worst held": ("pass", "(worst * held + 1).topk(2)[0]", "64, 256"),
    "softmax start width": ("pass", "torch.softmax(start * width, dim=-1) + width", "64, 256"),
    "softmax count rows": ("pass", "torch.softmax(count * rows, dim=0) + rows", "64, 256"),
}
KERNELS = ("anchored", "depthwise", "pooling", "scans", "scatters", "selections", "streaming")
"""Families of the expert whose kernels use the names of tensors in the module's source."""
DECLARED = re.compile(
    r"\b(?:long|int|float|double|bool|auto)(?:\s*\*(?:\s*const)?)?\s+(\w+?)(?:\{\w+\})?(?:\[| =|;)"
)


def text_of(name: str) -> str:
    init, body, shape = CASES[name]
    first, second = name.split()[1:]
    return f"""
import torch
import torch.nn as nn
import torch.nn.functional as F
def resample(x): return F.interpolate(x, scale_factor=2, mode="bilinear")
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, {first}, {second}):
        return {body}
def get_inputs(): return [torch.randn({shape}), torch.randn({shape})]
def get_init_inputs(): return []
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_tensor_is_not_hidden_by_a_variable_of_the_kernel(make, name):
    made = make(text_of(name), "Model")
    assert "kernels/" in str(sorted(made.candidate.files))
    assert_agrees(made)


def test_no_tensor_is_called_like_a_variable_of_a_kernel():
    """`sum_1` may be one: no tensor is read where it exists."""
    declared = {
        word if f"{word}{{" not in line else f"{word}1"
        for family in KERNELS
        for file in Path(expert.__file__).parent.glob(f"{family}/*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        for word in DECLARED.findall(line)
    }
    assert {"blended", "carry", "first", "result"} <= declared
    assert sorted(word for word in declared if identifier(word) == word) == ["sum_1"]


IMPORT_IN_A_STRING = '''
import torch
from torch import nn
TEXT = """
import torch.nn.functional as F
"""
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(nn.functional.scaled_dot_product_attention(x, x, x)) + len(TEXT)
def get_inputs(): return [torch.randn(8, 3, 17, 64)]
def get_init_inputs(): return []
'''


@pytest.mark.slow
def test_an_import_inside_a_string_is_no_import_of_the_candidate(make):
    made = make(IMPORT_IN_A_STRING, "Model")
    assert "F." in made.candidate.files["model_new.py"].rpartition("class ModelNew")[2]
    assert_agrees(made)


def test_unknown_names_of_kernels_are_found():
    text = """
import triton
import triton.language as tl
@triton.jit
def kernel(x_in, SIZE: tl.constexpr):
    value = tl.load(x_in + tl.arange(0, SIZE))
    tl.store(x_in, tl.where(value > 0, value, {number}))
"""
    assert unknown_names(text.format(number="nan")) == {"nan"}
    assert unknown_names(text.format(number='float("nan")')) == set()
