"""Concatenations with empty parts: kernels compute the other parts."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

TEXT = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x, y):
        {body}
def get_inputs(): return [torch.randn(9, 8), torch.randn(9, 8)]
def get_init_inputs(): return []
"""
JOINED = {
    "an empty end": "return torch.cat([x * y + 1, y[:, 8:]], -1).exp()",
    "an empty start": "return torch.cat([y[:, :0], x * y, x.exp()], 1) * 2",
    "empty rows": "return torch.cat([x[9:], (x * y).exp()])",
    "an empty vector": "return torch.cat([x.new_empty(0), x * y, y.exp()]) * 2",
}
OTHERS = {
    "another dtype": "return torch.cat([x.exp() * y, y[:, 8:].double()], -1), x.exp() * y",
    "only empty parts": "return torch.cat([x[:, 8:], y[:, 8:]], -1), x.exp() * y",
}


def text_of(body: str) -> str:
    return TEXT.format(body=body)


@pytest.mark.parametrize("name", JOINED)
def test_empty_parts_are_left_out(make, name):
    made = make(text_of(JOINED[name]), "Model")
    forward = made.candidate.files["model_new.py"].rpartition("def forward")[2]
    assert "torch.ops" not in forward
    assert_agrees(made)


@pytest.mark.parametrize("name", OTHERS)
def test_other_concatenations_stay(make, name):
    made = make(text_of(OTHERS[name]), "Model")
    assert "aten.cat" in made.candidate.files["model_new.py"]
    assert_agrees(made)


HEADS = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32).bfloat16() for _ in range(3))
        self.o = nn.Linear(32, 32).bfloat16()
    def forward(self, x, cos, sin):
        q, k, v = (f(x).view(2, 9, 4, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        half = lambda t: torch.cat((-t[..., 4:], t[..., :4]), -1)
        {body}
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(2, 9, 32))
def get_inputs():
    sizes = (2, 9, 32), (9, 8), (9, 8)
    return [torch.randn(size).bfloat16() for size in sizes]
def get_init_inputs(): return []
"""
BODIES = {
    "empty rest of the heads": (
        "q, k = (torch.cat((t * cos + half(t) * sin, t[..., 8:]), -1) for t in (q, k))"
    ),
    "cast from float32": (
        "q, k = ((t.float() * cos + half(t.float()) * sin).to(x.dtype) for t in (q, k))"
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_rotary_queries_have_the_order_of_the_heads_and_no_copies(make, tmp_path, name):
    text = HEADS.format(body=BODIES[name])
    assert_agrees(make(text, "Model"))
    path = tmp_path / "on_gpu.py"
    path.write_text(text)
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    made = make_candidate(replace(subject, target=Target("cuda", (9, 0), 132)), Options())
    forward = made.files["model_new.py"].rpartition("def forward")[2]
    query = forward.partition("F.scaled_dot_product_attention(")[2]
    assert re.match(r"\w+_ordered_*\.permute\(0, 2, 1, 3\), ", query)
    assert "torch.ops" not in forward
