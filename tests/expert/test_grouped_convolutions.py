"""Convolutions with groups of several channels as generated Triton kernels."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
from agreement import TF32, assert_agrees  # type: ignore[import-not-found]
from shares import slow_except

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.convolutions import partials, qualify
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132)
LAYERS = {
    "3x3": ("nn.Conv2d(32, 48, 3, padding=1, groups=4)", "F.relu(self.c(x)) + 1", "32, 11, 9"),
    "pointwise": ("nn.Conv2d(60, 40, 1, groups=2)", "F.relu(self.c(x))", "60, 11, 9"),
    "1-D": ("nn.Conv1d(32, 64, 5, stride=2, groups=8)", "F.silu(self.c(x)) * 2", "32, 33"),
    "pooled": (
        "nn.Conv2d(48, 96, 3, padding=1, groups=2)", "F.max_pool2d(F.relu(self.c(x)), 2)",
        "48, 10, 10",
    ),
    "transposed": (
        "nn.ConvTranspose2d(32, 24, (3, 5), (2, 3), (1, 2), dilation=(2, 1), groups=4)",
        "self.c(x) * 2", "32, 6, 7",
    ),
    "transposed 3-D": (
        "nn.ConvTranspose3d(16, 16, (3, 5, 7), 2, (1, 2, 3), 1, groups=2)", "F.relu(self.c(x))",
        "16, 3, 4, 5",
    ),
    "norm": ("nn.Conv2d(32, 48, 3, groups=2)", "F.group_norm(self.c(x), 4)", "32, 20, 20"),
}  # fmt: skip


def text_of(name: str, samples: int = 2, dtype: str = "float32") -> str:
    layer, body, shape = LAYERS[name]
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
        return {body}
def get_inputs(): return [torch.randn({samples}, {shape}).to(torch.{dtype})]
def get_init_inputs(): return []
"""


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Let small convolutions also become generated kernels."""
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(partials, "LEAST_TILES", 0)
    monkeypatch.setattr(partials, "CACHED_BYTES", 0)


def made(path, text: str):
    (path / "task.py").write_text(text)
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=HOPPER)
    return make_candidate(subject, Options())


@pytest.mark.parametrize("name", slow_except(LAYERS, "3x3", "1-D", "transposed"))
def test_groups_are_in_one_launch(tmp_path, name):
    candidate = made(tmp_path, text_of(name))
    assert candidate.library_convolutions == 0
    assert candidate.files["model_new.py"].count("group = program % ") == 1


@pytest.mark.slow
def test_strided_points_of_many_channels_stay_with_the_library(tmp_path):
    """The copy of such an input would have the channels of all groups."""
    text = text_of("pointwise").replace("60, 40, 1, g", "128, 64, 1, stride=2, g")
    candidate = made(tmp_path, text.replace("60, 11, 9", "128, 11, 9"))
    assert candidate is None or candidate.library_convolutions == 1


def test_reduction_over_the_channels_of_all_groups_is_a_kernel_of_its_own(tmp_path, monkeypatch):
    layer, _, shape = LAYERS["3x3"]
    monkeypatch.setitem(LAYERS, "softmax", (layer, "F.softmax(self.c(x), 1)", shape))
    candidate = made(tmp_path, text_of("softmax"))
    assert candidate.library_convolutions == 0
    assert len(candidate.kernels) == 2


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", LAYERS)
def test_groups_agree_with_fp64_in_the_interpreter(tmp_path, interpreted, name):
    interpreted(made(tmp_path, text_of(name)))


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_tile_is_no_deeper_than_the_channels_without_a_condition(
    tmp_path, interpreted, monkeypatch
):
    # 192 channels have no condition on the last step: it must not reach beyond them.
    layer = ("nn.Conv2d(192, 16, 1)", "self.c(x)", "192, 5, 7")
    monkeypatch.setitem(LAYERS, "192 channels", layer)
    interpreted(made(tmp_path, text_of("192 channels", dtype="float16")))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_cuda_groups_agree_with_reference(make, name, dtype):
    assert_agrees(make(text_of(name, 64, dtype), "Model", Options(), "cuda"), "cuda", least=TF32)
