"""Test that an interrupted run plays no episode again, also with another number of processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from toy_game import FAST, play, silent, small_actor

from cuagent.task.task import Task
from cuagent.training.algorithms.curriculum import Curriculum, read_outcomes
from cuagent.training.algorithms.monitor import Action, Limits
from cuagent.training.algorithms.ppo import ppo
from cuagent.training.data.runs import UnusableRun
from cuagent.training.data.segments import VERSION, Episode, RecordError, write_episodes
from cuagent.training.engines.engine import LocalEngine
from cuagent.training.policy.chat import Chat
from cuagent.training.policy.model import new_actor, new_critic, small_config
from cuagent.training.rollout.collect import Collector
from cuagent.training.rollout.episode import Play, play_one
from cuagent.training.rollout.store import HELDOUT, drop_later, episodes_file

INPUTS = {"policy": 1}


@pytest.fixture
def collector(task: Task, chat: Chat, play: Play, tmp_path: Path) -> Callable[..., Collector]:
    config = small_config(len(chat.tokenizer), 1, 32, 2, 700, chat.end, chat.pad)
    engine = LocalEngine(new_actor(config, seed=3), chat.end)
    pool = cast(Any, SimpleNamespace(judge_for=lambda _: None))
    short = replace(play, reply=6, turns=1)

    def make(folder: str, **more: Any) -> Collector:
        out = tmp_path / folder
        return Collector([task], chat, engine, pool, short, out, 4, 0, inputs=INPUTS, **more)

    return make


def no_engine(collect: Collector) -> Collector:
    """Return the collector with an engine that fails when it is used."""
    return replace(collect, engine=cast(Any, None))


def test_finished_iteration_is_read_and_not_played_again(
    collector: Callable[..., Collector],
) -> None:
    said: list[str] = []
    more = {"keeps": True, "curriculum": Curriculum(), "say": said.append}
    collect = collector("run", **more)
    played = [collect(n) for n in range(2)]
    again = no_engine(collector("run", **more))
    assert [again(n) for n in range(2)] == played
    assert said == [
        f"  4 episodes of {episodes_file(collect.out, n)} are not played again" for n in range(2)
    ]
    assert len(read_outcomes(collect.out / "outcomes.jsonl", 9)) == 8, "each outcome once"


def test_an_iteration_that_is_played_deletes_later_ones(
    collector: Callable[..., Collector],
) -> None:
    collect = collector("run", keeps=True)
    for n in range(3):
        collect(n)
    episodes_file(collect.out, 0).unlink()
    collect(0)
    assert [p.name for p in (collect.out / "episodes").iterdir()] == ["00000.jsonl"]


def test_episodes_of_more_processes_are_used_by_one(collector: Callable[..., Collector]) -> None:
    whole = collector("whole")(0)
    said: list[str] = []
    collect = collector("cut", say=said.append)
    folder = collect.out / "episodes"
    for rank in (0, 1):  # two processes have played two episodes each
        head, path = {"v": VERSION, **INPUTS}, folder / f"00000-{rank}.incomplete"
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(head) + "\n")
        write_episodes(path, whole[rank::2])
    assert no_engine(collect)(0) == whole
    assert said == [f"  resuming from 4 episodes in {folder / '00000-0.incomplete'}"]
    assert [p.name for p in folder.iterdir()] == ["00000.jsonl"]


def test_collection_that_loses_most_rewards_ends_and_resumes(
    collector: Callable[..., Collector], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a policy is not trained on the episodes that had nothing judged."""
    broken = {1, 2, 3}

    def lost(*arguments: Any, **more: Any) -> Episode:
        if arguments[6] in broken:
            raise UnusableRun("no reward, judge failed")
        return play_one(*arguments, **more)

    monkeypatch.setattr("cuagent.training.rollout.episode.play_one", lost)
    collect = collector("run", say=silent)
    with pytest.raises(RecordError, match="only 1 of 4 episodes of iteration 0 have a reward"):
        collect(0)
    broken.clear()
    said: list[str] = []
    assert len(collector("run", say=said.append)(0)) == 4
    assert said == [f"  resuming from 1 episodes in {collect.out}/episodes/00000-0.incomplete"]


def test_rewound_ppo_does_not_use_episodes_of_a_run_that_went_on(tmp_path: Path) -> None:
    """A killed run had on_alarm=warn and went on after an alarm; the resumed one rewinds."""
    alarm = Limits(reward_fall=-9.0)  # each iteration raises a severe alarm
    config = replace(FAST, iterations=3, limits=alarm, on_alarm=Action.ROLLBACK)
    actor = small_actor()

    def collect(iteration: int) -> list[Episode]:
        path = episodes_file(tmp_path, iteration)
        assert iteration == 0 or not path.exists(), "sampled from weights that were undone"
        found = play(actor, 8, iteration)
        path.unlink(missing_ok=True)
        write_episodes(path, found)
        return found

    for n in range(3):
        write_episodes(episodes_file(tmp_path, n), play(actor, 8, n))
        write_episodes(episodes_file(tmp_path / HELDOUT, n), play(actor, 8, n))
    ppo(actor, new_critic(actor), collect, config, tmp_path, silent)
    assert sorted(p.name for p in (tmp_path / HELDOUT / "episodes").iterdir()) == [
        "00000.jsonl",
        "00001.jsonl",
    ]


def test_drop_later_keeps_earlier_iterations(tmp_path: Path) -> None:
    folder = tmp_path / "episodes"
    folder.mkdir()
    for name in ("00000.jsonl", "00001.jsonl", "00002.jsonl", "00002-1.incomplete", "notes.txt"):
        (folder / name).write_text("")
    drop_later(tmp_path, 1)
    assert sorted(p.name for p in folder.iterdir()) == ["00000.jsonl", "00001.jsonl", "notes.txt"]
