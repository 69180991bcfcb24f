"""Whole commands on a small task: real judge, real shell, a model that follows a script."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import TASK, Cuagent, clean_environment
from schema import assert_follows

from cuagent.agent import Stop, start_run
from cuagent.cli.optimize import _code
from cuagent.cli.progress import progress_lines
from cuagent.message import Message
from cuagent.task import load_task

pytestmark = pytest.mark.slow

NO_GAIN = [
    {"text": "I look around.", "calls": [{"name": "bash", "arguments": {"command": "ls"}}]},
    {
        "text": "Nothing is to be gained here.",
        "calls": [
            {"name": "write", "arguments": {"path": "note.py", "text": "x = 1\n"}},
            {"name": "submit", "arguments": {"message": "no gain"}},
        ],
    },
]
ENDLESS = [{"text": "I wait.", "calls": [{"name": "bash", "arguments": {"command": "sleep 600"}}]}]


@pytest.fixture
def task(tmp_path: Path, ladder_known: None) -> str:
    (tmp_path / "task.py").write_text(TASK)
    return "task.py"


def script(folder: Path, replies: list[dict[str, object]]) -> str:
    (folder / "script.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in replies))
    return "scripted:script.jsonl"


def test_a_run_without_a_gain_ends_well_and_can_be_looked_at(
    cuagent: Cuagent, task: str, tmp_path: Path
) -> None:
    model = script(tmp_path, NO_GAIN)
    done = cuagent("optimize", task, "--model", model, "--output-format", "json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["stop"], result["gain"], result["best"]) == ("no gain", False, None)
    assert result["result"] in ("rung", "module")
    assert_follows(result, "optimize")
    assert result["ladder"]["rungs"][0]["name"] == "eager"
    assert result["ladder"]["later"] == []
    assert "● bash  ls" in done.stderr
    assert "reference.py" in done.stderr
    ends = {
        "rung": r"\? no kernel tried; .* is \d.*\(record timing\)",
        "module": r"\? (nothing beats your|no kernel tried; could not tell whether)",
    }
    end = ends[result["result"]]
    assert re.search(end, done.stderr)
    assert done.stderr.count("timing: opening eager") <= 1
    assert (tmp_path / ".cuagent" / ".gitignore").read_text() == "*\n"
    assert Path(result["folder"]).parent == tmp_path / ".cuagent" / "runs"

    listed = json.loads(cuagent("runs", "--json").stdout)
    assert [(row["run"], row["stop"]) for row in listed] == [(result["run"], "no gain")]
    shown = cuagent("show", result["run"])
    assert shown.returncode == 0
    assert re.search(end, shown.stdout)
    again = cuagent("replay", "latest").stdout
    assert "I look around." in again
    assert "● bash  ls" in again
    assert "│ x = 1" in again
    exported = cuagent("export", "latest", "--out", "new")
    assert (exported.returncode == 0) == (result["result"] == "rung")
    assert (tmp_path / "new" / "faster.py").exists() == (result["result"] == "rung")
    refused = cuagent("export", "latest", "--out", "other", "--attempt", "1")
    assert refused.returncode == 2
    assert "attempt 1 is not accepted; none is accepted" in refused.stderr


def test_events_come_as_json_lines(fresh_cuagent: Cuagent, task: str, tmp_path: Path) -> None:
    model = script(tmp_path, NO_GAIN[1:])
    done = fresh_cuagent("optimize", task, "--model", model, "--output-format", "stream-json")
    types = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert types[0] == "phase"
    assert types[-1] == "run_ended"
    assert done.stderr == ""


def test_a_model_that_fails_gives_code_1(cuagent: Cuagent, task: str, tmp_path: Path) -> None:
    done = cuagent("optimize", task, "--model", script(tmp_path, NO_GAIN[:1]))
    assert done.returncode == 1
    assert "the script ended" in done.stdout


@pytest.mark.parametrize("spoke", [True, False])
def test_a_full_context_is_a_limit_unless_the_model_never_spoke(
    spoke: bool, task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unused: Any = None  # nothing is judged here
    run = start_run(
        load_task(tmp_path / task, device="cpu"), unused, model="m", root=tmp_path / "runs"
    )
    if spoke:
        run.add(Message("assistant", "I **look** at `forward`:\n\n| a | b |\n|---|---|\n"))
    run.stop = Stop.CONTEXT_FULL
    assert _code(run, run.stop, tmp_path / "runs") == (0 if spoke else 1)
    (said,) = capsys.readouterr().err.splitlines()
    assert ("its results remain valid" if spoke else "does not hold the task") in said
    assert f"--resume {run.folder.id}" in said
    assert said.endswith("--model ONE-WITH-A-LARGER-CONTEXT")
    progress = list(progress_lines(run))
    assert "it ended" not in progress[0]
    quoted = "last message of the model: I look at forward: | a | b |"
    assert (quoted in [line.rstrip() for line in progress]) is spoke


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_run_whole(task: str, tmp_path: Path, signum: signal.Signals) -> None:
    model = script(tmp_path, ENDLESS)
    with subprocess.Popen(
        [sys.executable, "-m", "cuagent", "optimize", task, "--model", model],
        cwd=tmp_path,
        env=clean_environment(tmp_path / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if "sleep 600" in line:
                break
        os.kill(run.pid, signum)  # the command may not have started
        rest, complaint = run.communicate(timeout=600)  # usually below 5 s
    assert run.returncode == 130
    assert "interrupted" in rest
    assert "see the attempts with: cuagent show" in complaint
    assert "Traceback" not in complaint
    log = next((tmp_path / ".cuagent" / "runs").glob("*/log.jsonl"))
    assert json.loads(log.read_text().splitlines()[-1])["stop"] == "interrupted"


def test_interrupt_while_opening_the_task_is_reported(task: str, tmp_path: Path) -> None:
    (tmp_path / task).write_text(f"import time\ntime.sleep(300)\n{TASK}")
    with subprocess.Popen(
        [sys.executable, "-m", "cuagent", "optimize", task, "--model", script(tmp_path, NO_GAIN)],
        cwd=tmp_path,
        env=clean_environment(tmp_path / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert f"opening {tmp_path.name} on cpu" in run.stdout.readline()
        os.kill(run.pid, signal.SIGINT)
        _, complaint = run.communicate(timeout=600)
    assert run.returncode == 130
    # An interrupt that comes in a callback of Python is printed there too, and passed on.
    assert complaint.endswith("cuagent: interrupted\n")
    assert complaint.count("Traceback") == complaint.count("Exception ignored in")
    assert not (tmp_path / ".cuagent").exists()


SWALLOWS = """
import os, signal, sys, weakref
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            here = weakref.ref(Finder(), lambda _: os.kill(os.getpid(), signal.SIGINT))
if {"optimize", "baseline"} & set(sys.orig_argv):
    sys.meta_path.insert(0, Finder())
"""
"""Loaded as Python starts: Ctrl-C comes in a weak reference's callback as torch is imported."""


def test_an_interrupt_that_was_swallowed_ends_the_run_all_the_same(
    task: str, fresh_cuagent: Cuagent, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SWALLOWS)
    model = script(tmp_path, NO_GAIN)
    done = fresh_cuagent("optimize", task, "--model", model, PYTHONPATH=str(tmp_path))
    assert "Exception ignored in" in done.stderr
    assert done.stderr.endswith("cuagent: interrupted\n")
    assert done.returncode == 130
    assert not (tmp_path / ".cuagent").exists()


def test_an_interrupt_that_was_swallowed_ends_what_is_measured(
    task: str, fresh_cuagent: Cuagent, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SWALLOWS)
    done = fresh_cuagent("baseline", task, "--rungs", "eager", PYTHONPATH=str(tmp_path))
    assert "Exception ignored in" in done.stderr
    assert done.stderr.endswith("cuagent: interrupted\n")
    assert (done.returncode, done.stdout) == (130, "")


def test_a_task_that_does_not_run_leaves_nothing(cuagent: Cuagent, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK.replace("torch.softmax(x, -1)", "x @ x"))
    (tmp_path / "import.py").write_text("import nothing_of_that_name\n" + TASK)
    for name in ("task.py", "import.py"):
        done = cuagent("optimize", name, "--model", "expert")
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("cuagent: ")
        assert name in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / ".cuagent").exists()


def test_verify_tells_by_its_exit_code(cuagent: Cuagent, task: str, tmp_path: Path) -> None:
    right = TASK.replace("class Model(", "class ModelNew(")
    (tmp_path / "right.py").write_text(right)
    (tmp_path / "wrong.py").write_text(right.replace("softmax", "log_softmax"))
    good = cuagent("verify", task, "right.py", "--json")
    assert good.returncode == 0, good.stderr
    told = json.loads(good.stdout)
    assert told["verdict"]["accepted"] is True
    assert told["duration_s"] > told["verdict"]["parts_s"]["total"]
    assert_follows(told, "verify")
    assert good.stderr == ""
    bad = cuagent("verify", task, "wrong.py")
    assert bad.returncode == 1, bad.stderr
    assert "rejected: wrong values" in bad.stdout
    assert bad.stdout.endswith(" s in all\n")
