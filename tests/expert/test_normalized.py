"""Values normalized along a dimension, and weights whose normalization is computed once."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]
from shares import slow_except

HEAD = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(30, 64))
    def forward(self, x):
        {body}
def get_inputs(): return [torch.randn({shape})]
def get_init_inputs(): return []
"""
BODIES = {
    "cosine head": ("return 16 * F.linear(F.normalize(x), F.normalize(self.w))", "20, 64"),
    "another dimension": ("return F.normalize(x, dim=1) + 1", "4, 20, 9"),
    "weights scaled by their largest": (
        "return F.silu(F.linear(x, self.w / self.w.abs().amax(1, keepdim=True))) * 2",
        "20, 64",
    ),
    "standardised weights": (
        "w = F.batch_norm(self.w[None], None, None, training=True, momentum=0.0)[0]\n"
        "        return F.silu(F.linear(x, w)) * 2",
        "20, 64",
    ),
    "expansion of leading dimensions": (
        "return x * (x.mean(0).abs() + 1).sqrt().expand(20, 64) + x",
        "20, 64",
    ),
}


@pytest.mark.parametrize("name", slow_except(BODIES, "cosine head"))
def test_candidate_agrees_with_reference(make, name):
    body, shape = BODIES[name]
    assert_agrees(make(HEAD.format(body=body, shape=shape), "Model"))


def test_normalization_is_one_kernel_and_that_of_weights_none(make):
    body, shape = BODIES["cosine head"]
    made = make(HEAD.format(body=body, shape=shape), "Model")
    assert len(made.candidate.kernels) == 1
    new = made.cls().eval()
    x = made.inputs()[0]
    with torch.no_grad():
        before = new(x)
        new.w.mul_(torch.linspace(-1, 2, 64))
        assert not torch.equal(new(x), before), "changed weights are normalized again"
        reference = made.reference()
        reference.load_state_dict(new.state_dict())
        torch.testing.assert_close(new(x), reference(x))


def test_statistics_of_weights_are_computed_once(make):
    body, shape = BODIES["standardised weights"]
    made = make(HEAD.format(body=body, shape=shape), "Model")
    assert_agrees(made)
    forward = made.candidate.files["model_new.py"].split("def _prepare")[0]
    assert "aten" not in forward.rpartition("class ModelNew")[2]
