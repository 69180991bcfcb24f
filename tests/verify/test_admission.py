"""Tests of admission: a task without a well-defined or with a trivial answer is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shares import slow_after

from cuagent.task import load_task
from cuagent.verify.admission import Admission, admit
from cuagent.verify.oracle.client import Oracle
from cuagent.verify.referee import Referee
from cuagent.worker import ForkServer

Admitted = Callable[..., Admission]

SOURCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
    def forward(self, x, y):
        {forward}
def get_inputs():
    return [{first}, {second}]
def get_init_inputs():
    return []
"""
RANDOM = "torch.rand(16, 33)"
REFUSED = {
    "return torch.nn.functional.dropout(x + y)": "random numbers (bernoulli_)",
    "self.count += 1; return (x + y) * self.count": "changes the reference's state (count)",
    "return x - x": "does not depend on the inputs: on the task's own inputs it is 0 everywhere",
    "import time; return (x + y) * (1 + 1e-9 * time.time())": (
        "the output depends on the time or the process (time.time)"
    ),
    "return (x + y)[x > 0.5]": "changes its shape from call to call",
    "return (x + y).softmax(-1).sum(-1)": "a trivial answer would pass: one",
    "return x + 0 * y": "a trivial answer would pass: input 0 itself",
    "import time; return (x + y) * (1 + time.perf_counter_ns() % 997)": "for equal inputs",
    "self.n = getattr(self, 'n', 0) + 1; return (x + y) * (1 + (self.n > 9))": (
        "the reference changes self.n in forward, which changes its output"
    ),
}


@pytest.fixture
def admission(tmp_path: Path, fork_server: ForkServer) -> Admitted:
    """Return a function that examines a task, given by its forward and its inputs."""

    def admitted(forward: str, first: str = RANDOM, second: str = RANDOM) -> Admission:
        path = tmp_path / "task.py"
        path.write_text(SOURCE.format(forward=forward, first=first, second=second))
        with Referee(load_task(str(path), device="cpu"), fork_server=fork_server) as referee:
            return admit(referee)

    return admitted


@pytest.mark.parametrize("forward", slow_after(5, REFUSED))
def test_task_without_a_well_defined_answer_is_not_certifiable(
    admission: Admitted, forward: str
) -> None:
    found = admission(forward)
    assert found.refusal.startswith("not certifiable, because ")
    assert REFUSED[forward] in found.refusal


def test_certifiable_task_has_notes_on_the_limits_of_its_verdicts(
    admission: Admitted,
) -> None:
    counts = "self.n = getattr(self, 'n', 0) + 1"
    (note,) = admission(f"{counts}; return torch.relu(x) @ y.t()").notes
    assert note.startswith("forward changes self.n; the output was the same in ")
    plain = admission("return torch.relu(x) @ y.t()")
    assert plain.certifiable
    assert plain.refusal == ""
    assert plain.notes == ()
    odd = admission("return torch.log(x.add_(1)) * y.shape[0]")
    assert odd.certifiable
    assert odd.notes == (
        "the reference changes its inputs; a candidate may not",
        "input 1 has no influence on the output",
        "the reference accepts no zero-mean inputs: precision cannot be judged tightly",
    )


def test_constant_inputs_are_certifiable(admission: Admitted) -> None:
    found = admission("return torch.tanh(x * y)", "torch.ones(16, 33)", "torch.ones(1)")
    assert found.certifiable, found.refusal
    assert found.notes == (
        "get_inputs() returns equal inputs at every call; a verdict draws others too",
    )


def test_task_without_tensors_is_not_certifiable(admission: Admitted) -> None:
    assert "takes no tensors" in admission("return torch.full((4,), x * y)", "3.0", "4.0").refusal


def test_each_draw_is_measured_once_for_all_trivial_answers(
    admission: Admitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros, ones, an input and an earlier answer are judged with one measured sensitivity."""
    measured: list[int] = []
    spreads: list[bool] = []
    plain, answer = Oracle.sensitivity, Oracle.answer

    def counted(oracle: Oracle, *arguments: Any) -> Any:
        measured.append(arguments[4])
        return plain(oracle, *arguments)

    def answered(oracle: Oracle, *arguments: Any) -> Any:
        spreads.append(arguments[4].seconds is not None)
        return answer(oracle, *arguments)

    monkeypatch.setattr(Oracle, "sensitivity", counted)
    monkeypatch.setattr(Oracle, "answer", answered)
    assert admission("return x.exp() + y").certifiable
    assert measured, "no trivial answer passes without it"
    assert len(measured) == len(set(measured)), "one query for each draw"
    assert spreads[:4] == [False, True, False, True], "the first of two equal calls needs no spread"


def test_small_outputs_are_compared_with_one_thread(
    admission: Admitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread pool on a busy machine takes ten times as long as one thread."""
    threads: list[int] = []
    plain = Referee.judged

    def judged(*arguments: Any) -> Any:
        threads.append(torch.get_num_threads())
        return plain(*arguments)

    monkeypatch.setattr(Referee, "judged", judged)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert admission("return x.exp() + y").certifiable
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(threads) == {1}
