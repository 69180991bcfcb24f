"""The three stages on a small policy and a game with tool output: they learn, and they resume.

The game: the prompt names a number; the policy says one token, is told noise, and says another;
the reward counts how many of the two name the prompt's number. Ids are sampled by the real engine.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cuagent.training.batch import collate
from cuagent.training.checkpoint import (
    STATE,
    latest_checkpoint,
    load_checkpoint,
    rewind,
    save_checkpoint,
)
from cuagent.training.engine import LocalEngine, Request
from cuagent.training.metrics import read_metrics
from cuagent.training.model import logprobs_of, new_actor, new_critic, per_token, small_config
from cuagent.training.monitor import Action, Limits
from cuagent.training.optimize import AdamW, make_optimizer
from cuagent.training.ppo import PpoConfig, ppo
from cuagent.training.rft import RftConfig, rft
from cuagent.training.segments import Episode, Kind, RecordError, Segment
from cuagent.training.value import ValueConfig, pretrain_value

END, NUMBERS, NOISE = 1, range(4, 10), range(10, 16)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def small_actor(seed: int = 0) -> Any:
    return new_actor(small_config(16, 1, 32, 2, 64, END, 0), seed)


def play(actor: Any, episodes: int, seed: int) -> list[Episode]:
    """Both turns of all episodes, batched."""
    engine = LocalEngine(actor, END)
    rng = np.random.default_rng(seed)
    asked = rng.choice(list(NUMBERS), episodes).tolist()
    prompts = [(2, number, 3) for number in asked]
    first = engine.sample([Request(p, 2, seed * 9973 + i) for i, p in enumerate(prompts)])
    noise = [tuple(rng.choice(list(NOISE), 3).tolist()) for _ in prompts]
    longer = [p + f.ids + n for p, f, n in zip(prompts, first, noise, strict=True)]
    second = engine.sample([Request(p, 2, seed * 9973 + 5000 + i) for i, p in enumerate(longer)])
    played = []
    for i, (p, f, n, s) in enumerate(zip(prompts, first, noise, second, strict=True)):
        right = (f.ids[0] == asked[i]) + (s.ids[0] == asked[i])
        played.append(
            Episode(
                f"{seed}-{i}",
                f"task{asked[i]}",
                f"task{asked[i]}",
                (
                    Segment(Kind.PROMPT, p),
                    Segment(Kind.ACTION, f.ids, f.logprobs),
                    Segment(Kind.OBSERVATION, n),
                    Segment(Kind.ACTION, s.ids, s.logprobs),
                    Segment(Kind.OBSERVATION, n),
                ),
                (-1.0, 1.0, 3.0)[right],
                "submitted",
            )
        )
    return played


def reward(actor: Any) -> float:
    return sum(e.reward for e in play(actor, 200, 777)) / 200


def weights(model: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


FAST = PpoConfig(
    iterations=20,
    minibatches=2,
    actor=AdamW(lr=3e-3),
    critic=AdamW(lr=6e-3),
    lam_actor=0.95,
    save_every=2,
)


def silent(_: str) -> None: ...


def test_the_engine_and_the_trainer_agree_on_every_sampled_token() -> None:
    actor = small_actor()
    batch = collate(play(actor, 32, 1))
    trained = per_token(actor, batch, 200, logprobs_of)
    torch.testing.assert_close(
        trained[batch.action], batch.logprobs[batch.action], atol=1e-5, rtol=0
    )


def test_a_requests_tokens_do_not_depend_on_its_company() -> None:
    engine = LocalEngine(small_actor(), END, max_rows=5)
    requests = [Request((2, 4 + i % 3) * (1 + i % 4), 3 + i % 9, seed=i) for i in range(12)]
    together = engine.sample(requests)
    assert [engine.sample([r])[0].ids for r in requests] == [s.ids for s in together]
    assert all(len(s.ids) <= r.max_tokens for s, r in zip(together, requests, strict=True))
    assert all((s.ids[-1] != END) == s.cut for s in together)


def test_sampling_follows_the_distribution() -> None:
    actor = small_actor()
    drawn = LocalEngine(actor, END).sample([Request((2, 4, 3), 1, seed) for seed in range(4000)])
    logits = actor(torch.tensor([[2, 4, 3]])).logits[0, -1]
    expected = torch.softmax(logits.detach(), -1) * 4000
    counts = torch.bincount(torch.tensor([s.ids[0] for s in drawn]), minlength=16)
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < 37.7  # 15 degrees of freedom, p = 0.001


def test_rft_then_value_pretraining_then_ppo_each_improve(tmp_path: Path) -> None:
    actor = small_actor()
    base = reward(actor)
    sampled = play(actor, 1500, 1)
    kept = [e for e in sampled if e.reward > 0]
    config = RftConfig(steps=20, optimizer=AdamW(lr=1e-3))
    rft(actor, kept, kept[:50], config, tmp_path / "rft", silent)
    tuned = reward(actor)
    assert tuned > base + 0.2

    critic = new_critic(actor)
    unfiltered = play(actor, 600, 2)
    found = pretrain_value(
        critic,
        unfiltered,
        play(actor, 200, 3),
        ValueConfig(steps=100, optimizer=AdamW(lr=1e-2)),
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


def test_at_learning_rate_zero_the_ratio_is_one_and_the_policy_the_same(tmp_path: Path) -> None:
    actor = small_actor()
    critic = new_critic(actor)
    before = weights(actor), weights(critic)
    config = replace(FAST, iterations=2, epochs=2, actor=AdamW(lr=0.0), critic=AdamW(lr=0.0))
    history = ppo(actor, critic, lambda i: play(actor, 32, i), config, tmp_path, silent)
    assert same(before[0], weights(actor))
    assert same(before[1], weights(critic))
    assert history[-1]["log_ratio_max"] < 1e-5
    assert history[-1]["clip_fraction"] == 0


@pytest.mark.parametrize("stage", ["rft", "value", "ppo"])
def test_a_resumed_stage_equals_an_uninterrupted_one(stage: str, tmp_path: Path) -> None:
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


def test_between_evaluations_a_line_is_said_when_half_a_minute_has_gone(
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


def test_value_pretraining_that_begins_anew_writes_each_step_once(tmp_path: Path) -> None:
    """Killed before its first checkpoint, it had written what the critic was like before."""
    episodes = play(small_actor(), 8, 0)
    for _ in range(2):
        pretrain_value(new_critic(small_actor()), episodes, [], ValueConfig(2, 8), tmp_path, silent)
        shutil.rmtree(tmp_path / "step-00000002")
    assert [m["step"] for m in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2]


def test_ppo_ends_when_it_is_enough_and_a_later_call_goes_on(tmp_path: Path) -> None:
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


def test_ppo_refuses_episodes_of_text(tmp_path: Path) -> None:
    actor = small_actor()
    episodes = play(actor, 4, 0)
    bare = tuple(replace(s, logprobs=None) for s in episodes[2].segments)
    episodes[2] = replace(episodes[2], segments=bare)
    with pytest.raises(RecordError, match="episode 0-2, call 1"):
        ppo(actor, new_critic(actor), lambda _: episodes, FAST, tmp_path, silent)


def test_a_collapse_is_rolled_back_and_then_stops_the_run(tmp_path: Path) -> None:
    """The reward of the game is turned over after three iterations: the mean falls."""
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


def test_a_run_that_is_killed_after_a_rewind_goes_on_from_there(tmp_path: Path) -> None:
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
    assert same(kept[5], kept[2]), "step 4 was of the weights that fell"
    actor, killed = small_actor(), False
    del kept[5]
    ppo(actor, new_critic(actor), collect, config, tmp_path, silent)
    assert same(kept[5], kept[2])
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    models = {"actor": actor, "critic": new_critic(actor)}
    optimizers = {name: make_optimizer(model, config.actor) for name, model in models.items()}
    assert load_checkpoint(newest, models, optimizers) == (
        6,
        {"rollbacks": 1, "rewound": 5, "stopped": 0},
    )


def test_a_kill_while_checkpoints_are_dropped_leaves_none_that_is_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = small_actor()
    models = {"actor": actor}
    optimizers = {"actor": make_optimizer(actor, FAST.actor)}
    for step in range(2):
        save_checkpoint(tmp_path, step, models, optimizers, {})

    def killed(folder: Path, **_: Any) -> None:
        if folder.exists():
            (folder / STATE).unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        rewind(tmp_path, 0, models, optimizers)
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    assert load_checkpoint(newest, models, optimizers) == (0, {})


def test_what_lasted_before_a_rewind_does_not_count_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, seen, said = small_actor(), list[float](), list[str]()

    def explained(*_: Any) -> dict[str, float]:
        seen.append(-0.1 if len(seen) < 4 else 0.3)
        return {"ev": 0.0, "ev_q4": seen[-1]}

    monkeypatch.setattr("cuagent.training.ppo.critic_metrics", explained)
    config = replace(FAST, iterations=6, on_alarm=Action.ROLLBACK, limits=Limits(reward_fall=9.0))
    ppo(actor, new_critic(actor), lambda i: play(actor, 16, i), config, tmp_path, said.append)
    assert sum("ALARM" in line for line in said) == 1, "three in a row, then the fourth alone"


def test_a_run_whose_time_is_up_ends_after_a_rewind_too(tmp_path: Path) -> None:
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
def test_a_run_that_an_alarm_ends_leaves_the_weights_of_before(
    on_alarm: Action, tmp_path: Path
) -> None:
    """What the caller saves as the finished model is not the collapsed one: nor the one that the
    fallen episodes were sampled from, which was saved before anybody had seen them."""
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


def test_what_lasted_goes_back_to_before_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the fifth to the seventh iteration, of which each has left a checkpoint."""
    actor, kept = small_actor(), list[list[torch.Tensor]]()

    def collect(iteration: int) -> list[Episode]:
        kept.append(weights(actor))
        return play(actor, 16, iteration)

    def explained(*_: Any) -> dict[str, float]:
        return {"ev": 0.0, "ev_q4": -0.1 if len(kept) > 4 else 0.3}

    monkeypatch.setattr("cuagent.training.ppo.critic_metrics", explained)
    config = replace(FAST, save_every=1, on_alarm=Action.STOP, limits=Limits(reward_fall=9.0))
    assert len(ppo(actor, new_critic(actor), collect, config, tmp_path, silent)) == 7
    assert same(weights(actor), kept[3])


def test_a_run_that_was_stopped_stays_so_when_it_is_taken_up(tmp_path: Path) -> None:
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


def test_weights_that_are_no_numbers_are_an_alarm_before_anybody_samples_from_them(
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


@pytest.mark.parametrize("stage", ["rft", "value"])
def test_what_is_no_number_any_more_is_not_kept(stage: str, tmp_path: Path) -> None:
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


def test_an_actor_that_begins_later_warms_up_then(tmp_path: Path) -> None:
    actor = small_actor()
    before = weights(actor)
    slow = AdamW(lr=1e-3, warmup=4)
    config = replace(FAST, iterations=3, minibatches=1, critic_only=2, actor=slow)
    ppo(actor, new_critic(actor), lambda i: play(actor, 16, i), config, tmp_path, silent)
    moved = max(float((a - b).abs().max()) for a, b in zip(weights(actor), before, strict=True))
    assert moved == pytest.approx(1e-3 / 4, rel=0.01), "Adam's first step is as long as its rate"


def test_a_critic_that_knows_nothing_explains_nothing_whatever_its_lambda(tmp_path: Path) -> None:
    """With lambda below 1 its targets are its own values, which it would explain well."""
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


def test_a_run_that_is_only_warned_keeps_what_it_does_after_an_alarm(tmp_path: Path) -> None:
    actor, said = small_actor(), list[str]()

    def collect(iteration: int) -> list[Episode]:
        reward = 3.0 if iteration == 0 else -1.0
        return [replace(e, reward=reward + i % 2) for i, e in enumerate(play(actor, 8, iteration))]

    config = replace(FAST, iterations=3, save_every=1, limits=Limits(reward_fall=1.0))
    ppo(actor, new_critic(actor), collect, config, tmp_path, said.append)
    assert any("ALARM" in line for line in said)
    assert max(p.name for p in tmp_path.glob("step-*")) == "step-00000003"


def test_a_checkpoint_of_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    rft(small_actor(), play(small_actor(), 4, 0), [], RftConfig(steps=1), tmp_path, silent)
    actor = small_actor()
    with pytest.raises(RecordError, match="start in another folder") as refused:
        ppo(actor, new_critic(actor), lambda i: [], FAST, tmp_path, silent)
    assert "Traceback" not in str(refused.value)


def test_the_monitor_names_each_trouble() -> None:
    from cuagent.training.monitor import alarms

    healthy = {
        "entropy": 1.0, "reward": 1.0, "reward_std": 1.0, "ev_q4": 0.4, "length_clipped": 0.0,
        "bad_calls": 0.05, "clip_fraction": 0.02, "approx_kl": 0.01, "first_log_ratio_max": 0.0,
        "grad_norm_actor": 1.0,
    }  # fmt: skip
    calm = [healthy] * 6
    assert alarms(calm, Limits()) == []
    troubles = {
        "entropy": 1.3, "reward": -0.5, "reward_std": 0.1, "ev_q4": -5.0, "length_clipped": 0.26,
        "bad_calls": 0.3, "clip_fraction": 0.3, "approx_kl": 0.2, "first_log_ratio_max": 0.1,
        "grad_norm_actor": 9.0, "actor_loss": math.nan,
    }  # fmt: skip
    names = set()
    for name, value in troubles.items():
        found = alarms([*calm, healthy | {name: value}], Limits())
        assert len(found) == 1, name
        names.add(found[0].name)
    assert len(names) == len(troubles)
    lasting = alarms([*calm, *[healthy | {"length_clipped": 0.26}] * 3], Limits())
    assert [a.severe for a in lasting] == [True]
