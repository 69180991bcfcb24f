"""Subnormal probabilities stay apart from 0 where an operator compares them."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.slow

TEXT = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        p = x.softmax(-1)
        {body}
def get_inputs():
    x = torch.zeros(64, 12)
    x[:, 0], x[:, 5], x[:, 7] = 100.0, 12.0, 11.0
    return [x]
def get_init_inputs(): return []
"""
BODIES = {
    "index of a maximum": "best, index = p[..., 1:].max(-1); return best * 2, index",
    "index after arithmetic": "return (p[..., 1:] * 2 + p[..., 1:]).argmax(-1), p.sum(-1)",
    "logarithm": "return (p.log() * 0.5).clamp(min=-60)",
    "comparison": "return torch.where(p > 0, 1.0, 2.0) * 3",
}


@pytest.mark.parametrize("name", BODIES)
def test_choice_among_subnormal_probabilities_is_that_of_torch(make, name):
    made = make(TEXT.format(body=BODIES[name]), "Model")
    (x,) = made.inputs()
    with torch.no_grad():
        expected, got = made.reference()(x), made.cls().eval()(x)
    torch.testing.assert_close(got, expected)


LIMITS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {expression}
def get_inputs(): return [torch.tensor([[0.0, -1.0, 300.0, float("nan")]]).repeat(3, 1).{to}]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize(
    ("expression", "to"),
    [
        ("torch.isinf(x * 300).sum(-1), x.exp() * 2", "half()"),
        ("torch.isfinite(x * 300).all(-1), x.exp() * 2", "half()"),
        ("torch.nan_to_num(x * 300, posinf=1.0).exp() * 2", "half()"),
        ("torch.xlogy(2.0, x) * 2", "clone()"),
        ("torch.xlogy(0.0, x) * 2", "clone()"),
        ("torch.cat([x, x * 2], 1)[:, 5:6] * x", "clone()"),
        ("torch.stack([x, x * 2], -1).prod(-1) * 2", "clone()"),
    ],
)
def test_limits_of_a_type_numbers_and_single_columns_agree_with_torch(make, expression, to):
    made = make(LIMITS.format(expression=expression, to=to), "Model")
    (given,) = made.inputs()
    with torch.no_grad():
        got, expected = made.cls().eval()(given), made.reference()(given)
    torch.testing.assert_close(got, expected, equal_nan=True)
