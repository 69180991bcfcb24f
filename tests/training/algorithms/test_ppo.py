"""Test the PPO loop: alarms, rewinds, stops, resuming."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_game import FAST, play, same, silent, small_actor, weights

from cuagent.training.algorithms.monitor import Action, Limits
from cuagent.training.algorithms.ppo import ppo
from cuagent.training.data.segments import Episode, RecordError
from cuagent.training.policy import optimize
from cuagent.training.policy.checkpoint import latest_checkpoint, load_checkpoint
from cuagent.training.policy.model import new_critic
from cuagent.training.policy.optimize import AdamW, make_optimizer


def test_zero_learning_rate_keeps_ratio_one_and_policy(tmp_path: Path) -> None:
    actor = small_actor()
    critic = new_critic(actor)
    before = weights(actor), weights(critic)
    config = replace(FAST, iterations=2, epochs=2, actor=AdamW(lr=0.0), critic=AdamW(lr=0.0))
    history = ppo(actor, critic, lambda i: play(actor, 32, i), config, tmp_path, silent)
    assert same(before[0], weights(actor))
    assert same(before[1], weights(critic))
    assert history[-1]["log_ratio_max"] < 1e-5
    assert history[-1]["clip_fraction"] == 0


def test_ppo_stops_early_and_later_call_resumes(tmp_path: Path) -> None:
    actor = small_actor()
    critic = new_critic(actor)
    config = replace(FAST, iterations=2, save_every=9)

    def some(iteration: int) -> list[Episode]:
        return play(actor, 8, iteration)

    first = ppo(actor, critic, some, config, tmp_path, silent, should_stop=lambda: True)
    assert len(first) == 1
    left = weights(actor)
    again = small_actor()
    found = ppo(again, new_critic(again), lambda _: [], replace(config, iterations=1), tmp_path)
    assert same(left, weights(again))
    assert found[0]["reward"] == first[0]["reward"]


def test_ppo_refuses_episodes_without_logprobs(tmp_path: Path) -> None:
    actor = small_actor()
    episodes = play(actor, 4, 0)
    bare = tuple(replace(s, logprobs=None) for s in episodes[2].segments)
    episodes[2] = replace(episodes[2], segments=bare)
    with pytest.raises(RecordError, match="episode 0-2, call 1"):
        ppo(actor, new_critic(actor), lambda _: episodes, FAST, tmp_path, silent)


def test_collapse_rolls_back_until_run_stops(tmp_path: Path) -> None:
    """Negate the reward after three iterations, so that the mean falls."""
    actor = small_actor()
    said: list[str] = []

    def collect(iteration: int) -> list[Episode]:
        flip = -1.0 if iteration >= 3 else 1.0
        return [replace(e, reward=flip * (3.0 + e.reward)) for e in play(actor, 16, iteration)]

    config = replace(FAST, on_alarm=Action.ROLLBACK, rollbacks=2, limits=Limits(reward_fall=1.0))
    history = ppo(actor, new_critic(actor), collect, config, tmp_path, said.append)
    assert len(history) == 3 + 3  # two rewinds, and the third alarm ends it
    assert sum("rewound to step-00000002" in line for line in said) == 2
    assert any("ALARM: mean reward" in line for line in said)


def test_run_killed_after_rewind_resumes_from_rewound_weights(tmp_path: Path) -> None:
    actor, kept = small_actor(), dict[int, list[torch.Tensor]]()

    def collect(iteration: int) -> list[Episode]:
        kept.setdefault(iteration, weights(actor))
        if iteration == 5 and killed:
            raise KeyboardInterrupt
        worth = -2.0 if iteration == 4 else 2.0
        return [replace(e, reward=worth + e.reward / 4) for e in play(actor, 16, iteration)]

    limits = Limits(reward_fall=1.0, ev_last_quartile=-9.0)
    config = replace(FAST, iterations=6, on_alarm=Action.ROLLBACK, limits=limits)
    killed = True
    with pytest.raises(KeyboardInterrupt):
        ppo(actor, new_critic(actor), collect, config, tmp_path, silent)
    assert same(kept[5], kept[2]), "checkpoint 4 has the collapsed weights"
    actor, killed = small_actor(), False
    del kept[5]
    ppo(actor, new_critic(actor), collect, config, tmp_path, silent)
    assert same(kept[5], kept[2])
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    models = {"actor": actor, "critic": new_critic(actor)}
    optimizers = {name: make_optimizer(model, config.actor) for name, model in models.items()}
    step, position = load_checkpoint(newest, models, optimizers)
    assert step == 6
    assert position.items() >= {"rollbacks": 1, "rewound": 5, "stopped": 0}.items()


def test_patience_restarts_after_rewind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, seen, said = small_actor(), list[float](), list[str]()

    def explained(*_: Any) -> dict[str, float]:
        seen.append(-0.1 if len(seen) < 4 else 0.3)
        return {"ev": 0.0, "ev_q4": seen[-1]}

    monkeypatch.setattr("cuagent.training.algorithms.ppo_update.critic_metrics", explained)
    config = replace(FAST, iterations=6, on_alarm=Action.ROLLBACK, limits=Limits(reward_fall=9.0))
    ppo(actor, new_critic(actor), lambda i: play(actor, 16, i), config, tmp_path, said.append)
    assert sum("ALARM" in line for line in said) == 1, (
        "three in a row raise it, the fourth alone does not"
    )


def test_time_limit_ends_run_after_rewind(tmp_path: Path) -> None:
    actor = small_actor()

    def collect(iteration: int) -> list[Episode]:
        worth = -2.0 if iteration else 2.0
        return [replace(e, reward=worth + e.reward / 4) for e in play(actor, 16, iteration)]

    config = replace(FAST, on_alarm=Action.ROLLBACK, limits=Limits(reward_fall=1.0))
    left = iter([False, True])
    critic = new_critic(actor)
    found = ppo(actor, critic, collect, config, tmp_path, silent, should_stop=lambda: next(left))
    assert len(found) == 2


@pytest.mark.parametrize("on_alarm", [Action.STOP, Action.ROLLBACK])
def test_alarm_that_ends_run_restores_earlier_weights(on_alarm: Action, tmp_path: Path) -> None:
    """Check that the saved model is neither the collapsed one nor the one that sampled bad
    episodes."""
    actor, kept = small_actor(), dict[int, list[torch.Tensor]]()

    def collect(iteration: int) -> list[Episode]:
        kept[iteration] = weights(actor)
        worth = -2.0 if iteration >= 2 else 2.0
        return [replace(e, reward=worth + e.reward / 4) for e in play(actor, 16, iteration)]

    config = replace(FAST, on_alarm=on_alarm, rollbacks=0, limits=Limits(reward_fall=1.0))
    history = ppo(actor, new_critic(actor), collect, config, tmp_path, silent)
    assert len(history) == 3
    assert same(weights(actor), kept[0])
    assert not same(kept[2], kept[0])


def test_lasting_alarm_rewinds_to_before_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raise the alarm in the fifth to seventh iteration; each has saved a checkpoint."""
    actor, kept = small_actor(), list[list[torch.Tensor]]()

    def collect(iteration: int) -> list[Episode]:
        kept.append(weights(actor))
        return play(actor, 16, iteration)

    def explained(*_: Any) -> dict[str, float]:
        return {"ev": 0.0, "ev_q4": -0.1 if len(kept) > 4 else 0.3}

    monkeypatch.setattr("cuagent.training.algorithms.ppo_update.critic_metrics", explained)
    config = replace(FAST, save_every=1, on_alarm=Action.STOP, limits=Limits(reward_fall=9.0))
    assert len(ppo(actor, new_critic(actor), collect, config, tmp_path, silent)) == 7
    assert same(weights(actor), kept[3])


def test_stopped_run_stays_stopped_when_resumed(tmp_path: Path) -> None:
    actor = small_actor()

    def collect(iteration: int) -> list[Episode]:
        worth = -2.0 if iteration else 2.0
        return [replace(e, reward=worth + e.reward / 4) for e in play(actor, 16, iteration)]

    config = replace(FAST, on_alarm=Action.STOP, limits=Limits(reward_fall=1.0))
    first = ppo(actor, new_critic(actor), collect, config, tmp_path, silent)
    left, said = weights(actor), list[str]()
    actor = small_actor(seed=1)
    again = ppo(actor, new_critic(actor), collect, config, tmp_path, said.append)
    assert same(weights(actor), left)
    assert [m["reward"] for m in again] == [m["reward"] for m in first]
    assert said == ["the run was stopped by an alarm; set ppo.on_alarm=warn to continue it"]


def test_weights_that_are_not_finite_stop_run_before_sampling(
    tmp_path: Path,
) -> None:
    actor, said = small_actor(), list[str]()
    before = weights(actor)
    config = replace(FAST, actor=AdamW(lr=1e30), minibatches=1, on_alarm=Action.STOP)
    found = ppo(
        actor, new_critic(actor), lambda i: play(actor, 8, i), config, tmp_path, said.append
    )
    assert len(found) == 1
    assert "  ALARM: weight_norm_actor not finite" in said
    assert same(weights(actor), before)


def test_actor_warmup_starts_after_critic_only_iterations(tmp_path: Path) -> None:
    actor = small_actor()
    before = weights(actor)
    slow = AdamW(lr=1e-3, warmup=4)
    config = replace(FAST, iterations=3, minibatches=1, critic_only=2, actor=slow)
    ppo(actor, new_critic(actor), lambda i: play(actor, 16, i), config, tmp_path, silent)
    moved = max(float((a - b).abs().max()) for a, b in zip(weights(actor), before, strict=True))
    assert moved == pytest.approx(1e-3 / 4, rel=0.01), "Adam's first step equals its rate"


def test_untrained_critic_explains_nothing_at_any_lambda(tmp_path: Path) -> None:
    """Check that explained variance uses outcomes: with lambda below 1 the targets are its own
    values."""
    actor = small_actor()
    critic = new_critic(actor)
    torch.nn.init.normal_(critic.score.weight, std=2.0)
    episodes = [replace(e, reward=(-1.0, 1.0)[i % 2]) for i, e in enumerate(play(actor, 64, 0))]
    config = replace(FAST, iterations=1, lam_critic=0.2)
    (metrics,) = ppo(actor, critic, lambda _: episodes, config, tmp_path, silent)
    assert metrics["ev"] < 0.1
    assert metrics["return_mean"] == pytest.approx(
        sum(e.reward * e.action_tokens for e in episodes) / sum(e.action_tokens for e in episodes)
    )


def test_warned_run_saves_after_alarm(tmp_path: Path) -> None:
    actor, said = small_actor(), list[str]()

    def collect(iteration: int) -> list[Episode]:
        reward = 3.0 if iteration == 0 else -1.0
        return [replace(e, reward=reward + i % 2) for i, e in enumerate(play(actor, 8, iteration))]

    config = replace(FAST, iterations=3, save_every=1, limits=Limits(reward_fall=1.0))
    ppo(actor, new_critic(actor), collect, config, tmp_path, said.append)
    assert any("ALARM" in line for line in said)
    assert max(p.name for p in tmp_path.glob("step-*")) == "step-00000003"


def test_gradient_that_is_not_finite_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = iter([False, True, False, False])
    whole = optimize.sum_gradients

    def once(model: Any) -> None:
        whole(model)
        if model is actor and next(broken):
            next(model.parameters()).grad.view(-1)[0] = math.nan

    monkeypatch.setattr(optimize, "sum_gradients", once)
    actor = small_actor()
    said: list[str] = []
    config = replace(FAST, iterations=4, minibatches=1, save_every=1)
    stood: list[list[torch.Tensor]] = []

    def collect(iteration: int) -> list[Episode]:
        stood.append(weights(actor))
        return play(actor, 32, iteration)

    ppo(actor, new_critic(actor), collect, config, tmp_path, said.append)
    assert sum("not finite" in line for line in said) == 1
    assert same(stood[1], stood[2])
    assert not same(stood[2], stood[3])
