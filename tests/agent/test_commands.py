"""Misbehaving commands and background commands end within their limits."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cuagent.agent import Run, Stop, run_agent
from cuagent.agent.tools.shell import Command
from cuagent.agent.tools.tool import ToolResult
from cuagent.models.scripted import ScriptedModel
from cuagent.sandbox import Tier

Call = Callable[..., ToolResult]


def running() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


@pytest.fixture(params=["probed", Tier.NONE])
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with the machine's sandbox and without any sandbox."""
    if request.param is Tier.NONE:
        monkeypatch.setattr("cuagent.agent.tools.shell.probe", lambda: Tier.NONE)


@pytest.mark.usefixtures("tier")
def test_child_in_new_session_ends_with_its_command(call: Call) -> None:
    mark = f"sleep 98764.{os.getpid()}"
    for _ in range(2):  # the second command inherits the first one's variables, but not its tag
        stray = f"setsid {mark} >/dev/null 2>&1 & sleep 0.1"
        assert call("bash", command=stray).text == "(no output)"
        assert mark not in running()


def test_fork_bomb_is_killed_at_the_time_limit(call: Call) -> None:
    bomb = f"boom{os.getpid()}() {{ boom{os.getpid()} | boom{os.getpid()} & }}; "
    start = time.monotonic()
    result = call("bash", command=f"{bomb} boom{os.getpid()}; sleep 600", timeout=2)
    assert time.monotonic() - start < 120  # usually below 3 s
    assert "[killed after 2 s" in result.text
    assert len(result.text) < 14_000
    assert f"boom{os.getpid()}" not in running()
    assert call("bash", command="echo well").text == "well"


@pytest.mark.parametrize("command", ["cat", "read x", "python3", "cat /dev/tty", "sudo -v"])
def test_command_without_input_does_not_block(call: Call, command: str) -> None:
    start = time.monotonic()
    call("bash", command=command, timeout=120)
    assert time.monotonic() - start < 60  # usually below one second


def test_background_command_runs_in_parallel(call: Call, run: Run) -> None:
    command = (
        "export PARALLEL=1; echo begin; while [ ! -e go ]; do sleep 0.05; done; echo end; exit 3"
    )
    assert call("bash", command=command, background=True).text.startswith("started bash-1;")
    assert call("bash", command="echo between $PARALLEL").text == "between"
    await_output(run, "bash-1", "begin\n")
    seen = call("bash_output", job="bash-1", wait=1).text
    assert seen == "begin\n[still running]"
    call("write", path="go", text="")
    assert call("bash_output", job="bash-1", wait=120).text == "end\n[exit code 3]"
    assert call("bash_output", job="bash-1").text == "[exit code 3]"
    assert (run.work / ".outputs" / "bash-1.txt").read_text() == "begin\nend\n"
    assert call("bash_kill", job="bash-1").text == "bash-1 had ended already"


def await_output(run: Run, job: str, text: str) -> None:
    """Wait until a background command has written `text`."""
    deadline = time.monotonic() + 60
    while (run.work / ".outputs" / f"{job}.txt").read_text() != text:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_bash_kill_kills_the_named_command(call: Call, run: Run) -> None:
    mark = f"sleep 98763.{os.getpid()}"
    call("bash", command=f"setsid {mark} & echo started; {mark}", background=True)
    await_output(run, "bash-1", "started\n")
    assert "there is bash-1" in call("bash_kill", job="bash-7").text
    assert call("bash_kill", job="bash-1").text == "killed bash-1"
    assert mark not in running()
    assert call("bash_output", job="bash-1").text == "started\n[killed by SIGKILL]"


def test_kill_spares_a_group_that_reuses_the_process_id() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    ended.pid = other.pid
    try:
        Command(ended, "no such tag").kill()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_huge_background_output_shows_head_and_tail(call: Call) -> None:
    call("bash", command="echo first; yes | head -c 100000000; echo last", background=True)
    text = call("bash_output", job="bash-1", wait=300).text
    assert text.startswith("first\ny\n")
    assert len(text) < 14_000
    assert "the whole output is in .outputs/bash-1.txt" in text
    assert not text.endswith("[still running]")


def test_number_of_background_commands_is_limited(call: Call) -> None:
    for _ in range(4):
        assert not call("bash", command="sleep 600", background=True).is_error
    assert "still running; kill one" in call("bash", command="sleep 1", background=True).text
    for n in range(1, 5):
        call("bash_kill", job=f"bash-{n}")


@pytest.mark.parametrize("form", ["{}", "setsid {} & sleep 0.1"], ids=["running", "ended"])
def test_background_commands_end_with_run_agent(run: Run, form: str) -> None:
    mark = f"sleep 98762.{os.getpid()}"
    start = {"command": form.format(mark), "background": True}
    calls = [
        {"name": "bash", "arguments": start},
        {"name": "bash_output", "arguments": {"job": "bash-1", "wait": 0.3}},
    ]
    assert run_agent(run, ScriptedModel([{"calls": calls}])) is Stop.MODEL_FAILED
    assert mark not in running()


def test_repeated_bash_output_calls_are_not_a_loop(run: Run) -> None:
    start = {"name": "bash", "arguments": {"command": "sleep 600", "background": True}}
    ask = {"name": "bash_output", "arguments": {"job": "bash-1", "wait": 0}}
    model = ScriptedModel(
        [{"calls": [start]}, *[{"calls": [ask]}] * 9, {"calls": [{"name": "submit"}]}]
    )
    assert run_agent(run, model) is Stop.NO_GAIN


def test_secrets_reach_neither_commands_nor_the_log(
    tmp_path: Path, call: Call, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "LAB_AUTH", "DB_PASSWORD", "SESSION_COOKIE"):
        monkeypatch.setenv(name, f"planted-{name.lower()}")
    look = "env; cat /proc/self/environ /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; true"
    found = call("bash", command=look).text
    whole = "".join(p.read_text() for p in (run.work / ".outputs").glob("*")) + found
    assert "planted-" not in whole
    assert "CUAGENT_COMMAND=" in whole
