"""Batched products of which only the transpose is read."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options

TASK = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(1, 48, 8))
    def forward(self, weights, x):
        {body}
def get_inputs(): return [torch.rand(6, 20, 8), torch.randn(6, 20, 48)]
def get_init_inputs(): return []
"""
BODIES = {
    # The part of NetVLAD after its softmax.
    "residuals": """
        total = weights.sum(1, keepdim=True) * self.centres
        sums = torch.matmul(weights.transpose(1, 2), x).transpose(1, 2) - total
        return F.normalize(F.normalize(sums).reshape(-1, 48 * 8))""",
    "both_operands_turned": """
        y = torch.bmm(weights.transpose(1, 2), x).transpose(1, 2)
        return torch.softmax(y * 0.5, 1)""",
    "no_operand_turned": """
        y = torch.matmul(x[:, :8] * 2, weights[:, :1].expand(6, 48, 8)).transpose(-1, -2)
        return torch.softmax(torch.relu(y) + 1, 1)""",
}
OTHERS = {
    "read_both_ways": """
        y = torch.matmul(weights.transpose(1, 2), x)
        return torch.relu(y.transpose(1, 2)), y.sum(1)""",
    "result_in_the_order_of_the_product": """
        y = torch.matmul(weights.transpose(1, 2), x)
        return torch.relu(y.transpose(1, 2)) + 1""",
}


def forward_of(candidate) -> str:
    return candidate.files["model_new.py"].partition("class ModelNew")[2]


@pytest.mark.parametrize("name", BODIES)
def test_transpose_is_computed_in_place_of_the_product(generate, name):
    text = forward_of(generate(TASK.format(body=BODIES[name].strip())))
    product = next(line for line in text.splitlines() if "torch.matmul(" in line)
    shape = "float32[6, 8, 8]" if name == "no_operand_turned" else "float32[6, 48, 8]"
    assert shape in product
    assert "permute" not in text.replace(product, "")


def test_norms_of_a_product_are_two_kernels_without_a_copy(generate):
    candidate = generate(TASK.format(body=BODIES["residuals"].strip()))
    text = forward_of(candidate)
    assert len(candidate.kernels) == 2
    assert "clone" not in text
    assert "square" not in text, "a square is computed where it is read"


@pytest.mark.parametrize("name", OTHERS)
def test_product_that_serves_as_it_is_does_not_change(generate, name):
    text = forward_of(generate(TASK.format(body=OTHERS[name].strip())))
    assert "float32[6, 8, 48]" in text


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", BODIES)
def test_candidate_agrees_in_emulation(generate, interpreted, name):
    interpreted(generate(TASK.format(body=BODIES[name].strip())))


@pytest.mark.gpu
@pytest.mark.parametrize("name", BODIES)
def test_cuda_candidate_agrees_with_reference(make, name):
    assert_agrees(make(TASK.format(body=BODIES[name].strip()), "Model", Options(), "cuda"), "cuda")
