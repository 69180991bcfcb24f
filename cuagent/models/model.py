"""What a language model is to the agent: one call from messages and tools to a reply.

The data that passes (`Message`, `ToolCall`, `Reply`, ...) is `cuagent.message`, named here too.
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
    """The provider cannot answer and trying again will not help. One line with what to do."""


class ModelUnavailable(ModelError):
    """The provider did not answer after all retries; a later resume may succeed."""


class ContextOverflow(ModelError):
    """The conversation no longer fits the model; a shorter one may."""


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it; `schema` is a JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


OnText = Callable[[str, Literal["text", "reasoning"]], None]
"""Receives pieces of the reply as they stream, empty ones where what streams is no text. What it
raises ends the query."""


class Model(Protocol):
    """One conversation partner.

    `sampling` (what is recorded with each call), `context` (tokens that fit, or None) and `greet`
    (asked before any work; raises ModelError where no query could succeed) are looked for and need
    not be there.
    """

    name: str

    def query(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Reply:
        """Ask once. Raises ModelError or ModelUnavailable; KeyboardInterrupt passes through."""
        ...
