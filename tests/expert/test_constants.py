"""Values that depend on parameters and constants alone are computed once."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options

pytestmark = pytest.mark.slow

BODIES = {
    "positions": "return self.norm(x + self.places(torch.arange(x.shape[1])))",
    "a causal mask": (
        "m = torch.ones(6, 6, dtype=torch.bool).tril(); "
        "return (x @ x.mT).masked_fill(~m, -1e9).softmax(-1)"
    ),
    "a bias from a table": (
        "b = self.places.weight[self.index.view(-1)].view(6, 6, -1).permute(2, 0, 1); "
        "return ((x @ x.mT)[:, None] + b).softmax(-1)"
    ),
    "buckets": (
        "p = torch.arange(6); d = (p[None] - p[:, None]).abs(); "
        "d = torch.where(d < 2, d, 2 + (torch.log(d.float() / 2) * 1.5).long().clamp(max=3)); "
        "return ((x @ x.mT)[:, None] + self.places(d).permute(2, 0, 1)).softmax(-1)"
    ),
    "rotary angles": (
        "a = torch.outer(torch.arange(6).float(), self.rate); a = torch.cat([a, a], -1); "
        "c, s = a.cos().to(x.dtype), a.sin().to(x.dtype); u, v = x.chunk(2, -1); "
        "return x * c + torch.cat([-v, u], -1) * s"
    ),
    "a mask of regions": (
        "m = x.new_zeros(6, 6); m[:3, :2] = 1; m[3:, 4:] = 2; m = m.flatten()[:6]; "
        "d = (m[None] - m[:, None]).masked_fill(m[None] != m[:, None], -9.0); "
        "return ((x @ x.mT) + d + x.new_full((6, 1), 0.5) * x.new_ones(6)).softmax(-1)"
    ),
    "a mask for every row": (
        "m = torch.ones(6, 6, dtype=torch.bool).tril()[None].expand(x.shape[0], 6, 6); "
        "return (x @ x.mT).masked_fill(m, 0.0).tanh()"
    ),
    "a result that no input changes": (
        "p = torch.arange(6); return x.tanh() * 2, self.places(p).mT, p.view(2, 3)"
    ),
    "a product of constants, changed": (
        "w = self.places.weight[self.index[0]]; p = w @ w.mT; return p, (p + x.mean()).tanh()"
    ),
}
QUICK = ("positions", "a causal mask", "rotary angles", "a result that no input changes")
"""Names of the cases that are not slow tests."""


def text_of(name: str, dtype: str = "float32") -> str:
    return f"""
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(6, 20)
        self.norm = nn.LayerNorm(20)
        self.register_buffer("index", (torch.arange(36) % 6).view(6, 6))
        self.register_buffer("rate", torch.rand(10))
        self.to(torch.{dtype})
    def forward(self, x):
        {BODIES[name]}
def get_inputs(): return [torch.randn(3, 6, 20).to(torch.{dtype})]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in BODIES]
)
def test_candidate_agrees_with_reference(make, name):
    made = make(text_of(name), "Model")
    assert made.candidate.constants
    assert_agrees(made)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["positions", "a bias from a table", "rotary angles"])
def test_candidate_agrees_with_reference_in_half_precision(make, name):
    assert_agrees(make(text_of(name, "bfloat16"), "Model"))


def test_number_in_a_tensor_of_no_dimensions_is_in_the_kernel(make):
    # On a GPU such a tensor stays in the memory of the CPU, where a kernel cannot read it.
    text = text_of("positions").replace(
        "return self.norm(", "x = torch.min(x, torch.tensor(0.1)) * 2; return self.norm("
    )
    made = make(text, "Model")
    assert "lifted_tensor" not in made.candidate.files["model_new.py"]
    assert_agrees(made)


def test_a_changed_table_is_read_again(make):
    new = assert_agrees(make(text_of("a bias from a table"), "Model"))
    x = torch.randn(3, 6, 20)
    with torch.no_grad():
        before = new(x)
        new.places.weight.mul_(-2)
        reference = super(type(new), new).forward(x)
        after = new(x)
    assert not torch.equal(before, after)
    assert torch.allclose(after, reference, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["a result that no input changes", "a product of constants, changed"]
)
def test_a_caller_may_change_a_result_in_place(make, name):
    new = assert_agrees(make(text_of(name), "Model"))
    x = torch.randn(3, 6, 20)
    with torch.no_grad():
        first = [value.clone() for value in new(x)]
        for value in new(x):
            value.zero_()
        again = new(x)
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)


def test_random_numbers_are_drawn_in_each_call(make):
    text = text_of("positions").replace(BODIES["positions"], "return (x + torch.rand(20)).tanh()")
    made = make(text, "Model")
    assert made.candidate.constants == ()
    new = made.cls().eval()
    with torch.no_grad():
        x = torch.randn(3, 6, 20)
        assert not torch.equal(new(x), new(x))


def test_constants_can_be_computed_in_each_call(make):
    made = make(text_of("buckets"), "Model", Options(constants=False))
    assert made.candidate.constants == ()
    assert_agrees(made)


def test_equal_values_are_computed_once(make):
    layer = "p = torch.arange(x.shape[1]); x = (x + self.places(p // 2)).tanh(); "
    text = text_of("positions").replace(BODIES["positions"], layer * 2 + "return x")
    made = make(text, "Model")
    assert made.candidate.files["model_new.py"].count("aten.embedding") == 1
    assert_agrees(made)
