from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cuagent.message import Message, ToolCall
from cuagent.record import close_open_calls


def assistant(*ids: str) -> Message:
    return Message("assistant", "", tuple(ToolCall(id, "bash", "{}") for id in ids))


def answer(id: str) -> Message:
    return Message("tool", "done", tool_call_id=id)


def test_unanswered_calls_are_closed_after_their_message() -> None:
    messages = [assistant("a", "b"), answer("a"), Message("user", "go on"), assistant("c")]
    closed = close_open_calls(messages)
    assert [m.tool_call_id or m.role for m in closed] == [
        "assistant",
        "a",
        "b",
        "user",
        "assistant",
        "c",
    ]
    assert closed[2].is_error
    assert not closed[2].sampled
    assert closed[2].data == {"interrupted": True}


def test_stray_and_second_answers_are_dropped() -> None:
    closed = close_open_calls([answer("x"), assistant("a"), answer("a"), answer("a")])
    assert [m.tool_call_id for m in closed] == [None, "a"]


def test_complete_conversation_is_unchanged() -> None:
    complete = [Message("user", "go"), assistant("a", "b"), answer("a"), answer("b")]
    assert close_open_calls(complete) == complete


ANYTHING = st.one_of(
    st.lists(st.sampled_from("abcd"), max_size=3, unique=True).map(lambda ids: assistant(*ids)),
    st.sampled_from("abcd").map(answer),
    st.just(Message("user", "hello")),
)


@given(st.lists(ANYTHING, max_size=20))
def test_every_call_gets_one_answer_directly_after_it(messages: list[Message]) -> None:
    closed = close_open_calls(messages)
    for index, message in enumerate(closed):
        ids = [call.id for call in message.tool_calls]
        answers = [m.tool_call_id for m in closed[index + 1 : index + 1 + len(ids)]]
        assert sorted(answers, key=str) == sorted(ids)
    assert sum(m.role == "tool" for m in closed) == sum(len(m.tool_calls) for m in closed)
    assert close_open_calls(closed) == closed
