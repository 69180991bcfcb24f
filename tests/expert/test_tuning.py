"""The expert remembers which choices won for a captured module."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from modules import Gated, task_text  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import open_subject
from cuagent.expert.search.memory import Memory
from cuagent.expert.search.outcomes import Outcome
from cuagent.expert.search.planner import propose
from cuagent.expert.search.tuning import key, recalled, remember
from cuagent.message import Message
from cuagent.models.expert import ExpertModel
from cuagent.models.model import ToolSpec
from cuagent.task import load_task
from cuagent.timing import Ratio

TEXT = """
import torch
class {entry}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.{name} = torch.nn.Linear(8, {width})
    def forward(self, {x}):
        return torch.tanh(self.{name}({x})) * {factor}
def get_inputs(): return [torch.randn({rows}, 8)]
def get_init_inputs(): return []
"""
PLAIN = {"entry": "Model", "name": "up", "width": 6, "x": "x", "factor": 2, "rows": 4}


def subject_of(tmp_path, **changes):
    path = tmp_path / "module.py"
    path.write_text(TEXT.format(**{**PLAIN, **changes}))
    entry = changes.get("entry", "Model")
    return open_subject(load_task(f"{path}:{entry}", device="cpu"))


def outcome(subject, options, speedup, accepted=True):
    ratio = Ratio(speedup, speedup - 0.01, speedup + 0.01)
    return Outcome(make_candidate(subject, options), accepted, "", 1, {"eager": ratio})


def test_a_module_with_other_names_is_known_again(tmp_path):
    first = key(subject_of(tmp_path))
    assert key(subject_of(tmp_path, entry="Net", name="down", x="value")) == first


@pytest.mark.parametrize(
    "change", [{"width": 7}, {"factor": 3}, pytest.param({"rows": 5}, marks=pytest.mark.slow)]
)
def test_a_module_with_other_shapes_or_numbers_is_not(tmp_path, change):
    assert key(subject_of(tmp_path)) != key(subject_of(tmp_path, **change))


def test_the_winner_is_tried_first_and_losers_are_left_out(tmp_path):
    subject = subject_of(tmp_path)
    won, lost = Options(compile="default"), Options(fold=False)
    remember(subject, tmp_path, [outcome(subject, lost, 0.8), outcome(subject, won, 1.5)])
    memory = recalled(subject, tmp_path)
    assert memory == Memory(won, frozenset({lost}))
    first = propose(subject, [], memory=memory)
    assert first.candidate.options == won
    assert "won for an equal module" in first.why


def test_a_choice_within_the_noise_is_no_loser(tmp_path):
    subject = subject_of(tmp_path)
    outcomes = [outcome(subject, Options(), 1.5), outcome(subject, Options(fold=False), 1.495)]
    remember(subject, tmp_path, outcomes)
    assert recalled(subject, tmp_path).slower == frozenset()


def test_a_loser_is_not_proposed_again(tmp_path):
    subject = subject_of(tmp_path)
    ratios = {"compile": Ratio(0.5, 0.49, 0.51)}
    slow = replace(outcome(subject, Options(), 0.5), own_share=0.5, ratios=ratios)
    second = propose(subject, [slow])
    assert second is not None
    memory = Memory(Options(), frozenset({second.candidate.options}))
    third = propose(subject, [slow], memory=memory)
    assert third is None or third.candidate.options != second.candidate.options


def test_a_run_without_an_accepted_candidate_leaves_no_memory(tmp_path):
    subject = subject_of(tmp_path)
    remember(subject, tmp_path, [outcome(subject, Options(), 1.5, accepted=False)])
    assert recalled(subject, tmp_path) == Memory()


def test_a_memory_that_cannot_be_read_counts_as_none(tmp_path):
    subject = subject_of(tmp_path)
    nested = "[" * 200_000
    for text in ("", "{}", '{"first": {"tile": 1}, "slower": []}', "[1]", nested):
        (tmp_path / f"{key(subject)}.json").write_text(text)
        assert recalled(subject, tmp_path) == Memory(), text[:40]


def test_a_resumed_run_keeps_the_memory_it_began_with(tmp_path):
    path = tmp_path / "gated.py"
    path.write_text(task_text(Gated))
    task = load_task(f"{path}:Gated", device="cpu")
    subject, folder = open_subject(task), tmp_path / "tuning"
    won = Options(tile=16)
    remember(subject, folder, [outcome(subject, won, 2.0)])
    tools = [ToolSpec(name, "", {}) for name in ("write", "compile", "verify", "submit")]
    messages = [Message("user", "go")]
    reply = ExpertModel(task, folder).query(messages, tools, lambda *_: None)
    assert "won for an equal module" in reply.message.content
    assert json.loads(json.dumps(reply.message.data))["tuning"]["first"]["tile"] == 16
    messages.append(reply.message)
    for call in reply.message.tool_calls:
        data = {"ok": True} if call.name == "compile" else {}
        messages.append(Message("tool", "", tool_call_id=call.id, data=data))
    for file in folder.iterdir():
        file.unlink()
    again = ExpertModel(task, folder).query(messages, tools, lambda *_: None)
    assert [call.name for call in again.message.tool_calls] == ["verify"]


INVALID = [
    ("compile", 'max-autotune"); import os; os.system("id'),
    ("convolutions", "own\n"),
    ("tile", "64; }"),
    ("tile", -1),
    ("tile", True),
    ("threads", 1 << 40),
    ("fold", "yes"),
    ("widen", 1),
    ("keep", [1]),
]
"""Pairs (option, value) in which the value is invalid for the option."""


def test_a_memory_with_values_that_no_option_has_counts_as_none(tmp_path):
    subject = subject_of(tmp_path)
    remember(subject, tmp_path, [outcome(subject, Options(), 1.5)])
    file = tmp_path / f"{key(subject)}.json"
    assert recalled(subject, tmp_path).first == Options()
    valid = file.read_text()
    for name, value in INVALID:
        data = json.loads(valid)
        data["first"][name] = value
        file.write_text(json.dumps(data))
        assert recalled(subject, tmp_path) == Memory(), (name, value)
