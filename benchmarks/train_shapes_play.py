"""Provide the tasks, the tokenizer and the turns of the episodes of `train_shapes.py`.

`Scripted` lets the policy sample the first tokens of every turn and dictates the tool call after
them. The calls are real ones: they show parts of a text, write a candidate, judge it, submit it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cuagent.task import Task
from cuagent.training.engines.engine import Engine, Request, Sampled
from cuagent.training.policy.chat import Chat, train_tokenizer

DICTATED = -12.34375
"""Log-probability that marks dictated tokens; it is exact in fp32."""
ROOT = Path(__file__).parents[1]
NOTES = "notes.txt"
MOST_NOTES = 500_000
"""Largest number of characters of the text that the episodes read."""
FIRST_REPLY = 64
"""Number of tokens that the policy samples in the first turn."""
MOST_REPLY = 512
"""Largest number of tokens that the policy samples in a turn."""
SOURCE = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * {number}


def get_inputs():
    return [torch.randn(256, 256)]


def get_init_inputs():
    return []
"""
CANDIDATE = SOURCE.split("\n\n\ndef ")[0].replace("Model(", "ModelNew(") + "\n"
TEMPLATE = """\
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else -%}
<|im_start|>{{ m.role }}
{{ m.content }}
{%- if loop.first and tools %}

# Tools
{%- for t in tools %}
{{ t | tojson }}
{%- endfor -%}
{%- endif -%}
{%- for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""
"""Chat template with the schemas of the tools and Hermes calls, as Qwen2.5 has them."""


def texts() -> Iterator[str]:
    """Yield the texts of the project's documents and sources."""
    for pattern in ("docs/**/*.md", "cuagent/**/*.md", "cuagent/**/*.py", "training/**/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            yield path.read_text(encoding="utf-8")


def make_chat(vocabulary: int) -> Chat:
    """Train a tokenizer on the project's texts. It may have fewer tokens than the model's
    vocabulary."""
    chat = train_tokenizer(texts(), min(vocabulary, 16384))
    chat.tokenizer.chat_template = TEMPLATE
    return Chat(chat.tokenizer)


def task_folder(folder: Path, count: int = 4) -> Path:
    """Write `count` small tasks to a folder and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"scaled_relu_{number}.py").write_text(SOURCE.format(number=number + 2))
    return folder


class Scripted:
    """An `Engine` whose turns consist of `reply` sampled tokens and then a dictated tool call.

    An episode has `turns` turns; the tools' output is as long as the rest of `context` allows. The
    turn's number is part of a request's seed (`TokenModel`).
    """

    needs_batches = False

    def __init__(
        self,
        engine: Any,
        chat: Chat,
        turns: int,
        waves: int,
        context: int,
        end: float,
        reply: int | None,
        on_turn: Callable[[], None],
    ) -> None:
        """Create the engine. `waves`: number of groups of episodes that play one after the other.

        `reply`: number of sampled tokens per turn; None: as many as allow the episodes to end at
        the time `end` (a time.monotonic() value).
        """
        self.engine: Engine = engine
        self.chat = chat
        self.turns = turns
        self.context = context
        self.end = end
        self.fixed = reply
        self.reply = reply or FIRST_REPLY
        self.on_turn = on_turn
        self.left = turns * waves
        """Number of turns not yet sampled, over all waves of conversations."""
        self.sampled = 0
        """Number of tokens that the policy sampled."""
        self.computed = 0
        self.seconds = 0.0
        """Seconds spent in the sampling engine."""
        self.tools = 0.0
        """Seconds between the engine's turns, in which tools run."""
        self.ended: float | None = None
        self.started = time.monotonic()
        self.history: list[dict[str, float]] = []
        """Measurements of each turn, by the measurement's name."""

    def conversations(self) -> int | None:
        return self.engine.conversations()

    @contextmanager
    def open(self) -> Iterator[None]:
        with self.engine.open():
            yield
        self.computed += getattr(self.engine, "computed", 0)

    def sample(self, requests: Sequence[Request]) -> list[Sampled]:
        start = time.monotonic()
        between = 0.0 if self.ended is None else start - self.ended
        self.tools += between
        said = [self.call(request) for request in requests]
        asked = [
            replace(r, max_tokens=max(1, min(self.reply, r.max_tokens - len(ids))))
            for r, ids in zip(requests, said, strict=True)
        ]
        found = self.engine.sample(asked)
        self.ended = time.monotonic()
        took = self.ended - start
        self.seconds += took
        self.sampled += sum(len(s.ids) for s in found)
        self.left -= 1
        longest = max(len(r.prompt) for r in requests)
        self.history.append(
            {"conversations": len(requests), "context": longest, "reply": self.reply,
             "seconds": round(took, 2), "tools": round(between, 2)}
        )  # fmt: skip
        print(f"  turn {len(self.history)}: {json.dumps(self.history[-1])}", flush=True)
        self.adapt(took)
        self.on_turn()
        return [self.turn(s, ids) for s, ids in zip(found, said, strict=True)]

    def adapt(self, took: float) -> None:
        """Set the number of sampled tokens of the next turn from the time left and the seconds of
        the last turn."""
        if self.fixed is not None or self.left < 1:
            return
        turn = (self.end - time.monotonic()) / self.left - self.tools / len(self.history)
        wanted = turn / (took / self.reply)
        # A turn's seconds grow with the contexts, and reading is part of them: change slowly.
        self.reply = int(max(4, min(MOST_REPLY, wanted, 2 * self.reply)))

    def turn(self, sampled: Sampled, call: tuple[int, ...]) -> Sampled:
        """Return a turn: the sampled tokens, followed by the tokens of the call.

        Sampled control tokens are replaced, because they would end the turn or begin a call. All
        tokens after the first replaced one are marked as dictated, because the policy sampled them
        after another token.
        """
        ids = [self.other if i in self.controls else i for i in sampled.ids]
        first = next((at for at, i in enumerate(sampled.ids) if i in self.controls), len(ids))
        logprobs = [*sampled.logprobs[:first], *(DICTATED for _ in ids[first:])]
        return Sampled((*ids, *call), (*logprobs, *(DICTATED for _ in call)), cut=False)

    @cached_property
    def controls(self) -> set[int]:
        known = self.chat.tokenizer
        return {self.chat.end, *known.all_special_ids, *known.get_added_vocab().values()}

    @cached_property
    def other(self) -> int:
        """Id of a token that is no control token."""
        return max(self.controls) + 1

    def call(self, request: Request) -> tuple[int, ...]:
        """Return the token ids of the turn's tool call, including the end of the turn."""
        turn = request.seed % 1009
        left = self.turns - turn
        free = self.context - len(request.prompt) - left * (self.reply + 128)
        showing = max(1, left - 3)  # turns that show text; the last three write, judge and submit
        number = max(64, int(free / showing * self.characters))
        at = 1 + (request.seed // 1009 * 7919 + turn * 104729) % (len(self.notes) // 2)
        name, arguments = "bash", {"command": f"tail -c +{at} {NOTES} | head -c {number}"}
        if left == 3:
            name, arguments = "write", {"path": "model_new.py", "text": CANDIDATE.format(number=2)}
        elif left == 2:
            name, arguments = "verify", {}
        elif left <= 1:
            name, arguments = "submit", {}
        text = json.dumps({"name": name, "arguments": arguments})
        return (*self.chat.encode(f"\n<tool_call>\n{text}\n</tool_call>"), self.chat.end)

    @cached_property
    def notes(self) -> str:
        return "\n".join(texts()).encode("ascii", "replace").decode()[:MOST_NOTES]

    @cached_property
    def characters(self) -> float:
        """Average number of characters per token of the notes."""
        part = self.notes[:100_000]
        return len(part) / len(self.chat.encode(part))

    def files(self, task: Task) -> Mapping[str, str]:
        return {NOTES: self.notes}
