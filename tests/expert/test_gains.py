"""Groups that get a kernel on a GPU although they are one operation of torch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.streaming import cuda_sliced
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132)
TEXT = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(6)
    def forward(self, x, y):
        return {body}
def get_inputs(): return [torch.randn(4, 6, 8, 8), torch.randn(4, 1, 1, 1)]
def get_init_inputs(): return []
"""
BROADCAST = {"factor of a sample": "x * y", "norm by stored statistics": "self.norm(x)"}


def kernels_of(path, body: str, target: Target = HOPPER) -> int:
    """Return the number of kernels of the first candidate; 0 without a candidate."""
    (path / "task.py").write_text(TEXT.format(body=body))
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=target)
    made = make_candidate(subject, Options())
    return 0 if made is None else len(made.kernels)


@pytest.mark.parametrize("name", BROADCAST)
def test_operation_with_a_smaller_operand_is_a_kernel(tmp_path, name):
    assert kernels_of(tmp_path, BROADCAST[name]) == 1


@pytest.mark.parametrize("body", ["x * 2", "torch.relu(x)", "x * x"])
def test_operation_on_one_layout_stays_with_torch(tmp_path, body):
    assert kernels_of(tmp_path, body) == 0


@pytest.mark.parametrize(("most", "count"), [(1 << 14, 1), (100, 2)])
def test_division_by_the_norm_of_the_whole_tensor_is_a_kernel(tmp_path, monkeypatch, most, count):
    monkeypatch.setattr(cuda_sliced, "MOST_SLICES", most)
    large = TEXT.replace("4, 6, 8, 8", "8, 6, 256, 256")
    monkeypatch.setitem(globals(), "TEXT", large)
    assert kernels_of(tmp_path, "x / torch.norm(x)") == count


def test_smaller_operand_is_no_reason_for_a_kernel_on_a_cpu(tmp_path):
    assert kernels_of(tmp_path, "x * y", Target("cpu")) == 0


STEPWISE = {
    "poisson": "nn.functional.poisson_nll_loss(x, y, reduction='none')",
    "kl_div": "nn.functional.kl_div(x, y.expand(4, 6, 8, 8).exp(), reduction='none')",
    "l1_loss": "nn.functional.l1_loss(x, y.expand(4, 6, 8, 8), reduction='none')",
}
"""Operators for which torch runs several elementwise kernels."""


@pytest.mark.parametrize("target", [HOPPER, Target("cpu")])
@pytest.mark.parametrize("name", STEPWISE)
def test_operator_of_several_elementwise_kernels_is_a_kernel(tmp_path, name, target):
    assert kernels_of(tmp_path, STEPWISE[name], target) == 1
