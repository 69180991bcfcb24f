"""Continue a run after a stop: steering, interrupts, resuming, compaction, undo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuagent.agent import (
    INTERACTIVE,
    TOOLS,
    Budget,
    Run,
    Stop,
    compact,
    diff,
    restore,
    resume_run,
    run_agent,
    undo,
)
from cuagent.agent.begin import _worked
from cuagent.agent.prompt import opening, skill
from cuagent.events import Event, Notice, RunEnded, RunStarted, StepStarted, ToolOutput, UserSaid
from cuagent.message import Message
from cuagent.models.model import ContextOverflow, OnText, ToolSpec
from cuagent.models.scripted import ScriptedModel
from cuagent.record import RecordError, conversation, end_record, read_records
from cuagent.task.task import Device

SPECS = [tool.spec for tool in TOOLS]


def bash(command: str, **more: Any) -> dict[str, Any]:
    return {"name": "bash", "arguments": {"command": command}, **more}


def write(path: str, text: str) -> dict[str, Any]:
    return {"name": "write", "arguments": {"path": path, "text": text}}


SUBMIT: dict[str, Any] = {"calls": [{"name": "submit"}]}


def resumed(run: Run, **more: Any) -> Run:
    run.log.close()
    return resume_run(run.folder, run.task, run.judge, model="scripted", tools=SPECS, **more)


SOON = 30.0
"""Seconds within which work that is interrupted must end; without the interrupt it takes twice as
long. It usually ends within one second."""


class Slow(ScriptedModel):
    """Model that streams dots for 60 s before it answers, and calls `on_start` at the first one."""

    def __init__(self, on_start: Callable[[], None] = lambda: None) -> None:
        super().__init__([])
        self._on_start = on_start

    def query(self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText) -> Any:
        on_text(".", "text")
        self._on_start()
        end = time.monotonic() + 2 * SOON
        while time.monotonic() < end:
            time.sleep(0.05)
            on_text(".", "text")
        return super().query(messages, tools, on_text)


def test_user_message_reaches_the_model_at_the_next_step(run: Run, events: list[Event]) -> None:
    class Steered(ScriptedModel):
        def query(self, *given: Any) -> Any:
            if len(self.asked) == 0:
                run.inbox.put("use one warp a row")
            return super().query(*given)

    model = Steered([{"calls": [bash("echo 1")]}, SUBMIT])
    run_agent(run, model, emit=events.append)
    said = Message("user", "use one warp a row", data={"from": "user"})
    assert model.asked[1][-1] == said
    assert UserSaid("use one warp a row") in events


def test_interrupted_run_continues_with_the_user_message(run: Run) -> None:
    start = time.monotonic()
    assert run_agent(run, Slow(run.cancel)) is Stop.INTERRUPTED
    assert time.monotonic() - start < SOON
    run.inbox.put("just submit")
    model = ScriptedModel([SUBMIT])
    assert run_agent(run, model) is Stop.NO_GAIN
    assert model.asked[0][-1].content == "just submit"
    records = read_records(run.folder)
    assert [r["stop"] for r in records if r["type"] == "end"] == ["interrupted", "no gain"]
    assert [r["type"] for r in records].count("resume") == 1
    end = end_record(records)
    assert end is not None
    assert end["stop"] == "no gain"


def test_a_call_without_a_reply_is_no_step(run: Run, events: list[Event]) -> None:
    assert run_agent(run, Slow(run.cancel), emit=events.append) is Stop.INTERRUPTED
    assert run.steps == 0
    assert run_agent(run, ScriptedModel([SUBMIT]), emit=events.append) is Stop.NO_GAIN
    assert [e.step for e in events if isinstance(e, StepStarted)] == [1, 1]
    assert run.steps == resumed(run).steps == 1


def test_interrupt_ends_a_command_and_keeps_its_output(run: Run) -> None:
    calls = [bash("echo so far; sleep 60"), bash("echo second")]

    def interrupt(event: Event) -> None:
        if isinstance(event, ToolOutput) and "so far" in event.text:
            run.cancel()

    start = time.monotonic()
    assert run_agent(run, ScriptedModel([{"calls": calls}]), emit=interrupt) is Stop.INTERRUPTED
    assert time.monotonic() - start < SOON
    first, second = [m.content for m in run.messages if m.role == "tool"]
    assert first.startswith("so far\n[interrupted by the user")
    assert second.startswith("interrupted by the user")


def test_interactive_turn_without_call_waits_for_the_user(run: Run) -> None:
    model = ScriptedModel([{"text": "It is bound by memory."}, SUBMIT])
    assert run_agent(run, model, hooks=INTERACTIVE) is Stop.ANSWERED
    run.inbox.put("go on")
    assert run_agent(run, model, hooks=INTERACTIVE) is Stop.NO_GAIN


def test_question_after_the_end_keeps_the_result(run: Run, events: list[Event]) -> None:
    assert run_agent(run, ScriptedModel([SUBMIT]), hooks=INTERACTIVE) is Stop.NO_GAIN
    run.inbox.put("Why?")
    model = ScriptedModel([{"text": "It is as fast as it can be."}])
    assert run_agent(run, model, hooks=INTERACTIVE, emit=events.append) is Stop.NO_GAIN
    assert [e.stop for e in events if isinstance(e, RunEnded)] == [Stop.ANSWERED], (
        "only the reply is shown"
    )
    end = end_record(read_records(run.folder))
    assert end is not None
    assert end["stop"] == Stop.NO_GAIN
    again = resumed(run)
    again.inbox.put("And now?")
    assert run_agent(again, ScriptedModel([{"text": "Still."}]), hooks=INTERACTIVE) is Stop.NO_GAIN
    undo(again)
    undo(again)
    again.inbox.put("Try something.")
    undone = run_agent(again, ScriptedModel([{"text": "I wait."}]), hooks=INTERACTIVE)
    assert undone is Stop.ANSWERED
    again.log.close()


def test_endless_reply_ends_at_the_wall_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuagent.agent.loop.GRACE", 0.2)
    run.budget = Budget(seconds=run.seconds + 0.3)
    start = time.monotonic()
    assert run_agent(run, Slow()) is Stop.TIME_LIMIT
    assert time.monotonic() - start < SOON


def test_device_time_limit_ends_the_run(run: Run) -> None:
    run.budget = Budget(device_seconds=10.0)
    run.device_seconds = 11.0
    assert run_agent(run, ScriptedModel([])) is Stop.DEVICE_LIMIT


def test_run_is_resumed_from_its_log_alone(run: Run, events: list[Event]) -> None:
    todo = [{"text": "read", "state": "done"}]
    calls = [
        write("a.py", "x = 1\n"),
        bash("echo 1"),
        {"name": "todo", "arguments": {"items": todo}},
    ]
    model = ScriptedModel([{"calls": calls, "cost": 0.25, "usage": {"input": 7}}])
    run.budget = Budget(steps=1)
    run_agent(run, model)
    resumed_at = time.monotonic()
    again = resumed(run, budget=Budget(steps=9), emit=events.append)
    assert again.messages == run.messages
    assert (again.steps, again.cost, again.usage) == (1, 0.25, run.usage)
    assert again.todo == todo
    end = end_record(read_records(run.folder))
    assert end is not None
    assert 0 < end["seconds"] <= again.seconds
    assert again.seconds <= end["seconds"] + time.monotonic() - resumed_at
    assert run_agent(again, ScriptedModel([SUBMIT]), emit=events.append) is Stop.NO_GAIN
    assert isinstance(events[-2], RunStarted) or any(isinstance(e, RunStarted) for e in events)
    assert conversation(read_records(run.folder)) == again.messages
    again.log.close()


def test_running_run_cannot_be_resumed(run: Run) -> None:
    with pytest.raises(RecordError, match="still running in another process"):
        resume_run(run.folder, run.task, run.judge, model="scripted")


def test_long_conversation_is_compacted_and_stays_in_the_log(run: Run, events: list[Event]) -> None:
    class Small(ScriptedModel):
        context = 2000

    replies = [
        {"calls": [bash(f"echo {n}; head -c 3000 /dev/zero | tr '\\0' x")]} for n in range(4)
    ]
    summary = {"text": "Memory-bound; nothing tried.", "usage": {"input": 100}, "cost": 0.5}
    model = Small([*replies, summary, SUBMIT])
    run.context_tokens = 0
    run.messages[0] = Message("system", "short")
    assert run_agent(run, model, emit=events.append) is Stop.NO_GAIN
    assert "Memory-bound; nothing tried." in run.messages[2].content
    assert [m.role for m in run.messages] == ["system", "user", "user", "assistant", "tool"]
    assert model.asked[4][-1].content.startswith("The conversation is nearly as long")
    assert any(isinstance(e, Notice) and "summarized" in e.text for e in events)
    assert run.cost == 0.5
    records = read_records(run.folder)
    assert conversation(records)[2:] == run.messages[2:]
    assert sum("echo" in str(r.get("tool_calls", "")) for r in records) == 4
    assert run.steps == 5


def test_compaction_without_summary_changes_nothing(run: Run, events: list[Event]) -> None:
    run.emit = events.append
    run.add(Message("user", "hello"))
    before = list(run.messages)
    assert not compact(run, ScriptedModel([{"text": "I call", "calls": [bash("ls")]}]))
    assert run.messages == before
    assert conversation(read_records(run.folder)) == before


def test_context_overflow_compacts_once_and_retries(run: Run) -> None:
    class Overflowing(ScriptedModel):
        def query(self, messages: Sequence[Message], *more: Any) -> Any:
            if len(messages) == 5:
                raise ContextOverflow("too long")
            return super().query(messages, *more)

    model = Overflowing([{"calls": [bash("echo 1; echo 2")]}, {"text": "All is known."}, SUBMIT])
    run.inbox.put("first")
    assert run_agent(run, model) is Stop.NO_GAIN
    assert "All is known." in run.messages[2].content


def test_undo_restores_the_files_of_a_step(run: Run) -> None:
    model = ScriptedModel(
        [
            {"calls": [write("a.py", "one\n")]},
            {"calls": [bash("echo two > a.py; touch b.py")]},
            {"text": "What now?"},
        ]
    )
    run_agent(run, model, hooks=INTERACTIVE)
    assert undo(run) is not None
    assert (run.work / "a.py").read_text() == "two\n"
    run.inbox.put("no, three")
    run_agent(
        run,
        ScriptedModel([{"calls": [bash("echo three > a.py")]}, {"text": "So."}]),
        hooks=INTERACTIVE,
    )
    undo(run)
    undone = undo(run)
    assert undone is not None
    assert undone.said == "no, three"
    assert undone.calls == ("bash",)
    assert (run.work / "a.py").read_text() == "two\n"
    undo(run)
    assert (run.work / "a.py").read_text() == "one\n"
    assert not (run.work / "b.py").exists()
    undo(run)
    assert not (run.work / "a.py").exists()
    assert undo(run) is None
    assert len(run.messages) == 2
    assert conversation(read_records(run.folder)) == run.messages
    again = resumed(run)
    assert again.messages == run.messages
    again.log.close()


def test_undo_after_compaction_restores_only_the_steps_files(run: Run) -> None:
    model = ScriptedModel([{"calls": [write("a.py", "one\n")]}, {"text": "What now?"}])
    run_agent(run, model, hooks=INTERACTIVE)
    before = list(run.messages)
    assert compact(run, ScriptedModel([{"text": "a.py is written."}]))
    run.inbox.put("and b")
    model = ScriptedModel([{"calls": [write("b.py", "two\n")]}, {"text": "Done."}])
    run_agent(run, model, hooks=INTERACTIVE)
    undo(run)
    undone = undo(run)
    assert undone is not None
    assert undone.said == "and b"
    assert not (run.work / "b.py").exists()
    assert (run.work / "a.py").read_text() == "one\n", "a.py was written before the summary"
    assert "a.py is written." in run.messages[-1].content
    undone = undo(run)
    assert undone is not None
    assert undone.compaction
    assert run.messages == before
    assert (run.work / "a.py").exists()
    again = resumed(run)
    assert again.messages == before
    undo(again)
    undo(again)
    assert not (again.work / "a.py").exists()
    assert undo(again) is None
    again.log.close()


def test_undo_of_a_summary_removes_later_messages(run: Run) -> None:
    run_agent(run, ScriptedModel([{"text": "What now?"}]), hooks=INTERACTIVE)
    before = list(run.messages)
    for words in ("Nothing yet.", "Still nothing."):
        assert compact(run, ScriptedModel([{"text": words}]))
    run.add(Message("user", "wait", data={"from": "user"}))
    undone = undo(run)
    assert undone is not None
    assert undone.said == "wait"
    assert "Nothing yet." in run.messages[-1].content
    assert undo(run) is not None
    assert run.messages == before


def test_missing_attempts_are_named_in_errors(run: Run) -> None:
    with pytest.raises(RecordError, match="no attempt 3; there is none yet"):
        restore(run, 3)
    with pytest.raises(RecordError, match="no attempt 1"):
        diff(run, 1)


def test_prompt_example_matches_the_tasks_device(run: Run) -> None:
    told = {device: opening(replace(run.task, device=device))[0].content for device in Device}
    assert 'load("kernels/scale.cpp")' in told[Device.CPU]
    assert "#pragma omp parallel for simd" in told[Device.CPU]
    assert "blockIdx" not in told[Device.CPU]
    assert "blockIdx.x * 256l" in told[Device.CUDA]
    assert 'load("kernels/scale.cpp")' not in told[Device.CUDA]
    assert not any("<!--" in text for text in told.values())


def test_prompt_example_for_the_cpu_works(tmp_path: Path) -> None:
    files = dict(
        re.findall(r"```(?:cpp|python)\n(?://|#) (\S+)\n(.*?)```", skill(Device.CPU), re.S)
    )
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    program = (
        "import torch; from model_new import ModelNew; x = torch.randn(7, 9, 1111);"
        "assert torch.equal(ModelNew(3.0)(x), x * 3.0)"
    )
    where = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | where, timeout=600)


def test_project_rules_are_joined_from_root_to_folder(
    tmp_path: Path,
) -> None:
    from cuagent.agent.prompt import LONGEST_RULES, project_rules

    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "a" / ".git").mkdir()
    (tmp_path / "AGENTS.md").write_text("outside of the repository")
    (tmp_path / "a" / "AGENTS.md").write_text("root" + "x" * LONGEST_RULES)
    (inner / "AGENTS.md").write_text("inner é")
    told = project_rules(inner)
    assert told.startswith("rootxxx")
    assert told.endswith("\n\ninner é")
    assert len(told.encode()) <= LONGEST_RULES + 2
    (inner / "AGENTS.md").unlink()
    (inner / "AGENTS.md").symlink_to(tmp_path / "AGENTS.md")
    assert "outside" not in project_rules(inner), "a link does not send other files to a provider"
    for name in (".env", ".git/config"):
        (tmp_path / "a" / name).write_text("a key of the user")
        (inner / "AGENTS.md").unlink()
        (inner / "AGENTS.md").symlink_to(tmp_path / "a" / name)
        assert "a key" not in project_rules(inner)
    (tmp_path / "a" / "CLAUDE.md").write_text("linked rules")
    (tmp_path / "a" / "AGENTS.md").unlink()
    (inner / "AGENTS.md").unlink()
    (inner / "AGENTS.md").symlink_to(tmp_path / "a" / "CLAUDE.md")
    assert project_rules(inner) == "linked rules"


def test_resumed_run_may_change_files_it_wrote(run: Run) -> None:
    run_agent(run, ScriptedModel([{"calls": [write("model_new.py", "a = 1\n")]}, SUBMIT]))
    again = resumed(run)
    run_agent(again, ScriptedModel([{"calls": [write("model_new.py", "a = 2\n")]}, SUBMIT]))
    assert (again.work / "model_new.py").read_text() == "a = 2\n"


def test_worked_time_leaves_out_what_lay_between_an_end_and_a_resume() -> None:
    records = [
        {"type": "session", "time": 0.0},
        {"type": "end", "time": 100.0, "seconds": 40.0},
        {"type": "call", "time": 190.0},
        {"type": "resume", "time": 200.0},
        {"type": "call", "time": 207.0},
    ]
    assert _worked(records) == 47.0
    assert _worked(records[:3]) == 40.0
    assert _worked([records[0], {"type": "call", "time": 9.0}]) == 9.0
    forged = [records[0], {"type": "end", "time": 100.0, "seconds": "x"}]
    assert _worked(forged) == 100.0
