"""Messages between the agent and a model, shared by the run log and the providers.

The types are independent of providers. Each provider file translates them to its SDK and back, and
stores data that it must replay unchanged (thinking signatures, response ids) in `provider_state`.
Invariant of a conversation: exactly one `tool` message answers each tool call of an assistant
message, before any other message (`close_open_calls` in `cuagent.record` restores this).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


class Finish(StrEnum):
    """Reason why the model ended its reply."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    REFUSED = "refused"


@dataclass(frozen=True)
class ToolCall:
    """The model's call of a tool.

    `arguments` is the model's text unchanged; it may be malformed JSON.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One message of a conversation between the agent and a model.

    `sampled` is True if a model generated the message; training needs this. `data` is the
    structured result of a tool: it is recorded and shown to people and to the in-process expert,
    but never sent to a provider.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""
    sampled: bool = False
    is_error: bool = False
    provider_state: Any = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """Token counts of one or several replies: `input`, `cache_read`, `cache_write` and `output`.

    These four are disjoint; `reasoning` is a part of `output`.
    """

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.output + other.output,
            self.reasoning + other.reasoning,
        )


@dataclass(frozen=True)
class TokenTrace:
    """Token ids and log probabilities of one sampled reply, for training.

    Only servers that return token ids provide it.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Reply:
    """A model's reply to one request."""

    message: Message
    finish: Finish
    usage: Usage = Usage()
    cost: float | None = None
    """Cost in US dollars; None if the model's price is unknown."""
    tokens: TokenTrace | None = None
