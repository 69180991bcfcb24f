"""Ask a model one question with one tool."""

from __future__ import annotations

from typing import Any

from cuagent.message import Message
from cuagent.models.model import Model, ToolSpec

TOOLS = [ToolSpec("bash", "Run it.", {"type": "object", "properties": {}, "required": []})]
QUESTION = [Message("system", "Be quick."), Message("user", "Go.")]


def ask(model: Model, messages: list[Message] = QUESTION) -> tuple[Any, list[tuple[str, str]]]:
    pieces: list[tuple[str, str]] = []
    reply = model.query(messages, TOOLS, lambda text, kind: pieces.append((kind, text)))
    return reply, pieces
