"""Show a finished run step by step, and apply its result on request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from commands import Cuagent

from cuagent.attempt import Attempt
from cuagent.build.result import Build
from cuagent.cli.apply import slower
from cuagent.judgement import Judgement
from cuagent.message import Message, ToolCall, Usage
from cuagent.record import RunLog, new_run, plain
from cuagent.score import Score
from cuagent.task import Task
from cuagent.timing import Arm, Effort, Ratio, Timing
from cuagent.verdict import Reason, Verdict
from cuagent.verify.domain import Domain

WRONG = Attempt((("kernels/a.cpp", "int wrong;\n"), ("model_new.py", "class ModelNew: ...\n")))
RIGHT = Attempt((("kernels/a.cpp", "int right;\n"), ("model_new.py", "class ModelNew: ...\n")))
GAIN = Ratio(2.0, 1.9, 2.1)
VERIFIED = "model_new_verified"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the user's module, and a run on it with a wrong and a right attempt."""
    return made(tmp_path, GAIN)


def made(tmp_path: Path, ratio: Ratio) -> Path:
    (tmp_path / "task.py").write_text("class Model: ...\n")
    task = Task(tmp_path / "task.py", "Model", "class Model: ...\n")
    with RunLog(new_run("task", tmp_path / ".cuagent" / "runs")) as log:
        described = {**plain(task), "name": task.name, "digest": task.digest}
        log.write("session", task=described, model="expert")
        log.message(Message("user", "make it faster"))
        for n, attempt in enumerate((WRONG, RIGHT), 1):
            call = log.write("call", usage=Usage(), cost=0.0)
            said = Message("assistant", f"I try {n}.", (ToolCall(f"{n}", "verify", "{}"),))
            log.message(said, call)
            log.write("attempt", n=n, digest=attempt.digest, commit="", files=dict(attempt.files))
            log.write("judgement", effort="quick", **plain(judged(attempt, ratio)) | {"attempt": n})
            log.message(Message("tool", "text for the model", tool_call_id=f"{n}"))
        log.write("end", stop="submitted", summary="attempt 2", attempt=2)
    return tmp_path


def judged(attempt: Attempt, ratio: Ratio = GAIN) -> Judgement:
    right = attempt is RIGHT
    reason = Reason.ACCEPTED if right else Reason.WRONG_VALUES
    verdict = Verdict(right, reason, "", "t", attempt.digest)
    arms = (Arm("candidate", 1e-3, ()), Arm("eager", 2e-3, ()))
    timing = Timing(arms, {"eager": ratio}, Effort.QUICK, "a CPU", 1.0)
    build = Build(attempt.digest, (), (), True, 0.1)
    score = Score(2 if right else -1, ratio.value)
    nothing = '{"kind": "list", "items": []}'
    none = '{"kind": "dict", "keys": [], "items": []}'
    init = f'{{"kind": "list", "items": [{nothing}, {none}]}}'
    domain = Domain("cpu", (), nothing, (), init)
    return Judgement(attempt.digest, build, verdict, timing if right else None, score, None, domain)


def test_the_best_attempt_is_put_beside_the_module(cuagent: Cuagent, project: Path) -> None:
    done = cuagent("apply")
    assert done.returncode == 0, done.stderr
    assert (project / VERIFIED / "kernels" / "a.cpp").read_text() == "int right;\n"
    assert (project / VERIFIED / "model_new.py").read_text() == "class ModelNew: ...\n"
    assert (project / VERIFIED / "reference.py").read_text() == "class Model: ...\n"
    assert "guard.Guarded" in (project / "model_new.py").read_text()
    assert f"wrote {project / 'model_new.py'}\n" in done.stdout
    assert f"wrote {project / VERIFIED}/ (" in done.stdout
    assert len(done.stdout.splitlines()) == 3, "a folder is one line"
    assert (project / "task.py").read_text() == "class Model: ...\n"
    assert {path.name for path in project.iterdir()} == {
        ".cuagent",
        "model_new.py",
        VERIFIED,
        "task.py",
    }
    assert cuagent("apply").returncode == 0, "what is there already is no obstacle"


def test_nothing_of_the_users_is_replaced_unless_forced(cuagent: Cuagent, project: Path) -> None:
    (project / "model_new.py").write_text("mine\n")
    done = cuagent("apply")
    assert done.returncode == 2
    assert "model_new.py would be replaced" in done.stderr
    assert not (project / VERIFIED).exists(), "all or nothing"
    assert (project / "model_new.py").read_text() == "mine\n"
    assert cuagent("apply", "--to", "elsewhere").returncode == 0
    assert (project / "elsewhere" / "model_new.py").exists()
    assert cuagent("apply", "--force").returncode == 0
    assert "guard.Guarded" in (project / "model_new.py").read_text()


@pytest.mark.parametrize("command", [["apply"], ["export", "latest", "--out", "out"]])
def test_the_run_and_the_attempt_are_named(
    command: list[str], cuagent: Cuagent, project: Path
) -> None:
    """A run that was started in another terminal may be the latest."""
    done = cuagent(*command)
    assert done.returncode == 0, done.stderr
    (run,) = (project / ".cuagent" / "runs").iterdir()
    assert f"cuagent: attempt 2 of {run.name}\n" in done.stderr


@pytest.mark.parametrize("command", [["apply"], ["export", "latest", "--out", "out"]])
def test_a_slower_kernel_is_refused_unless_forced(
    command: list[str], cuagent: Cuagent, tmp_path: Path
) -> None:
    made(tmp_path, Ratio(0.5, 0.45, 0.55))
    attempt = [] if command[0] == "apply" else ["--attempt", "2"]
    done = cuagent(*command, *attempt)
    assert done.returncode == 2
    assert "measured to be slower than eager" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {".cuagent", "task.py", "home"}
    assert cuagent(*command, *attempt, "--force").returncode == 0


def test_kernel_slower_than_any_timed_rung_is_named() -> None:
    """The rung itself need not be surely faster than eager."""
    judgement = judged(RIGHT)
    assert judgement.timing is not None
    assert not slower(judgement)
    ratios = judgement.timing.ratios | {"max-autotune-no-cudagraphs": Ratio(0.3, 0.2, 0.5)}
    timed = replace(judgement, timing=replace(judgement.timing, ratios=ratios))
    assert "slower than max-autotune" in slower(timed)


def test_a_rejected_attempt_is_not_applied(cuagent: Cuagent, project: Path) -> None:
    done = cuagent("apply", "latest", "--attempt", "1")
    assert done.returncode == 2
    assert "attempt 1 is not accepted; accepted are 2" in done.stderr


def test_show_begins_with_the_result_and_tells_each_step(cuagent: Cuagent, project: Path) -> None:
    shown = cuagent("show", COLUMNS="100").stdout
    result, first, second = shown.split("── step ")
    assert "✓ attempt 2" in result
    assert "2.00x [1.90, 2.10]" in result
    assert "✓ best: attempt 2" in result
    assert "I try 1." in first
    assert "rejected: wrong values" in first
    assert "-int wrong;" in second
    assert "+int right;" in second
    assert "text for the model" not in shown
    assert "\x1b" not in shown
    brief = cuagent("show", "--brief").stdout
    assert "✓ attempt 2" in brief
    assert "I try" not in brief
