"""Test that a PPO step beyond the limit is shrunk, and others are unchanged."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_game import FAST, play, same, silent, small_actor, weights

from cuagent.training import optimize
from cuagent.training.batch import collate
from cuagent.training.config import ConfigError, configure
from cuagent.training.model import logprobs_of, new_critic
from cuagent.training.monitor import NOT_FINITE, Limits, alarms
from cuagent.training.optimize import AdamW
from cuagent.training.ppo import PpoConfig, ppo
from cuagent.training.segments import Episode
from cuagent.training.trust import binary_kl, shrink_step, snapshot


def line(at: float) -> torch.nn.Linear:
    """Return a model with one trained weight and one frozen bias."""
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, at)
    model.bias.requires_grad_(False)
    return model


def squared(model: torch.nn.Linear) -> Callable[[], float]:
    return lambda: model.weight.item() ** 2


def test_step_beyond_limit_is_halved() -> None:
    model = line(0.0)
    before = snapshot(model)
    torch.nn.init.constant_(model.weight, 1.0)
    bias = model.bias.clone()
    found = shrink_step(model, before, squared(model), 0.1)
    assert found == {"kl_made": 1.0, "kl": 0.0625, "kept": 0.25}
    assert model.weight.item() == 0.25
    assert torch.equal(model.bias, bias)


def test_step_within_limit_is_unchanged() -> None:
    model = line(0.0)
    before = snapshot(model)
    torch.nn.init.constant_(model.weight, 0.3)
    made = weights(model)
    assert shrink_step(model, before, squared(model), 0.1)["kept"] == 1
    assert same(made, weights(model))


@pytest.mark.parametrize("at", [math.nan, math.inf, 1e9])
def test_step_that_no_halving_fixes_is_undone(at: float) -> None:
    model = line(0.7)
    before = snapshot(model)
    torch.nn.init.constant_(model.weight, at)
    found = shrink_step(model, before, squared(model), 0.1)
    assert (found["kl"], found["kept"]) == (0.0, 0.0)
    assert not found["kl_made"] < 1e17
    assert same(before, [model.weight])


def test_last_halving_is_tried() -> None:
    model = line(0.0)
    before = snapshot(model)
    torch.nn.init.constant_(model.weight, 64.0)
    found = shrink_step(model, before, squared(model), 1.0)
    assert found == {"kl_made": 4096.0, "kl": 1.0, "kept": 1 / 64}


def test_bf16_weights_return_completely() -> None:
    """Check that halving starts from the full step: halved repeatedly, one-bit steps would not
    shrink."""
    model = torch.nn.Linear(1000, 1, dtype=torch.bfloat16)
    before = snapshot(model)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.nextafter(p, torch.full_like(p, 9.0)))
    looks = iter([9.0, 9.0, 9.0, 0.0])
    assert shrink_step(model, before, lambda: next(looks), 1.0)["kept"] == 1 / 8
    assert same(before, weights(model))


def kl(p: float, q: float) -> float:
    """Return the KL of two Bernoulli distributions."""
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def test_binary_kl_matches_formula() -> None:
    old, new = torch.tensor([[0.5, 0.9, 0.1, 0.2]]), torch.tensor([[0.25, 0.8, 0.6, 0.9]])
    action = torch.tensor([[True, True, True, False]])
    expected = (kl(0.5, 0.25) + kl(0.9, 0.8) + kl(0.1, 0.6)) / 3
    assert binary_kl(old.log(), new.log(), action) == pytest.approx(expected)
    assert binary_kl(new.log(), old.log(), action) != pytest.approx(expected)


def test_binary_kl_is_below_full_kl() -> None:
    torch.manual_seed(0)
    old, new = (torch.log_softmax(3 * torch.randn(1, 200, 50), -1) for _ in "12")
    exact = float((old.exp() * (old - new)).sum(-1).mean())
    drawn = torch.distributions.Categorical(logits=old).sample()[..., None]
    tokens = [x.gather(-1, drawn).squeeze(-1) for x in (old, new)]
    assert 0 < binary_kl(*tokens, torch.ones(1, 200, dtype=torch.bool)) < exact


def test_certain_token_is_limited_by_fp32_resolution() -> None:
    old, new = torch.tensor([[0.9, 0.1]]).log(), torch.log_softmax(torch.tensor([[17.0, 0.0]]), -1)
    exact = float((old.exp() * (old - new)).sum())
    found = binary_kl(old[:, :1], new[:, :1], torch.tensor([[True]]))
    assert 0.7 * exact < found < exact


@pytest.mark.parametrize(("then", "now"), [(-9.0, -0.1), (0.0, -12.0), (-1e-7, 0.0), (0.0, 0.0)])
def test_single_token_kl_is_bounded(then: float, now: float) -> None:
    yes = torch.tensor([[True]])
    assert 0 <= binary_kl(torch.tensor([[then]]), torch.tensor([[now]]), yes) <= 12.0


def test_ppo_step_stays_within_max_kl(tmp_path: Path) -> None:
    steep = replace(FAST, iterations=3, actor=AdamW(lr=3e-2))

    def history(name: str, config: PpoConfig) -> list[dict[str, float]]:
        actor = small_actor()
        critic = new_critic(actor)
        return ppo(actor, critic, lambda i: play(actor, 48, i), config, tmp_path / name, silent)

    free = history("free", replace(steep, max_kl=math.inf))
    assert max(m["kl"] for m in free) > 0.02
    assert {m["kept"] for m in free} == {1.0}
    assert all(m["kl"] == m["kl_made"] for m in free)
    held = history("held", replace(steep, max_kl=0.01))
    assert max(m["kl"] for m in held) <= 0.01
    assert min(m["kept"] for m in held) < 1
    assert all("kl" not in m for m in history("as in the paper", steep))


def test_max_kl_zero_keeps_policy_and_trains_critic(tmp_path: Path) -> None:
    actor = small_actor()
    critic = new_critic(actor)
    before = weights(actor), weights(critic)
    config = replace(FAST, iterations=2, max_kl=0.0)
    said: list[str] = []
    ppo(actor, critic, lambda i: play(actor, 32, i), config, tmp_path, said.append)
    assert same(before[0], weights(actor))
    assert not same(before[1], weights(critic))
    assert ", step reduced to 0.0%" in said[0]
    assert "policy unchanged" in said[1]


def test_kl_covers_whole_batch_after_all_updates(tmp_path: Path) -> None:
    actor = small_actor()
    before = copy.deepcopy(actor)
    episodes = play(actor, 32, 1)
    # Log-probabilities of another engine must not enter the distance.
    others = [
        replace(e, segments=tuple(replace(s, logprobs=shifted(s.logprobs)) for s in e.segments))
        for e in episodes
    ]
    config = replace(FAST, iterations=1, max_kl=math.inf)
    found = ppo(actor, new_critic(actor), lambda _: others, config, tmp_path, silent)[0]["kl"]
    batch = collate(episodes)
    old, new = (logprobs_of(model, batch)[batch.action].detach() for model in (before, actor))
    slow = [kl(math.exp(p), math.exp(q)) for p, q in zip(old.tolist(), new.tolist(), strict=True)]
    assert found == pytest.approx(sum(slow) / len(slow), rel=1e-3)


def shifted(logprobs: tuple[float, ...] | None) -> tuple[float, ...] | None:
    return None if logprobs is None else tuple(x - 0.3 for x in logprobs)


def test_shrunk_step_keeps_optimizer_moments() -> None:
    model = line(0.0)
    optimizer = torch.optim.AdamW([model.weight], lr=1.0)
    before = snapshot(model)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    moments = copy.deepcopy(optimizer.state_dict())
    assert shrink_step(model, before, squared(model), 0.1)["kept"] < 1
    assert str(optimizer.state_dict()) == str(moments)


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
    config = replace(FAST, iterations=4, minibatches=1, max_kl=0.5, save_every=1)
    stood: list[list[torch.Tensor]] = []

    def collect(iteration: int) -> list[Episode]:
        stood.append(weights(actor))
        return play(actor, 32, iteration)

    history = ppo(actor, new_critic(actor), collect, config, tmp_path, said.append)
    assert sum("not finite" in line for line in said) == 1
    assert same(stood[1], stood[2])
    assert not same(stood[2], stood[3])
    assert [m["kept"] for m in history] == [1.0] * 4


def test_monitor_uses_kl_after_shrinking() -> None:
    limits = Limits(approx_kl=0.05)
    names = {a.name for a in alarms([{"approx_kl": 0.2, "kl": 0.01, "kept": 0.5}], limits)}
    assert not names & {"kl", "kept"}
    assert "kl" in {a.name for a in alarms([{"approx_kl": 0.0, "kl": 0.06}], limits)}
    assert "kept" in {a.name for a in alarms([{"kl": 0.0, "kept": 0.0}], limits)}
    assert NOT_FINITE in {a.name for a in alarms([{"kl_made": math.nan}], limits)}


def test_negative_max_kl_is_refused() -> None:
    assert configure(PpoConfig(), None, ["max_kl=0.01"]).max_kl == 0.01
    with pytest.raises(ConfigError, match="max_kl"):
        configure(PpoConfig(), None, ["max_kl=-1"])
