"""Cumulative sums, products and extremes along any dimension, in both directions."""

from __future__ import annotations

import math

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options

pytestmark = pytest.mark.slow

BODIES = {
    "a sum": "return torch.cumsum(x, DIM)",
    "a product": "return torch.cumprod(x * 0.1 + 1, DIM)",
    "a reversed sum": "return torch.cumsum(x.flip(DIM), DIM).flip(DIM)",
    "a masked sum": "return torch.cumsum(x * (y > 0), DIM) + 1",
    "an exclusive sum": (
        "n = x.shape[DIM]\n"
        "        z = torch.zeros_like(x.select(DIM, 0).unsqueeze(DIM))\n"
        "        return torch.cumsum(torch.cat((z, x), DIM).narrow(DIM, 0, n), DIM)"
    ),
    "zeros before a sum": (
        "s = torch.cumsum(x.narrow(DIM, 0, x.shape[DIM] - 1) * 2, DIM)\n"
        "        return torch.cat((torch.zeros_like(y.select(DIM, 0).unsqueeze(DIM)), s), DIM) + 1"
    ),
    "zeros behind a reversed sum": (
        "s = torch.cumsum(x.flip(DIM), DIM).flip(DIM)\n"
        "        return torch.cat((s, torch.zeros_like(y.narrow(DIM, 0, 2))), DIM)"
    ),
    "a sum inside arithmetic": (
        "h = torch.cumsum((x * 0.1).exp(), DIM); return h.log() * y + x.mean(DIM, keepdim=True), h"
    ),
    "a broadcast operand": "return torch.cumsum(x * y[:1, :, :1], DIM).tanh() - y[:, :1]",
    "a maximum": "return torch.cummax(x, DIM)[0]",
    "a minimum inside arithmetic": "return torch.cummin(x * y, DIM)[0] - torch.cummax(y, DIM)[0]",
    "a reversed maximum": "return torch.cummax(x.flip(DIM), DIM).values.flip(DIM)",
    "two sums": "return torch.cumsum(x, DIM) + torch.cumsum(y * 2, 0).relu()",
}
CASES = [
    *((name, 1, "3, 300, 5") for name in BODIES),
    *((name, 2, "3, 7, 1031") for name in BODIES),
    ("a masked sum", 0, "33, 3, 5"),
    ("a reversed sum", 0, "33, 3, 5"),
    ("a sum", 2, "5, 13, 8"),
]
ONE_KERNEL = ["a masked sum", "a reversed sum", "an exclusive sum", "zeros before a sum"]
ONE_KERNEL += ["zeros behind a reversed sum", "a maximum", "a reversed maximum"]
FEW_LONG_ROWS = ("a sum", 2, "1, 1, 100003")
"""Case with few long rows: on CUDA torch's kernel is faster than a generated one."""


def text_of(name: str, dim: int, shape: str, dtype: str = "float32") -> str:
    return f"""
import torch
class Model(torch.nn.Module):
    def forward(self, x, y):
        {BODIES[name].replace("DIM", str(dim))}
def get_inputs(): return [torch.randn({shape}).to(torch.{dtype}) for _ in range(2)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize(("name", "dim", "shape"), [*CASES, FEW_LONG_ROWS])
def test_candidate_agrees_with_reference(make, name, dim, shape):
    assert_agrees(make(text_of(name, dim, shape), "Model"))


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("name", ["a masked sum", "a reversed sum", "a sum inside arithmetic"])
def test_candidate_agrees_with_reference_in_half_precision(make, name, dim):
    assert_agrees(make(text_of(name, dim, "3, 130, 65", "bfloat16"), "Model"))


@pytest.mark.gpu
@pytest.mark.parametrize("options", [Options(), Options(threads=128)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "dim", "shape"), CASES)
def test_cuda_candidate_agrees_with_reference(make, name, dim, shape, dtype, options):
    assert_agrees(make(text_of(name, dim, shape, dtype), "Model", options, "cuda"), "cuda")


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_scan_with_its_neighbours_is_one_kernel(make, name):
    made = make(text_of(name, 2, "3, 7, 33"), "Model")
    assert len(made.candidate.kernels) == 1
    module = made.candidate.files["model_new.py"]
    forward = module[module.rindex("def forward") :]
    assert "torch.ops" not in forward
    assert forward.count("torch.empty") == 1


OTHER_JOINS = {
    "zeros behind": "torch.cat((torch.cumsum(x, 1), torch.zeros_like(y)), 1)",
    "a product": "torch.cat((torch.zeros_like(y), torch.cumprod(x, 1)), 1)",
    "another dimension": "torch.cat((torch.zeros_like(y), torch.cumsum(x, 2)), 1)",
    "ones": "torch.cat((torch.ones_like(y), torch.cumsum(x, 1)), 1)",
}


@pytest.mark.parametrize("name", OTHER_JOINS)
def test_other_joins_of_a_scan_agree_with_reference(make, name):
    text = text_of("a sum", 1, "3, 5, 7").replace("torch.cumsum(x, 1)", OTHER_JOINS[name])
    assert_agrees(make(text, "Model"))


@pytest.mark.parametrize("dim", [1, 2])
def test_extremes_so_far_are_nan_from_the_first_nan_on(make, dim):
    made = make(text_of("a maximum", dim, "3, 20, 70"), "Model")
    x = torch.randn(3, 20, 70)
    x[0, 4, 9], x[1, 5, 6], x[2] = math.nan, math.inf, -math.inf
    with torch.no_grad():
        expected, got = (cls()(x, x) for cls in (made.reference, made.cls))
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert got.isnan().any()


def test_cumulative_maximum_whose_indices_are_read_stays_with_torch(make):
    text = text_of("a maximum", 1, "3, 5, 7").replace("[0]", "")
    body = "values, places = torch.cummax(x, 1); return (values + y).exp(), places"
    made = make(text.replace("return torch.cummax(x, 1)", body), "Model")
    assert "aten.cummax" in made.candidate.files["model_new.py"]
    assert_agrees(made)


def test_cumulative_trapezoid_is_a_kernel(make):
    body = (
        "return torch.cumulative_trapezoid(x, dim=1) * 2, torch.cumulative_trapezoid(y, x, dim=2)"
    )
    made = make(text_of("a sum", 1, "3, 20, 7").replace("return torch.cumsum(x, 1)", body), "Model")
    assert "trapezoid" not in made.candidate.files["model_new.py"].rpartition("def forward")[2]
    assert_agrees(made)
