"""Provide a task's source, tool calls as text, and an engine with prepared turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuagent.training.policy.chat import Chat

if TYPE_CHECKING:
    from cuagent.training.engines.engine import Request, Sampled

SOURCE = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""
WRITE = '<tool_call>\n{"name": "write", "arguments": {"path": "a.txt", "text": "x = \\"1\\"\\n"}}'
WRITE += "\n</tool_call>"
SUBMIT = '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>'


class Dictated:
    """An engine that returns prepared turns as tokens of single bytes, as the tokenizer itself
    never splits text."""

    def __init__(self, chat: Chat, turns: Sequence[str], cut: Sequence[int] = ()) -> None:
        self.chat = chat
        self.turns = [tuple(i for letter in text for i in chat.encode(letter)) for text in turns]
        self.cut = cut
        self.asked: list[Request] = []

    def sample(self, requests: Sequence[Request]) -> list[Sampled]:
        from cuagent.training.engines.engine import Sampled

        out = []
        for request in requests:
            n = len(self.asked)
            self.asked.append(request)
            ids = self.turns[n] if n in self.cut else (*self.turns[n], self.chat.end)
            out.append(Sampled(ids, tuple(-0.01 * k for k in range(len(ids))), n in self.cut))
        return out
