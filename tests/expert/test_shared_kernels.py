"""Kernels that differ in names only share one file; others do not."""

from __future__ import annotations

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.LayerNorm(24), nn.LayerNorm(24)
        self.first, self.second = nn.Linear(24, 24, bias=False), nn.Linear(24, 24)
    def forward(self, x, y):
        {body}
def get_inputs(): return [torch.randn(10, 24), torch.randn(10, 24)]
def get_init_inputs(): return []
"""


def kernel_files(made) -> list[str]:
    return [name for name in made.candidate.files if name.endswith(".cpp")]


def test_repeated_block_has_one_kernel_for_each_of_its_parts(make):
    body = "return self.second(F.silu(self.b(self.first(F.silu(self.a(x))))))"
    made = make(HEAD.format(body=body), "Model")
    text = made.candidate.files["model_new.py"]
    (name,) = [name for name in made.candidate.kernels if "silu" in name]
    assert text.count(f"{name}(") == 2
    assert text.count(f'load("kernels/{name}.cpp")') == 1
    assert len(kernel_files(made)) == len(set(made.candidate.kernels)) == 1
    origins = made.candidate.origins[made.candidate.kernels.index(name)]
    assert {"silu", "silu_1"} <= origins, "both uses are left out together"
    assert_agrees(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "return self.first(torch.exp(x) * y), self.second(torch.sin(y) * x)",
        "return self.first(F.silu(x) - y), self.second(x - F.silu(y))",
        "return self.first(F.silu(x) * 2 - y), self.second(F.silu(y) * 3 - x)",
        "return self.first(F.silu(x) - y), self.second(F.silu(y[:5]) - x[:5])",
    ],
)
def test_different_kernels_are_not_shared(make, body):
    made = make(HEAD.format(body=body), "Model")
    assert len(kernel_files(made)) == len(made.candidate.kernels) == 2
    assert_agrees(made)


def test_sum_that_takes_the_memory_of_an_operand_is_read_before_it_is_written(make):
    body = "h = self.first(x) + y; return h, self.a(h)"
    made = make(HEAD.format(body=body), "Model")
    assert "# in place" in made.candidate.files["model_new.py"]
    assert_agrees(made)


def test_layout_of_a_library_call_may_differ_from_the_captured_one(make):
    # torch keeps the permuted layout of q in the result of attention; a kernel writes q contiguous.
    body = (
        "q = (self.first(x).view(1, 10, 2, 12).transpose(1, 2) * 2).sigmoid();"
        "o = F.scaled_dot_product_attention(q, q + 1, q, torch.ones(1, 1, 10, 10).bool());"
        "return self.second(o.transpose(1, 2).reshape(10, -1) * 1)"
    )
    assert_agrees(make(HEAD.format(body=body), "Model"))


def test_few_centred_columns_are_written(make):
    text = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)
def get_inputs(): return [torch.randn(3000, 64)]
def get_init_inputs(): return []
"""
    assert_agrees(make(text, "Model"))
