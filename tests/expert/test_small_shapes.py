"""Candidates at random small shapes, for every schedule of the C++ generator."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

BODIES = [
    "torch.softmax(x * 2 + 1, -1)",
    "torch.softmax(x + y[:1], 0) * 3",
    "(x * y).sum(1, keepdim=True) + x",
    "(x - x.mean(dim=(1, 2), keepdim=True)).relu() * y",
    "torch.log_softmax(x.flatten(1), 1)",
    "F.layer_norm(x, x.shape[1:]) + y",
    "F.smooth_l1_loss(x, y)",
    "torch.logsumexp(x + y, 2)",
]
dimensions = st.sampled_from([1, 2, 3, 5, 7, 8, 13, 17, 31, 33])


@settings(
    max_examples=8,
    phases=[Phase.generate],  # shrinking a failure would take minutes of compilation
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(shape=st.tuples(dimensions, dimensions, dimensions), body=st.sampled_from(BODIES))
def test_candidate_agrees_with_reference_at_small_shapes(make, shape, body):
    given_shape = ", ".join(map(str, shape))
    text = f"""
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, x, y):
        return {body}
def get_inputs(): return [torch.randn({given_shape}), torch.randn({given_shape})]
def get_init_inputs(): return []
"""
    made = make(text, "Model")
    torch.manual_seed(0)
    assert_agrees(made)
