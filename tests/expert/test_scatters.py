"""Sums and extremes of rows by index, with the operations around them, against fp64."""

from __future__ import annotations

import math

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

BODIES = {
    "index_add": "return torch.zeros(7, 5, dtype=t).index_add(0, to, m)",
    "a changed destination": "return x.index_add(0, to, m)",
    "in place": "y = torch.zeros_like(x); y.index_add_(0, to, m.exp()); return y.relu() + 1",
    "scatter_add": "return torch.zeros_like(x).scatter_add(0, to[:, None].expand_as(m), m) * 2",
    "the largest": (
        "return torch.full((7, 5), -2.5, dtype=t).scatter_reduce("
        "0, to[:, None].expand_as(m), m, 'amax')"
    ),
    "the smallest": "return x.scatter_reduce(0, to[:, None].expand_as(m), m, 'amin').tanh()",
    "the largest of an index_reduce": "return x.index_reduce(0, to, m, 'amax') * 2",
    "the smallest of an index_reduce": "return x.index_reduce(0, to, m.exp(), 'amin')",
    "counts": (
        "n = torch.zeros(7, dtype=t); "
        "return n.scatter_add_(0, to, torch.ones_like(to, dtype=t)).clamp(min=1)"
    ),
    "index_put": "y = x.clone(); return y.index_put((to - 7,), m, accumulate=True)",
    "messages of edges": (
        "e = F.relu(x[pair[0]] + m); s = torch.zeros_like(x).index_add(0, pair[1], e); "
        "n = torch.zeros(7, dtype=t).index_add(0, pair[1], torch.ones(13, dtype=t)); "
        "return F.relu(s / n.clamp(min=1)[:, None] + x)"
    ),
    "weights of heads": (
        "z = x[:, :4].reshape(7, 2, 2); w = m[:, :2].exp(); "
        "y = torch.zeros(7, 2, 2, dtype=t); "
        "return y.index_add(0, to, z[pair[0]] * w[..., None]).flatten(1)"
    ),
    "a softmax over the edges of a node": (
        "i = to[:, None].expand_as(m); "
        "b = torch.full((7, 5), -1e30, dtype=t).scatter_reduce(0, i, m, 'amax'); "
        "w = (m - b[to]).exp(); "
        "return w / torch.zeros(7, 5, dtype=t).scatter_add(0, i, w)[to]"
    ),
    "an index that is not contiguous": (
        "return torch.zeros(7, 5, dtype=t).index_add(0, strided[:, 1], m)"
    ),
}
QUICK = ("index_add", "the largest", "index_put", "messages of edges")
"""Names of the cases that are not slow tests."""
LEFT = {
    "another dimension": "return x.index_add(1, pair[0, :5] % 5, m[:7])",
    "an index for each element": "return x.scatter_add(0, strided[:, :1].repeat(1, 5), m)",
    "without the first value": (
        "return x.scatter_reduce(0, to[:, None].expand_as(m), m, 'amax', include_self=False)"
    ),
    "a mean": "return x.scatter_reduce(0, to[:, None].expand_as(m), m, 'mean')",
    "a mean by an index_reduce": "return x.index_reduce(0, to, m, 'mean')",
    "a scaled source": "return x.index_add(0, to, m, alpha=2)",
}


def text_of(body: str) -> str:
    return f"""
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, x, m, to, pair, strided):
        t = x.dtype
        {body}
def get_inputs():
    return [torch.randn(7, 5), torch.randn(13, 5), torch.randint(0, 6, (13,)),
            torch.randint(0, 7, (2, 13)), torch.randint(0, 7, (13, 3))]
def get_init_inputs(): return []
"""


def is_scattered(made) -> bool:
    return any("destinations" in text for text in made.candidate.files.values())


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in BODIES]
)
def test_candidate_agrees_with_reference(make, name):
    made = make(text_of(BODIES[name]), "Model")
    assert is_scattered(made)
    assert_agrees(made)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT)
def test_other_forms_stay_with_torch(make, name):
    made = make(text_of(LEFT[name].replace("return ", "y = ") + "; return (y * 2).tanh()"), "Model")
    assert not is_scattered(made)
    assert_agrees(made)


@pytest.mark.parametrize("name", ["index_add", "the largest", "the smallest", "messages of edges"])
def test_values_that_are_not_finite_arrive_where_torch_puts_them(make, name):
    made = make(text_of(BODIES[name]), "Model")
    for value in (math.nan, math.inf, -math.inf):
        x, m, *indices = made.inputs()
        m[4, 2] = value
        x[3, 1] = -value
        with torch.no_grad():
            expected = made.reference()(x, m, *indices)
            got = made.cls().eval()(x, m, *indices)
        assert torch.allclose(got, expected, equal_nan=True, atol=1e-6), value


def test_many_rows_are_shared_among_threads_with_equal_results(make):
    text = text_of("return torch.zeros(301, 33, dtype=t).index_add(0, to, m.sin()) * 2")
    text = text.replace("torch.randn(13, 5)", "torch.randn(3001, 33)")
    text = text.replace("torch.randint(0, 6, (13,))", "torch.randint(0, 301, (3001,))")
    made = make(text, "Model")
    source = "".join(made.candidate.files.values())
    assert "#pragma omp parallel\n" in source
    new = assert_agrees(made)
    inputs = made.inputs()
    threads = torch.get_num_threads()
    with torch.no_grad():
        first = new(*inputs)
        torch.set_num_threads(1)
        second = new(*inputs)
        torch.set_num_threads(threads)
    assert torch.equal(first, second)
