"""Attention biases that no input makes infinite need no test for queries without keys."""

from __future__ import annotations

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, q, k, v, mask):
        bias = {bias}
        return (q @ k.transpose(-1, -2) / 4 + bias).softmax(-1) @ v
def get_inputs():
    return [*torch.randn(3, 2, 3, 10, 16, dtype=torch.{dtype}), {mask}]
def get_init_inputs(): return []
"""
FILL = "masked_fill.Scalar("
INTEGERS = "(torch.rand(2, 10) > 0.2).long()"
BERT = "(1.0 - mask[:, None, None, :].to(q.dtype)) * {factor}"
FINITE = {
    "integers": (BERT.format(factor="-10000.0"), "float32", INTEGERS),
    "booleans": (BERT.format(factor="-1e9"), "float32", f"{INTEGERS}.bool()"),
    "bfloat16": (BERT.format(factor="-10000.0"), "bfloat16", INTEGERS),
    "choice": (
        "torch.zeros_like(q[:, :1, :1, :1]).masked_fill(mask[:, None, None, :] == 0, -1e9)",
        "float32",
        INTEGERS,
    ),
}
UNBOUNDED = {
    "numbers": (BERT.format(factor="-10000.0"), "float32", f"{INTEGERS}.float()"),
    "infinity": (
        "torch.zeros_like(q[:, :1, :1, :1]).masked_fill(mask[:, None, None, :] == 0, -torch.inf)",
        "float32",
        INTEGERS,
    ),
    "too large for the type": (BERT.format(factor="-10000.0"), "float16", INTEGERS),
}


def made_of(make, bias: str, dtype: str, mask: str):
    return make(TASK.format(bias=bias, dtype=dtype, mask=mask), "Model")


@pytest.mark.parametrize("name", FINITE)
def test_no_query_is_tested_for_keys(make, name):
    made = made_of(make, *FINITE[name])
    text = made.candidate.files["model_new.py"].split("def _fits")[-1]
    assert "scaled_dot_product_attention" in text
    assert FILL not in text
    assert_agrees(made)


@pytest.mark.parametrize("name", UNBOUNDED)
def test_queries_without_keys_are_found(make, name):
    made = made_of(make, *UNBOUNDED[name])
    text = made.candidate.files["model_new.py"].split("def _fits")[-1]
    assert "scaled_dot_product_attention" not in text or FILL in text
