"""Convert messages to token ids and back with the model's own chat template.

It renders the prompt of a conversation and the text between two turns of the policy, and parses
sampled ids into a message. A sampled turn is never rendered again: templates rewrite earlier turns
(drop reasoning, serialize calls again), and the policy would then train on text that it never saw.
Text after a turn is therefore rendered behind a fixed placeholder conversation. Tool calls are in
the Hermes form, as in Qwen's models: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
Not covered: which tokens count in a loss (`segments.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from cuagent.message import Message, ToolCall
from cuagent.models.model import ToolSpec
from cuagent.training.segments import Kind, RecordError, Segment

PLACEHOLDER = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
THINKING = re.compile(r"\A\s*<think>(.*?)</think>\s*", re.DOTALL)
UNPARSABLE = "unparsable"
"""Name of a call that cannot be parsed. No tool has it, so the loop answers with an error."""


class Chat:
    """A tokenizer with its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        if tokenizer.chat_template is None or tokenizer.eos_token is None:
            raise RecordError(
                f"the tokenizer of {tokenizer.name_or_path} has no chat template or no eos_token; "
                "use an instruction-tuned model"
            )
        self.end_text: str = tokenizer.eos_token
        self.end: int = tokenizer.eos_token_id
        self.pad: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.end
        closed = self.render(PLACEHOLDER)
        if self.end_text not in closed:
            raise RecordError(
                f"the chat template of {tokenizer.name_or_path} does not end a turn with "
                f"{self.end_text}, the tokenizer's eos_token; set eos_token to the template's token"
            )
        self._prefix = closed[: closed.rindex(self.end_text) + len(self.end_text)]
        """The rendered placeholder conversation, up to the policy's end-of-turn token."""
        self.check()

    def check(self) -> None:
        """Raise RecordError unless the template only appends to earlier turns.

        TRL and verl make the same demand.
        """
        later = [*PLACEHOLDER, {"role": "tool", "content": "."}]
        if not self.render(later, generate=True).startswith(self._prefix):
            raise RecordError(
                f"the chat template of {self.tokenizer.name_or_path or 'this tokenizer'} rewrites "
                "an assistant turn when a tool result follows; use one that only appends"
            )

    @cached_property
    def fingerprint(self) -> str:
        """Hash (sha256, 16 digits) of vocabulary and template; identifies the tokenizer of a
        record."""
        parts = [sorted(self.tokenizer.get_vocab().items()), self.tokenizer.chat_template]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSpec] = (),
        generate: bool = False,
    ) -> str:
        """Return the template's text; with `generate`, up to where an assistant turn begins."""
        specs = [
            {
                "type": "function",
                "function": {
                    "name": t.name,
                    "description": t.description,
                    "parameters": dict(t.schema),
                },
            }
            for t in tools
        ]
        return self.tokenizer.apply_chat_template(
            list(messages), tools=specs or None, tokenize=False, add_generation_prompt=generate
        )

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the prompt of a context window, up to the policy's first turn."""
        return self.encode(
            self.render([template_message(m) for m in messages], tools, generate=True)
        )

    def continuation_ids(self, messages: Sequence[Message], ended: bool) -> tuple[int, ...]:
        """Return the ids between the policy's last turn and its next one.

        `messages` are the new tool results and other messages. `ended` is True if the policy
        sampled its end-of-turn token; a turn that was cut off gets the token from here.
        """
        later = self.render([*PLACEHOLDER, *(template_message(m) for m in messages)], generate=True)
        if not later.startswith(self._prefix):
            raise RecordError(
                "the chat template does not append to earlier turns; use one that does"
            )
        return self.encode(("" if ended else self.end_text) + later[len(self._prefix) :])

    def assistant_ids(self, message: Message) -> tuple[int, ...]:
        """Return an assistant message as the policy would sample it, including the end-of-turn
        token.

        Used for runs of API models, whose token ids are unknown.
        """
        before = self.render(PLACEHOLDER[:1], generate=True)
        whole = self.render([PLACEHOLDER[0], template_message(message)])
        if not whole.startswith(before) or self.end_text not in whole[len(before) :]:
            raise RecordError(
                "the chat template does not begin or end an assistant turn as expected"
            )
        return self.encode(whole[len(before) : whole.rindex(self.end_text) + len(self.end_text)])

    def segments(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[Segment, ...]:
        """Convert a text conversation to segments.

        `Message.sampled` decides which tokens are actions, never the template. Raises RecordError
        if no message was sampled.
        """
        first = next((i for i, m in enumerate(messages) if m.sampled), None)
        if first is None:
            raise RecordError("no message was sampled")
        found = [Segment(Kind.PROMPT, self.prompt_ids(messages[:first], tools))]
        since: list[Message] = []
        for message in messages[first:]:
            if message.sampled:
                if len(found) > 1:
                    found.append(
                        Segment(Kind.OBSERVATION, self.continuation_ids(since, ended=True))
                    )
                found.append(Segment(Kind.ACTION, self.assistant_ids(message)))
                since = []
            else:
                since.append(message)
        return tuple(found)

    def parse(self, ids: Sequence[int]) -> Message:
        """Parse sampled ids into a message; malformed calls keep their text so that the loop can
        answer them."""
        content_ids = ids[:-1] if ids and ids[-1] == self.end else ids
        text = self.tokenizer.decode(list(content_ids), skip_special_tokens=False)
        thinking = THINKING.match(text)
        answer = text[thinking.end() :] if thinking else text
        calls = tuple(
            parse_call(block, f"c{n}") for n, block in enumerate(BLOCK.findall(answer), start=1)
        )
        content = answer.partition("<tool_call>")[0].strip()
        reasoning = thinking.group(1).strip() if thinking else ""
        return Message("assistant", content, calls, reasoning=reasoning, sampled=True)

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)


def load_chat(folder: str | Path) -> Chat:
    """Load the tokenizer of a Hugging Face folder or name."""
    from transformers import AutoTokenizer

    return Chat(AutoTokenizer.from_pretrained(folder))


def parse_call(block: str, id: str) -> ToolCall:
    """Parse one `{"name": ..., "arguments": ...}`; the arguments stay byte for byte."""
    reader = json.JSONDecoder(strict=False)
    try:
        whole = reader.decode(block.strip())
        name, arguments = whole["name"], whole["arguments"]
        start = re.search(r'"arguments"\s*:\s*', block)
        assert start is not None
        value, end = reader.raw_decode(block, start.end())
    except (ValueError, KeyError, TypeError, RecursionError):
        return ToolCall(id, UNPARSABLE, block.strip())
    if not isinstance(name, str):
        return ToolCall(id, UNPARSABLE, block.strip())
    raw = block[start.end() : end] if value == arguments else json.dumps(arguments)
    return ToolCall(id, name, raw)


def template_message(message: Message) -> dict[str, Any]:
    """Convert a message to the dictionary that chat templates expect."""
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "type": "function",
                "id": c.id,
                "function": {"name": c.name, "arguments": parsed_arguments(c)},
            }
            for c in message.tool_calls
        ]
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    return found


def parsed_arguments(call: ToolCall) -> Any:
    """Return the arguments as an object if they are JSON: templates serialize them themselves."""
    try:
        return json.loads(call.arguments or "{}", strict=False)
    except (ValueError, RecursionError):
        return call.arguments


TEMPLATE = """\
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}
{%- for c in m.tool_calls or [] -%}
{%- if m.content or not loop.first %}
{% endif -%}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""
"""ChatML with Hermes calls, without tool schemas: a small model learns the tools from examples."""

SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")


class Pieces(StrEnum):
    """The largest unit that one token of a newly trained tokenizer may hold."""

    WORDS = "words"
    """A word, a number, an operator."""
    LINES = "lines"
    """A line. A kernel is then about twenty tokens, and two cores can train on it in minutes."""


SPLITS = {
    Pieces.WORDS: r"\\[nt\"\\]| ?[A-Za-z_]+| ?[0-9]+| +(?!\S)| ?[^\sA-Za-z0-9_\\]{1,3}|\s+|\\",
    Pieces.LINES: r"(?:[^\\\n]|\\[^n])*(?:\\n|\n)|(?:[^\\\n]|\\[^n])+",
}


def train_tokenizer(texts: Iterable[str], vocabulary: int, pieces: Pieces = Pieces.WORDS) -> Chat:
    """Train a byte-level BPE tokenizer that uses the template above.

    A pattern splits the text first; without it BPE would memorize whole kernels as one token.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLITS[pieces]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return Chat(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token=SPECIAL[0],
            bos_token=None,
            eos_token=SPECIAL[2],
            additional_special_tokens=[SPECIAL[1], *SPECIAL[3:]],
            chat_template=TEMPLATE,
            clean_up_tokenization_spaces=False,
        )
    )
