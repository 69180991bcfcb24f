"""Test compacted and undone runs: every sampled message is used once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dictated import SUBMIT, WRITE, Dictated

from cuagent.agent.compaction import compact
from cuagent.agent.history import undo
from cuagent.agent.hooks import Hook
from cuagent.agent.loop import run_agent
from cuagent.agent.run import Run
from cuagent.message import Message
from cuagent.models.model import Model
from cuagent.models.scripted import ScriptedModel
from cuagent.record import RunFolder, read_records
from cuagent.task.task import Task
from cuagent.training.data.batch import collate
from cuagent.training.data.export import atif, chat_rows
from cuagent.training.data.runs import episode_of
from cuagent.training.data.segments import Episode, Kind, require_logprobs
from cuagent.training.data.windows import windows_of
from cuagent.training.policy.chat import Chat
from cuagent.training.rollout.episode import Play, TokenModel, start_episode

NO_JUDGE: Any = None
SUMMARY = "a.txt is written"


def take_back(run: Run, _model: Model) -> None:
    """Undo the last turn, like a user between two turns, and continue."""
    undo(run)
    run.stop = None


def before_step(steps: dict[int, Callable[[Run, Model], object]]) -> Sequence[Hook]:
    """Return a hook that acts before the n-th model call, counted from 0."""
    todo = dict(steps)

    def hook(run: Run, model: Model) -> None:
        if run.steps in todo:
            todo.pop(run.steps)(run, model)

    return (hook,)


@pytest.fixture
def play(play: Play) -> Play:
    def opening(task: Task) -> list[Message]:
        return [Message("system", "Write kernels."), Message("user", task.source)]

    return replace(play, opening=opening, turns=8, context=4000)


def written(name: str) -> dict[str, Any]:
    return {"calls": [{"name": "write", "arguments": {"path": name, "text": "x\n"}}]}


@pytest.fixture
def run(task: Task, play: Play, tmp_path: Path) -> RunFolder:
    """A run that writes a, is compacted, writes b, writes c (undone), and submits."""
    replies = [
        written("a"),
        {"text": SUMMARY},
        written("b"),
        written("c"),
        {"calls": [{"name": "submit", "arguments": {}}]},
    ]
    started = start_episode(task, NO_JUDGE, "some-api", play, tmp_path / "runs")
    hooks = before_step({1: compact, 3: take_back})
    run_agent(started, ScriptedModel(replies), play.tools, hooks)
    started.log.close()
    return started.folder


def paths(episode: Episode) -> list[str]:
    return [json.loads(c.arguments).get("path", c.name) for c in episode.calls]


def test_undone_step_is_dropped_and_compacted_step_kept(run: RunFolder, chat: Chat) -> None:
    episode = episode_of(run, chat)
    assert paths(episode) == ["a", "b", "submit"]
    assert [c.turn for c in episode.calls] == [0, 1, 2]
    assert [(s.kind, s.context) for s in episode.segments] == [
        (Kind.PROMPT, 0), (Kind.ACTION, 0),
        (Kind.PROMPT, 1), (Kind.ACTION, 1), (Kind.OBSERVATION, 1), (Kind.ACTION, 1),
    ]  # fmt: skip
    texts = [chat.tokenizer.decode(list(s.ids)) for s in episode.segments]
    assert SUMMARY in texts[2]
    assert SUMMARY not in "".join(t for t, s in zip(texts, episode.segments, strict=True)
                                  if s.kind is Kind.ACTION)  # fmt: skip
    assert collate([episode]).row_episode.tolist() == [0, 0]


def test_summary_is_not_an_action_and_windows_partition_messages(run: RunFolder) -> None:
    records = read_records(run)
    windows = windows_of(records)
    sampled = [r["id"] for window in windows for r in window if r["sampled"]]
    assert len(sampled) == len(set(sampled)) == 3
    assert sum(r["type"] == "call" for r in records) == 5
    assert [window[0]["role"] for window in windows] == ["system", "system"]


def test_exports_follow_final_branch(run: RunFolder) -> None:
    rows = chat_rows(run)
    assert [row["window"] for row in rows] == [0, 1]
    calls = [c["function"]["arguments"] for row in rows for m in row["messages"]
             for c in m.get("tool_calls", ())]  # fmt: skip
    assert [c.get("path") for c in calls] == ["a", "b", None]
    found = atif(run)
    sources = [s["source"] for s in found["steps"]]
    assert sources == ["system", "user", "agent", "user", "agent", "agent"]
    assert [s["step_id"] for s in found["steps"]] == list(range(1, 7))


def test_sampled_ids_of_compacted_run_match_prompts(
    task: Task, play: Play, chat: Chat, tmp_path: Path
) -> None:
    engine = Dictated(chat, [WRITE, SUMMARY, WRITE, WRITE, SUBMIT])
    started = start_episode(task, NO_JUDGE, "policy", play, tmp_path / "runs")
    model = TokenModel("policy", chat, lambda r: engine.sample([r])[0], play, seed=0)
    hooks = before_step({1: compact, 3: take_back})
    run_agent(started, model, play.tools, hooks)
    started.log.close()
    episode = episode_of(started.folder, chat)
    require_logprobs([episode])
    actions = [s.ids for s in episode.segments if s.kind is Kind.ACTION]
    said = [(*engine.turns[n], chat.end) for n in (0, 2, 4)]
    assert actions == said
    for context in range(3):
        window = [i for s in episode.segments if s.context == context for i in s.ids]
        asked = engine.asked[(0, 2, 4)[context]]
        assert tuple(window) == (*asked.prompt, *said[context])
