"""Call models through OpenAI's Responses API; its reasoning models call tools only through this
API.

Stateless: the provider stores nothing, and the encrypted reasoning of earlier turns is sent back
unchanged, at its position among the calls.

Not covered: built-in tools, images, background mode.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cuagent.message import Finish, Message, Reply, ToolCall, Usage
from cuagent.models import wire
from cuagent.models.endpoint import OPENAI, Dropped, Endpoint, failure
from cuagent.models.model import OnText, ToolSpec
from cuagent.models.openai import client_of
from cuagent.models.prices import Price, cost_of
from cuagent.models.served import Served

if TYPE_CHECKING:
    import openai

PROVIDER = "openai-responses"
TEXT = ("response.output_text.delta", "response.refusal.delta")
REASONING = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
TRANSIENT = ("server_error", "rate_limit_exceeded", "server_overloaded", "vector_store_timeout")
"""Error codes of a failed response for which a retry may succeed."""


class ResponsesModel(Served):
    """A model behind OpenAI's Responses API."""

    default_endpoint = OPENAI

    def connect(self) -> tuple[ModuleType, openai.OpenAI]:
        return client_of(self.endpoint)

    def once(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Callable[[], Reply]:
        request = request_of(self.model, messages, tools, self.endpoint)

        def ask() -> Reply:
            with self._client.responses.create(**request) as stream:
                return self._collect(stream, on_text)

        return ask

    def _collect(self, stream: Iterable[Any], on_text: OnText) -> Reply:
        parts = _Parts()
        for event in stream:
            parts.take(event, on_text)
            if parts.failed:
                code, text = parts.failed
                if code in TRANSIENT:
                    raise Dropped(text)
                raise failure(f"{self.name}: the server refused the request ({code}: {text})")
        if parts.ended is None:
            raise Dropped("the reply broke off")
        return parts.reply(self.price)


def request_of(
    model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], endpoint: Endpoint
) -> dict[str, Any]:
    """Return the arguments of the SDK's `responses.create` for one request."""
    instructions = "\n\n".join(wire.clean(m.content) for m in messages if m.role == "system")
    request: dict[str, Any] = {
        "model": model,
        "input": items_of(messages),
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        # routes all requests of one run to the same cache
        "prompt_cache_key": hashlib.sha256(repr(messages[:2]).encode()).hexdigest()[:32],
    }
    if instructions:
        request["instructions"] = instructions
    if tools:
        request["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.schema),
                "strict": False,  # strict mode has no optional arguments
            }
            for tool in tools
        ]
    if endpoint.max_output:
        request["max_output_tokens"] = endpoint.max_output
    return request | dict(endpoint.sampling)


def items_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Convert messages, except the system prompt, to items of the protocol."""
    items: list[dict[str, Any]] = []
    for message in messages:
        match message.role:
            case "assistant":
                items += _replayed(message) or _text_items(message.content) + [
                    _function_call(call) for call in message.tool_calls
                ]
            case "tool":
                id = wire.call_id(message.tool_call_id or "")
                output = wire.clean(message.content)
                items.append({"type": "function_call_output", "call_id": id, "output": output})
            case "user":
                items.append({"role": "user", "content": wire.clean(message.content)})
    return items


def _text_items(text: str) -> list[dict[str, Any]]:
    if not text:
        return []
    content = [{"type": "output_text", "text": wire.clean(text), "annotations": []}]
    return [{"type": "message", "role": "assistant", "content": content}]


def _function_call(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": wire.call_id(call.id),
        "name": wire.tool_name(call.name),
        "arguments": json.dumps(wire.arguments(call.arguments), ensure_ascii=False),
    }


def _replayed(message: Message) -> list[dict[str, Any]]:
    """Return the items of an earlier reply as this provider sent them; [] if another provider
    did."""
    state = message.provider_state
    if not isinstance(state, dict) or state.get("provider") != PROVIDER:
        return []
    items: list[dict[str, Any]] = []
    for item in state["items"]:
        match item["type"]:
            case "function_call":
                items.append(_function_call(message.tool_calls[item["call"]]))
            case "message":
                items += _text_items(item["text"])
            case "reasoning" if item.get("encrypted_content"):
                items.append(item)
    # the server requires an item after each reasoning item
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    return items


@dataclass
class _Parts:
    """Reply received so far: its finished items, and the complete response at the end."""

    items: list[Any] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    ended: Any = None
    """The complete response, from the last event; None until it arrives."""
    failed: tuple[str, str] | None = None
    """Error code and text of a failed response; None if it did not fail."""

    def take(self, event: Any, on_text: OnText) -> None:
        match event.type:
            case kind if kind in TEXT:
                on_text(event.delta, "text")
            case kind if kind in REASONING:
                self.reasoning.append(event.delta)
                on_text(event.delta, "reasoning")
            case "response.output_item.done":
                self.items.append(event.item)
            case "response.completed" | "response.incomplete":
                self.ended = event.response
            case "response.failed":
                error = event.response.error
                self.failed = (
                    (error.code, error.message) if error else ("server_error", "no reason given")
                )
            case "error":
                self.failed = event.code or "error", event.message
            case _:
                on_text("", "text")

    def reply(self, price: Price | None) -> Reply:
        calls: list[ToolCall] = []
        state: list[dict[str, Any]] = []
        text = ""
        for item in self.items:
            match item.type:
                case "function_call":
                    state.append({"type": "function_call", "call": len(calls)})
                    calls.append(ToolCall(item.call_id, item.name, item.arguments or "{}"))
                case "message":
                    content = "".join(_part_text(part) for part in item.content)
                    state.append({"type": "message", "text": content})
                    text += content
                case "reasoning":
                    state.append(_reasoning(item))
        message = Message(
            "assistant",
            text,
            tuple(calls),
            reasoning="".join(self.reasoning),
            sampled=True,
            provider_state={"provider": PROVIDER, "items": state},
        )
        usage = _usage(self.ended.usage)
        return Reply(message, self._finish(bool(calls)), usage, cost_of(usage, price))

    def _finish(self, calls: bool) -> Finish:
        details = getattr(self.ended, "incomplete_details", None)
        match getattr(details, "reason", None):
            case "max_output_tokens":
                return Finish.LENGTH
            case "content_filter":
                return Finish.REFUSED
        return Finish.TOOL_CALLS if calls else Finish.STOP


def _part_text(part: Any) -> str:
    return getattr(part, "text", None) or getattr(part, "refusal", None) or ""


def _reasoning(item: Any) -> dict[str, Any]:
    """Return those fields of a reasoning item that must be sent back in later requests."""
    return {
        "type": "reasoning",
        "id": item.id,
        "summary": [{"type": "summary_text", "text": part.text} for part in item.summary or []],
        "encrypted_content": item.encrypted_content,
    }


def _usage(usage: Any) -> Usage:
    """Return the token counts in disjoint parts; `input_tokens` includes cache reads and writes."""
    if usage is None:
        return Usage()
    cached, written = wire.cached(usage.input_tokens_details)
    details = getattr(usage, "output_tokens_details", None)
    return Usage(
        input=max(0, usage.input_tokens - cached - written),
        cache_read=cached,
        cache_write=written,
        output=usage.output_tokens,
        reasoning=getattr(details, "reasoning_tokens", None) or 0,
    )
