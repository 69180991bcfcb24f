"""Depthwise convolutions with what surrounds them, on the CPU and in the emulator of CUDA."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

PLANE, LINE, SOLID = "2, 3, 13, 17", "3, 4, 37", "2, 2, 5, 7, 9"
LAYERS = {
    "plane": ("nn.Conv2d(3, 3, 3, groups=3)", PLANE, "self.c(x)"),
    "padded": ("nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False)", PLANE, "self.c(x)"),
    "aligned rows": ("nn.Conv2d(3, 3, 3, padding=1, groups=3)", "2, 3, 13, 16", "self.c(x) * 2"),
    "aligned, strided": ("nn.Conv2d(3, 3, 7, 2, 3, groups=3)", "2, 3, 16, 16", "self.c(x)"),
    "aligned, dilated": (
        "nn.Conv2d(3, 3, (3, 5), 1, (2, 4), dilation=(2, 2), groups=3)",
        "2, 3, 11, 12",
        "F.silu(self.c(x))",
    ),
    "no padding, pairs": ("nn.Conv2d(3, 3, 3, groups=3)", "2, 3, 9, 14", "self.c(x).relu()"),
    "strided and dilated": (
        "nn.Conv2d(3, 3, (3, 2), (2, 3), (2, 1), dilation=(1, 2), groups=3)",
        PLANE,
        "self.c(x)",
    ),
    "several results of a channel": (
        "nn.Conv2d(3, 6, 3, padding=1, groups=3)",
        PLANE,
        "torch.sigmoid(self.c(x)) + 1",
    ),
    "BatchNorm, activation and residual": (
        "nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.BatchNorm2d(3))",
        "2, 3, 12, 16",
        "F.hardswish(self.c(x)) + x",
    ),
    "activation before": ("nn.Conv2d(3, 3, 3, padding=1, groups=3)", PLANE, "self.c(x + 1).relu()"),
    "bands of rows": ("nn.Conv2d(2, 2, 5, padding=2, groups=2)", "1, 2, 70, 300", "self.c(x)"),
    "strided bands": (
        "nn.Conv2d(2, 4, 3, 2, 1, groups=2)",
        "1, 2, 131, 330",
        "F.silu(self.c(x.exp()))",
    ),
    "large window": ("nn.Conv2d(3, 3, 11, padding=5, groups=3)", PLANE, "self.c(x) + 1"),
    "stride 3, dilated": (
        "nn.Conv2d(3, 3, (2, 5), 3, (1, 4), dilation=(3, 2), groups=3)",
        "2, 3, 19, 23",
        "self.c(x) * 2",
    ),
    "one row": ("nn.Conv2d(3, 3, (1, 5), padding=(0, 2), groups=3)", "2, 3, 1, 16", "self.c(x)"),
    "one column": ("nn.Conv2d(3, 3, (3, 1), groups=3)", PLANE, "self.c(x)"),
    "reflected borders": (
        "nn.Conv2d(3, 3, (1, 9), groups=3)",
        "2, 3, 20, 24",
        "self.c(F.pad(x, (4, 4, 4, 4), mode='reflect'))",
    ),
    "line": ("nn.Conv1d(4, 4, 3, padding=1, groups=4)", LINE, "self.c(x)"),
    "causal line": (
        "nn.Conv1d(4, 4, 4, padding=3, groups=4)",
        "3, 4, 36",
        "F.silu(self.c(x)[..., :36])",
    ),
    "wide window of a line": (
        "nn.Conv1d(4, 4, 31, padding=15, groups=4)",
        "2, 4, 100",
        "F.silu(self.c(x))",
    ),
    "strided line": ("nn.Conv1d(4, 4, 9, 4, 4, groups=4)", "2, 4, 103", "self.c(x) - 1"),
    "long line": ("nn.Conv1d(2, 2, 4, padding=3, groups=2)", "2, 2, 2001", "self.c(x).tanh()"),
    "line of vectors": ("nn.Conv1d(4, 8, 5, padding=2, groups=4)", "3, 4, 64", "self.c(x) + 1"),
    "solid": ("nn.Conv3d(2, 2, 3, padding=1, groups=2)", SOLID, "self.c(x)"),
    "aligned solid": (
        "nn.Conv3d(2, 2, (3, 2, 3), (2, 1, 1), (1, 0, 1), groups=2)",
        "2, 2, 5, 7, 8",
        "F.gelu(self.c(x))",
    ),
}
EMULATED = [
    "plane",
    "aligned, strided",
    "aligned, dilated",
    "strided and dilated",
    "BatchNorm, activation and residual",
    "long line",
    "solid",
]
LARGE_WINDOWS = ["solid"]
"""Windows of three dimensions and more than 25 elements, which stay with the library on a CPU."""
HALF = ["padded", "aligned rows", "causal line", "BatchNorm, activation and residual"]


def text_of(name: str, dtype: str = "float32") -> str:
    layer, shape, forward = LAYERS[name]
    return f"""
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = {layer}
        self.to(torch.{dtype})
    def forward(self, x):
        return {forward}
def get_inputs(): return [torch.randn({shape}, dtype=torch.{dtype})]
def get_init_inputs(): return []
"""


def candidate_of(path, text: str, target: Target):
    path.write_text(text)
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    return make_candidate(replace(subject, target=target), Options())


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_convolution_and_all_around_it_are_one_kernel(tmp_path, name, device):
    candidate = candidate_of(tmp_path / "task.py", text_of(name), Target(device))
    if device == "cpu" and name in LARGE_WINDOWS:
        assert candidate is None or not any("conv" in kernel for kernel in candidate.kernels)
        return
    assert candidate is not None
    if name != "reflected borders":  # these have kernels of their own, see below
        assert len(candidate.kernels) == 1
    module = candidate.files["model_new.py"]
    assert "F.conv" not in module[module.rindex("def forward") :]


@pytest.mark.parametrize(
    "layer",
    [
        "nn.Conv2d(4, 4, 3, padding=1, groups=2)",
        "nn.Conv2d(4, 4, 13, padding=6, groups=4)",
        "nn.Conv2d(4, 4, 3, padding='same', groups=4)",
    ],
    ids=["grouped", "large windows", "named padding"],
)
def test_other_convolutions_stay_with_the_library(tmp_path, layer):
    text = text_of("plane").replace(LAYERS["plane"][0], layer).replace(PLANE, "2, 4, 13, 17")
    candidate = candidate_of(tmp_path / "task.py", text, Target("cuda"))
    assert candidate is None or not any(path.endswith(".cu") for path in candidate.files)


def test_results_that_a_slice_cuts_off_are_not_computed(tmp_path):
    candidate = candidate_of(tmp_path / "task.py", text_of("causal line"), Target("cuda"))
    kernel = next(text for path, text in candidate.files.items() if path.endswith(".cu"))
    assert "planes of 36 results" in kernel
    assert "VECTOR = 4" in kernel


def test_rows_of_equal_alignment_are_read_in_vectors(tmp_path):
    def kernel(name: str) -> str:
        files = candidate_of(tmp_path / "task.py", text_of(name), Target("cuda")).files
        return next(text for path, text in files.items() if path.endswith(".cu"))

    assert "VECTOR = 4" in kernel("aligned rows")
    assert "VECTOR = 2" in kernel("no padding, pairs")
    assert "VECTOR = 1" in kernel("padded")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in LARGE_WINDOWS])
def test_candidate_agrees_with_reference(make, name):
    assert_agrees(make(text_of(name), "Model"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", HALF)
def test_half_precision_candidate_agrees_with_reference(make, name, dtype):
    assert_agrees(make(text_of(name, dtype), "Model"))


@pytest.mark.gpu
@pytest.mark.parametrize("options", [Options(), Options(vector=False, threads=128)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", LAYERS)
def test_cuda_candidate_agrees_with_reference(make, name, dtype, options):
    assert_agrees(make(text_of(name, dtype), "Model", options, "cuda"), "cuda")


def test_reflected_borders_have_a_kernel_of_their_own(make):
    made = make(text_of("reflected borders"), "Model")
    assert len(made.candidate.kernels) == 2
