"""Call models through Anthropic's messages protocol: streamed, cached, with thinking replayed.

The order of a reply's blocks (thinking, text, calls) is kept in `provider_state` with the
signatures, and sent back unchanged, as the server requires within a tool cycle. The four cache
breakpoints are on the last tool, the system prompt and the last two user messages.
Not covered: images, server-side tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cuagent.message import Finish, Message, Reply, ToolCall, Usage
from cuagent.models import wire
from cuagent.models.endpoint import ANTHROPIC, CONNECT_TIMEOUT, Dropped, Endpoint
from cuagent.models.model import OnText, ToolSpec
from cuagent.models.prices import Price, cost_of
from cuagent.models.served import Served

if TYPE_CHECKING:
    import anthropic

BREAKPOINT = {"cache_control": {"type": "ephemeral"}}
FINISHES = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "tool_use": Finish.TOOL_CALLS,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "refusal": Finish.REFUSED,
}


class AnthropicModel(Served):
    """A model behind a server with Anthropic's messages protocol."""

    default_endpoint = ANTHROPIC

    def connect(self) -> tuple[ModuleType, anthropic.Anthropic]:
        import anthropic

        client = anthropic.Anthropic(
            api_key=self.endpoint.key(),
            base_url=self.endpoint.base_url,
            max_retries=0,  # `endpoint.ask` retries, also after a broken stream
            timeout=anthropic.Timeout(
                self.endpoint.stall, connect=min(self.endpoint.stall, CONNECT_TIMEOUT)
            ),
        )
        return anthropic, client

    def once(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Callable[[], Reply]:
        request = request_of(self.model, messages, tools, self.endpoint)

        def ask() -> Reply:
            with self._client.messages.create(**request) as stream:
                return self._collect(stream, on_text)

        return ask

    def _collect(self, stream: Iterable[Any], on_text: OnText) -> Reply:
        parts = _Parts()
        for event in stream:
            parts.take(event, on_text)
        if parts.stop is None:
            raise Dropped("the reply broke off")
        return parts.reply(self.price)


def request_of(
    model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], endpoint: Endpoint
) -> dict[str, Any]:
    """Return the arguments of the SDK's `messages.create` for one request."""
    system, sent = messages_of(messages)
    request: dict[str, Any] = {
        "model": model,
        "max_tokens": endpoint.max_output or ANTHROPIC.max_output,
        "messages": sent,
        "stream": True,
    }
    if system:
        request["system"] = [{"type": "text", "text": system, **BREAKPOINT}]
    if tools:
        request["tools"] = [
            {"name": t.name, "description": t.description, "input_schema": dict(t.schema)}
            for t in tools
        ]
        request["tools"][-1] |= BREAKPOINT
    return request | dict(endpoint.sampling)


def messages_of(messages: Sequence[Message]) -> tuple[str, list[dict[str, Any]]]:
    """Convert messages to the protocol's form; return the system prompt and the other messages.

    Adjacent messages of one role are merged. So all tool results of one turn are in one user
    message, before the text of the next one.
    """
    system = "\n\n".join(wire.clean(m.content) for m in messages if m.role == "system")
    sent: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"] += blocks
        elif blocks:
            sent.append({"role": role, "content": blocks})
    if sent and sent[0]["role"] == "assistant":
        sent.insert(0, {"role": "user", "content": [{"type": "text", "text": "Begin."}]})
    for turn in [m for m in sent if m["role"] == "user"][-2:]:
        turn["content"][-1] = turn["content"][-1] | BREAKPOINT
    return system, sent


def _blocks(message: Message) -> list[dict[str, Any]]:
    match message.role:
        case "tool":
            result = {
                "type": "tool_result",
                "tool_use_id": wire.call_id(message.tool_call_id or ""),
                "content": wire.clean(message.content) or "(no output)",
            }
            return [result | {"is_error": True} if message.is_error else result]
        case "assistant":
            return _replayed(message) or _text(message.content) + [
                _tool_use(call) for call in message.tool_calls
            ]
        case _:
            return _text(message.content)


def _text(text: str) -> list[dict[str, Any]]:
    # the server refuses a block that is only white space
    return [{"type": "text", "text": wire.clean(text)}] if text.strip() else []


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": wire.call_id(call.id),
        "name": wire.tool_name(call.name),
        "input": wire.arguments(call.arguments),
    }


def _replayed(message: Message) -> list[dict[str, Any]]:
    """Return the blocks of an earlier reply as this provider sent them; [] if another provider
    did."""
    state = message.provider_state
    if not isinstance(state, dict) or state.get("provider") != "anthropic":
        return []
    blocks = []
    for block in state["blocks"]:
        match block["type"]:
            case "tool_use":
                blocks.append(_tool_use(message.tool_calls[block["call"]]))
            case "text":
                blocks += _text(block["text"])
            case "thinking" if not block.get("signature"):
                continue  # incomplete; the server refuses unsigned thinking
            case _:
                blocks.append(block)
    # the server refuses a turn of thinking alone
    return blocks if any(b["type"] in ("text", "tool_use") for b in blocks) else []


@dataclass
class _Parts:
    """Reply received so far: its blocks by index, each with the text so far."""

    blocks: dict[int, dict[str, Any]] = field(default_factory=dict)
    stop: str | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def take(self, event: Any, on_text: OnText) -> None:
        match event.type:
            case "message_start":
                self._count(event.message.usage)
            case "content_block_start":
                self.blocks[event.index] = _opened(event.content_block)
            case "content_block_delta":
                self._delta(self.blocks[event.index], event.delta, on_text)
            case "message_delta":
                self.stop = event.delta.stop_reason or self.stop
                self._count(event.usage)

    def _delta(self, block: dict[str, Any], delta: Any, on_text: OnText) -> None:
        match delta.type:
            case "text_delta":
                block["text"] += delta.text
                on_text(delta.text, "text")
            case "thinking_delta":
                block["thinking"] += delta.thinking
                on_text(delta.thinking, "reasoning")
            case "signature_delta":
                block["signature"] += delta.signature
            case "input_json_delta":
                block["arguments"] += delta.partial_json
                on_text("", "text")

    def _count(self, usage: Any) -> None:
        """Update the token counts. The server's values are cumulative, so each replaces the
        last."""
        for name in (
            "input_tokens",
            "output_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
        ):
            value = getattr(usage, name, None)
            if value is not None:
                self.counts[name] = value

    def reply(self, price: Price | None) -> Reply:
        blocks = [block for _, block in sorted(self.blocks.items())]
        calls: list[dict[str, Any]] = []
        state: list[dict[str, Any]] = []
        for block in blocks:
            if block["type"] == "tool_use":
                state.append({"type": "tool_use", "call": len(calls)})
                calls.append(block)
            else:
                state.append(block)
        message = Message(
            "assistant",
            "".join(b["text"] for b in blocks if b["type"] == "text"),
            tuple(ToolCall(c["id"], c["name"], c["arguments"] or "{}") for c in calls),
            reasoning="\n".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
            sampled=True,
            provider_state={"provider": "anthropic", "blocks": state},
        )
        usage = Usage(
            input=self.counts.get("input_tokens", 0),
            cache_read=self.counts.get("cache_read_input_tokens", 0),
            cache_write=self.counts.get("cache_creation_input_tokens", 0),
            output=self.counts.get("output_tokens", 0),
        )
        finish = FINISHES.get(self.stop or "", Finish.STOP)
        return Reply(message, finish, usage, cost_of(usage, price))


def _opened(block: Any) -> dict[str, Any]:
    match block.type:
        case "text":
            return {"type": "text", "text": block.text or ""}
        case "thinking":
            return {
                "type": "thinking",
                "thinking": block.thinking or "",
                "signature": getattr(block, "signature", None) or "",
            }
        case "tool_use":
            start = json.dumps(block.input) if block.input else ""
            return {"type": "tool_use", "id": block.id, "name": block.name, "arguments": start}
        case _:
            fields: dict[str, Any] = block.model_dump(exclude_none=True)
            return fields
