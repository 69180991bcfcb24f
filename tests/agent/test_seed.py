"""A run that starts from the user's own kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from scale_task import KERNEL, MODULE, SOURCE

from cuagent.agent import Budget, Run, read_seed, run_agent, start_from, start_run
from cuagent.attempt import AttemptError
from cuagent.judge import LocalJudge
from cuagent.models.scripted import ScriptedModel
from cuagent.task import load_task
from cuagent.worker import ForkServer


def test_a_source_file_is_put_into_the_work_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.cpp").write_text(KERNEL)
    hook, model = start_from(read_seed(tmp_path / "mine.cpp")), ScriptedModel([])
    assert hook(run, model) is None
    assert (run.work / "kernels" / "mine.cpp").read_text() == KERNEL
    said = run.messages[-1].content
    assert "kernels/mine.cpp" in said
    assert "was not judged" in said
    count = len(run.messages)
    hook(run, model)
    assert len(run.messages) == count


def test_a_folder_without_a_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AttemptError, match=r"no model_new\.py"):
        read_seed(tmp_path)


@pytest.mark.slow
def test_a_kernel_with_its_module_is_attempt_1(tmp_path: Path, fork_server: ForkServer) -> None:
    seed = tmp_path / "mine"
    (seed / "kernels").mkdir(parents=True)
    (seed / "model_new.py").write_text(MODULE)
    (seed / "kernels" / "scale.cpp").write_text(KERNEL)
    (tmp_path / "scale.py").write_text(SOURCE)
    task = load_task(str(tmp_path / "scale.py"), device="cpu")
    with LocalJudge(task, fork_server=fork_server) as judge:
        root = tmp_path / "runs"
        run = start_run(task, judge, model="scripted", budget=Budget(steps=2), root=root)
        calls = [{"name": "submit", "arguments": {"message": "none", "attempt": 1}}]
        run_agent(
            run,
            ScriptedModel([{"calls": calls}]),
            hooks=(start_from(read_seed(seed)),),
        )
    assert [tried.n for tried in run.tried] == [1]
    assert run.tried[0].accepted
    assert (run.work / "kernels" / "scale.cpp").read_text() == KERNEL
