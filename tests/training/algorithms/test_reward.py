"""Test the speedup ratio as reward, while metrics stay milestones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from toy_game import FAST, play, silent, small_actor

from cuagent.training.algorithms.metrics import log_metrics, read_metrics
from cuagent.training.algorithms.ppo import ppo
from cuagent.training.algorithms.reward import Reward, with_reward
from cuagent.training.algorithms.value import ValueConfig, pretrain_value
from cuagent.training.data.segments import Episode
from cuagent.training.policy.model import new_critic


def test_ratio_reward_is_speedup_over_compile() -> None:
    wrong, right = play(small_actor(), 2, 0)
    wrong = replace(wrong, reward=-1.0, figures={"over_compile": 9.0})
    timed = replace(right, reward=3.0, figures={"over_eager": 4.0, "over_compile": 2.5})
    eager = replace(right, reward=2.0, figures={"over_eager": 4.0})
    untimed = replace(right, reward=1.0, figures={})
    found = with_reward([wrong, timed, eager, untimed], Reward.RATIO)
    assert [e.reward for e in found] == [-1.0, 2.5, 4.0, 1.0]
    assert with_reward([timed], Reward.MILESTONE) == [timed]


def test_learners_use_ratio_and_metrics_use_milestones(tmp_path: Path) -> None:
    actor = small_actor()
    critic = new_critic(actor)

    def fast(seed: int) -> list[Episode]:
        episodes, figures = play(actor, 24, seed), {"over_compile": 7.0}
        return [replace(e, reward=(3, 3, -1)[i % 3], figures=figures)
                for i, e in enumerate(episodes)]  # fmt: skip

    settings = ValueConfig(steps=2, reward=Reward.RATIO)
    pretrain_value(critic, fast(1), [], settings, tmp_path / "value", silent)
    config = replace(FAST, iterations=1, reward=Reward.RATIO)
    metrics = ppo(actor, critic, lambda i: fast(2 + i), config, tmp_path / "ppo", silent)[-1]
    assert metrics["return_mean"] > 3.0 > metrics["reward"]
    assert read_metrics(tmp_path / "value" / "metrics.jsonl")[0]["return_mean"] > 3.0


def test_tensorboard_matches_metrics_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from cuagent.training.algorithms.metrics import drop_metrics_from

    path = tmp_path / "metrics.jsonl"
    drop_metrics_from(path, 0)
    for step in range(4):
        log_metrics(path, step, {"reward": float(step), "ev": float("nan")}, stage="ppo")
    drop_metrics_from(path, 2)  # a resumed run repeats the last two
    for step in (2, 3):
        log_metrics(path, step, {"reward": 10.0 + step}, stage="ppo")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["ppo/reward"]
    seen = [(e.step, e.value) for e in events.Scalars("ppo/reward")]
    assert seen == [(m["step"], m["reward"]) for m in read_metrics(path)]
