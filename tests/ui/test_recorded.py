"""A log read back shows the run that it recorded."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from samples import BROKEN, GAIN, REJECTED, SLOWER

from cuagent import events
from cuagent.judgement import Judgement
from cuagent.message import Message, ToolCall, Usage
from cuagent.record import RunFolder, RunLog, new_run, plain, read_records, revive
from cuagent.ui.code import excerpt
from cuagent.ui.console import UNCUT
from cuagent.ui.recorded import best_of, events_of
from cuagent.ui.story import story
from cuagent.ui.terminal import Terminal


@pytest.mark.parametrize("judgement", [GAIN, REJECTED, BROKEN, SLOWER])
def test_a_judgement_comes_back_whole(judgement: Judgement) -> None:
    back = revive(Judgement, json.loads(json.dumps(plain(judgement))))
    assert plain(back) == plain(judgement)  # a NaN equals no other


def test_what_json_lacks_comes_back_too() -> None:
    @dataclass(frozen=True)
    class Figures:
        low: float
        high: float | None

    back = revive(Figures, plain(Figures(math.inf, math.nan)))
    assert back.low == math.inf
    assert math.isnan(back.high)
    assert revive(Figures, {"low": 1, "high": None, "later": 2}) == Figures(1.0, None)


@pytest.fixture
def recorded(tmp_path: Path) -> RunFolder:
    folder = new_run("softmax", tmp_path)
    with RunLog(folder) as log:
        log.write("session", task={"name": "softmax", "device": "cpu"}, model="expert")
        log.message(Message("user", "make it faster"))
        call = log.write("call", usage=Usage(input=7, output=3), cost=0.5)
        calls = (ToolCall("1", "bash", '{"command": "ls"}'), ToolCall("2", "verify", "{}"))
        log.message(Message("assistant", "I try.", calls, reasoning="hm"), call)
        log.message(Message("tool", "a.py", tool_call_id="1"))
        judged = replace(GAIN, verdict=replace(GAIN.verdict, attempt="digest"), attempt="digest")
        log.write("judgement", effort="quick", **{**plain(judged), "attempt": 1})
        log.message(Message("tool", "accepted", tool_call_id="2"))
        log.write("notice", level="error", text="Traceback ...", tool="bash")
        log.write("end", stop="submitted", summary="one kernel", attempt=1)
    return folder


def test_the_events_come_in_the_order_of_the_run(recorded: RunFolder) -> None:
    shown = list(events_of(recorded, read_records(recorded)))
    assert [type(event).__name__ for event in shown] == [
        "RunStarted",
        "StepStarted",
        "TextDelta",
        "TextDelta",
        "Spent",
        "ToolStarted",
        "ToolFinished",
        "ToolStarted",
        "Judged",
        "ToolFinished",
        "RunEnded",
    ]
    spent = shown[4]
    assert isinstance(spent, events.Spent)
    assert (spent.step, spent.tokens_in, spent.tokens_out, spent.cost) == (1, 7, 3, 0.5)
    bash = shown[5]
    assert isinstance(bash, events.ToolStarted)
    assert bash.summary == "ls"
    ended = shown[-1]
    assert isinstance(ended, events.RunEnded)
    assert ended.best.attempt == "digest"


def test_a_replayed_step_has_the_time_at_which_it_began(recorded: RunFolder) -> None:
    """The time between the end of a session and its resumption is left out."""
    call = {"usage": {"input": 7, "cache_read": 0, "cache_write": 0, "output": 3}, "cost": 0.5}
    records: list[dict[str, Any]] = [
        {"type": "session", "time": 1000.0, "model": "m", "task": {"name": "t", "device": "cpu"}},
        {"type": "device", "time": 1030.0},
        {"type": "call", "time": 1090.0, **call},
        {"type": "end", "time": 1100.0, "stop": "interrupted", "summary": "", "seconds": 100.0},
        {"type": "resume", "time": 5000.0},
        {"type": "call", "time": 5060.0, **call},
    ]
    stream = io.StringIO()
    with Terminal(stream, recorded=True) as view:
        for event in events_of(recorded, records, clocked=True):
            view(event)
    steps = [line for line in stream.getvalue().split("\n") if line.startswith("step ")]
    assert [step.split(" - ")[:2] for step in steps] == [["step 1", "0:30"], ["step 2", "1:40"]]


def test_the_best_of_a_run_that_was_cut_off_is_its_best_accepted_attempt(
    recorded: RunFolder,
) -> None:
    cut_off = [record for record in read_records(recorded) if record["type"] != "end"]
    best = best_of(cut_off)
    assert best is not None
    assert best.score == GAIN.score
    assert best_of(cut_off[:3]) is None


def test_a_recorded_story_renders_markdown_for_a_terminal_only(tmp_path: Path) -> None:
    folder = new_run("softmax", tmp_path)
    with RunLog(folder) as log:
        log.write("session", task={"name": "softmax", "device": "cpu"}, model="m")
        call = log.write("call", usage=Usage(input=7, output=3), cost=0.5)
        log.message(Message("assistant", "**Plan**\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"), call)
    records = read_records(folder)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    shown = "\n".join(line.plain for line in story(folder, records, 80, console=console))
    assert "Plan" in shown
    assert "**" not in shown
    assert "|---" not in shown
    plain = "\n".join(line.plain for line in story(folder, records, UNCUT))
    assert "**Plan**" in plain, "a file gets the text as it is"


def test_a_shortened_file_says_how_many_lines_it_has() -> None:
    text = "\n".join(f"x{n} = {n}" for n in range(24))
    rows = [row.plain for row in excerpt("a.py", text, 80)]
    assert len(rows) == 9
    assert rows[-1].endswith("24 lines in all")
