"""Integers among floating operands, and images of bytes."""

from __future__ import annotations

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

BODIES = {
    "integer division": "return (i / 2 + x) * (i * x)",
    "a number over integers": "return (1 / (i + x) + torch.exp(i * 0.1)) * x",
    "powers of integers": "return (x + 2) * torch.exp(-i / 4) + i",
    "an integer where a mask holds": "return torch.where(i > 3, x, i / 5) * 2",
    "a row's integer mean": "return x * (i / i.sum(-1, keepdim=True)) + 1",
    "tests of bytes": "return b.bool().all(1), b.any(1), (b > 3).all(1), x.exp() * 2",
    "bytes": "return (b / 255 - 0.5) * x + b.float()",
    "an image": "return ((b.permute(1, 0).float() / 255) * x.t()).exp().sum(0) * 2",
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_candidate_agrees_with_reference(make, name):
    text = f"""
import torch
class Model(torch.nn.Module):
    def forward(self, i, b, x):
        {BODIES[name]}
def get_inputs():
    b = torch.randint(0, 256, (24, 33), dtype=torch.uint8)
    return [torch.randint(1, 9, (24, 33)), b, torch.rand(24, 33) + 1]
def get_init_inputs(): return []
"""
    assert_agrees(make(text, "Model"))


def test_bytes_are_read_by_the_kernel(make):
    text = """
import torch
class Model(torch.nn.Module):
    def forward(self, b):
        return (b.float() / 255 - 0.5) / 0.25
def get_inputs(): return [torch.randint(0, 256, (24, 33), dtype=torch.uint8)]
def get_init_inputs(): return []
"""
    made = make(text, "Model")
    assert_agrees(made)
    assert "aten._to_copy" not in made.candidate.files["model_new.py"]
