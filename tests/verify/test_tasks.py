"""Tests of other tasks: compiled kernels, folded BatchNorm, indices, losses, several outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shares import slow_after

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import TaskError, load_task
from cuagent.verify import Reason, Referee, Verdict
from cuagent.worker import ForkServer

Judged = Callable[..., Verdict]

KERNEL = """
extern "C" void twice(float* out, const float* in, long n) {
  #pragma omp parallel for
  for (long i = 0; i < n; i++) out[i] = 2 * in[i] + 1;
}
"""
TASKS = {
    "kernel": ("", "", "return 2 * x + 1", "[torch.rand(300, 7)]"),
    "batchnorm": (
        "self.conv = torch.nn.Conv2d(3, 8, 3); self.norm = torch.nn.BatchNorm2d(8)",
        "",
        "return torch.relu(self.norm(self.conv(x)))",
        "[torch.rand(2, 3, 12, 12)]",
    ),
    "loss": (
        "",
        ", target",
        "return torch.nn.functional.cross_entropy(x, target)",
        "[torch.rand(64, 50), torch.randint(50, (64,))]",
    ),
    "several": (
        "",
        "",
        "return {'max': x.max(dim=-1), 'sum': [x.sum(0), x > 0.5]}",
        "[torch.rand(40, 33)]",
    ),
    "embedding": (
        "self.table = torch.nn.Embedding(100, 16)",
        "",
        "return self.table(x).sum(1)",
        "[torch.randint(100, (32, 9))]",
    ),
    "gru": (
        "self.gru = torch.nn.GRU(16, 24, batch_first=True)",
        "",
        "return self.gru(x)[0]",
        "[torch.rand(4, 12, 16)]",
    ),
    "order": ("", "", "return x.argsort(-1)", "[torch.rand(20, 33)]"),
    "hidden": (
        "self.hide = torch.ones(30, 30).triu(1).bool()",
        "",
        "return x.log_softmax(-1).masked_fill(self.hide, -torch.inf)",
        "[torch.randn(3, 30, 30)]",
    ),
    "whole": ("", "", "return (x - x.mean()) / (x.std() + 1e-8)", "[torch.randn(20, 30)]"),
    "nucleus": (
        "",
        "",
        "return x.masked_fill(x.softmax(-1).cumsum(-1) > 0.5, -torch.inf)",
        "[torch.randn(20, 30)]",
    ),
    "constant": ("", "", "return x.softmax(-1).sum(-1)", "[torch.rand(40, 33)]"),
}


def source(name: str, entry: str, forward: str | None = None) -> str:
    construct, more, answer, inputs = TASKS[name]
    return f"""
import torch
class {entry}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {construct or "pass"}
    def forward(self, x{more}):
        {forward or answer}
def get_inputs():
    return {inputs}
def get_init_inputs():
    return []
"""


@pytest.fixture
def verdict(tmp_path: Path, fork_server: ForkServer) -> Iterator[Judged]:
    """Return a function that verifies a candidate for one of TASKS; each task is opened once per
    test."""
    opened: dict[str, Referee] = {}

    def judge(
        name: str, forward: str | None = None, prelude: str = "", kernel: str = ""
    ) -> Verdict:
        if name not in opened:
            path = tmp_path / f"{name}.py"
            path.write_text(source(name, "Model"))
            opened[name] = Referee(load_task(str(path), device="cpu"), fork_server=fork_server)
        files = [("kernels/twice.cpp", kernel)] if kernel else []
        attempt = Attempt((*files, ("model_new.py", prelude + source(name, "ModelNew", forward))))
        return opened[name].verify(attempt, build(attempt, opened[name].task.device))

    yield judge
    for referee in opened.values():
        referee.close()


def test_compiled_kernel_loads_in_the_sandbox(verdict: Judged) -> None:
    prelude = 'from cuagent.kernels import load\ntwice = load("kernels/twice.cpp").twice\n'
    forward = "y = torch.empty_like(x); twice(y, x, x.numel()); return y"
    found = verdict("kernel", forward=forward, prelude=prelude, kernel=KERNEL)
    assert found.reason is Reason.ACCEPTED, (found.detail, found.output)


@pytest.mark.parametrize("name", slow_after(2, ["several", "embedding", "loss", "gru"]))
def test_reference_itself_is_accepted(verdict: Judged, name: str) -> None:
    found = verdict(name)
    assert found.reason is Reason.ACCEPTED, (found.detail, found.draws)


def test_other_tie_breaks_pass_and_wrong_indices_fail(verdict: Judged) -> None:
    last_first = "return x.shape[-1] - 1 - torch.argsort(x.flip(-1), dim=-1, stable=True)"
    found = verdict("order", forward=last_first)
    assert found.reason is Reason.ACCEPTED, (found.detail, found.draws)
    assert any("ties" in draw.kind for draw in found.draws)
    wrong = "y = x.argsort(-1); y[0, 0] = y[0, 1]; return y"
    assert verdict("order", forward=wrong).reason is Reason.WRONG_VALUES


def test_reference_with_infinite_mask_is_tested_on_several_kinds(
    verdict: Judged,
) -> None:
    unshifted = (
        "return (x - x.exp().sum(-1, keepdim=True).log()).masked_fill(self.hide, -torch.inf)"
    )
    assert verdict("hidden").accepted
    assert verdict("hidden", forward=unshifted).reason is Reason.WRONG_VALUES


@pytest.mark.slow
def test_infinities_moved_by_roundoff_do_not_reject(verdict: Judged) -> None:
    otherwise = (
        "e = (x - x.amax(-1, keepdim=True)).exp(); "
        "return torch.where(e.cumsum(-1) / e.sum(-1, keepdim=True) <= 0.5, x, -torch.inf)"
    )
    for _ in range(3):
        found = verdict("nucleus", forward=otherwise)
        assert found.accepted, found.detail
    kinds = {str(draw.kind) for draw in found.draws}
    assert "normal" in kinds
    unshifted = otherwise.replace("(x - x.amax(-1, keepdim=True))", "x")
    assert verdict("nucleus", forward=unshifted).reason is Reason.WRONG_VALUES


def test_wrong_epsilon_in_a_whole_tensor_norm_is_rejected(verdict: Judged) -> None:
    assert verdict("whole").accepted
    forward = "return (x - x.mean()) / (x.std() + 1e-6)"
    assert verdict("whole", forward=forward).reason is Reason.WRONG_VALUES


def test_batchnorm_fold_without_running_mean_is_rejected(verdict: Judged) -> None:
    fold = (
        "f = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps); "
        "y = torch.nn.functional.conv2d(x, self.conv.weight * f[:, None, None, None], BIAS); "
        "return torch.relu(y)"
    )
    right = "(self.conv.bias - self.norm.running_mean) * f + self.norm.bias"
    assert verdict("batchnorm", forward=fold.replace("BIAS", right)).accepted
    wrong = "self.conv.bias * f + self.norm.bias"
    found = verdict("batchnorm", forward=fold.replace("BIAS", wrong))
    assert found.reason is Reason.WRONG_VALUES
    assert found.lax is not None
    assert found.lax.passed


def test_failure_in_the_last_round_names_inputs_or_reuse(
    verdict: Judged,
) -> None:
    of_inputs = verdict("kernel", forward="return 2 * x + 1 + (x == x.round()).all()")
    assert of_inputs.reason is Reason.WRONG_VALUES
    assert of_inputs.detail.startswith("on "), of_inputs.detail
    first = "if not hasattr(self, 'far'): self.far = x.abs().max() > 50"
    of_use = f"{first}\n        return 2 * x + 1 + self.far * (x == x.round()).all()"
    found = verdict("kernel", forward=of_use)
    assert found.reason is Reason.NOT_DETERMINISTIC
    assert found.detail.startswith("right in a fresh model, wrong in one that was called before")


def test_task_solved_by_a_constant_is_not_certifiable(verdict: Judged) -> None:
    assert verdict("constant").reason is Reason.NOT_CERTIFIABLE


def test_task_that_does_not_run_raises_task_error(tmp_path: Path, fork_server: ForkServer) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source("kernel", "Model", "raise ValueError('odd')"))
    with pytest.raises(TaskError, match="odd"):
        Referee(load_task(str(path), device="cpu"), fork_server=fork_server)


COUNTED = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, k):
        return x.amax(-1) * k


def get_inputs():
    with open({count!r}, "a") as file:
        file.write(".")
    return [torch.rand(3, 90), {second}]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("second", slow_after(1, ["torch.randint(4, (3,))", "torch.rand(3)"]))
def test_sweep_uses_at_most_one_own_draw(
    second: str, tmp_path: Path, fork_server: ForkServer
) -> None:
    """An own draw may take a second, and the other draws of a sweep do not need one."""
    count = tmp_path / "count"
    (tmp_path / "counted.py").write_text(COUNTED.format(count=str(count), second=second))
    task = load_task(tmp_path / "counted.py", device="cpu")
    candidate = task.source.replace("class Model", "class ModelNew")
    with Referee(task, fork_server=fork_server) as referee:
        count.write_text("")
        attempt = Attempt((("model_new.py", candidate),))
        verdict = referee.verify(attempt, build(attempt, task.device))
    assert verdict.accepted, verdict.detail
    whole = [draw for draw in verdict.draws if "moving" not in draw.kind]
    assert len(verdict.draws) - len(whole) >= 30  # 90 places, three lines
    assert len(count.read_text()) <= len(whole) + 4
