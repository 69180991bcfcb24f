"""Parameters that kernels read in another order than that of memory are stored in this order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Candidate, Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

TEXT = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(6, 24, 3, padding=1)
        self.positions = torch.nn.Parameter(torch.randn(40, {columns}))
    def forward(self, x):
        return F.gelu(self.conv(x)).permute(0, 2, 1) + self.positions
def get_inputs(): return [torch.randn(2, 6, 40)]
def get_init_inputs(): return []
"""


def made(path, target: Target, columns: int = 24) -> Candidate:
    (path / "task.py").write_text(TEXT.format(columns=columns))
    subject = open_subject(load_task(f"{path / 'task.py'}:Model", device="cpu"))
    candidate = make_candidate(replace(subject, target=target), Options(products=False))
    assert candidate is not None
    return candidate


def test_a_permuted_table_is_stored_once_for_a_gpu(tmp_path):
    text = made(tmp_path, Target("cuda", (9, 0), 132)).files["model_new.py"]
    assert "positions_wide.permute([0, 2, 1]).contiguous()" in text


@pytest.mark.parametrize(
    ("target", "columns"), [(Target("cpu"), 24), (Target("cuda", (9, 0), 132), 1)]
)
def test_other_tables_are_read_as_they_are(tmp_path, target, columns):
    text = made(tmp_path, target, columns).files["model_new.py"]
    assert ".permute([0, 2, 1]).contiguous()" not in text


@pytest.mark.gpu
def test_kernel_agrees_with_the_reference(make):
    assert_agrees(make(TEXT.format(columns=24), "Model", Options(), "cuda"), "cuda")
