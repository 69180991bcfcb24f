"""Rebuild a conversation from the records of a log, in a form that every provider accepts.

Invariant: in the messages that `conversation` and `close_open_calls` return, each tool call has
exactly one answer, directly after the message that made the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuagent.message import Message, ToolCall
from cuagent.record.log import leaf_of

INTERRUPTED = "interrupted: this call did not finish, and its result is not known"


def close_open_calls(messages: Sequence[Message], why: str = INTERRUPTED) -> list[Message]:
    """Return the messages with exactly one answer for each tool call.

    An unanswered call gets an error answer with the text `why`. Answers to unknown calls and second
    answers are dropped.
    """
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
    """Return the messages from the first one to the message with id `leaf`, ready to send to a
    model.

    None means the current message. Each tool call has an answer.
    """
    return close_open_calls([message_of(record) for record in branch_of(records, leaf)])


def branch_of(records: Sequence[dict[str, Any]], leaf: str | None = None) -> list[dict[str, Any]]:
    """Return the `message` records on the path from the first one to the message with id `leaf`.

    None means the current message. Messages of abandoned branches (after undo or retry) are not on
    the path.
    """
    by_id = {r["id"]: r for r in records if r["type"] == "message"}
    at = leaf_of(records) if leaf is None else leaf
    path = []
    while at in by_id:
        path.append(by_id[at])
        at = by_id[at].get("parent")
    return path[::-1]


def message_of(record: dict[str, Any]) -> Message:
    """Convert a `message` record to a Message."""
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
