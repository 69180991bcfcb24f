"""Convolutions in scaled float16: exact for numbers of TF32, and again in TF32 where they fail."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options
from cuagent.expert.capture.subject import Target
from cuagent.expert.convolutions import flags, qualify
from cuagent.expert.convolutions.convolution import Convolution, Volume
from cuagent.expert.convolutions.phases import Axis
from cuagent.expert.graph.graph import Kind, Node
from cuagent.expert.products.tiles import Tile

TF32 = Target("cuda", (9, 0), 132, tf32_convolutions=True)
WIDE = {
    "3x3": ("nn.Conv2d(40, 24, 3, padding=1)", "self.c(x).relu() + 1", "2, 40, 9, 11"),
    "strided and dilated": (
        "nn.Conv2d(33, 20, (3, 2), stride=2, padding=2, dilation=(2, 1), bias=False)",
        "self.c(x)", "2, 33, 13, 12",
    ),
    "1-D": ("nn.Conv1d(64, 40, 5, padding=2)", "self.c(x) * 2", "3, 64, 50"),
    "transposed": (
        "nn.ConvTranspose2d(48, 20, 4, stride=2, padding=1)", "self.c(x).abs()", "2, 48, 6, 7",
    ),
    "transposed, all outputs of a line together": (
        "nn.ConvTranspose2d(40, 24, 3, stride=5, padding=1, dilation=2)", "self.c(x) * 2",
        "2, 40, 3, 4",
    ),
    "few channels": ("nn.Conv2d(24, 40, 3, padding=1)", "self.c(x) * 2", "2, 24, 9, 11"),
    "few channels, 3-D, pooled": (
        "nn.Conv3d(24, 20, 3)", "F.max_pool3d(self.c(x), 2)", "2, 24, 6, 6, 7",
    ),
    "few channels, transposed": (
        "nn.ConvTranspose2d(24, 20, (4, 5), stride=(3, 2), padding=1)", "self.c(x).relu()",
        "2, 24, 5, 6",
    ),
    "least channel": ("nn.Conv2d(32, 20, 3)", "self.c(x).amin(1, keepdim=True)", "2, 32, 9, 10"),
    "pooled": ("nn.Conv2d(32, 20, 3)", "F.max_pool2d(self.c(x).relu(), 2)", "2, 32, 10, 10"),
}  # fmt: skip
NUMBERS = {
    "usual": "x",
    "small": "x * 2.0**-30",
    "of all sizes": "x * 2.0 ** torch.randint(-60, 20, (x.shape[0], 1, *x.shape[2:]))",
    "zeros": "x * (torch.rand(x.shape[0], 1, *x.shape[2:]) > 0.5)",
    "an infinity": "x.flatten().index_fill(0, torch.tensor(5), math.inf).view(x.shape)",
}


@pytest.fixture
def any_size(monkeypatch):
    """Let small convolutions also become generated kernels."""
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)


@pytest.fixture
def apart(any_size, monkeypatch):
    """Let the second launch of small convolutions compute the tiles that contain NaN."""
    monkeypatch.setattr(flags, "LONG", 0)
    monkeypatch.setattr(flags, "SHARE", 4)


def wide_text(layer: str, numbers: str = "usual") -> str:
    init, body, shape = WIDE[layer]
    body = f"({body}).clamp(-100, 100)" if numbers == "an infinity" else body
    return f"""
import math
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = {init}
        with torch.no_grad():
            # Numbers of TF32.
            self.c.weight.copy_(((self.c.weight * 1024).floor() + 0.5) / 1024)
    def forward(self, x):
        return {body}
def get_inputs():
    x = torch.randint(-1000, 1000, ({shape})) / 512
    return [{NUMBERS[numbers]}]
def get_init_inputs(): return []
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("layer", WIDE)
def test_convolution_in_scaled_float16_is_exact_for_numbers_of_tf32(
    generate, any_size, interpreted, layer
):
    candidate = generate(wide_text(layer), TF32)
    assert candidate is not None
    assert "tl.float16" in candidate.files["model_new.py"]
    interpreted(candidate)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("numbers", [name for name in NUMBERS if name != "usual"])
@pytest.mark.parametrize("layer", ["3x3", "transposed", "pooled", "few channels"])
def test_what_float16_cannot_represent_is_computed_in_tf32(
    generate, any_size, interpreted, layer, numbers
):
    interpreted(generate(wide_text(layer, numbers), TF32))


def test_long_kernel_stores_flags_for_a_second_launch(generate, any_size, monkeypatch):
    text = generate(wide_text("3x3"), TF32).files["model_new.py"]
    assert "EXACT" not in text
    monkeypatch.setattr(flags, "LONG", 0)
    text = generate(wide_text("3x3"), TF32).files["model_new.py"]
    assert text.count("_flags = torch.empty(2, dtype=torch.int32, device=") == 1
    for exact in (False, True):
        assert text.count(f"    {exact}, 128, 32, 64, num_warps=4") == 1
        assert text.count(f"torch.int32, {exact}, 128, 32, 64, num_warps=4") == 1, "warm-up"


@pytest.mark.parametrize(("columns", "warps", "expected"), [(128, 4, 0), (128, 8, 1), (64, 4, 1)])
def test_second_launch_is_for_kernels_that_lose_blocks(columns, warps, expected):
    node = Node("c", Kind.LIBRARY, "own F.conv2d", ("x", "w"), (32, 64, 254, 254))
    x = Volume("x", "float32", 1, 1, 1, 0)
    conv = Convolution(
        node, False, 32, 64, 64, (Axis(256, 254, 3, 1, 0, 1),) * 2, x, "w", None, (), {},
        ("c",), {"c": ()}, {}, scale="s", again=(x, "w"),
    )  # fmt: skip
    tile = Tile(128, columns, 64, warps, 3, 1.0)
    assert flags.has_flags(conv, tile) == expected
    assert not flags.has_flags(replace(conv, again=None), tile)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("layer", ["3x3", "transposed", "pooled", "least channel"])
def test_second_launch_computes_what_float16_cannot_represent(
    generate, apart, interpreted, layer, numbers
):
    candidate = generate(wide_text(layer, numbers), TF32)
    assert "EXACT" in candidate.files["model_new.py"]
    interpreted(candidate)


@pytest.mark.gpu
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("layer", WIDE)
def test_cuda_second_launch_agrees_with_reference(make, apart, layer, numbers):
    made = make(wide_text(layer, numbers), "Model", Options(), "cuda")
    assert_agrees(made, "cuda", step=2.0**-9)


@pytest.mark.gpu
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("layer", WIDE)
def test_cuda_convolution_in_scaled_float16_agrees_with_reference(make, any_size, layer, numbers):
    """For small layers cuDNN computes in float32, so the weights have the bits of TF32 too."""
    made = make(wide_text(layer, numbers), "Model", Options(), "cuda")
    assert_agrees(made, "cuda", step=2.0**-9)
