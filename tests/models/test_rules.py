"""Whatever a conversation went through, what is sent keeps the three protocols' rules.

The rules are those whose breach makes every later request fail: see the error texts quoted in
the assertions.
"""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from cuagent.message import Message, ToolCall
from cuagent.models import anthropic, openai, responses
from cuagent.models.endpoint import ANTHROPIC, OPENAI
from cuagent.record import close_open_calls

TEXT = st.one_of(st.sampled_from(["", " \n", "hello", "\ud800", "a\0b"]), st.text(max_size=8))
NAMES = st.one_of(st.sampled_from(["bash", "read"]), st.text(max_size=5))
ARGUMENTS = st.one_of(st.just('{"a": 1}'), st.just("[1]"), st.just('{"a'), st.text(max_size=5))
STATES = st.sampled_from(
    [
        None,
        {"provider": "anthropic", "blocks": []},
        {"provider": "anthropic", "blocks": [{"type": "thinking", "thinking": "t"}]},
        {
            "provider": "anthropic",
            "blocks": [{"type": "thinking", "thinking": "t", "signature": "s"}],
        },
        {"provider": "openai-responses", "items": []},
        {
            "provider": "openai-responses",
            "items": [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "e"}],
        },
        {"provider": "other", "blocks": 3},
    ]
)


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """A prefix of a conversation as the loop makes it, broken off anywhere."""
    messages = [Message("system", draw(TEXT)), Message("user", draw(TEXT))]
    for turn in range(draw(st.integers(0, 5))):
        count = draw(st.integers(0, 3))
        calls = tuple(ToolCall(f"t{turn}_{n}", draw(NAMES), draw(ARGUMENTS)) for n in range(count))
        state = draw(STATES) if not calls else None
        messages.append(Message("assistant", draw(TEXT), calls, provider_state=state))
        messages += [Message("tool", draw(TEXT), tool_call_id=call.id) for call in calls]
        if draw(st.booleans()):
            messages.append(Message("user", draw(TEXT)))
    return messages[: draw(st.integers(0, len(messages)))]


@given(turns())
def test_openai_accepts_what_an_interrupt_leaves(messages: list[Message]) -> None:
    sent = openai.request_of("m", close_open_calls(messages), [], OPENAI)["messages"]
    json.dumps(sent).encode("utf-8")
    expected: list[str] = []
    for message in sent:
        if message["role"] == "tool":
            # "messages with role 'tool' must be a response to a preceding message with tool_calls"
            assert message["tool_call_id"] in expected
            expected.remove(message["tool_call_id"])
            continue
        # "an assistant message with 'tool_calls' must be followed by tool messages"
        assert not expected
        if message["role"] == "assistant":
            assert message["content"] or message.get("tool_calls")
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"])
            expected.append(call["id"])
    assert not expected


@given(turns())
def test_anthropic_accepts_what_an_interrupt_leaves(messages: list[Message]) -> None:
    request = anthropic.request_of("m", close_open_calls(messages), [], ANTHROPIC)
    json.dumps(request).encode("utf-8")
    sent = request["messages"]
    assert sum("cache_control" in b for m in sent for b in m["content"]) <= 2
    open_calls: list[str] = []
    for place, message in enumerate(sent):
        # "roles must alternate", the first is the user's, no message is empty
        assert message["role"] == ("assistant" if place % 2 else "user")
        assert message["content"]
        kinds = [block["type"] for block in message["content"]]
        answered = [b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"]
        # "`tool_use` ids were found without `tool_result` blocks immediately after"
        assert sorted(answered) == sorted(open_calls)
        assert kinds == sorted(kinds, key="tool_result".__ne__) or message["role"] == "assistant"
        # "text content blocks must contain non-whitespace text"
        assert all(b["text"].strip() for b in message["content"] if b["type"] == "text")
        assert all(b.get("signature") for b in message["content"] if b["type"] == "thinking")
        calls = [b for b in message["content"] if b["type"] == "tool_use"]
        assert all(isinstance(b["input"], dict) for b in calls)
        open_calls = [b["id"] for b in calls]
    assert not open_calls


@given(turns())
def test_responses_accepts_what_an_interrupt_leaves(messages: list[Message]) -> None:
    request = responses.request_of("m", close_open_calls(messages), [], OPENAI)
    json.dumps(request).encode("utf-8")
    open_calls: list[str] = []
    thinking = False
    for item in request["input"]:
        kind = item.get("type", item.get("role"))
        # "reasoning was provided without its required following item"
        assert not thinking or kind in ("message", "function_call")
        thinking = kind == "reasoning"
        if kind == "function_call_output":
            # "no tool call found for function call output"
            open_calls.remove(item["call_id"])
        elif kind == "function_call":
            assert isinstance(json.loads(item["arguments"]), dict)
            open_calls.append(item["call_id"])
        elif kind == "user":
            # "no tool output found for function call"
            assert not open_calls
    assert not thinking
    assert not open_calls
