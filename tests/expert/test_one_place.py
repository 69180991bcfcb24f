"""Convolutions with a single position, as in squeeze-and-excitation blocks."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]
from modules import LAYER_TASK  # type: ignore[import-not-found]

SCALED = (
    "nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 8, 1), nn.SiLU(), "
    "nn.Conv2d(8, 24, 1, bias=False), nn.Sigmoid())"
)
LAYERS = {
    "squeeze and excitation": (SCALED, "x * self.c(x)", "3, 24, 9, 7"),
    "a tap in the middle": (
        "nn.Conv2d(24, 9, 3, padding=1)", "F.gelu(self.c(x)) * 2", "3, 24, 1, 1"
    ),
    "strides and dilation": (
        "nn.Conv2d(24, 9, 3, stride=2, padding=2, dilation=2)", "self.c(x)", "3, 24, 1, 1"
    ),
    "depthwise": (
        "nn.Conv2d(24, 24, 3, padding=1, groups=24)", "self.c(x.relu()).relu() * 2", "3, 24, 1, 1"
    ),
    "depthwise without bias": (
        "nn.Conv1d(24, 24, 5, padding=2, groups=24, bias=False)", "self.c(x).exp()", "3, 24, 1"
    ),
}  # fmt: skip
OTHERS = {
    "a tap beside the input": (
        "nn.Conv2d(24, 9, 2, padding=1)",
        "self.c(x).relu() * 2",
        "3, 24, 1, 1",
    ),
    "groups": ("nn.Conv2d(24, 48, 1, groups=3)", "self.c(x).relu() * 2", "3, 24, 1, 1"),
    "two positions": ("nn.Conv2d(24, 9, 1)", "self.c(x).relu() * 2", "3, 24, 1, 2"),
}


def text_of(layer: str, body: str, shape: str, cast: str = "") -> str:
    return LAYER_TASK.format(layer=layer + cast, body=body, shape=shape)


@pytest.mark.parametrize("name", LAYERS)
def test_single_position_needs_no_convolution(generate, name):
    text = generate(text_of(*LAYERS[name])).files["model_new.py"]
    assert "F.conv" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_result_of_a_single_position_agrees(make, name):
    assert_agrees(make(text_of(*LAYERS[name]), "Model"))


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions_stay(generate, name):
    candidate = generate(text_of(*OTHERS[name]))
    assert "F.conv2d(" in candidate.files["model_new.py"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_keeps_the_dtype(make, dtype):
    task = text_of(SCALED, "x * self.c(x)", "3, 24, 9, 7", f".to(torch.{dtype})")
    task = task.replace("torch.randn(3, 24, 9, 7)", f"torch.randn(3, 24, 9, 7).to(torch.{dtype})")
    made = make(task, "Model")
    with torch.no_grad():
        x = made.inputs()
        reference, new = made.reference().eval(), made.cls().eval()
        new.load_state_dict(reference.state_dict())
        got, wanted = new(*x), reference(*x)
    assert (got.dtype, got.stride()) == (wanted.dtype, wanted.stride())
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
