"""Single operations that torch computes slowly on a GPU get a kernel, if they move many bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

TEXT = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear({width}, {width})
    def forward(self, x, y, z):
        return {body}
def get_inputs():
    sizes = ({rows}, 14, 14, {width}), ({rows}, 1, 1, {width}), ({rows}, {width}, 14, 14)
    return [torch.randn(size) for size in sizes]
def get_init_inputs(): return []
"""
SLOW = {
    "conversion": "self.layer(x).half()",
    "factor of a channel": "self.layer(x) * y",
    "shift of two dimensions": "torch.roll(self.layer(x), (3, -3), (1, 2))",
    "sum of two layouts": "self.layer(x) + z.permute(0, 2, 3, 1)",
    "copy in another order": "self.layer(x).permute(0, 3, 1, 2).contiguous()",
}
FAST = {"one layout": "self.layer(x) * x", "factor": "self.layer(x) * 2.5"}


def kernels_of(path, body: str, rows: int, width: int) -> int:
    """Return the number of kernels of the first candidate without products; 0 without one."""
    (path / "task.py").write_text(TEXT.format(body=body, rows=rows, width=width))
    subject = open_subject(load_task(f"{path / 'task.py'}:Model", device="cpu"))
    subject = replace(subject, target=Target("cuda", (9, 0), 132))
    made = make_candidate(subject, Options(products=False, fold=False))
    return 0 if made is None else len(made.kernels)


@pytest.mark.parametrize("name", SLOW)
def test_large_operation_that_torch_computes_slowly_is_a_kernel(tmp_path, name):
    assert kernels_of(tmp_path, SLOW[name], 64, 96) == 1


@pytest.mark.parametrize("name", SLOW)
def test_small_operation_stays_with_torch(tmp_path, name):
    assert kernels_of(tmp_path, SLOW[name], 2, 96) == 0


@pytest.mark.parametrize("name", FAST)
def test_large_operation_on_one_layout_stays_with_torch(tmp_path, name):
    assert kernels_of(tmp_path, FAST[name], 64, 96) == 0
