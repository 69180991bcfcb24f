"""A mask of queries without keys costs a pass over the attention only if there are such queries."""

from __future__ import annotations

import torch

TEXT = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2, 5, 5))
    def forward(self, q, k, v):
        return F.softmax(q @ k.transpose(-2, -1) * 0.5 + self.bias, -1) @ v
def get_inputs(): return [torch.randn(3, 2, 5, 16) for _ in range(3)]
def get_init_inputs(): return []
"""


def test_fill_follows_the_values_of_the_mask(make):
    made = make(TEXT, "Model")
    fill = "is None else torch.ops.aten.masked_fill"
    assert fill in made.candidate.files["model_new.py"]
    inputs, reference, new = made.inputs(), made.reference().eval(), made.cls().eval()
    with torch.no_grad():
        torch.testing.assert_close(new(*inputs), reference(*inputs))
        for model in (reference, new):
            model.bias[1, 2] = float("-inf")
        torch.testing.assert_close(new(*inputs), reference(*inputs), equal_nan=True)
        assert new(*inputs)[:, 1, 2].isnan().all()
        for model in (reference, new):
            model.bias[1, 2] = 0.0
        torch.testing.assert_close(new(*inputs), reference(*inputs))
