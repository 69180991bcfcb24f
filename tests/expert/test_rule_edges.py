"""Modules at the edges of rules: a rule must not fire, or must not end the expert with an error."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options

MODULE = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x{more}):
        {body}
def get_inputs(): return [{inputs}]
def get_init_inputs(): return []
"""
ASSIGNED = (
    "z = x * 2; z.transpose(1, 2)[:, 1:3] = torch.tanh(y); return z + 1",
    "z = torch.slice_scatter((x * 2).mT, torch.tanh(y), 1, 1, 3); return z.mT + 1",
)


def module(body: str, inputs: str, init: str = "pass", more: str = "") -> str:
    return MODULE.format(body=body, inputs=inputs, init=init, more=more)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("body", ASSIGNED)
def test_assignment_through_a_permuted_view_has_the_strides_of_eager(generate, interpreted, body):
    text = module(body, "torch.randn(4, 8, 6), torch.randn(4, 2, 8)", more=", y")
    if (made := generate(text)) is not None:
        interpreted(made)


def test_assignment_through_a_permuted_view_is_stored_in_the_order_of_memory(generate):
    text = module(
        "z = x * 2; z.transpose(1, 2)[:, 1:3] = torch.tanh(y); return torch.exp(z + 1)",
        "torch.randn(4, 8, 6), torch.randn(4, 2, 8)",
        more=", y",
    )
    made = generate(text)
    assert made is not None
    assert made.launches == 1
    assert "exp = torch.empty_like(x)" in made.files["model_new.py"]


@pytest.mark.parametrize("body", ["self.a(x) * self.s", "self.a(x).view(10, 6) * self.s"])
def test_a_float32_factor_of_a_half_precision_layer_stays(make, body):
    init = "self.a = nn.Linear(4, 6).half(); self.s = nn.Parameter(torch.randn(6))"
    made = make(
        module(f"return {body}, torch.tanh(x) * x.exp()", "torch.randn(2, 5, 4).half()", init),
        "Model",
    )
    assert_agrees(made)


def test_slices_of_zeros_are_assigned(make):
    body = (
        "z = torch.zeros_like(x); z[:, :4] = torch.tanh(x[:, 4:]); z[:, 4:] = -x[:, :4]; return z"
    )
    assert_agrees(make(module(body, "torch.randn(4, 8, 6)"), "Model"))


def test_maps_of_width_one_are_planned(generate):
    layers = ", ".join(["nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(4, 32)"] * 5)
    text = module(
        "return self.a(x)",
        "torch.randn(2, 32, 5, 1).half()",
        f"self.a = nn.Sequential({layers}).half()",
    )
    assert generate(text, options=Options(convolutions="network")) is not None


def test_a_factor_behind_a_convolution_of_one_sample_is_right(make):
    init = "self.a = nn.Conv2d(4, 6, 3); self.s = nn.Parameter(torch.randn(6, 1, 1))"
    assert_agrees(
        make(
            module("return torch.tanh(self.a(x) * self.s) + 1", "torch.randn(4, 8, 8)", init),
            "Model",
        )
    )


def test_a_convolution_of_one_sample_stays_with_the_library(generate, monkeypatch):
    monkeypatch.setattr("cuagent.expert.convolutions.qualify.LEAST_OPERATIONS", 0)
    init = "self.a = nn.Conv2d(40, 40, 3, padding=1)"
    text = module("return torch.tanh(self.a(F.pad(x, (1, 2))))", "torch.randn(40, 12, 14)", init)
    for convolutions in ("own", "every"):
        made = generate(text, options=Options(convolutions=convolutions))
        assert made is None or not any("conv2d" in name for name in made.kernels)
