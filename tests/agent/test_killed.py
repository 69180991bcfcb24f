"""A killed run can be resumed from its log, cut at any byte."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale_task import SOURCE

from cuagent.agent import Run, Stop, diff, restore, resume_run, run_agent, start_run, undo
from cuagent.models.scripted import ScriptedModel
from cuagent.record import RecordError, RunFolder, conversation, read_records
from cuagent.task import Task, load_task
from cuagent.verdict import Reason

CASES = 200


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def reply(*calls: dict[str, Any]) -> dict[str, Any]:
    usage = {"input": 10, "cache_read": 100, "output": 5}
    return {"text": "So.", "calls": list(calls), "usage": usage, "cost": 0.01}


REPLIES = [
    reply(tool("write", path="model_new.py", text="class ModelNew: ...\n")),
    reply(tool("todo", items=[{"text": "vectors", "state": "open"}]), tool("bassh")),
    reply(tool("verify"), tool("verify")),
    reply(tool("edit", path="model_new.py", old="...", new="pass"), tool("verify")),
    reply(tool("write", path="kernels/a.cu", text="// " + "x" * 20_000)),
    reply(tool("compile"), tool("glob")),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run with attempts, blobs, an undo and two ends."""
    root = tmp_path_factory.mktemp("killed")
    (root / "scale.py").write_text(SOURCE)
    task = load_task(str(root / "scale.py"), device="cpu")
    run = start_run(task, _refusing(), model="scripted", root=root / "runs")
    run_agent(run, ScriptedModel(REPLIES[:4]))
    undo(run)
    run.inbox.put("go on")
    run_agent(run, ScriptedModel(REPLIES[4:]))
    run.log.close()
    assert [t.n for t in run.tried] == [1, 2]
    return run


def _refusing() -> Any:
    """Return a judge that rejects every attempt, without a compiler or process."""
    from cuagent.build.result import Build
    from cuagent.judgement import Judgement
    from cuagent.score import milestone
    from cuagent.verdict import Verdict

    class Refusing:
        def build(self, attempt: Any) -> Build:
            return Build(attempt.digest, (), (), True, 0.0)

        def judge(self, attempt: Any, effort: Any, *, than: Any) -> Judgement:
            verdict = Verdict(False, Reason.CRASHED, "it crashed", "t", attempt.digest)
            return Judgement(attempt.digest, self.build(attempt), verdict, None, milestone(False))

    return Refusing()


def cut(run: Run, at: int, place: Path) -> tuple[RunFolder, list[dict[str, Any]]]:
    """Copy the run to a new folder, as a kill would leave it after `at` bytes of its log."""
    place = Path(tempfile.mkdtemp(dir=place.parent, prefix=place.name))
    for name in ("work", "blobs", "history.git"):
        shutil.copytree(run.folder.path / name, place / name)
    (place / "scratch").mkdir()
    (place / "log.jsonl").write_bytes(run.folder.log.read_bytes()[:at])
    folder = RunFolder(place)
    return folder, read_records(folder)


@settings(max_examples=CASES, deadline=None)
@given(share=st.floats(0, 1))
@pytest.mark.slow
def test_log_cut_at_any_byte_can_be_resumed(whole: Run, share: float) -> None:
    at = int(share * whole.folder.log.stat().st_size)
    folder, before = cut(whole, at, whole.folder.path.parent / "cut")
    if not before:
        with pytest.raises(RecordError, match="has no session record"):
            resume_run(folder, whole.task, whole.judge, model="scripted")
        return
    run = resume_run(folder, whole.task, whole.judge, model="scripted")
    try:
        logged = conversation(before)
        assert run.messages[: len(logged)] == logged
        assert [m.role for m in run.messages[:2]] == ["system", "user"]
        calls = [r for r in before if r["type"] == "call"]
        assert run.steps == len(calls)
        assert run.cost == pytest.approx(0.01 * len(calls))
        judged = {r["attempt"] for r in before if r["type"] == "judgement"}
        assert [t.n for t in run.tried] == sorted(judged)
        assert all(t.attempt.digest == whole.tried[t.n - 1].attempt.digest for t in run.tried)
        # The first call may say that the written files were never verified.
        submits = [{"calls": [tool("submit")]}] * 2
        assert run_agent(run, ScriptedModel(submits)) is Stop.NO_GAIN
        records = read_records(folder)
        assert records[: len(before)] == before
        assert conversation(records) == run.messages
        assert len({r["id"] for r in records}) == len(records)
    finally:
        run.log.close()


def test_restore_and_diff_of_attempts(whole: Run) -> None:
    size = whole.folder.log.stat().st_size
    folder, _ = cut(whole, size, whole.folder.path.parent / "restored")
    run = resume_run(folder, whole.task, whole.judge, model="scripted")
    first, last = run.tried[0], run.tried[-1]
    assert first.n != last.n
    compared = diff(run, first.n, last.n)
    assert "-class ModelNew: ...\n+class ModelNew: pass" in compared
    (run.work / "kernels" / "b.cu").write_text("// left over")
    (run.work / "notes.txt").write_text("kept")
    restore(run, first.n)
    assert (run.work / "model_new.py").read_text() == "class ModelNew: ...\n"
    assert not (run.work / "kernels").exists()
    assert (run.work / "notes.txt").exists()
    assert diff(run, first.n) == ""
    assert "files of attempt 1" in run.messages[-1].content
    assert undo(run) is not None
    run.log.close()


PLAYED = """\
import itertools, sys
from pathlib import Path
from cuagent.agent import run_agent, start_run
from cuagent.models.scripted import reply_of
from cuagent.task import load_task

class Endless:
    name = "endless"
    steps = itertools.count()
    def query(self, messages, tools, on_text):
        n = next(self.steps)
        write = {"name": "write", "arguments": {"path": f"a{n % 7}.py", "text": f"x = {n}\\n"}}
        read = {"name": "read", "arguments": {"path": "reference.py", "first": n % 3 + 1}}
        return reply_of({"text": str(n), "calls": [write, read]}, n)

root = Path(sys.argv[1])
task = load_task(str(root / "scale.py"), device="cpu")
run = start_run(task, None, model="endless", root=root / "runs")
print(run.folder.path, flush=True)
run.budget = type(run.budget)(None, None, None)
run_agent(run, Endless())
"""


def test_killed_process_can_be_resumed_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "scale.py").write_text(SOURCE)
    task: Task = load_task(str(tmp_path / "scale.py"), device="cpu")
    process = subprocess.Popen(
        [sys.executable, "-c", PLAYED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    folder = RunFolder(Path(process.stdout.readline().strip()))
    while folder.log.stat().st_size < 60_000:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (folder.history / "index.lock").touch()
    judge: Any = None
    run = resume_run(folder, task, judge, model="scripted")
    assert run.steps > 3
    asked = [m.content for m in run.messages if m.role == "assistant"]
    assert asked == [str(n) for n in range(len(asked))]
    last = run.messages[-1]
    assert last.role in ("tool", "assistant", "user")
    calls = [tool("write", path="b.py", text="after\n")]
    run_agent(run, ScriptedModel([{"calls": calls}, {"calls": [tool("submit")]}]))
    assert undo(run) is not None
    assert undo(run) is not None
    assert not (run.work / "b.py").exists()
    notices = [r for r in read_records(folder) if r["type"] == "notice"]
    assert not [n for n in notices if "cannot be" in n["text"]], json.dumps(notices)
    run.log.close()
