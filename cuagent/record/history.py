"""From records back to a conversation that every provider accepts.

Invariant: in what `conversation` and `close_open_calls` leave, each tool call is answered exactly
once, directly after the message that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuagent.message import Message, ToolCall
from cuagent.record.log import leaf_of

INTERRUPTED = "interrupted: this call did not finish, and its result is not known"


def close_open_calls(messages: Sequence[Message], why: str = INTERRUPTED) -> list[Message]:
    """The messages with an answer for each unanswered call and without stray or second answers."""
    closed: list[Message] = []
    open_calls: dict[str, ToolCall] = {}

    def fill() -> None:
        closed.extend(
            Message("tool", why, tool_call_id=id, is_error=True, data={"interrupted": True})
            for id in open_calls
        )
        open_calls.clear()

    for message in messages:
        if message.role == "tool":
            if open_calls.pop(message.tool_call_id or "", None):
                closed.append(message)
            continue
        fill()
        closed.append(message)
        open_calls.update((call.id, call) for call in message.tool_calls)
    fill()
    return closed


def conversation(records: Sequence[dict[str, Any]], leaf: str | None = None) -> list[Message]:
    """The messages from the first to `leaf` (where the run stands, if None), all calls closed."""
    return close_open_calls([message_of(record) for record in branch_of(records, leaf)])


def branch_of(records: Sequence[dict[str, Any]], leaf: str | None = None) -> list[dict[str, Any]]:
    """The `message` records from the first to `leaf` (where the run stands, if None)."""
    by_id = {r["id"]: r for r in records if r["type"] == "message"}
    at = leaf_of(records) if leaf is None else leaf
    path = []
    while at in by_id:
        path.append(by_id[at])
        at = by_id[at].get("parent")
    return path[::-1]


def message_of(record: dict[str, Any]) -> Message:
    """The message in a `message` record."""
    return Message(
        role=record["role"],
        content=record["content"],
        tool_calls=tuple(ToolCall(**call) for call in record.get("tool_calls", ())),
        tool_call_id=record.get("tool_call_id"),
        reasoning=record.get("reasoning", ""),
        sampled=record.get("sampled", False),
        is_error=record.get("is_error", False),
        provider_state=record.get("provider_state"),
        data=record.get("data", {}),
    )
