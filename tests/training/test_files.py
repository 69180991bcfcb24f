"""Test that folders and files of episodes are complete or absent after a kill."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from toy_game import play, small_actor

from cuagent.training.algorithms.metrics import log_metrics
from cuagent.training.data.segments import RecordError, read_episodes
from cuagent.training.demo.demo import Demo
from cuagent.training.demo.presets import DemoConfig
from cuagent.training.demo.rehearsal import Rehearsal
from cuagent.training.files import atomic_folder, write_atomic
from cuagent.training.rollout.collect import Collector


def test_atomic_folder_appears_only_when_complete(tmp_path: Path) -> None:
    folder = tmp_path / "model"

    def write(text: str, fail: bool) -> None:
        with atomic_folder(folder) as partial:
            partial.mkdir()
            write_atomic(partial / "config.json", text)
            if fail:
                raise RecordError("killed")

    with pytest.raises(RecordError):
        write("half", True)
    assert not folder.exists()
    write("whole", False)
    with pytest.raises(RecordError):
        write("half", True)
    assert [p.read_text() for p in folder.iterdir()] == ["whole"]
    write("another", False)
    assert [p.read_text() for p in tmp_path.rglob("*") if p.is_file()] == ["another"]


def test_partial_episode_file_is_not_read_as_complete(tmp_path: Path) -> None:
    nothing = cast(Any, None)
    collect = Collector([], nothing, nothing, nothing, nothing, tmp_path, 2, seed=0)
    episodes = play(small_actor(), 2, 0)
    with pytest.raises(RecordError):
        collect._write(0, [episodes[0], replace(episodes[1], segments=())])
    assert not list(tmp_path.rglob("*.jsonl"))
    collect._write(0, episodes)
    assert list(read_episodes(tmp_path / "episodes" / "00000.jsonl")) == episodes


def test_ppo_stops_before_time_limit(tmp_path: Path) -> None:
    log_metrics(tmp_path / "ppo" / "metrics.jsonl", 0, {"seconds": 1000.0}, stage="ppo")
    (tmp_path / "rft").mkdir()
    write_atomic(
        tmp_path / "rft" / "evaluation.json", '{"seconds": 1000.0}'
    )  # the audit takes as long
    demo = Demo(DemoConfig(), "cpu", tmp_path, Rehearsal(), tmp_path, end=time.time() + 3500)
    assert not demo.out_of_time()
    demo.budget.end = time.time() + 2500
    assert demo.out_of_time()
