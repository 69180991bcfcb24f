"""Call models through chat completions, for all compatible servers (OPENAI_BASE_URL, vLLM, ...).

Replies are always streamed. The field `reasoning_content` of compatible servers is stored as
reasoning.

Not covered: the Responses API (`responses.py`), images, several choices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cuagent.message import Finish, Message, Reply, TokenTrace, ToolCall, Usage
from cuagent.models import wire
from cuagent.models.endpoint import CONNECT_TIMEOUT, OPENAI, Dropped, Endpoint
from cuagent.models.model import OnText, ToolSpec
from cuagent.models.prices import Price, cost_of
from cuagent.models.served import Served

if TYPE_CHECKING:
    import openai

FINISHES = {
    "stop": Finish.STOP,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "length": Finish.LENGTH,
    "content_filter": Finish.REFUSED,
}


class OpenAIModel(Served):
    """A model behind a server with the chat completions protocol."""

    default_endpoint = OPENAI

    def connect(self) -> tuple[ModuleType, openai.OpenAI]:
        return client_of(self.endpoint)

    def once(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Callable[[], Reply]:
        request = request_of(self.model, messages, tools, self.endpoint)

        def ask() -> Reply:
            with self._client.chat.completions.create(**request) as stream:
                return self._collect(stream, on_text)

        return ask

    def _collect(self, stream: Iterable[Any], on_text: OnText) -> Reply:
        parts = _Parts()
        for chunk in stream:
            parts.take(chunk, on_text)
        if parts.finish is None:
            raise Dropped("the reply broke off")
        return parts.reply(self.price)


def client_of(endpoint: Endpoint) -> tuple[ModuleType, openai.OpenAI]:
    """Return the SDK and a client for this server. Raises ModelError if the key is missing."""
    import openai

    client = openai.OpenAI(
        api_key=endpoint.key(),
        base_url=endpoint.base_url,
        max_retries=0,  # `endpoint.ask` retries, also after a broken stream
        timeout=openai.Timeout(endpoint.stall, connect=min(endpoint.stall, CONNECT_TIMEOUT)),
    )
    return openai, client


def request_of(
    model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], endpoint: Endpoint
) -> dict[str, Any]:
    """Return the arguments of the SDK's `chat.completions.create` for one request."""
    request: dict[str, Any] = {
        "model": model,
        "messages": messages_of(messages, echo_reasoning=endpoint.echo_reasoning),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        request["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.schema),
                },
            }
            for tool in tools
        ]
    if endpoint.max_output:
        request["max_completion_tokens"] = endpoint.max_output
    if endpoint.return_tokens:
        request |= {"logprobs": True, "extra_body": {"return_token_ids": True}}
    return request | dict(endpoint.sampling)


def messages_of(
    messages: Sequence[Message], *, echo_reasoning: bool = False
) -> list[dict[str, Any]]:
    """Convert messages to the form of chat completions."""
    return [m for message in messages if (m := _message(message, echo_reasoning)) is not None]


def _message(message: Message, echo_reasoning: bool) -> dict[str, Any] | None:
    content = wire.clean(message.content)
    match message.role:
        case "tool":
            id = wire.call_id(message.tool_call_id or "")
            return {"role": "tool", "tool_call_id": id, "content": content}
        case "assistant":
            if not content and not message.tool_calls:
                return None  # strict servers refuse an empty one
            sent: dict[str, Any] = {"role": "assistant", "content": content or None}
            if message.tool_calls:
                sent["tool_calls"] = [_call(call) for call in message.tool_calls]
            if echo_reasoning:
                sent["reasoning_content"] = wire.clean(message.reasoning)
            return sent
        case role:
            return {"role": role, "content": content}


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": wire.call_id(call.id),
        "type": "function",
        "function": {
            "name": wire.tool_name(call.name),
            "arguments": json.dumps(wire.arguments(call.arguments), ensure_ascii=False),
        },
    }


@dataclass
class _Parts:
    """Reply received so far."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    """Tool calls by the server's index, each with the id, name and arguments received so far."""
    finish: str | None = None
    usage: Usage = field(default_factory=Usage)
    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def take(self, chunk: Any, on_text: OnText) -> None:
        if getattr(chunk, "usage", None):
            self.usage = _usage(chunk.usage)
        self.prompt_ids = getattr(chunk, "prompt_token_ids", None) or self.prompt_ids
        for choice in chunk.choices[:1]:
            self.finish = choice.finish_reason or self.finish
            self.ids += getattr(choice, "token_ids", None) or []
            logprobs = getattr(choice, "logprobs", None)
            self.logprobs += [t.logprob for t in (logprobs and logprobs.content) or []]
            if choice.delta:
                self._delta(choice.delta, on_text)

    def _delta(self, delta: Any, on_text: OnText) -> None:
        thought = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
        if thought:
            self.reasoning.append(thought)
            on_text(thought, "reasoning")
        text = delta.content or getattr(delta, "refusal", None)
        if text:
            self.text.append(text)
            on_text(text, "text")
        for piece in delta.tool_calls or []:
            # some servers omit the index: a new id then means a new call
            index = piece.index if piece.index is not None else self._index(piece.id)
            call = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
            call["id"] = piece.id or call["id"]
            if piece.function:
                call["name"] += piece.function.name or ""
                call["arguments"] += piece.function.arguments or ""
            on_text("", "text")

    def _index(self, id: str | None) -> int:
        last = max(self.calls, default=0)
        same = last in self.calls and id in (None, "", self.calls[last]["id"])
        return last if same or not self.calls else last + 1

    def reply(self, price: Price | None) -> Reply:
        calls = tuple(
            ToolCall(c["id"], c["name"], c["arguments"]) for _, c in sorted(self.calls.items())
        )
        message = Message(
            "assistant", "".join(self.text), calls, reasoning="".join(self.reasoning), sampled=True
        )
        finish = FINISHES.get(self.finish or "", Finish.STOP)
        if calls and finish is Finish.STOP:
            finish = Finish.TOOL_CALLS  # some servers say "stop" with calls
        return Reply(message, finish, self.usage, cost_of(self.usage, price), self._tokens())

    def _tokens(self) -> TokenTrace | None:
        # training needs exactly one log-probability for each token
        if not self.ids or len(self.ids) != len(self.logprobs):
            return None
        return TokenTrace(tuple(self.prompt_ids), tuple(self.ids), tuple(self.logprobs))


def _usage(usage: Any) -> Usage:
    """Return the token counts in disjoint parts; `prompt_tokens` includes cache reads and
    writes."""
    cached, written = wire.cached(getattr(usage, "prompt_tokens_details", None))
    output = getattr(usage, "completion_tokens_details", None)
    return Usage(
        input=max(0, (usage.prompt_tokens or 0) - cached - written),
        cache_read=cached,
        cache_write=written,
        output=usage.completion_tokens or 0,
        reasoning=getattr(output, "reasoning_tokens", None) or 0,
    )
