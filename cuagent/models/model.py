"""Define the interface of a language model: one call from messages and tools to a reply.

The data types (`Message`, `ToolCall`, `Reply`, ...) are defined in `cuagent.message` and
re-exported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cuagent.message import Finish, Message, Reply, Role, TokenTrace, ToolCall, Usage

__all__ = [
    "ContextOverflow",
    "Finish",
    "Message",
    "Model",
    "ModelError",
    "ModelUnavailable",
    "OnText",
    "Reply",
    "Role",
    "TokenTrace",
    "ToolCall",
    "ToolSpec",
    "Usage",
]


class ModelError(Exception):
    """Raised when the provider cannot answer and a retry cannot help. The message is one line."""


class ModelUnavailable(ModelError):
    """Raised when the provider did not answer after all retries; a later resume may succeed."""


class ContextOverflow(ModelError):
    """Raised when the conversation exceeds the model's context; a shorter one may fit."""


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it; `schema` is a JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


OnText = Callable[[str, Literal["text", "reasoning"]], None]
"""Callback for the pieces of a reply as they stream; a piece that is not text is passed as "".
An exception that it raises ends the query."""


class Model(Protocol):
    """Language model as the agent calls it.

    Three attributes are optional: `sampling` (parameters recorded with each call), `context`
    (context length in tokens, or None) and `greet` (a check before any work; raises ModelError if
    no query can succeed).
    """

    name: str

    def query(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Reply:
        """Return one reply. Raises ModelError or ModelUnavailable; lets KeyboardInterrupt pass."""
        ...
