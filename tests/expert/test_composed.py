"""Operators that are lowered to short formulas of others, compared with fp64 and at the edges."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees

TEXT = """
import torch
import torch.nn.functional as F


class Model(torch.nn.Module):
    def forward(self, x, y, z):
        found = {expression}
        found = found if isinstance(found, tuple) else (found,)
        # A kernel for one simple operation would not be tried.
        return tuple((v, torch.abs(v) * 0.5, torch.neg(v)) for v in found)


def get_inputs():
    torch.manual_seed(3)
    x, y = {inputs}
    return [x.to({dtype}), y.to({dtype}), (torch.randint(2, (64, 96)) * 2.0 - 1.0).to({dtype})]


def get_init_inputs():
    return []
"""
NORMAL = "torch.randn(64, 96), torch.randn(64, 96)"
UNIT = "torch.rand(64, 96), torch.rand(64, 96)"
ABOVE_ONE = "torch.rand(64, 96) * 4 + 1, torch.randn(64, 96)"
FUNCTIONS = {
    "torch.sinh(3 * x)": NORMAL,
    "torch.cosh(3 * x)": NORMAL,
    "torch.asinh(x) + torch.asinh(1e12 * y)": NORMAL,
    "torch.atanh(x * 0.99)": UNIT,
    "torch.acosh(x)": ABOVE_ONE,
    "torch.tan(x)": NORMAL,
    "torch.log2(x) + torch.log10(y)": UNIT,
    "torch.frac(4 * x), torch.sgn(y)": NORMAL,
    "F.celu(x, alpha=0.7)": NORMAL,
    "torch.logit(x, eps=0.01)": UNIT,
    "torch.addcmul(x, y, z, value=0.3)": NORMAL,
    "torch.addcdiv(x, z, y, value=0.3)": "torch.randn(64, 96), torch.rand(64, 96) + 0.5",
    "torch.lerp(x, y, 0.3) * torch.lerp(x, z, 0.8)": NORMAL,
    "torch.fmax(x, y) - torch.fmin(x, z)": NORMAL,
    "torch.logaddexp(4 * x, y)": NORMAL,
    "F.glu(x, dim=-1) + F.glu(y)": NORMAL,
    "torch.diff(x, dim=0)": NORMAL,
    "torch.var_mean(x, dim=-1)": NORMAL,
    "torch.var_mean(x, dim=(0, 1), correction=0, keepdim=True)[0]": NORMAL,
    "torch.aminmax(x, dim=1, keepdim=True)": NORMAL,
    "torch.nansum(torch.sqrt(x), dim=-1)": NORMAL,
    "F.pairwise_distance(x, y, keepdim=True)": NORMAL,
}
LOSSES = {
    "F.hinge_embedding_loss(x, z, margin=0.8, reduction='none')": NORMAL,
    "F.soft_margin_loss(x, z, reduction='sum')": NORMAL,
    "F.margin_ranking_loss(x, y, z, margin=0.4, reduction='none')": NORMAL,
    "F.poisson_nll_loss(x, y)": NORMAL,
    "F.binary_cross_entropy(x, y, reduction='none')": UNIT,
}


def text(expression: str, inputs: str, dtype: torch.dtype = torch.float32) -> str:
    return TEXT.format(expression=expression, inputs=inputs, dtype=dtype)


@pytest.mark.parametrize(("expression", "inputs"), [*FUNCTIONS.items(), *LOSSES.items()])
def test_formula_agrees_with_operator_and_leaves_no_call_of_torch(make, expression, inputs):
    made = make(text(expression, inputs), "Model")
    assert_agrees(made)
    assert made.candidate.library == ()
    called = made.candidate.files["model_new.py"].rpartition("def forward")[2]
    assert "torch." not in called.replace("torch.empty", "").replace("torch.float", "")


@pytest.mark.parametrize("expression", ["torch.asinh(x)", "F.glu(x)", "torch.lerp(x, y, 0.3)"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_formula_in_half_precision_rounds_once(make, expression, dtype):
    assert_agrees(make(text(expression, NORMAL, dtype), "Model"))


EDGES = "torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-20, 3e38, -3e38, INF, -INF, NAN]).repeat(64, 1)"


@pytest.mark.parametrize(
    "expression",
    [
        "torch.sinh(x)",
        "torch.cosh(x)",
        "torch.asinh(x)",
        "torch.acosh(x)",
        "torch.atanh(x)",
        "torch.logaddexp(x, y)",
        "torch.fmax(x, y)",
        "torch.fmin(x, y)",
        "torch.nansum(x, dim=0)",
        "torch.sgn(x)",
        "F.celu(x)",
    ],
)
def test_infinities_zeros_and_nan_are_as_in_torch(make, expression):
    edges = EDGES.replace("INF", "float('inf')").replace("NAN", "float('nan')")
    made = make(text(expression, f"{edges}, {edges}.flip(1)"), "Model")
    inputs = made.inputs()
    with torch.no_grad():
        expected, got = made.reference()(*inputs), made.cls().eval()(*inputs)
    torch.testing.assert_close(got, expected, equal_nan=True)
