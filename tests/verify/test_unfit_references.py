"""Tests of references that end their own process: the error names the module, not the machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from shares import slow_after

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import Task, TaskError, load_task
from cuagent.verify import Reason, Referee
from cuagent.verify.oracle.client import Oracle
from cuagent.verify.oracle.process import OracleLost
from cuagent.worker import ForkServer

MODULE = """
import os, sys, torch
{body}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {construct}
    def forward(self, x):
        {forward}
        return x * 2 + 1
def get_inputs():
    return [torch.rand(30, 4)]
"""


def reference(folder: Path, body: str = "", construct: str = "", forward: str = "") -> Task:
    file = folder / "leaves.py"
    parts = {"body": body, "construct": construct, "forward": forward}
    file.write_text(MODULE.format(**{name: text or "pass" for name, text in parts.items()}))
    return load_task(file, device="cpu")


@pytest.mark.parametrize(
    ("part", "text", "how"),
    [
        ("body", "os._exit(0)", "exit code 0"),
        ("construct", "os._exit(3)", "exit code 3"),
        ("forward", "os._exit(1)", "exit code 1"),
        ("forward", "os.abort()", "SIGABRT"),
    ],
)
def test_module_that_ends_its_process_is_named(
    fork_server: ForkServer, tmp_path: Path, part: str, text: str, how: str
) -> None:
    task = reference(tmp_path, **{part: text})
    with pytest.raises(TaskError) as caught:
        Oracle(fork_server, task).describe()
    assert str(caught.value).startswith(f"{task.path}: the module ended its own process ({how}); ")


def test_killed_oracle_is_not_the_tasks_fault(fork_server: ForkServer, tmp_path: Path) -> None:
    oracle = Oracle(fork_server, reference(tmp_path))
    oracle.describe()
    os.kill(oracle.pid, signal.SIGKILL)
    with pytest.raises(OracleLost, match="killed from outside"):
        oracle.describe()
    assert not oracle.alive


@pytest.mark.parametrize("leave", slow_after(1, ["os._exit(3)", "sys.exit(3)"]))
def test_reference_that_exits_later_is_not_certifiable(
    fork_server: ForkServer, tmp_path: Path, leave: str
) -> None:
    flag = tmp_path / "leave"
    task = reference(tmp_path, forward=f"if os.path.exists({str(flag)!r}): {leave}")
    text = task.source.replace("class Model", "class ModelNew").replace("os.path.exists", "bool")
    attempt = Attempt((("model_new.py", text.replace(f"{str(flag)!r}", "0")),))
    with Referee(task, fork_server=fork_server) as referee:
        built = build(attempt, task.device)
        flag.touch()
        refused = referee.verify(attempt, built)
        assert refused.reason is Reason.NOT_CERTIFIABLE, refused.detail
        flag.unlink()
        assert referee.verify(attempt, built).reason is Reason.ACCEPTED
