"""Operators that are lowered to short formulas of others, compared with fp64 and at the edges.

Formulas of the same inputs share one module and so one compilation: most of a test's time.
"""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees

pytestmark = pytest.mark.slow

TEXT = """
import torch
import torch.nn.functional as F


class Model(torch.nn.Module):
    def forward(self, x, y, z):
        found = [v if isinstance(v, tuple) else (v,) for v in {expressions}]
        found = [part for parts in found for part in parts]
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
ABOVE_HALF = "torch.randn(64, 96), torch.rand(64, 96) + 0.5"
FUNCTIONS = {
    "functions": (NORMAL, [
        "torch.sinh(3 * x)",
        "torch.cosh(3 * x)",
        "torch.asinh(x) + torch.asinh(1e12 * y)",
        "torch.tan(x)",
        "torch.frac(4 * x), torch.sgn(y)",
        "F.celu(x, alpha=0.7)",
    ]),
    "functions of several": (NORMAL, [
        "torch.addcmul(x, y, z, value=0.3)",
        "torch.lerp(x, y, 0.3) * torch.lerp(x, z, 0.8)",
        "torch.fmax(x, y) - torch.fmin(x, z)",
        "torch.logaddexp(4 * x, y)",
    ]),
    "arcs and powers": (NORMAL, [
        "torch.atan(3 * x), torch.atan2(x, y)",
        "torch.asin(x.clamp(-1, 1)), torch.acos(y.clamp(-1, 1))",
        "torch.exp2(4 * x), torch.pow(2.0, y), torch.pow(10.0, y)",
        "x**4, y**-2 * 1e-3, x.abs() ** 1.7, (y.abs() + 0.1) ** x, x**7",
    ]),
    "functions with limits": (NORMAL, [
        "x.clamp(y, y + 1), torch.clamp(x, min=y), x.clamp_max(z), F.hardtanh(x, -0.3, 0.7)",
        "F.softplus(x, beta=2.0), F.threshold(x, 0.1, 2.0), F.selu(x) + F.elu(y, 0.3)",
        "torch.lerp(x, y, z), torch.hypot(x, y), torch.xlogy(x, y.abs())",
        "torch.remainder(9 * x, 2.0), (5 * y) // 0.5, (x * 3) % 1",
        "torch.nan_to_num(x / 0, posinf=3.0, neginf=-2.0), torch.isfinite(x / (y > 0)).float()",
    ]),
    "functions from 0 to 1": (UNIT, [
        "torch.atanh(x * 0.99)",
        "torch.log2(x) + torch.log10(y)",
        "torch.logit(x, eps=0.01)",
        "F.binary_cross_entropy(x, y, reduction='none')",
    ]),
    "a function above 1": (ABOVE_ONE, ["torch.acosh(x)"]),
    "a quotient": (ABOVE_HALF, ["torch.addcdiv(x, z, y, value=0.3)"]),
    "parts of a tensor": (NORMAL, ["F.glu(x, dim=-1) + F.glu(y)", "torch.diff(x, dim=0)"]),
    "reductions of rows": (NORMAL, [
        "torch.var_mean(x, dim=-1)",
        "torch.aminmax(x, dim=1, keepdim=True)",
        "torch.nansum(torch.sqrt(x), dim=-1)",
        "F.pairwise_distance(x, y, keepdim=True)",
        "torch.std_mean(x, -1)",
        "x.norm(p=3, dim=-1), x.norm(p=float('inf'), dim=-1)",
        "(x > 0).all(-1).float(), (x > 2).any(-1).float(), (x > 0).sum(-1).float()",
        "x.view(64, 24, 4).prod(-1).sum(-1)",
    ]),
    "operators that torch composes": (NORMAL, [
        "torch.cat((torch.isclose(x, y).float(), torch.linalg.norm(x, dim=-1, keepdim=True)), 1)",
        "torch.outer(x[:, 0], y[0]) + x, x.tile(2, 1)",
    ]),
    "a reduction of all": (
        NORMAL, ["torch.var_mean(x, dim=(0, 1), correction=0, keepdim=True)[0]"]
    ),
    "losses": (NORMAL, [
        "F.hinge_embedding_loss(x, z, margin=0.8, reduction='none')",
        "F.margin_ranking_loss(x, y, z, margin=0.4, reduction='none')",
    ]),
    "reduced losses": (NORMAL, [
        "F.soft_margin_loss(x, z, reduction='sum')",
        "F.poisson_nll_loss(x, y)",
    ]),
}  # fmt: skip


def text(expressions: list[str], inputs: str, dtype: torch.dtype = torch.float32) -> str:
    values = "".join(f"({expression}), " for expression in expressions)
    return TEXT.format(expressions=f"[{values}]", inputs=inputs, dtype=dtype)


@pytest.mark.parametrize(("inputs", "expressions"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_formulas_agree_with_operators_and_leave_no_call_of_torch(make, inputs, expressions):
    made = make(text(expressions, inputs), "Model")
    assert_agrees(made)
    assert made.candidate.library == ()
    called = made.candidate.files["model_new.py"].rpartition("def forward")[2]
    assert "torch." not in called.replace("torch.empty", "").replace("torch.float", "")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_formulas_in_half_precision_round_once(make, dtype):
    expressions = ["torch.asinh(x)", "F.glu(x)", "torch.lerp(x, y, 0.3)"]
    assert_agrees(make(text(expressions, NORMAL, dtype), "Model"))


EDGES = "torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-20, 3e38, -3e38, INF, -INF, NAN]).repeat(64, 1)"
EDGED = [
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
    "torch.hypot(x, y)",
    "torch.xlogy(x, y.abs())",
    "torch.isnan(x).float()",
    "torch.isinf(x).float()",
    "torch.isfinite(x).float()",
    "torch.nan_to_num(x, nan=2.0)",
    "torch.pow(x, y)",
    "torch.pow(x, 4)",
    "torch.pow(x, -3)",
    "torch.exp2(x)",
    "torch.atan2(x, y)",
    "torch.clamp(x, min=y)",
    "F.threshold(x, 0.5, 3.0)",
    "torch.remainder(x, 2.0)",
    "x.norm(p=float('inf'), dim=0)",
    "F.celu(x)",
    "torch.remainder(x, y)",
    "F.softplus(x, beta=2)",
    "F.binary_cross_entropy_with_logits(x, y, reduction='none')",
    "torch.logsumexp(x, 1)",
    "torch.logsumexp(x[:, :9], 1)",
    "torch.logsumexp(x[:, 8:9], 1)",
]


def test_infinities_zeros_and_nan_are_as_in_torch(make):
    edges = EDGES.replace("INF", "float('inf')").replace("NAN", "float('nan')")
    made = make(text(EDGED, f"{edges}, {edges}.flip(1)"), "Model")
    inputs = made.inputs()
    with torch.no_grad():
        expected, got = made.reference()(*inputs), made.cls().eval()(*inputs)
    for expression, wanted, value in zip(EDGED, expected, got, strict=True):
        torch.testing.assert_close(
            value, wanted, equal_nan=True, msg=lambda found, name=expression: f"{name}: {found}"
        )
