"""Tests of verdicts on training steps: outputs and gradients, with one rule for both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shares import slow_except

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import TaskError, load_task
from cuagent.task.plain import task_from_json, task_to_json
from cuagent.task.step import MARK, Step, forward_task, training_step
from cuagent.verify import Reason, Referee, Verdict
from cuagent.worker import ForkServer

REFERENCE = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.ones(n))
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(n), requires_grad=False)
    def forward(self, x, rows):
        y = torch.relu(x) * self.w * self.frozen
        return y.amax(-1), y[rows]
def get_inputs(): return [torch.randn(24, 40), torch.randint(0, 24, (10,))]
def get_init_inputs(): return [40]
"""
HONEST = """
        y = torch.relu(x) * self.w * self.frozen
        top = y.amax(-1, keepdim=True)
        ties = (y == top).to(y.dtype)
        gy = ties / ties.sum(-1, keepdim=True) * a.unsqueeze(-1)
        gy = gy.index_add(0, rows, b)
        return gy * self.w * self.frozen * (x > 0), (gy * torch.relu(x) * self.frozen).sum(0)
"""


def candidate(backward: str, forward: str = "") -> Attempt:
    """Return a candidate whose forward is right, with this backward."""
    text = REFERENCE.partition("def get_inputs")[0]
    text = text.replace("class Model(", "class ModelNew(")
    text = text.replace("        y = torch.relu(x)", f"{forward}        y = torch.relu(x)", 1)
    return Attempt((("model_new.py", f"{text}    def backward(self, x, rows, a, b):{backward}"),))


@pytest.fixture(scope="module")
def judged(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Callable[[Attempt], Verdict]]:
    path = tmp_path_factory.mktemp("step") / "gate.py"
    path.write_text(REFERENCE)
    task = training_step(load_task(path, device="cpu"))
    with Referee(task, call_s=5.0, fork_server=fork_server) as referee:
        yield lambda attempt: referee.verify(attempt, build(attempt, task.device))


def test_right_gradients_are_accepted(judged: Callable[[Attempt], Verdict]) -> None:
    verdict = judged(candidate(HONEST))
    assert verdict.reason is Reason.ACCEPTED, verdict


WRONG = {
    "one of the parameters": (".sum(0)", ".sum(0) * 1.01"),
    "of an input": ("(x > 0)", "1.0"),
    "at the kink": ("(x > 0)", "(x >= 0)"),
    "all to the first of equal maxima": (
        "ties / ties.sum(-1, keepdim=True)",
        "torch.zeros_like(y).scatter(1, y.argmax(-1, keepdim=True), 1.0)",
    ),
    "of one output only": ("gy.index_add(0, rows, b)", "gy"),
    "rows that repeat": (
        "gy.index_add(0, rows, b)",
        "gy + torch.zeros_like(y).index_copy(0, rows, b)",
    ),
    "zeros": (".sum(0)", ".sum(0) * 0"),
}


@pytest.mark.parametrize(
    "name", slow_except(WRONG, "one of the parameters", "at the kink", "rows that repeat")
)
def test_wrong_gradients_are_rejected(name: str, judged: Callable[[Attempt], Verdict]) -> None:
    old, new = WRONG[name]
    assert old in HONEST
    verdict = judged(candidate(HONEST.replace(old, new)))
    assert verdict.reason in (Reason.WRONG_VALUES, Reason.LESS_PRECISE), verdict


POINTWISE = """
import torch
from torch import nn
from torch.nn import functional as F
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.ones(n))
    def forward(self, x):
        return F.hardswish(x) * self.w
def get_inputs(): return [torch.randn(24, 40)]
def get_init_inputs(): return [40]
"""
SLOPE = """
    def backward(self, x, a):
        slope = (x > -3) * torch.where(x < 3, x / 3 + 0.5, 1.0)
        return a * self.w * slope, (a * F.hardswish(x)).sum(0)
"""


@pytest.fixture(scope="module")
def pointwise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Verdict]]:
    path = tmp_path_factory.mktemp("step") / "pointwise.py"
    path.write_text(POINTWISE)
    task = training_step(load_task(path, device="cpu"))
    text = POINTWISE.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    with Referee(task, call_s=5.0) as referee:

        def judge(backward: str) -> Verdict:
            attempt = Attempt((("model_new.py", text + backward),))
            return referee.verify(attempt, build(attempt, task.device))

        yield judge


def test_gradients_at_nan_are_not_judged(pointwise: Callable[[str], Verdict]) -> None:
    """A mask gives zero or NaN where torch passes a gradient on."""
    verdict = pointwise(SLOPE)
    assert verdict.accepted, verdict


WRONG_POINTWISE = {
    "at the upper kink": ("x < 3", "x <= 3"),
    "at the lower kink": ("x > -3", "x >= -3"),
    "where the input has a gradient": ("a * self.w", "(1 + x.requires_grad) * a * self.w"),
    "by the address": (
        "        slope = (x > -3) *",
        "        known, key = getattr(self, 'known', None), (x.data_ptr(), x._version)\n"
        "        if known is None or known[0] != key:\n"
        "            self.known = known = key, x.clone()\n"
        "        x = known[1]\n"
        "        slope = (x > -3) *",
    ),
}


@pytest.mark.parametrize(
    "name", slow_except(WRONG_POINTWISE, "at the lower kink", "by the address")
)
def test_wrong_slopes_are_rejected(name: str, pointwise: Callable[[str], Verdict]) -> None:
    old, new = WRONG_POINTWISE[name]
    assert old in SLOPE
    verdict = pointwise(SLOPE.replace(old, new))
    assert not verdict.accepted, "accepted"
    assert verdict.reason in (Reason.WRONG_VALUES, Reason.NOT_DETERMINISTIC), verdict


def test_candidate_that_keeps_its_own_forward_is_rejected(
    pointwise: Callable[[str], Verdict],
) -> None:
    """It would answer the whole step in one call, and no other call in a package."""
    verdict = pointwise(
        f"{SLOPE}\n    def __setattr__(self, name, value):\n"
        "        if name != 'forward': super().__setattr__(name, value)\n"
    )
    assert verdict.reason is Reason.CONSTRUCT_FAILED
    assert "cannot be replaced" in verdict.output


def test_candidate_whose_call_is_more_than_forward_has_one_line(
    pointwise: Callable[[str], Verdict],
) -> None:
    """A package calls `backward` itself, so hooks would not run there."""
    verdict = pointwise(f"{SLOPE}\n    def __call__(self, *given): return self.forward(*given)\n")
    assert verdict.reason is Reason.CONSTRUCT_FAILED
    assert "no hooks and no __call__" in verdict.output


def test_state_of_an_earlier_forward_is_rejected(judged: Callable[[Attempt], Verdict]) -> None:
    kept = candidate(
        HONEST.replace(
            "y = torch.relu(x)", "x = getattr(self, 'kept', x)\n        y = torch.relu(x)"
        ),
        "        self.kept = x\n",
    )
    assert not judged(kept).accepted, "another call may lie between forward and backward"


def test_missing_or_odd_backward_has_one_line(judged: Callable[[Attempt], Verdict]) -> None:
    without = REFERENCE.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    verdict = judged(Attempt((("model_new.py", without),)))
    assert verdict.reason is Reason.CONSTRUCT_FAILED
    assert "no function backward" in verdict.output
    one = candidate("\n        return torch.zeros_like(x)\n")
    assert "must return a tuple of gradients" in judged(one).output


def test_step_names_what_has_a_gradient_and_gives_the_forward_back(tmp_path: Path) -> None:
    path = tmp_path / "gate.py"
    path.write_text(REFERENCE)
    task = load_task(path, device="cpu")
    made = training_step(task)
    step = Step.of(made)
    assert step is not None
    assert (step.inputs, step.parameters, step.outputs) == ((0,), ("w",), (0, 1))
    back = forward_task(made)
    assert back.source.strip() == task.source.strip()
    assert (back.entry, back.inputs, back.step) == (task.entry, task.inputs, "")
    assert made.digest != task.digest
    given = load_task(path, inputs="f32[24,40]; i64[10]<24", device="cpu")
    assert forward_task(training_step(given)).inputs == given.inputs


def test_text_with_the_mark_of_a_step_is_given_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "gate.py"
    path.write_text(REFERENCE.replace("class Model", f"{MARK}\nclass Model"))
    task = load_task(path, device="cpu")
    assert forward_task(training_step(task)).source.strip() == task.source.strip()


@pytest.mark.parametrize(
    "step", ["[" * 100_000, "{", "[]", "5", '{"entry": "Model"}', '{"inputs": "abc"}', '{"a": 1}']
)
def test_recorded_step_of_another_form_is_refused(step: str, tmp_path: Path) -> None:
    """A log or evidence of another origin may hold any text."""
    path = tmp_path / "gate.py"
    path.write_text(REFERENCE)
    data = task_to_json(load_task(path, device="cpu")) | {"step": step}
    with pytest.raises(ValueError, match=r"step|Expecting"):
        task_from_json(data)


def test_module_without_gradients_has_no_step(tmp_path: Path) -> None:
    path = tmp_path / "index.py"
    path.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x): return x.argmax(-1)\n"
        "def get_inputs(): return [torch.randn(4, 4)]\n"
    )
    with pytest.raises(TaskError, match="no output of Model has a gradient"):
        training_step(load_task(path, device="cpu"))
