"""Copies of permuted rows on a GPU: which get a kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132)
TEXT = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, w):
        return torch.cdist({copied}.contiguous(), w).relu() + 1
def get_inputs(): return [torch.randn({shape}), torch.randn(3, {width})]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize(
    ("copied", "shape", "width", "kernel"),
    [
        ("x.transpose(0, 1)", "512, 128, 64", 64, True),
        ("x.transpose(0, 1)", "16, 4, 64", 64, False),  # too small
        ("x.transpose(0, 1)", "512, 128, 63", 63, False),  # rows are not vectors
        ("x.transpose(1, 2)", "8, 512, 512", 512, True),  # through shared memory
        ("x.transpose(1, 2)", "8, 512, 64", 512, False),  # too small for that
    ],
)
def test_large_copies_of_whole_vectors_are_kernels(
    tmp_path: Path, copied: str, shape: str, width: int, kernel: bool
) -> None:
    path = tmp_path / "task.py"
    path.write_text(TEXT.format(copied=copied, shape=shape, width=width))
    subject = replace(open_subject(load_task(f"{path}:Model", device="cpu")), target=HOPPER)
    candidate = make_candidate(subject, Options())
    assert candidate is not None
    names = candidate.kernels
    assert any(name.startswith(("clone", "contiguous")) for name in names) is kernel, names
