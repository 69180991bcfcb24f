"""Rows shorter than some vectors: adjacent rows of a tile are the lanes (CPU)."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

TASK = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn({columns}))
        self.square = torch.nn.Parameter(torch.randn({columns}, {columns}))
    def forward(self, x, m, labels):
        {body}
def get_inputs():
    return [
        torch.randn(3, 70, {columns}).to(torch.{dtype}),
        torch.rand(3, 70, {columns}) > 0.5,
        torch.randint(0, {columns}, (210,)),
    ]
def get_init_inputs(): return []
"""
BODIES = {
    "softmax": "return torch.softmax(x * 2 + self.weight, -1)",
    "masked softmax": "return torch.softmax(x.masked_fill(m, -1e9), -1)",
    "layer norm": "return F.layer_norm(x, x.shape[2:], self.weight, self.weight)",
    "cross entropy": "return F.cross_entropy(x.flatten(0, 1), labels)",
    "logsumexp of shifted rows": "return torch.logsumexp(x[:, 1:] + 1, -1)",
    "largest and its place": "v, i = x.tanh().max(-1); return v, i, v - x.mean(-1)",
    "elements and rows": "p = x.softmax(-1); return p, (p * p.log()).sum(-1)",
    "comparison": "return x.exp() > x.exp().mean(-1, keepdim=True)",
    "a product in place": "return torch.softmax(F.linear(x, self.square), -1)",
    "a rotated row": "return torch.softmax(torch.cat([x[..., 1:], x[..., :1]], -1), -1)",
}


@pytest.mark.parametrize("columns", [2, 7, 10, 16, 31])
@pytest.mark.parametrize("name", BODIES)
def test_candidate_agrees_with_reference(make, name, columns):
    made = make(TASK.format(columns=columns, dtype="float32", body=BODIES[name]), "Model")
    assert_agrees(made)


@pytest.mark.parametrize("name", ["softmax", "masked softmax", "elements and rows"])
def test_candidate_agrees_with_reference_in_half_precision(make, name):
    body = BODIES[name].replace("self.weight", "self.weight.bfloat16()")
    assert_agrees(make(TASK.format(columns=12, dtype="bfloat16", body=body), "Model"))


@pytest.mark.parametrize(
    ("columns", "is_copied"), [(10, True), (16, True), (31, True), (32, False)]
)
def test_rows_are_copied_only_if_they_are_short(make, columns, is_copied):
    made = make(TASK.format(columns=columns, dtype="float32", body=BODIES["softmax"]), "Model")
    (text,) = [text for path, text in made.candidate.files.items() if path.endswith(".cpp")]
    assert ("staged_0[" in text) == is_copied
    assert ("omp simd reduction" in text) != is_copied


def test_rows_with_nan_and_infinities_are_as_in_torch(make):
    made = make(
        TASK.format(columns=6, dtype="float32", body="return x.softmax(-1), x.exp().amax(-1)"),
        "Model",
    )
    x, m, labels = made.inputs()
    x[0, 0, 3], x[0, 1, 2], x[0, 2, :] = torch.nan, torch.inf, -torch.inf
    with torch.no_grad():
        got = made.cls().eval()(x, m, labels)
    torch.testing.assert_close(got[0], x.softmax(-1), equal_nan=True)
    torch.testing.assert_close(got[1], x.exp().amax(-1), equal_nan=True)


COLUMNS = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.square = torch.nn.Parameter(torch.randn({width}, {width}))
    def forward(self, x):
        {body}
def get_inputs(): return [torch.randn(6, 5, {width})]
def get_init_inputs(): return []
"""
STEPS = {
    "a forward step": "return torch.logsumexp(x[:, 0, :, None] + self.square, 1) + x[:, 1]",
    "a backward step": "return torch.logsumexp(self.square + x[:, :1], 2) * 2",
    "a softmax of columns": "y = x * 2 + 1; return y.softmax(1), y.exp().sum(1)",
    "a result in place": "return torch.softmax(x.flip(0) + 1, 1) * x",
}


@pytest.mark.parametrize("width", [9, 11, 15, 20, 33, 63])
@pytest.mark.parametrize("name", STEPS)
def test_the_last_vector_of_some_columns_overlaps_the_one_before(make, name, width):
    made = make(COLUMNS.format(width=width, body=STEPS[name]), "Model")
    assert_agrees(made)
    if name == "a forward step":
        (text,) = [t for f, t in made.candidate.files.items() if f.endswith(".cpp")]
        assert f"next + {8 if width < 32 else 16} <= {width}" in text
