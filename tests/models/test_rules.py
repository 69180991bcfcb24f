"""Requests keep the rules of the three protocols for any history of the conversation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rules import check_anthropic, check_openai, check_responses

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
    """Draw a prefix of a conversation as the loop makes it, cut at any point."""
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
    check_openai(openai.request_of("m", close_open_calls(messages), [], OPENAI))


@given(turns())
def test_responses_accepts_what_an_interrupt_leaves(messages: list[Message]) -> None:
    check_responses(responses.request_of("m", close_open_calls(messages), [], OPENAI))


@given(turns())
def test_anthropic_accepts_what_an_interrupt_leaves(messages: list[Message]) -> None:
    check_anthropic(anthropic.request_of("m", close_open_calls(messages), [], ANTHROPIC))
