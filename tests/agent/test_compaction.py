"""Limits of compaction, the request for a summary, and the text that replaces the conversation."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.agent import Run, compact
from cuagent.agent.compaction import is_due
from cuagent.agent.wording import ladder_text
from cuagent.attempt import Attempt
from cuagent.build.result import Build
from cuagent.events import Event, Notice
from cuagent.judgement import Judgement
from cuagent.measure.rungs import Ladder, Rung
from cuagent.message import Message, ToolCall
from cuagent.models.model import ContextOverflow
from cuagent.models.scripted import ScriptedModel
from cuagent.record import conversation, read_records
from cuagent.score import milestone
from cuagent.timing import Ratio
from cuagent.verdict import Reason, Verdict


def fill(run: Run, count: int) -> None:
    """Add user messages until the conversation has `count` messages."""
    while len(run.messages) < count:
        run.add(Message("user", f"message {len(run.messages)}"))


@pytest.mark.parametrize(
    ("context", "tokens", "count", "due"),
    [
        (1000, 801, 9, True),
        (1000, 800, 9, False),  # exactly 80 % of the context
        (1000, 801, 8, False),  # opening and six more messages
        (None, 10**9, 9, False),  # a model without a known limit
    ],
)
def test_compaction_is_due_above_80_percent_of_the_context(
    run: Run, context: int | None, tokens: int, count: int, due: bool
) -> None:
    fill(run, count)
    run.context_tokens = tokens
    model: Any = SimpleNamespace(context=context)
    assert is_due(run, model) is due


def test_compaction_is_not_due_if_the_model_has_no_context_length(run: Run) -> None:
    fill(run, 9)
    run.context_tokens = 10**9
    assert is_due(run, ScriptedModel([])) is False


def test_summary_without_a_price_ends_the_cost_limit_with_a_notice(
    run: Run, events: list[Event]
) -> None:
    run.emit = events.append
    run.budget = replace(run.budget, cost=5.0)
    fill(run, 5)
    assert compact(run, ScriptedModel([{"text": "summary", "cost": None}]))
    assert run.cost is None
    said = [event.text for event in events if isinstance(event, Notice)]
    assert "no price is known for scripted: the cost limit does not apply to its calls" in said


def test_conversation_with_only_its_opening_is_not_compacted(run: Run) -> None:
    model = ScriptedModel([{"text": "summary"}])
    assert len(run.messages) == 2
    assert compact(run, model) is False
    assert model.asked == []


def test_summary_replaces_all_but_the_opening_and_the_log_keeps_all(run: Run) -> None:
    opening = list(run.messages)
    fill(run, 3)
    before = list(run.messages)
    run.seen["model_new.py"] = "digest"
    run.todo.append({"state": "open", "text": "tile it"})
    model = ScriptedModel([{"text": "  the summary\n", "usage": {"input": 7}, "cost": 0.25}])
    assert compact(run, model) is True
    assert list(model.asked[0][:-1]) == before
    assert "Above all" not in model.asked[0][-1].content
    assert run.messages[:2] == opening
    assert len(run.messages) == 3
    added = run.messages[2]
    assert (added.role, added.data) == ("user", {"from": "compaction"})
    assert "\n\nthe summary\n\n" in added.content
    assert added.content.endswith("- [open] tile it")
    assert run.seen == {}
    records = read_records(run.folder)
    assert conversation(records) == run.messages
    assert [r["content"] for r in records if r["type"] == "message"][2] == "message 2"
    branch = next(r for r in records if r["type"] == "branch")
    assert branch["why"] == "compaction"
    assert branch["message"] == [r["id"] for r in records if r["type"] == "message"][1]
    call = next(r for r in records if r["type"] == "call")
    assert (call["purpose"], call["cost"], call["usage"]["input"]) == ("compaction", 0.25, 7)
    assert 0 <= call["ms"] < 60_000
    assert run.cost == 0.25


def test_ladder_and_attempts_are_added_to_the_summary(run: Run) -> None:
    fill(run, 3)
    attempt = Attempt((("model_new.py", "x"),))
    verdict = Verdict(False, Reason.WRONG_VALUES, "", "t", attempt.digest)
    build = Build(attempt.digest, (), (), True, 0.1)
    run.register(attempt, Judgement(attempt.digest, build, verdict, None, milestone(False)))
    eager = Rung("eager", 1e-3, Ratio(1.0, 1.0, 1.0), 0.0, True, 0.1, None, True)
    run.ladder = Ladder(run.task.digest, "match", "a CPU", {}, (eager,), 1.0)
    assert compact(run, ScriptedModel([{"text": "summary"}]))
    assert "attempt 1: rejected: wrong values" in run.messages[2].content
    assert ladder_text(run.ladder) in run.messages[2].content
    assert "Your list" not in run.messages[2].content


@pytest.mark.parametrize(
    "reply",
    [{"text": " \n"}, {"text": "x", "calls": [{"name": "bash", "arguments": {"command": "ls"}}]}],
)
def test_reply_without_a_summary_changes_nothing(run: Run, reply: dict[str, Any]) -> None:
    fill(run, 3)
    before = list(run.messages)
    run.seen["model_new.py"] = "digest"
    assert compact(run, ScriptedModel([reply])) is False
    assert run.messages == before
    assert run.seen
    assert conversation(read_records(run.folder)) == before
    notices = [r for r in read_records(run.folder) if r["type"] == "notice"]
    assert [r["level"] for r in notices] == ["warning"]


def test_focus_of_the_user_is_in_the_request(run: Run) -> None:
    fill(run, 3)
    model = ScriptedModel([{"text": "summary"}])
    assert compact(run, model, "the tile sizes")
    request = model.asked[0][-1].content
    assert request.endswith("keep: the tile sizes")
    assert request.startswith("The user asks you to shorten"), "the context is not nearly full"
    notices = [r for r in read_records(run.folder) if r["type"] == "notice"]
    assert [r["level"] for r in notices] == ["info"]


def test_long_tool_results_are_shortened_if_the_request_is_too_long(run: Run) -> None:
    class Overflowing(ScriptedModel):
        def query(self, messages: Any, *more: Any) -> Any:
            if any(m.role == "tool" and len(m.content) > 1800 for m in messages):
                raise ContextOverflow("too long")
            return super().query(messages, *more)

    calls = tuple(ToolCall(id, "bash", "{}") for id in "ab")
    run.add(Message("user", "u" * 5000))
    run.add(Message("assistant", "", calls))
    run.add(Message("tool", "h" * 601 + "m" * 600 + "t" * 600, tool_call_id="a"))
    run.add(Message("tool", "s" * 1800, tool_call_id="b"))
    before = list(run.messages)
    model = Overflowing([{"text": "summary"}])
    assert compact(run, model, "focus")
    sent = model.asked[0]
    assert len(sent) == len(before) + 1
    assert [i for i, (a, b) in enumerate(zip(before, sent, strict=False)) if a != b] == [4]
    head, _, tail = sent[4].content.split("\n")
    assert (head, tail) == ("h" * 600, "t" * 600)
    assert sent[4].tool_call_id == "a"
    assert sent[-1].content.endswith("focus")
