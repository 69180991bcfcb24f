"""What is said between the agent and a model, as data: shared by the run log and the providers.

Messages are ours, not a provider's; each provider file translates to its SDK and back and keeps
what it must replay unchanged (thinking signatures, response ids) in `provider_state`.
Invariant of a conversation: every tool call of an assistant message is answered by exactly one
`tool` message before anybody else speaks (`close_open_calls` in `cuagent.record` restores it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


class Finish(StrEnum):
    """Why the model stopped."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    REFUSED = "refused"


@dataclass(frozen=True)
class ToolCall:
    """`arguments` is kept as the model wrote it, byte for byte; it may be malformed JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One message of the conversation.

    `sampled` tells what the model made from what was put in its mouth (training needs to know).
    `data` is the structured result of a tool: recorded, shown to people and to the in-process
    expert, never sent to a provider.
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
    """Token counts in four disjoint parts; `reasoning` is a part of `output`."""

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
    """Token ids as the server sampled them, where it returns them; training needs them."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Reply:
    """What came back from one call."""

    message: Message
    finish: Finish
    usage: Usage = Usage()
    cost: float | None = None
    """US dollars; None where no price is known."""
    tokens: TokenTrace | None = None
