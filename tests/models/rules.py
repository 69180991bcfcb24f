"""Assert that a request follows the provider's rules, because a violation in the history makes
every later request fail.

The quoted texts are the servers' error messages.
"""

from __future__ import annotations

import json
import re
from typing import Any


def check_openai(request: dict[str, Any]) -> None:
    """Check a chat completions request."""
    json.dumps(request).encode("utf-8")
    expected: list[str] = []
    for message in request["messages"]:
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


def check_responses(request: dict[str, Any]) -> None:
    """Check a Responses API request."""
    json.dumps(request).encode("utf-8")
    open_calls: list[str] = []
    thinking = False
    for item in request["input"]:
        kind = item.get("type", item.get("role"))
        # "reasoning was provided without its required following item"
        assert not thinking or kind in ("message", "function_call")
        thinking = kind == "reasoning"
        match kind:
            case "function_call_output":
                # "no tool call found for function call output"
                open_calls.remove(item["call_id"])
            case "function_call":
                assert isinstance(json.loads(item["arguments"]), dict)
                open_calls.append(item["call_id"])
            case "user":
                # "no tool output found for function call"
                assert not open_calls
    assert not thinking
    assert not open_calls


def check_anthropic(request: dict[str, Any]) -> None:
    """Check an Anthropic messages request."""
    json.dumps(request).encode("utf-8")
    sent = request["messages"]
    assert sum("cache_control" in b for m in sent for b in m["content"]) <= 2
    open_calls: list[str] = []
    for place, message in enumerate(sent):
        # "roles must alternate"; the first message is the user's, and none is empty
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
