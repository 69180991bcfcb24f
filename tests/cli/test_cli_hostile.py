"""A cloned repository with a prepared `.cuagent`: what its commands read, write and run."""

from __future__ import annotations

import json
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from commands import TASK, Cuagent, clean_environment
from test_cli_apply import RIGHT, judged

from cuagent.cli.main import run
from cuagent.message import Message, ToolCall, Usage
from cuagent.record import RunFolder, RunLog, find_run, init_work, new_run, plain
from cuagent.task import Task, load_task

pytestmark = pytest.mark.slow

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066\ud800\rfaked\x08"
READERS = (["runs"], ["show"], ["show", "--brief"], ["show", "--json"], ["replay"])


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def cuagent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Runs `cuagent ARGS...` in `tmp_path`, in this process: there are many commands here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it in its workers

    def run_here(*arguments: str) -> Done:
        code = run([*arguments])
        return Done(code, *capsys.readouterr())

    return run_here


def foreign_run(
    project: Path,
    files: Mapping[str, str] | None = None,
    *,
    path: Path | None = None,
    said: str = "",
) -> RunFolder:
    """A run as a stranger would make it up: without the mark of this user."""
    source = TASK + f"# {said}"
    task = Task(path or project / "task.py", "Model", source)
    folder = new_run("task", project / ".cuagent" / "runs")
    with RunLog(folder) as log:
        described = {**plain(task), "name": task.name + said, "digest": task.digest}
        log.write("session", task=described, model="expert" + said)
        log.message(Message("user", "make it faster" + said, data={"from": "user"}))
        call = log.write("call", usage=Usage(), cost=0.0)
        command = json.dumps({"command": f"ls {said}"})
        calls = (ToolCall("1", "bash", command), ToolCall("2", "verify", "{}"))
        log.message(Message("assistant", f"I try.{said}", calls, reasoning=said), call)
        log.message(Message("tool", f"out {said}", tool_call_id="1", is_error=bool(said)))
        texts = dict(RIGHT.files) if files is None else dict(files)
        log.write("attempt", n=1, digest=RIGHT.digest, commit="", files=texts)
        judgement: dict[str, Any] = plain(judged(RIGHT)) | {"attempt": 1}
        if said:
            judgement["timing"]["device"] = said
        log.write("judgement", effort="quick", **judgement)
        log.message(Message("tool", "text for the model", tool_call_id="2"))
        log.write("notice", level="info", text=said)
        log.write("end", stop="time limit", summary=f"attempt 1{said}", attempt=1)
    unmark(folder)
    return folder


def unmark(folder: RunFolder) -> None:
    lines = [json.loads(line) for line in folder.log.read_text().splitlines()]
    for line in lines:
        line.pop("mac", None)
    folder.log.write_text("".join(json.dumps(line) + "\n" for line in lines))


def everything(root: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path)] = os.fsencode(path.readlink())
        elif path.is_file():
            found[str(path)] = path.read_bytes()
    return found


def test_a_foreign_run_is_shown_but_used_only_where_the_user_accepts_it(
    cuagent: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "task.py").write_text(TASK)
    folder = foreign_run(tmp_path)
    before = everything(tmp_path)
    for arguments in READERS:
        assert cuagent(*arguments).returncode == 0
    for arguments in (["apply"], ["export", "latest", "--out", "out"], ["optimize", "--continue"]):
        done = cuagent(*arguments)
        assert done.returncode == 2
        assert f"{folder.id}: unknown origin" in done.stderr
        assert "--trust" in done.stderr
        assert done.stderr.count("\n") == 1
    assert everything(tmp_path) == before
    assert cuagent("apply", "--trust").returncode == 0
    assert next(tmp_path.glob("model_new_verified/**/kernels/a.cpp")).read_text() == "int right;\n"
    assert cuagent("export", "latest", "--out", "out", "--trust").returncode == 0


def test_a_resumed_run_follows_no_link_to_another_task(
    cuagent: Callable[..., Done], tmp_path: Path
) -> None:
    foreign_run(tmp_path)
    (tmp_path / "elsewhere.py").write_text(TASK + "# ")
    (tmp_path / "task.py").symlink_to("elsewhere.py")
    done = cuagent("optimize", "--continue", "--trust")
    assert done.returncode == 2
    assert "task.py: a link leads elsewhere now; start a new run" in done.stderr


@pytest.mark.parametrize("name", ["../evil.cu", "/evil", ".git/hooks/post-checkout", "conftest.py"])
def test_paths_of_a_log_lead_nowhere_else(
    cuagent: Callable[..., Done], tmp_path: Path, name: str
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    told = str(tmp_path / "evil") if name == "/evil" else name
    foreign_run(project, {"model_new.py": "class ModelNew: ...\n", told: "evil\n"})
    before = everything(tmp_path)
    runs = str(project / ".cuagent" / "runs")
    for arguments in (["apply"], ["export", "latest", "--attempt", "1", "--out", "out"]):
        done = cuagent(*arguments, "--trust", "--run-dir", runs)
        assert done.returncode == 2, done.stderr
        assert "leads out of the folder" in done.stderr or "is no file of an attempt" in done.stderr
        assert done.stderr.count("\n") == 1
    assert everything(tmp_path) == before


def test_a_foreign_log_does_not_say_where_the_kernels_go(
    cuagent: Callable[..., Done], tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    foreign_run(project, path=tmp_path / "home-of-somebody" / "task.py")
    runs = str(project / ".cuagent" / "runs")
    done = cuagent("apply", "--trust", "--run-dir", runs)
    assert done.returncode == 2
    assert "--to DIR" in done.stderr
    assert not (tmp_path / "home-of-somebody").exists()
    assert cuagent("apply", "--trust", "--run-dir", runs, "--to", "here").returncode == 0


def test_apply_writes_through_no_link_of_the_project(
    cuagent: Callable[..., Done], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    (project / "model_new_verified").symlink_to(outside)
    foreign_run(project)
    done = cuagent("apply", "--trust", "--force", "--run-dir", str(project / ".cuagent" / "runs"))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert not list(outside.iterdir())


def test_a_link_as_a_run_or_a_log_is_not_read(cuagent: Callable[..., Done], tmp_path: Path) -> None:
    secret = tmp_path / "home" / "secret"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text('{"type":"session","v":1,"model":"TOPSECRET"}\n')
    folder = foreign_run(tmp_path)
    folder.log.unlink()
    folder.log.symlink_to(secret)
    (folder.path.parent / "20990101-000000-link").symlink_to(secret.parent)
    for arguments in (*READERS, ["show", str(folder.path)], ["apply", folder.id, "--trust"]):
        done = cuagent(*arguments)
        assert "TOPSECRET" not in done.stdout + done.stderr
    assert secret.read_text().count("\n") == 1


def test_a_log_of_nonsense_is_named_in_one_line(
    cuagent: Callable[..., Done], tmp_path: Path
) -> None:
    folder = foreign_run(tmp_path)
    session = folder.log.read_text().splitlines()[0]
    for rest in ('{"type":"judgement"}', '{"type":"message","role":3}', '{"type":"call","usage":7}',
                 '[]', '{"type":"end"}', '{"type":"ladder"}', "[" * 100_000):  # fmt: skip
        folder.log.write_text(f"{session}\n{rest}\n")
        for arguments in (["show"], ["replay"], ["apply", "--trust"]):
            done = cuagent(*arguments)
            assert done.returncode in (0, 2), done.stderr
            assert done.stderr.count("\n") <= 1
            assert "defect" not in done.stderr


def test_an_attempt_of_a_log_that_is_no_python_is_named_in_one_line(
    cuagent: Callable[..., Done], tmp_path: Path
) -> None:
    for text in ('x = "', "x = " + "-" * 100_000 + "1"):
        foreign_run(tmp_path, {"model_new.py": text})
        done = cuagent("export", "latest", "--out", str(tmp_path / "out"), "--trust")
        assert done.returncode == 2, done.stderr
        assert "is no Python" in done.stderr
        assert done.stderr.count("\n") == 1


def test_numbers_beyond_a_float_in_a_log_are_named_in_one_line(
    cuagent: Callable[..., Done], tmp_path: Path
) -> None:
    folder = foreign_run(tmp_path)
    records = [json.loads(line) for line in folder.log.read_text().splitlines()]
    timing = next(r for r in records if r["type"] == "judgement")["timing"]
    timing["arms"][0]["median"] = 10**400
    folder.log.write_text("".join(json.dumps(record) + "\n" for record in records))
    for arguments in (["show"], ["report"], ["replay"], ["apply", "--trust"]):
        done = cuagent(*arguments)
        assert done.returncode == 2, done.stderr
        assert "damaged or forged" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_foreign_run_that_goes_on_runs_nothing_of_its_history(
    fresh_cuagent: Cuagent, tmp_path: Path, ladder_known: None
) -> None:
    (tmp_path / "task.py").write_text(TASK)
    folder = foreign_run(tmp_path)
    session = json.loads(folder.log.read_text().splitlines()[0])
    task = load_task(f"{tmp_path / 'task.py'}", device="cpu")
    session["task"] |= {**plain(task), "digest": task.digest}
    folder.log.write_text(json.dumps(session) + "\n")
    proof, mine = tmp_path / "proof", tmp_path / "mine.lock"
    mine.write_text("mine")
    assert init_work(folder)
    hooks = folder.history / "hooks"
    hooks.mkdir()
    for name in ("reference-transaction", "pre-commit", "post-commit"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {proof}\n")
        (hooks / name).chmod(0o755)
    (hooks / "linked").symlink_to(tmp_path)
    configure = ["git", "--git-dir", folder.history, "config"]
    subprocess.run([*configure, "core.fsmonitor", f"touch {proof}; false"], check=True)
    (folder.work / "reference.py").symlink_to(tmp_path / "home" / "made")
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"text": "enough"}) + "\n")
    model = ("--model", f"scripted:{script}", "--no-interactive")
    assert fresh_cuagent("optimize", "--continue", *model).returncode == 2
    done = fresh_cuagent("optimize", "--continue", "--trust", *model)
    assert "enough" in done.stdout, done.stderr
    assert not proof.exists()
    assert not (tmp_path / "home" / "made").exists()
    assert mine.read_text() == "mine"
    assert find_run(folder.id, folder.path.parent).is_made_here, (
        "it was accepted, and is asked no more"
    )


OBEYED = set("\x1b\x07\x08\r\x9b\u202e\u2066\u2028")


def test_no_escape_of_a_log_reaches_the_terminal(
    cuagent: Callable[..., Done], tmp_path: Path
) -> None:
    foreign_run(tmp_path, said=ESCAPES)
    for arguments in (*READERS, ["apply"], ["apply", "--trust", "--to", "there"]):
        done = cuagent(*arguments)
        assert not set(done.stdout + done.stderr) & OBEYED, arguments
        assert done.returncode == (2 if arguments == ["apply"] else 0), done.stderr


def test_what_lies_in_a_log_is_harmless_on_a_terminal_too(
    tmp_path: Path, python: list[str]
) -> None:
    """There the view's own colours remain, and nothing else."""
    foreign_run(tmp_path, said=ESCAPES)
    for arguments in (["runs"], ["show"], ["replay"]):
        shown = on_a_terminal([*python, "-m", "cuagent", *arguments], tmp_path, 80)
        left = re.sub(r"\x1b\[[0-9;]*m|\r\n", "", shown)
        assert not set(left) & OBEYED, arguments
        assert "faked" in left


def on_a_terminal(command: list[str], folder: Path, columns: int, answer: str = "n") -> str:
    """Return the output of a command on a terminal of that width, given this answer."""
    leader, follower = pty.openpty()
    os.write(leader, f"{answer}\n".encode())
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    env = clean_environment(folder / "home") | {"TERM": "xterm", "PAGER": "cat"}
    with subprocess.Popen(
        command, cwd=folder, env=env, stdin=follower, stdout=follower, stderr=follower
    ):
        os.close(follower)
        found = b""
        with suppress(OSError):  # end of a pseudo-terminal
            while piece := os.read(leader, 1 << 16):
                found += piece
    os.close(leader)
    return found.decode("utf-8", "replace")


def test_the_id_of_a_run_is_never_broken_or_cut(tmp_path: Path, python: list[str]) -> None:
    folder = foreign_run(tmp_path)
    long = folder.path.with_name("20261121-071500-a-module-with-a-name-of-forty-characters")
    folder.path.rename(long)
    for columns, *arguments in ((80, "runs"), (50, "runs"), (60, "replay"), (60, "apply")):
        shown = on_a_terminal([*python, "-m", "cuagent", *arguments], tmp_path, columns)
        assert long.name in shown, (columns, arguments, shown)


def test_nothing_is_cut_in_a_pipe(cuagent: Callable[..., Done], tmp_path: Path) -> None:
    long = " ".join(f"word{n}" for n in range(100))
    foreign_run(tmp_path, said=long + "".join(f"\nline {n}" for n in range(200)))
    for arguments in (["runs"], ["show"], ["replay"]):
        done = cuagent(*arguments)
        assert "\u2026" not in done.stdout, arguments
        assert long in done.stdout
        assert "line 199" in done.stdout


@pytest.fixture
def lax(tmp_path: Path) -> Path:
    """A project whose file admits worse arithmetic, and a candidate that uses it."""
    (tmp_path / ".cuagent.toml").write_text('precision = "bf16"\n')
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path


def test_project_precision_is_ignored_with_a_warning(
    cuagent: Callable[..., Done], lax: Path
) -> None:
    done = cuagent("profile", "task.py", "candidate", "--device", "cpu")
    assert "precision = 'bf16' is ignored: that is for you to decide" in done.stderr
    done = cuagent("profile", "task.py", "candidate", "--device", "cpu", "--trust")
    assert (
        "sets precision = 'bf16', which is for you to decide; applied: --trust is set"
        in done.stderr
    )
    shown = json.loads(cuagent("config", "show", "--json").stdout)
    assert shown["precision"]["value"] == "match"


def test_terminal_consent_lasts_until_the_setting_changes(
    cuagent: Callable[..., Done], lax: Path, python: list[str]
) -> None:
    command = [*python, "-m", "cuagent", "profile", "task.py", "candidate", "--device", "cpu"]
    assert "Apply it?" in on_a_terminal(command, lax, 80, "y")
    assert json.loads(cuagent("config", "show", "--json").stdout)["precision"]["value"] == "bf16"
    (lax / ".cuagent.toml").write_text('precision = "fp16"\n')
    assert json.loads(cuagent("config", "show", "--json").stdout)["precision"]["value"] == "match"
