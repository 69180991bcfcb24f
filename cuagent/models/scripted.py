"""A model that gives prepared replies in order: for tests, for demonstrations, and to replay a run.

A script is a list, or a JSONL file, of replies such as `{"text": "Let me see.", "calls": [{"name":
"bash", "arguments": {"command": "ls"}}]}`. `arguments` may also be a string, which is passed on
unchanged, even if it is not valid JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuagent.message import Finish, Message, Reply, ToolCall, Usage
from cuagent.models.model import ModelError, OnText, ToolSpec
from cuagent.record import RunFolder, message_of, read_records


class ScriptedModel:
    """Model that gives prepared replies in order and ignores the messages."""

    def __init__(
        self, replies: Iterable[Mapping[str, Any] | Reply], name: str = "scripted"
    ) -> None:
        self.name = name
        self._replies = [
            reply if isinstance(reply, Reply) else reply_of(reply, n)
            for n, reply in enumerate(replies, 1)
        ]
        self.asked: list[tuple[Message, ...]] = []
        """Messages of each query, for tests."""

    def query(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Reply:
        self.asked.append(tuple(messages))
        if len(self.asked) > len(self._replies):
            raise ModelError(f"{self.name}: the script ended after {len(self._replies)} replies")
        reply = self._replies[len(self.asked) - 1]
        if reply.message.reasoning:
            on_text(reply.message.reasoning, "reasoning")
        if reply.message.content:
            on_text(reply.message.content, "text")
        return reply


def script(path: Path) -> ScriptedModel:
    """Read a script from a JSONL file and return its model. Raises ModelError."""
    replies = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot read the script ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            replies.append(reply_of(json.loads(line), number))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{path}:{number}: not a reply ({error!r})") from error
    return ScriptedModel(replies, f"scripted:{path.name}")


def replay(folder: RunFolder) -> ScriptedModel:
    """Return a model that repeats the replies of a recorded run, at no cost. Raises RecordError."""
    records = read_records(folder)
    replies = []
    for record in records:
        if record["type"] == "message" and record["sampled"]:
            message = message_of(record)
            finish = Finish.TOOL_CALLS if message.tool_calls else Finish.STOP
            replies.append(Reply(message, finish))
    return ScriptedModel(replies, f"replay:{folder.id}")


def reply_of(entry: Mapping[str, Any], number: int) -> Reply:
    """Convert entry `number` of a script to a reply."""
    calls = tuple(
        ToolCall(
            call.get("id", f"call_{number}_{n}"),
            call["name"],
            call["arguments"]
            if isinstance(call.get("arguments", {}), str)
            else json.dumps(call.get("arguments", {})),
        )
        for n, call in enumerate(entry.get("calls", ()), 1)
    )
    message = Message(
        "assistant",
        entry.get("text", ""),
        calls,
        reasoning=entry.get("reasoning", ""),
        sampled=True,
    )
    finish = Finish.TOOL_CALLS if calls else Finish.STOP
    return Reply(
        message,
        Finish(entry.get("finish", finish)),
        Usage(**entry.get("usage", {})),
        entry.get("cost", 0.0),
    )
