"""Networks whose convolutions are left to the library keep all values in channels-last layout."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
from shares import slow_after

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

LAST = ".contiguous(memory_format=torch.channels_last)"
"""Text behind each convolution of the library in a network in channels-last layout."""
HOPPER = Target("cuda", (9, 0), 132, tf32_convolutions=True)
TASK = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8)
        self.b = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range({count})])
        self.c, self.d = nn.Conv2d(16, 12, 1), nn.Linear({features}, 5)
        for p in self.parameters():
            p.data += 0.1 * torch.randn(p.shape)
    def forward(self, x):
        x = F.max_pool2d(F.relu(self.n(self.a(x))), 3, 2, 1)
        for b in self.b:
            {layer}
        x = F.gelu(self.c(torch.cat([x, F.avg_pool2d(x, 3, 1, 1)], 1)))
        return {end}
def get_inputs(): return [torch.randn(2, 3, 20, 28)]
def get_init_inputs(): return []
"""
RESIDUAL = "x = F.relu(b(x) + x)"
SHORT = "x = b(x)"
POOLED = ("self.d(x.mean((2, 3)))", 12)
FLAT = ("self.d(x.flatten(1))", 12 * 5 * 7)
PLANES = ("x, self.d(x.amax((2, 3)))", 12)


def made(path, layer: str, end: tuple[str, int], target=HOPPER, count: int = 3, options=None):
    text = TASK.format(layer=layer, end=end[0], features=end[1], count=count)
    (path / "task.py").write_text(text)
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=target)
    return make_candidate(subject, options or Options())


BRANCHES = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.ModuleList([nn.Conv2d(10, 8, 3, padding=k, dilation=k) for k in (1, 2, 3)])
        self.b = nn.Conv2d(24, 8, 3)
        self.to(torch.{dtype})
    def forward(self, x):
        return self.b(torch.cat([a(x).relu() for a in self.a], 1)).mean((2, 3)), x.amax((2, 3))
def get_inputs(): return [torch.randn(2, 10, 12, 17).to(torch.{dtype})]
def get_init_inputs(): return []
"""


def branches(path, dtype: str):
    (path / "task.py").write_text(BRANCHES.format(dtype=dtype))
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=HOPPER)
    return make_candidate(subject, Options())


def count_last(candidate) -> int:
    return str(candidate.files["model_new.py"]).count(LAST)


def test_all_convolutions_are_channels_last(tmp_path):
    candidate = made(tmp_path, RESIDUAL, POOLED)
    assert count_last(candidate) == candidate.library_convolutions == candidate.convolutions == 5


def test_an_input_of_several_convolutions_is_copied_once(tmp_path):
    candidate = branches(tmp_path, "float16")
    forward = candidate.files["model_new.py"].rpartition("def forward")[2]
    assert count_last(candidate) == 4
    assert forward.count("F.conv2d(x_last_input, ") == 3
    assert forward.count("x_last_input = ") == 1


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_copied_input_agrees_with_fp64(tmp_path, interpreted, dtype):
    candidate = branches(tmp_path, dtype)
    assert "x_last_input" in candidate.files["model_new.py"]
    interpreted(candidate)


@pytest.mark.parametrize(
    "change",
    slow_after(
        2,
        [
            {"target": replace(HOPPER, tf32_convolutions=False)},
            {"options": Options(convolutions="every")},
            {"count": 1},
            {"options": Options(convolutions="library")},
        ],
    ),
)
def test_layout_stays_otherwise(tmp_path, change):
    assert count_last(made(tmp_path, RESIDUAL, POOLED, **change)) == 0


def test_network_of_own_kernels_keeps_its_layout(tmp_path, monkeypatch):
    from cuagent.expert.convolutions import qualify

    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(qualify, "LEAST_OCCUPIED", 0)
    assert count_last(made(tmp_path, RESIDUAL, POOLED)) == 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("layer", [RESIDUAL, SHORT])
@pytest.mark.parametrize("end", [POOLED, FLAT, PLANES])
def test_network_agrees_with_fp64(tmp_path, interpreted, layer, end):
    candidate = made(tmp_path, layer, end)
    assert count_last(candidate) == 5
    interpreted(candidate)


def test_calls_view_no_value_except_a_concatenation(tmp_path):
    candidate = made(tmp_path, RESIDUAL, PLANES)
    forward = candidate.files["model_new.py"].rpartition("def forward")[2].partition("def _")[0]
    assert forward.count("permute(") == forward.count("cat.permute(") == 1
    assert "movedim" not in forward
    assert "_last_0_1(" in forward


GROUPED = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.c, self.d = nn.Conv2d(16, 16, 5, padding=2, groups=16), nn.Conv2d(16, 8, 1)
        self.e, self.f = nn.Conv2d(16, 8, 1, groups=2), nn.Conv2d(16, 8, 1, groups=2)
    def forward(self, x):
        x = F.relu(self.a(x))
        x = x + F.relu(self.c(F.relu(self.b(x))))
        return F.gelu(self.d(x)).mean((2, 3)), F.relu(self.e(x) * self.f(x))
def get_inputs(): return [torch.randn(2, 3, 20, 28)]
def get_init_inputs(): return []
"""


def grouped(path):
    (path / "task.py").write_text(GROUPED)
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=HOPPER)
    return make_candidate(subject, Options(convolutions="network"))


def test_grouped_convolutions_of_a_network_are_channels_last(tmp_path):
    candidate = grouped(tmp_path)
    assert count_last(candidate) == 5
    text = "".join(text for path, text in candidate.files.items() if path.endswith(".cu"))
    assert "places and 16 channels, windows of 5 x 5" in text, "the depthwise one follows"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_network_of_grouped_convolutions_agrees_with_fp64(tmp_path, interpreted):
    interpreted(grouped(tmp_path))


NORMS = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.ModuleList([nn.Conv2d(32, 32, 3, padding=1) for _ in range(5)])
        self.n = nn.ModuleList([nn.GroupNorm(8, 32) for _ in range(4)])
        self.half()
    def forward(self, x):
        x = self.a[0](x)
        for a, n in zip(self.a[1:], self.n):
            x = x + a(F.silu(n(x)))
        return x
def get_inputs(): return [torch.randn(2, 32, 16, 20, dtype=torch.float16)]
def get_init_inputs(): return []
"""


def norms(path):
    (path / "task.py").write_text(NORMS)
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=HOPPER)
    return make_candidate(subject, Options(convolutions="network"))


def test_group_norm_of_channels_last_images_is_part_of_one_kernel(tmp_path):
    candidate = norms(tmp_path)
    forward = candidate.files["model_new.py"].split("class ModelNew")[1]
    assert "aten.group_norm" not in forward
    assert candidate.launches == 12, "two copies, five convolutions, a kernel behind each"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_network_of_group_norms_agrees_with_fp64(tmp_path, interpreted):
    interpreted(norms(tmp_path))
