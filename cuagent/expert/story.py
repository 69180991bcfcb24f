"""What a conversation tells of a run: which candidates were tried, what came of them, what lies in
the work folder.

Nothing is remembered beside the messages, so that an interrupted run resumes where it stood. Not
covered: files that somebody else changed in the work folder; `write` notices that, and then the
file is read first. Invariant: a result is put down to a candidate only when all of its files were
written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuagent.expert.planner import Outcome, Proposal
from cuagent.message import Message, ToolCall
from cuagent.timing import Ratio

Propose = Callable[[Sequence[Outcome]], Proposal | None]


@dataclass
class Story:
    """The state of the run as its messages tell it."""

    profiled: bool = False
    looked_at_candidate: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """What our own calls left in the work folder: text by relative path."""
    unread: set[str] = field(default_factory=set)
    """Files that `write` would not replace before they are read."""
    compiled: bool = False
    """The newest candidate was compiled and waits for its verdict."""
    failures: int = 0
    """Calls since the last outcome that failed inside, which says nothing about the candidate."""
    failure: str = ""
    """The first line of what the last of them said."""
    refused: set[int] = field(default_factory=set)
    """Attempts that `submit` did not accept."""
    empty_submit: bool = False
    """`submit` without an attempt was tried."""


def read_story(messages: Sequence[Message], propose: Propose) -> Story:
    """Replay the calls that have a result; `propose` says which candidate each one was about."""
    story = Story()
    results = {m.tool_call_id: m for m in messages if m.role == "tool"}
    for message in messages:
        for call in message.tool_calls if message.role == "assistant" else ():
            result = results.get(call.id)
            if result is not None and not result.data.get("interrupted"):
                _take(story, call, result, propose)
    return story


def _take(story: Story, call: ToolCall, result: Message, propose: Propose) -> None:
    arguments = _arguments(call)
    match call.name:
        case "profile":
            story.looked_at_candidate |= story.profiled and bool(story.outcomes)
            story.profiled = True
        case "write":
            _written(story, arguments, result)
        case "bash" if not result.is_error:
            command, *paths = str(arguments.get("command")).split() or [""]
            for path in paths if command == "rm" else ():
                story.files.pop(path, None)
        case "compile" | "verify":
            proposal = propose(story.outcomes)
            if proposal and proposal.candidate.files.items() <= story.files.items():
                _judged(story, call.name, proposal, result)
        case "submit":
            _submitted(story, arguments, result)


def _written(story: Story, arguments: Mapping[str, Any], result: Message) -> None:
    path = str(arguments.get("path"))
    if result.is_error:
        story.unread.add(path)
        story.files.pop(path, None)
        _failed(story, result)
    else:
        story.unread.discard(path)
        story.files[path] = str(arguments.get("text"))


def _judged(story: Story, tool: str, proposal: Proposal, result: Message) -> None:
    """A compiler's or a referee's word on the candidate that lies in the work folder."""
    data, candidate = result.data, proposal.candidate
    match tool:
        case "compile" if "ok" in data:
            story.compiled = bool(data["ok"])
            if story.compiled:
                story.failures = 0
                return None
            broken = tuple(str(d.get("file", "")) for d in data.get("diagnostics", ()))
            outcome = Outcome(candidate, False, "build failed", broken=broken)
        case "verify" if "accepted" in data:
            story.compiled = False
            outcome = Outcome(
                candidate,
                bool(data["accepted"]),
                str(data.get("reason", "no reason given")),
                data.get("attempt"),
                _ratios(data.get("ratios")),
            )
        case _:
            return _failed(story, result)
    story.outcomes.append(outcome)
    story.failures = 0
    return None


def _submitted(story: Story, arguments: Mapping[str, Any], result: Message) -> None:
    if result.data.get("ended"):
        return
    attempt = arguments.get("attempt")
    if isinstance(attempt, int):
        story.refused.add(attempt)
    else:
        story.empty_submit = True


def _failed(story: Story, result: Message) -> None:
    story.failures += 1
    story.failure = (result.content.strip().splitlines() or ["it gave no result"])[0]


def _ratios(data: Any) -> dict[str, Ratio]:
    """The ratios by baseline, whatever else stands there; no limits means no width."""
    found = {}
    for name, ratio in data.items() if isinstance(data, Mapping) else ():
        value = ratio.get("value") if isinstance(ratio, Mapping) else None
        if isinstance(value, int | float):
            found[str(name)] = Ratio(value, ratio.get("low", value), ratio.get("high", value))
    return found


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        value = json.loads(call.arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
