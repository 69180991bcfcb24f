"""Queries of the library's attention: computed in the memory order of the reference."""

from __future__ import annotations

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

TEXT = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        self.o = nn.Linear(32, 32)
    def forward(self, x, cos, sin):
        q, k, v = (f(x).view(2, 9, 4, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        half = lambda x: torch.cat((-x[..., 4:], x[..., :4]), -1)
        {body}
        return self.o(y.transpose(1, 2).reshape(2, 9, 32)){more}
def get_inputs(): return [torch.randn(2, 9, 32), torch.randn(9, 8), torch.randn(2, 1, 9, 8)]
def get_init_inputs(): return []
"""
ROTARY = "q = q * cos + half(q) * sin; "
CALL = "y = F.scaled_dot_product_attention(q, k, v)"
ORDERED = {
    "rotary": (ROTARY + CALL, ""),
    "factor": ("q = q * 0.5 + sin; " + CALL, ""),
    "step of the heads": ("q = q * torch.arange(4.).view(4, 1, 1) + sin; " + CALL, ""),
    "repeated heads": (
        "k, v = (t[:, :2, None].expand(2, 2, 2, 9, 8).reshape(2, 4, 9, 8) for t in (k, v)); "
        + ROTARY
        + CALL,
        "",
    ),
    "products and softmax": (ROTARY + "y = (q @ k.mT * 0.3).softmax(-1) @ v", ""),
}
UNCHANGED = {
    "contiguous": (ROTARY + "q = q.contiguous(); " + CALL, ""),
    "returned": (ROTARY + CALL, ", q"),
    "not computed": ("k = k * cos + sin; " + CALL, ""),
}


def text_of(form: tuple[str, str]) -> str:
    """Return a task with an attention over queries that are computed elementwise."""
    return TEXT.format(body=form[0], more=form[1])


def query_of(made) -> str:
    """Return the first argument of the attention call of a candidate."""
    forward = made.candidate.files["model_new.py"].rpartition("def forward")[2]
    assert forward.count("scaled_dot_product_attention(") == 1
    return forward.partition("F.scaled_dot_product_attention(")[2].partition("])")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDERED)
def test_queries_have_the_order_of_the_reference(make, name):
    made = make(text_of(ORDERED[name]), "Model")
    assert "ordered.permute(0, 2, 1, 3" in query_of(made)
    assert_agrees(made)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNCHANGED)
def test_other_queries_are_read_as_they_are(make, name):
    made = make(text_of(UNCHANGED[name]), "Model")
    assert "ordered" not in query_of(made)
    assert_agrees(made)


@pytest.mark.slow
def test_view_of_the_transposed_result_reads_it_without_a_copy(make):
    body, _ = ORDERED["repeated heads"]
    text = text_of((body, "")).replace("reshape(2, 9, 32)", "view(2, 9, 32)")
    made = make(text, "Model")
    forward = made.candidate.files["model_new.py"].rpartition("def forward")[2]
    assert "enable_gqa=True).transpose(1, 2).contiguous()" in forward
    assert ".reshape(" not in forward
    assert_agrees(made)
