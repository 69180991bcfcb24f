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
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
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


OVERLAPPING = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn({width}, 16))
        self.scale = torch.nn.Parameter(torch.rand(7, 1))
    def forward(self, x, y):
        return {body}
def get_inputs(): return [torch.randn(7, 16), torch.randn(7, {width})]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize("width", [9, 15, 17, 30, 255])
@pytest.mark.parametrize(
    "body",
    [
        "torch.tanh(y * self.scale) + y",
        "torch.tanh(F.linear(x, self.weight) * self.scale)",
        "torch.cat([torch.sin(y), torch.cos(y), y], 1)",
    ],
)
def test_last_vector_of_a_short_row_overlaps_the_others(make, body, width):
    made = make(OVERLAPPING.format(body=body, width=width), "Model")
    loop = f"< {width - width % 8}; ++i"
    (text,) = [text for path, text in made.candidate.files.items() if path.endswith(".cpp")]
    assert loop in text
    assert_agrees(made)


def test_map_without_a_rest_is_one_loop_and_may_be_in_place(make):
    body = "torch.tanh(F.linear(x, self.weight) * self.scale)"
    made = make(OVERLAPPING.format(body=body, width=32), "Model")
    assert "# in place" in made.candidate.files["model_new.py"]
    made = make(OVERLAPPING.format(body=body, width=30), "Model")
    assert "# in place" not in made.candidate.files["model_new.py"]
