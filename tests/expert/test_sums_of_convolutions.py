"""Sums over the places of a convolution, computed from sums of its input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options
from cuagent.expert.capture.subject import Target
from cuagent.expert.convolutions import qualify

pytestmark = pytest.mark.slow

CASES = {
    "all places, whole intervals": (
        "nn.ConvTranspose2d(5, 7, 3)", "self.c(x).mean((2, 3), keepdim=True) * 2", "3, 5, 9, 11", 1,
    ),
    "all places, parts": (
        "nn.ConvTranspose2d(5, 48, 3, stride=2, padding=1, output_padding=1)",
        "(self.c(x) * 0.5).mean((2, 3))", "3, 5, 9, 11", 4,
    ),
    "depth alone": (
        "nn.ConvTranspose3d(5, 48, 3, padding=1)",
        "self.c(x).mean(2, keepdim=True).softmax(1)", "2, 5, 6, 7, 8", 3,
    ),
    "behind a norm": (
        "nn.Sequential(nn.ConvTranspose3d(5, 48, 5), nn.BatchNorm3d(48))",
        "F.adaptive_avg_pool3d(self.c(x) * 2, 1)", "2, 5, 3, 4, 5", 1,
    ),
    "width of a strided one": (
        "nn.Conv2d(5, 48, (1, 3), stride=(2, 1))", "self.c(x).mean(3)", "2, 5, 9, 8", 3,
    ),
    "uneven strides and dilations": (
        "nn.ConvTranspose2d(5, 48, (2, 3), stride=(3, 2), padding=(1, 2), dilation=(2, 3), "
        "bias=False)", "self.c(x).sum((-1, -2))", "2, 5, 6, 7", 6,
    ),
}  # fmt: skip
"""Layer, forward, shape of the input, and number of different sums of the input."""
OTHERS = {
    "groups": ("nn.Conv2d(4, 48, 3, groups=2)", "self.c(x).mean((2, 3))", "2, 4, 9, 8"),
    "stride along the sum": ("nn.Conv2d(5, 8, 3, stride=2)", "self.c(x).mean(3)", "2, 5, 9, 8"),
    "too many different sums": (
        "nn.Conv2d(5, 8, 3, padding=1)", "self.c(x).mean((2, 3))", "2, 5, 9, 8",
    ),
    "two readers": (
        "nn.ConvTranspose2d(5, 7, 3)",
        "(lambda y: y.mean((2, 3)) + y[:, :, 0, 0])(self.c(x))", "2, 5, 9, 8",
    ),
    "elementwise between": (
        "nn.ConvTranspose2d(5, 7, 3)", "F.relu(self.c(x)).mean((2, 3))", "2, 5, 9, 8",
    ),
    "sum over channels": ("nn.ConvTranspose2d(5, 7, 3)", "self.c(x).sum(1)", "2, 5, 9, 8"),
}  # fmt: skip
QUICK = ("all places, parts", "width of a strided one", "groups", "two readers")
"""Names of the cases that are not slow tests."""


def selected(names: Iterable[str]) -> list[Any]:
    """Return the names as test parameters; those not in `QUICK` are marked slow."""
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


def text_of(layer: str, forward: str, shape: str) -> str:
    return f"""
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = {layer}
    def forward(self, x):
        return {forward}
def get_inputs(): return [torch.randn({shape})]
def get_init_inputs(): return []
"""


def forward_of(made) -> str:
    return made.candidate.files["model_new.py"].rpartition("def forward")[2]


@pytest.mark.parametrize("name", selected(CASES))
def test_sum_of_a_convolution_is_computed_from_sums_of_its_input(make, name):
    layer, forward, shape, count = CASES[name]
    made = make(text_of(layer, forward, shape), "Model")
    dimensions = layer.partition("nn.Conv")[2].partition("d(")[0][-1]
    assert f"{dimensions}d(x" not in forward_of(made)
    inputs = {word for word in forward_of(made).split() if "_input_" in word}
    assert len({word.strip("(),") for word in inputs if word.isidentifier()}) == count
    assert_agrees(made)


@pytest.mark.parametrize("name", selected(OTHERS))
def test_other_sums_stay_behind_the_convolution(make, name):
    layer, forward, shape = OTHERS[name]
    try:
        made = make(text_of(layer, forward, shape), "Model")
    except AssertionError:
        return  # no candidate: the convolution stays as it is
    assert "F.conv" in forward_of(made)
    assert_agrees(made)


def test_sums_follow_a_change_of_the_weight(make):
    import torch

    layer, forward, shape, _ = CASES["all places, parts"]
    made = make(text_of(layer, forward, shape), "Model")
    model = assert_agrees(made)
    reference = made.reference().eval()
    (x,) = made.inputs()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-2)
        reference.load_state_dict(model.state_dict())
        torch.testing.assert_close(model(x), reference(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("channels", "rounds"), [(16, False), (20, True)])
def test_joined_sums_keep_the_precision_of_the_captured_channels(
    generate, monkeypatch, channels, rounds
):
    """Three sums of 16 channels are 48 channels, but cuDNN computes 16 in float32."""
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    layer = f"nn.ConvTranspose3d({channels}, 48, 3, padding=1)"
    text = text_of(layer, "self.c(x).mean(2, keepdim=True)", f"2, {channels}, 6, 7, 8")
    candidate = generate(text, Target("cuda", (9, 0), 1, tf32_convolutions=True))
    assert ("torch.float16" in candidate.files["model_new.py"]) == rounds
    assert candidate.library_convolutions == 0


@pytest.mark.parametrize(("channels", "rewritten"), [(16, False), (20, True)])
@pytest.mark.parametrize("convolutions", ["library", "channels_last"])
def test_library_does_not_join_sums_to_more_channels_than_it_computes_in_float32(
    generate, convolutions, channels, rewritten
):
    layer = f"nn.ConvTranspose3d({channels}, 48, 3, padding=1)"
    text = text_of(layer, "self.c(x).mean(2, keepdim=True) * 2", f"2, {channels}, 6, 7, 8")
    target = Target("cuda", (9, 0), 1, tf32_convolutions=True)
    candidate = generate(text, target, Options(convolutions=convolutions))
    text = candidate.files["model_new.py"].replace("_last_input_", "")  # a copy of the input
    assert ("_input_" in text) == rewritten
    assert candidate.library_convolutions == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_half_precision_are_multiplied_in_float32(make, dtype):
    """Their sums are float32, and so are the weights; a sum of float16 could overflow."""
    layer, forward, shape, _ = CASES["all places, parts"]
    layer = f"{layer}.to(torch.{dtype})"
    text = text_of(layer, forward, shape).replace(
        f"torch.randn({shape})", f"torch.randn({shape}).to(torch.{dtype})"
    )
    made = make(text, "Model")
    assert "_input_" in forward_of(made)
    assert_agrees(made)
