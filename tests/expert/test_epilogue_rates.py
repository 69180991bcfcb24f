"""Products of half precision: which get a kernel with an epilogue, by rates and bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

HOPPER, AMPERE = Target("cuda", (9, 0), 132), Target("cuda", (8, 0), 108)
TEXT = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear({depth}, 1024, bias=False, dtype=torch.bfloat16)
    def forward(self, x, y):
        return {body}
def get_inputs():
    return [torch.zeros({rows}, {depth}).bfloat16(), torch.zeros({rows}, 1024).bfloat16()]
def get_init_inputs(): return []
"""
GATE, ACTIVATION = "F.silu(self.up(x)) * y", "F.gelu(self.up(x))"


@pytest.mark.parametrize(
    ("body", "rows", "depth", "target", "kernel"),
    [
        (GATE, 1024, 2048, HOPPER, True),
        (GATE, 1024, 3072, HOPPER, False),  # the library's product saves more than the epilogue
        (GATE, 1024, 3072, AMPERE, True),
        (ACTIVATION, 1024, 1024, HOPPER, True),
        (ACTIVATION, 1024, 2048, HOPPER, False),  # the epilogue reads no other tensor
        (ACTIVATION, 256, 4096, HOPPER, True),  # the bytes of the weight bound both
    ],
)
def test_epilogue_pays_by_depth_and_bytes(
    tmp_path: Path, body: str, rows: int, depth: int, target: Target, kernel: bool
) -> None:
    path = tmp_path / "task.py"
    path.write_text(TEXT.format(body=body, rows=rows, depth=depth))
    subject = replace(open_subject(load_task(f"{path}:Model", device="cpu")), target=target)
    made = make_candidate(subject, Options())
    assert (made is not None and made.kernels[0].startswith("linear")) is kernel
