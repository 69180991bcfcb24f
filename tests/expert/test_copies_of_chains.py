"""In a chain of convolutions one kernel stores the channels-last input of the next one."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
from agreement import TF32, assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.convolutions import qualify
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132, tf32_convolutions=True)
CHAIN = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d({into}, {inner}, {size}, padding={size} // 2)
        self.b = nn.Conv2d({inner}, 40, 3, padding=1)
    def forward(self, x):
        h = F.relu(self.a(x){more})
        return self.b(h) * 2
def get_inputs(): return [torch.randn({samples}, {into}, {places})]
def get_init_inputs(): return []
"""
SIZES = {"into": 40, "inner": 48, "size": 3, "samples": 2, "places": "9, 7", "more": ""}


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Let small convolutions also become generated kernels."""
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(qualify, "LEAST_OCCUPIED", 0)


def made(path, options: Options | None = None, **sizes: object):
    (path / "task.py").write_text(CHAIN.format(**SIZES | sizes))
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=HOPPER)
    return make_candidate(subject, options or Options())


@pytest.mark.parametrize("size", [1, 3])
def test_second_convolution_needs_no_copy(tmp_path, size):
    assert made(tmp_path, size=size).launches == (3 if size == 3 else 2)
    assert made(tmp_path, Options(copies=False), size=size).launches == (4 if size == 3 else 3)


@pytest.mark.parametrize(
    "sizes", [{"inner": 136}, {"more": ".amax(1, keepdim=True).expand(-1, 48, -1, -1)"}]
)
def test_result_without_whole_places_in_a_tile_is_copied(tmp_path, sizes):
    apart = made(tmp_path, Options(copies=False), **sizes)
    assert made(tmp_path, **sizes).files == apart.files


SIBLINGS = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Conv2d(40, 48, 3, padding=1) for _ in range(2))
    def forward(self, x):
        return (self.a(x).sigmoid() * self.b(x)).tanh()
def get_inputs(): return [torch.randn(2, 40, 9, 7)]
def get_init_inputs(): return []
"""


def test_convolutions_of_one_input_share_its_copy(tmp_path):
    (tmp_path / "task.py").write_text(SIBLINGS)
    subject = replace(open_subject(load_task(f"{tmp_path / 'task.py'}:Model")), target=HOPPER)
    assert make_candidate(subject, Options()).launches == 3


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    "sizes", [{}, {"size": 1}, {"inner": 33}, {"samples": 3, "places": "1, 5"}]
)
def test_chain_agrees_with_fp64_in_the_interpreter(tmp_path, interpreted, sizes):
    candidate = made(tmp_path, **sizes)
    # The inner result is not one of TF32: compare with the arithmetic that both copies have.
    apart = made(tmp_path, Options(copies=False), **sizes)
    assert candidate.launches < apart.launches
    (tmp_path / "apart.py").write_text(apart.files["model_new.py"])
    interpreted(candidate, same_as="apart")


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, 3])
def test_cuda_chain_agrees_with_reference(make, size):
    text = CHAIN.format(**SIZES | {"size": size, "samples": 32, "places": "56, 56"})
    assert_agrees(make(text, "Model", Options(), "cuda"), "cuda", least=TF32)
