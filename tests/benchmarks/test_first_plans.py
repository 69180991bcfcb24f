"""Plans of first candidates without a GPU (`benchmarks/first_plans.py`)."""

from __future__ import annotations

import first_plans  # type: ignore[import-not-found]
import pytest

pytestmark = pytest.mark.slow

TASK = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 8, 3, stride=2)
    def forward(self, x):
        return torch.softmax(torch.tanh(self.layer(x)), 1)
def get_inputs(): return [torch.randn(2, 3, 9, 9)]
def get_init_inputs(): return []
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(first_plans, "LIMIT_S", 600)


def test_plan_names_kernels_and_calls_of_the_library(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(TASK)
    found = first_plans.plan(path)
    assert found.error == ""
    assert found.kernels
    assert found.kind in ("kernels", "kernels and library")


def test_module_without_a_kernel_has_its_calls(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(TASK.replace("torch.softmax(torch.tanh(self.layer(x)), 1)", "x.flip(2)"))
    found = first_plans.plan(path)
    assert (found.error, found.kind) == ("", "nothing")
    assert found.library
