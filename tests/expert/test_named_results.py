"""Results of forward that torch gives with names for their parts."""

from __future__ import annotations

import torch


def test_named_results_of_torch_keep_their_type(make):
    text = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.max((x * 2 + 1).sin(), 1)
def get_inputs(): return [torch.randn(40, 50)]
def get_init_inputs(): return []
"""
    made = make(text, "Model")
    (x,) = made.inputs()
    with torch.no_grad():
        got, expected = made.cls().eval()(x), made.reference()(x)
    assert type(got) is type(expected)
    assert torch.equal(got.indices, expected.indices)
    torch.testing.assert_close(got.values, expected.values)
