"""The task is judged first: what has no right answer, or one that anybody has, is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuagent.task import load_task
from cuagent.verify.admission import Admission, admit
from cuagent.verify.referee import Referee

SOURCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
    def forward(self, x, y):
        {forward}
def get_inputs():
    return [torch.rand(16, 33), {second}]
def get_init_inputs():
    return []
"""
REFUSED = {
    "return torch.nn.functional.dropout(x + y)": "random numbers (bernoulli_)",
    "self.count += 1; return (x + y) * self.count": "changes what the reference keeps (count)",
    "return x - x": "does not depend on the inputs",
    "return (x + y).softmax(-1).sum(-1)": "one would pass",
    "return x + 0 * y": "input 0 itself would pass",
}


def admission(tmp_path: Path, forward: str, second: str = "torch.rand(16, 33)") -> Admission:
    path = tmp_path / "task.py"
    path.write_text(SOURCE.format(forward=forward, second=second))
    with Referee(load_task(str(path), device="cpu")) as referee:
        return admit(referee)


@pytest.mark.parametrize("forward", REFUSED)
def test_a_task_without_an_answer_to_be_found_is_not_certifiable(
    tmp_path: Path, forward: str
) -> None:
    found = admission(tmp_path, forward)
    assert found.refusal.startswith("not certifiable, because ")
    assert REFUSED[forward] in found.refusal


def test_an_ordinary_task_is_certifiable_and_what_limits_its_verdicts_is_said(
    tmp_path: Path,
) -> None:
    plain = admission(tmp_path, "return torch.relu(x) @ y.t()")
    assert plain.certifiable
    assert plain.refusal == ""
    assert plain.notes == ()
    odd = admission(tmp_path, "return torch.log(x.add_(1)) * y.shape[0]")
    assert odd.certifiable
    assert odd.notes == (
        "the reference changes its inputs; a candidate may not",
        "input 1 has no influence on the output",
        "it takes no zero-mean inputs: precision cannot be judged tightly",
    )
