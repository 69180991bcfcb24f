"""Test the chat template: appending, saving, parsing of calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuagent.training.data.segments import RecordError
from cuagent.training.policy.chat import Chat, load_chat


def test_chat_refuses_templates_without_the_turn_or_its_end(chat: Chat) -> None:
    from transformers import PreTrainedTokenizerFast

    rewriting = chat.tokenizer.chat_template.replace(
        "{{ m.content }}", "{{ m.content if loop.last or m.role != 'assistant' else '' }}"
    )
    other = PreTrainedTokenizerFast(
        tokenizer_object=chat.tokenizer.backend_tokenizer,
        eos_token="<|im_end|>",
        chat_template=rewriting,
    )
    with pytest.raises(RecordError, match="rewrites the text of an assistant turn"):
        Chat(other)
    other.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(RecordError, match="does not end a turn with"):
        Chat(other)
    other.chat_template = None
    with pytest.raises(RecordError, match="no chat template"):
        Chat(other)


def test_saved_chat_loads_unchanged(chat: Chat, tmp_path: Path) -> None:
    chat.save(tmp_path)
    again = load_chat(tmp_path)
    assert again.fingerprint == chat.fingerprint
    text = 'for (int i = 0; i < n; ++i) y[i] = "é\\n\t";  // <|im_end|>'
    assert again.encode(text) == chat.encode(text)
    assert again.tokenizer.decode(list(chat.encode(text))) == text


@pytest.mark.parametrize(
    ("said", "calls"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a":  1}}</tool_call>', [("f", '{"a":  1}')]),
        ('a <tool_call>{"name": "f", "arguments": {}}', [("f", "{}")]),
        ("<tool_call>{broken</tool_call>", [("unparsable", "{broken")]),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>',
         [("unparsable", '{"name": 3, "arguments": {}}')]),
        ("no call", []),
    ],
)  # fmt: skip
def test_parsed_calls_keep_their_bytes(chat: Chat, said: str, calls: list[tuple[str, str]]) -> None:
    message = chat.parse((*chat.encode(said), chat.end))
    assert [(c.name, c.arguments) for c in message.tool_calls] == calls
