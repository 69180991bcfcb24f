from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuagent.agent import TOOLS, Budget, Run, Stop, run_agent
from cuagent.agent.loop import step
from cuagent.events import Event, Notice, RunEnded, RunStarted, Spent, TextDelta, ToolFinished
from cuagent.message import Message
from cuagent.models.model import ContextOverflow, OnText, ToolSpec
from cuagent.models.scripted import ScriptedModel, replay
from cuagent.record import conversation, read_records


def bash(command: str, **more: Any) -> dict[str, Any]:
    return {"name": "bash", "arguments": {"command": command}, **more}


def roles(run: Run) -> list[str]:
    return [m.role for m in run.messages]


def test_run_executes_its_steps_and_ends(run: Run, events: list[Event]) -> None:
    model = ScriptedModel(
        [
            {"text": "Look.", "calls": [bash("echo one"), bash("echo two")]},
            {"calls": [{"name": "submit", "arguments": {"message": "nothing gained"}}]},
        ]
    )
    assert run_agent(run, model, emit=events.append) is Stop.NO_GAIN
    assert roles(run) == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]
    assert [m.content for m in run.messages[3:5]] == ["one", "two"]
    assert run.messages[2].sampled
    kinds = [type(e) for e in events]
    assert kinds[0] is RunStarted
    assert kinds[-1] is RunEnded
    assert kinds.count(ToolFinished) == 3
    assert kinds.count(Spent) == 2
    assert TextDelta("Look.") in events


def test_log_holds_the_whole_run_and_replays_it(run: Run, tmp_path: Path) -> None:
    model = ScriptedModel([{"calls": [bash("echo one")]}, {"calls": [{"name": "submit"}]}])
    run_agent(run, model)
    records = read_records(run.folder)
    kinds = [r["type"] for r in records]
    assert kinds[0] == "session"
    assert kinds[-1] == "end"
    assert kinds.count("call") == 2
    assert conversation(records) == run.messages
    assert records[0]["task"]["digest"] == run.task.digest
    assert [t["name"] for t in records[0]["tools"]][:2] == ["bash", "read"]
    end = records[-1]
    assert (end["stop"], end["rewards"]["milestone"]["score"]) == ("no gain", -1)
    again = replay(run.folder)
    first = again.query([], [], lambda text, kind: None)
    assert first.message == run.messages[2]


def test_turn_without_call_asks_for_one_then_stalls(run: Run) -> None:
    model = ScriptedModel([{"text": "done!"}, {"text": ""}, {"text": "really"}])
    assert run_agent(run, model) is Stop.STALLED
    assert [m.role for m in run.messages[2:]] == ["assistant", "user"] * 2 + ["assistant"]
    assert not run.messages[3].sampled


def test_repeated_call_warns_then_ends_the_run(run: Run) -> None:
    model = ScriptedModel([{"calls": [bash("echo same")]}] * 10)
    assert run_agent(run, model) is Stop.LOOPING
    assert run.steps == 6
    assert any("same bash call 3 times" in m.content for m in run.messages)


@pytest.mark.parametrize(
    ("budget", "stop"),
    [
        (Budget(steps=2), Stop.STEP_LIMIT),
        (Budget(cost=0.2), Stop.COST_LIMIT),
        (Budget(seconds=0.0), Stop.TIME_LIMIT),
    ],
)
def test_budget_limits_end_the_run(run: Run, budget: Budget, stop: Stop) -> None:
    run.budget = budget
    model = ScriptedModel({"calls": [bash(f"echo {n}")], "cost": 0.1} for n in range(9))
    assert run_agent(run, model) is stop
    assert run.steps <= 2


def test_unknown_price_gives_one_warning(run: Run, events: list[Event]) -> None:
    model = ScriptedModel([{"calls": [bash("echo 1")], "cost": None}, {"calls": [bash("echo 2")]}])
    run_agent(run, model, emit=events.append)
    said = [e.text for e in events if isinstance(e, Notice)]
    assert [text for text in said if "cost limit does not apply" in text] == said[:1]
    assert run.cost is None
    assert run.unpriced_calls == 1


def test_calls_with_a_price_count_after_one_without(run: Run, events: list[Event]) -> None:
    run.budget = Budget(cost=0.2)
    costs = [None, 0.1, None, 0.1, 0.1]
    model = ScriptedModel(
        {"calls": [bash(f"echo {n}")], "cost": cost} for n, cost in enumerate(costs)
    )
    assert run_agent(run, model, emit=events.append) is Stop.COST_LIMIT
    assert (run.known_cost, run.steps) == (0.2, 4)
    said = [e.text for e in events if isinstance(e, Notice) and "cost limit" in e.text]
    assert said == [
        "no price is known for scripted: the cost limit does not apply to its calls",
        "the cost limit of $0.2 did not count 2 calls without a known price",
    ]


def test_calls_after_submit_are_answered_without_execution(run: Run) -> None:
    calls = [{"name": "submit"}, bash("touch after")]
    assert run_agent(run, ScriptedModel([{"calls": calls}])) is Stop.NO_GAIN
    assert "not executed" in run.messages[-1].content
    assert not (run.work / "after").exists()


def test_submit_names_a_kernel_that_was_never_verified(run: Run) -> None:
    wrote = {"path": "model_new.py", "text": "class ModelNew: ...\n"}
    write: dict[str, Any] = {"name": "write", "arguments": wrote}
    submit: dict[str, Any] = {"name": "submit"}
    model = ScriptedModel([{"calls": [write, submit]}, {"calls": [submit]}])
    assert run_agent(run, model) is Stop.NO_GAIN
    assert len(model.asked) == 2, "the first submit did not end the run"
    first, last = (m for m in run.messages if m.role == "tool" and "kernel" in m.content)
    assert first.is_error
    assert "never verified" in first.content
    assert last.content == "The run ends without a kernel: no attempt was accepted."


def test_repeated_and_empty_call_ids_become_unique(run: Run) -> None:
    same = [bash("echo 1", id="x"), bash("echo 2", id="x"), bash("echo 3", id="")]
    run_agent(
        run, ScriptedModel([{"calls": same}, {"calls": same}, {"calls": [{"name": "submit"}]}])
    )
    ids = [c.id for m in run.messages for c in m.tool_calls]
    assert len(set(ids)) == len(ids) == 7
    assert [m.tool_call_id for m in run.messages if m.role == "tool"] == ids


def test_failing_provider_ends_the_run_with_its_error(run: Run, events: list[Event]) -> None:
    assert run_agent(run, ScriptedModel([]), emit=events.append) is Stop.MODEL_FAILED
    assert Notice("scripted: the script ended after 0 replies", "error") in events
    end = read_records(run.folder)[-1]
    assert end["rewards"]["milestone"]["score"] is None


def test_full_context_has_its_own_stop(run: Run) -> None:
    class Full(ScriptedModel):
        def query(
            self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
        ) -> Any:
            raise ContextOverflow("too long")

    assert run_agent(run, Full([])) is Stop.CONTEXT_FULL


def test_ctrl_c_ends_the_run_with_every_call_answered(run: Run) -> None:
    calls = [bash("echo first"), bash("sleep 60"), bash("echo third")]
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        stop = run_agent(run, ScriptedModel([{"calls": calls}]))
    finally:
        timer.cancel()
    assert stop is Stop.INTERRUPTED
    answers = [m.content for m in run.messages if m.role == "tool"]
    assert answers[0] == "first"
    assert all("interrupted by the user" in text for text in answers[1:])
    records = read_records(run.folder)
    assert conversation(records) == run.messages
    assert records[-1]["stop"] == "interrupted"


def test_prompt_holds_skill_and_task(run: Run) -> None:
    system, user = run.messages
    assert "ModelNew" in system.content
    assert "torch.relu(x * 2 + 1)" in user.content
    assert "Device: cpu" in user.content
    assert (run.work / "reference.py").read_text() == run.task.source


ARGUMENTS = st.one_of(
    st.text(max_size=30),
    st.dictionaries(
        st.sampled_from(["path", "text", "old", "new", "pattern", "first", "attempt", "what"]),
        st.one_of(st.text(max_size=10), st.integers(), st.none(), st.booleans()),
    ).map(json.dumps),
)
CALLS = st.fixed_dictionaries(
    {
        "name": st.one_of(
            st.sampled_from([t.name for t in TOOLS if t.name not in ("bash", "submit")]),
            st.text(max_size=8),
        ),
        "arguments": ARGUMENTS,
        "id": st.sampled_from(["a", "b", "", "ü"]),
    }
)
REPLIES = st.fixed_dictionaries(
    {"text": st.text(max_size=20), "calls": st.lists(CALLS, max_size=3)},
    optional={"finish": st.sampled_from(["stop", "length", "refused"])},
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(REPLIES, min_size=1, max_size=3))
def test_no_reply_breaks_the_loop(run: Run, replies: list[Any]) -> None:
    run.stop = None
    model = ScriptedModel(replies)
    for _ in replies:
        step(run, model, TOOLS, (), lambda event: None)
    ids = [c.id for m in run.messages for c in m.tool_calls]
    assert len(set(ids)) == len(ids)
    assert [m.tool_call_id for m in run.messages if m.role == "tool"] == ids
    assert conversation(read_records(run.folder)) == run.messages


def test_the_error_of_a_provider_is_told_before_the_last_judgement(
    run: Run, events: list[Event]
) -> None:
    run_agent(run, ScriptedModel([]), emit=events.append)
    kinds = [type(e).__name__ for e in events if isinstance(e, Notice | RunEnded)]
    assert kinds[-1] == "RunEnded"
    assert kinds.index("Notice") < len(kinds) - 1
    notices = [e for e in events if isinstance(e, Notice) and e.level == "error"]
    assert len(notices) == 1
