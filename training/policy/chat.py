"""Convert messages to token ids and back with the model's own chat template.

`Chat` renders the prompt of a conversation and the text between two turns of the policy, and parses
sampled ids into a message. A sampled turn is never rendered again: templates rewrite earlier turns
(Qwen3's drops their reasoning), and the policy would then train on text that it never saw. Instead,
the text after a turn is rendered after a fixed placeholder conversation, which is then cut off. So
it does not matter what the template does with earlier turns. Text of tools and users cannot become
control tokens: where it spells one, it is encoded in two pieces (`cut_controls`).
Not covered: which tokens count in a loss (`segments.py`), forms of tool calls (`tool_calls.py`).
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
from cuagent.training.data.segments import Kind, RecordError, Segment
from cuagent.training.policy.tool_calls import PROBE, Form, form_of, parse_calls

TURN = "placeholder-of-the-last-turn"
PLACEHOLDER = [{"role": "user", "content": "?"}, {"role": "assistant", "content": TURN}]
THINKING = re.compile(r"\A\s*<think>(.*?)</think>\s*", re.DOTALL)
CUT = "\ufdd0"
"""Character that marks where `Chat.encode` splits a text: a code point that Unicode reserves as a
noncharacter."""


class Chat:
    """A tokenizer with its chat template: converts messages to token ids and sampled ids to
    messages."""

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
        self.controls = control_pattern(tokenizer)
        self.check()

    def check(self) -> None:
        """Raise RecordError unless training can use the chat template.

        The template must end turns with eos_token, render tool results after a turn, and write
        calls in a known form.
        """
        self.continuation_text([Message("tool", ".", tool_call_id="c1")])
        _ = self.form

    @cached_property
    def form(self) -> Form:
        """Text form of the tool calls that the template renders. Raises RecordError if the form is
        unknown."""
        call = self.to_template(Message("assistant", "", (PROBE,)))
        found = form_of(self.render([PLACEHOLDER[0], call]))
        if found is None:
            raise RecordError(
                f"the chat template of {self.name} renders tool calls in an unknown form; "
                f"known are {', '.join(Form)}"
            )
        return found

    @cached_property
    def takes_text_arguments(self) -> bool:
        """True if the template expects a call's arguments as JSON text (as DeepSeek's does), not as
        an object."""
        call = template_message(Message("assistant", "", (PROBE,)))
        try:
            self.render([PLACEHOLDER[0], call])
        except TypeError:
            return True
        return False

    def to_template(self, message: Message) -> dict[str, Any]:
        """Convert a message to the dictionary that this chat template expects."""
        return template_message(message, self.takes_text_arguments)

    @cached_property
    def opens_thinking(self) -> bool:
        """True if the prompt ends with the tag `<think>`, so that the policy does not sample this
        tag."""
        return self.render(PLACEHOLDER[:1], generate=True).rstrip().endswith("<think>")

    @property
    def name(self) -> str:
        return self.tokenizer.name_or_path or "this tokenizer"

    @cached_property
    def fingerprint(self) -> str:
        """Hash (16 hex digits) of vocabulary and template, by which records name their
        tokenizer."""
        parts = [sorted(self.tokenizer.get_vocab().items()), self.tokenizer.chat_template]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSpec] = (),
        generate: bool = False,
    ) -> str:
        """Return the text of messages as the chat template renders it; `generate`: also begin an
        assistant turn."""
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
        from jinja2 import TemplateError

        try:
            return self.tokenizer.apply_chat_template(
                list(messages), tools=specs or None, tokenize=False, add_generation_prompt=generate
            )
        except TemplateError as error:  # e.g. Llama 3 renders one call for each turn only
            raise RecordError(f"the chat template of {self.name} refuses: {error}") from error

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text; pieces that `CUT` separates are encoded separately."""
        pieces = text.split(CUT)
        return tuple(
            i for piece in pieces for i in self.tokenizer.encode(piece, add_special_tokens=False)
        )

    def shown(self, message: Message) -> dict[str, Any]:
        """Convert a message to the template's dictionary, with `CUT` inside each text that spells a
        control token.

        So tool output and user text cannot become control tokens.
        """
        return cut_controls(self.to_template(message), self.controls)

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the token ids of a context window's prompt, up to the start of the policy's first
        turn."""
        return self.encode(self.render([self.shown(m) for m in messages], tools, generate=True))

    def continuation_ids(self, messages: Sequence[Message], ended: bool) -> tuple[int, ...]:
        """Return the token ids to insert between the policy's last turn and its next one.

        `messages`: tool results and other messages between the two turns. `ended`: True if the
        policy sampled its end-of-turn token; otherwise the result begins with this token.
        """
        return self.encode(("" if ended else self.end_text) + self.continuation_text(messages))

    def continuation_text(self, messages: Sequence[Message]) -> str:
        """Return the rendered text between a turn's end-of-turn token and the next turn.

        `messages` are those between the two turns.
        """
        whole = self.render([*PLACEHOLDER, *(self.shown(m) for m in messages)], generate=True)
        _, turn, later = whole.rpartition(TURN)
        if not turn:
            raise RecordError(
                f"the chat template of {self.name} rewrites the text of an assistant turn when a "
                "tool result follows; use one that keeps it"
            )
        _, end, text = later.partition(self.end_text)
        if not end:
            raise RecordError(
                f"the chat template of {self.name} does not end a turn with "
                f"{self.end_text}, the tokenizer's eos_token; set eos_token to the template's token"
            )
        return text

    def assistant_ids(self, message: Message) -> tuple[int, ...]:
        """Return the token ids of an assistant message, including the end-of-turn token.

        It is used for runs of API models, whose token ids are unknown.
        """
        before = self.render(PLACEHOLDER[:1], generate=True)
        whole = self.render([PLACEHOLDER[0], self.shown(message)])
        if not whole.startswith(before) or self.end_text not in whole[len(before) :]:
            raise RecordError(
                "the chat template does not begin or end an assistant turn as expected"
            )
        return self.encode(whole[len(before) : whole.rindex(self.end_text) + len(self.end_text)])

    def segments(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[Segment, ...]:
        """Convert a conversation of messages to token segments.

        `Message.sampled` alone decides which tokens are actions. Raises RecordError if no message
        was sampled.
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

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Message:
        """Parse sampled token ids into a message.

        A malformed tool call becomes a call of `unparsable` with its text. `tools`: specifications
        that give the types of parameters in XML calls, which are text.
        """
        content_ids = ids[:-1] if ids and ids[-1] == self.end else ids
        text = self.tokenizer.decode(list(content_ids), skip_special_tokens=False)
        if self.opens_thinking:
            text = "<think>" + text
        thinking = THINKING.match(text)
        answer = text[thinking.end() :] if thinking else text
        content, calls = parse_calls(answer, self.form, tools)
        reasoning = thinking.group(1).strip() if thinking else ""
        return Message("assistant", content.strip(), calls, reasoning=reasoning, sampled=True)

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)


def load_chat(folder: str | Path) -> Chat:
    """Load the tokenizer of a policy, given its Hugging Face folder or name."""
    from transformers import AutoTokenizer

    return Chat(AutoTokenizer.from_pretrained(folder))


def control_pattern(tokenizer: Any) -> re.Pattern[str] | None:
    """Return a pattern of the texts of added tokens, such as `<|im_end|>`; None if there are none.

    Added tokens of white space or of one character are left out, because they control nothing.
    """
    added = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
    texts = sorted((t for t in added if len(t.strip()) > 1), key=lambda t: (-len(t), t))
    return re.compile("|".join(map(re.escape, texts))) if texts else None


def cut_controls(value: Any, controls: re.Pattern[str] | None) -> Any:
    """Return `value` with `CUT` inserted into each text that would become a control token.

    `value`: a message, or any part of one (mapping, list, text).
    """
    if isinstance(value, str):
        clean = value.replace(CUT, "\ufffd")
        return (
            clean if controls is None else controls.sub(lambda m: m[0][0] + CUT + m[0][1:], clean)
        )
    if isinstance(value, Mapping):
        return {key: cut_controls(inner, controls) for key, inner in value.items()}
    if isinstance(value, list):
        return [cut_controls(inner, controls) for inner in value]
    return value


def template_message(message: Message, text_arguments: bool = False) -> dict[str, Any]:
    """Convert a message to the dictionary that chat templates expect.

    `text_arguments`: True to keep the arguments of calls as JSON text.
    """
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "type": "function",
                "id": c.id,
                "function": {
                    "name": c.name,
                    "arguments": (c.arguments or "{}") if text_arguments else parsed_arguments(c),
                },
            }
            for c in message.tool_calls
        ]
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    return found


def parsed_arguments(call: ToolCall) -> Any:
    """Return a tool call's arguments as an object, or as text if they are not JSON. Chat templates
    serialize objects themselves."""
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
"""Chat template (Jinja): ChatML with Hermes calls. It shows no tool schemas: a small model learns
the tools from examples."""

SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")


class Pieces(StrEnum):
    """Unit of text that one token of a newly trained tokenizer may not exceed."""

    WORDS = "words"
    """A word, a number, or an operator."""
    LINES = "lines"
    """A whole line. A kernel then has about twenty tokens, so two cores can train the demo's policy
    in minutes."""


SPLITS = {
    Pieces.WORDS: r"\\[nt\"\\]| ?[A-Za-z_]+| ?[0-9]+| +(?!\S)| ?[^\sA-Za-z0-9_\\]{1,3}|\s+|\\",
    Pieces.LINES: r"(?:[^\\\n]|\\[^n])*(?:\\n|\n)|(?:[^\\\n]|\\[^n])+",
}


def train_tokenizer(texts: Iterable[str], vocabulary: int, pieces: Pieces = Pieces.WORDS) -> Chat:
    """Train a byte-level BPE tokenizer with `vocabulary` tokens; its chat template is `TEMPLATE`.

    A pattern first splits the text into `pieces`; without it BPE would make whole kernels one
    token.
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
