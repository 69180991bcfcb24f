"""The interface of a language model: a call takes messages and tools, and returns a reply.

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
    """Error: the provider cannot answer, and a retry cannot help. The message is one line."""


class ModelUnavailable(ModelError):
    """Error: the provider did not answer after all retries. Resuming the run later may succeed."""


class ContextOverflow(ModelError):
    """Error: the conversation exceeds the model's context. A shorter one may fit."""


@dataclass(frozen=True)
class ToolSpec:
    """Description of a tool for the model; `schema` is a JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


OnText = Callable[[str, Literal["text", "reasoning"]], None]
"""Callback for each piece of a streamed reply: (text, its kind). For a piece without text it is
called with "". If it raises an exception, the query ends."""


class Model(Protocol):
    """A language model as the agent calls it.

    Some attributes are optional: `sampling` (parameters recorded with each call), `context`
    (context length in tokens, or None), `greet` (a check before any work; raises ModelError if no
    query can succeed), `preload` (imports, called in another thread while processes open) and
    `prepare` (work before the first query, done while torch.compile works).
    """

    name: str

    def query(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Reply:
        """Send the conversation and return one reply.

        Raises ModelError or ModelUnavailable. KeyboardInterrupt is not caught.
        """
        ...
