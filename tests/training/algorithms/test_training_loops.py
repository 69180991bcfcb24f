"""Test RFT, value pretraining and PPO together: learning, resuming, progress, invalid weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from shares import slow_after
from toy_game import FAST, play, reward, same, silent, small_actor, weights

from cuagent.training.algorithms.metrics import read_metrics
from cuagent.training.algorithms.ppo import ppo
from cuagent.training.algorithms.rft import RftConfig, rft
from cuagent.training.algorithms.value import ValueConfig, pretrain_value
from cuagent.training.data.segments import RecordError
from cuagent.training.policy.checkpoint import (
    latest_checkpoint,
)
from cuagent.training.policy.model import new_critic
from cuagent.training.policy.optimize import AdamW, apply_gradients


@pytest.mark.slow
def test_rft_value_pretraining_and_ppo_each_improve(tmp_path: Path) -> None:
    actor = small_actor()
    base = reward(actor)
    sampled = play(actor, 1500, 1)
    kept = [e for e in sampled if e.reward > 0]
    config = RftConfig(steps=20, episodes_per_batch=64, optimizer=AdamW(lr=1e-3))
    rft(actor, kept, kept[:50], config, tmp_path / "rft", silent)
    tuned = reward(actor)
    assert tuned > base + 0.2

    critic = new_critic(actor)
    unfiltered = play(actor, 600, 2)
    found = pretrain_value(
        critic,
        unfiltered,
        play(actor, 200, 3),
        ValueConfig(steps=100, episodes_per_batch=128, optimizer=AdamW(lr=1e-2)),
        tmp_path / "value",
        silent,
    )
    start = read_metrics(tmp_path / "value" / "metrics.jsonl")[0]
    assert start["ev"] == pytest.approx(0, abs=1e-6)  # a head of zeros
    assert found["ev_q4"] > 0.08 > found["ev_q1"]  # the outcome shows at the end only

    steep = replace(FAST, iterations=12, actor=AdamW(lr=5e-3), save_every=12)
    out = tmp_path / "ppo"
    history = ppo(actor, critic, lambda i: play(actor, 96, 100 + i), steep, out, silent)
    assert reward(actor) > tuned + 0.5
    assert max(m["first_log_ratio_max"] for m in history) < 1e-4
    assert max(m["sampler_gap"] for m in history) < 1e-4


@pytest.mark.parametrize("stage", slow_after(1, ["ppo", "rft", "value"]))
def test_resumed_stage_equals_uninterrupted_one(stage: str, tmp_path: Path) -> None:
    episodes = play(small_actor(7), 64, 5)

    def run(out: Path, stop: int | None) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
        actor = small_actor()
        critic = new_critic(actor)
        if stage == "rft":
            rft(actor, episodes, [], RftConfig(12, 16, stop_after=stop), out, silent)
        elif stage == "value":
            config = ValueConfig(12, 16, lam=0.95, save_every=5, stop_after=stop)
            pretrain_value(critic, episodes, [], config, out, silent)
        else:
            some = replace(FAST, iterations=stop or 6)
            ppo(actor, critic, lambda i: play(actor, 24, i), some, out, silent)
        timeless = [
            {k: v for k, v in m.items() if not k.startswith("seconds")}
            for m in read_metrics(out / "metrics.jsonl")
        ]
        return weights(actor) + weights(critic), timeless

    whole = run(tmp_path / "whole", None)
    run(tmp_path / "parts", 4)
    resumed = run(tmp_path / "parts", None)
    assert same(whole[0], resumed[0])
    assert whole[1] == resumed[1]


@pytest.mark.parametrize("stage", ["rft", "value"])
def test_kill_undoes_at_most_some_minutes(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that slow steps are saved although `save_every` is far away."""
    clock = itertools.count(step=500)  # seconds, at each step
    monkeypatch.setattr(
        "cuagent.training.policy.checkpoint.time", SimpleNamespace(monotonic=clock.__next__)
    )
    episodes, name = play(small_actor(), 8, 0), "apply_gradients"
    module = f"cuagent.training.algorithms.{stage}.{name}"
    calls = itertools.count()

    def killed(*arguments: Any) -> float:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return apply_gradients(*arguments)

    monkeypatch.setattr(module, killed)

    def train() -> None:
        if stage == "rft":
            rft(small_actor(), episodes, [], RftConfig(9, 8), tmp_path, silent)
        else:
            critic = new_critic(small_actor())
            pretrain_value(critic, episodes, [], ValueConfig(9, 8), tmp_path, silent)

    with pytest.raises(KeyboardInterrupt):
        train()
    assert latest_checkpoint(tmp_path) == tmp_path / "step-00000004"


def test_progress_line_is_printed_after_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes, said = play(small_actor(), 8, 0), list[str]()
    rft(small_actor(), episodes, [], RftConfig(3, 8), tmp_path / "quick", said.append)
    assert [line.partition(":")[0] for line in said] == ["rft 3/3"]
    clock = itertools.count(step=20)  # seconds, whenever it is looked at
    monkeypatch.setattr("cuagent.training.throttle.time", SimpleNamespace(monotonic=clock.__next__))
    said.clear()
    rft(small_actor(), episodes, [], RftConfig(4, 8), tmp_path / "rft", said.append)
    assert [line.partition(":")[0] for line in said] == ["rft 2/4", "rft 4/4"]
    said.clear()
    critic = new_critic(small_actor())
    pretrain_value(critic, episodes, [], ValueConfig(4, 8), tmp_path / "value", said.append)
    assert [line.partition(":")[0] for line in said] == ["value 2/4", "value 4/4"]
    assert [", ev " in line for line in said] == [False, True]


@pytest.mark.parametrize("stage", ["rft", "value"])
def test_model_that_is_not_finite_is_not_saved(stage: str, tmp_path: Path) -> None:
    actor = small_actor()
    episodes, broken = play(actor, 8, 0), AdamW(lr=1e30)
    stages: dict[str, Callable[[], object]] = {
        "rft": lambda: rft(actor, episodes, [], RftConfig(2, 8, broken), tmp_path, silent),
        "value": lambda: pretrain_value(
            new_critic(actor), episodes, [], ValueConfig(2, 8, broken), tmp_path, silent
        ),
    }
    with pytest.raises(RecordError, match=f"smaller {stage}.optimizer.lr"):
        stages[stage]()
    assert latest_checkpoint(tmp_path) is None
