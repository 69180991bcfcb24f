"""A step of PPO that goes too far is drawn back; one that does not is left alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cuagent.training.config import ConfigError, configure
from cuagent.training.model import new_critic
from cuagent.training.optimize import AdamW
from cuagent.training.ppo import PpoConfig, ppo
from cuagent.training.trust import HALVINGS, draw_back, kl_between, remembered
from tests.training.test_stages import FAST, play, same, silent, small_actor, weights


def line(at: float) -> torch.nn.Linear:
    """One weight, and one that is not trained."""
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, at)
    model.bias.requires_grad_(False)
    return model


def squared(model: torch.nn.Linear) -> Callable[[], float]:
    return lambda: model.weight.item() ** 2


def test_a_step_too_far_is_halved_until_it_is_not() -> None:
    model = line(0.0)
    before = remembered(model)
    torch.nn.init.constant_(model.weight, 1.0)
    bias = model.bias.clone()
    assert draw_back(model, before, squared(model), 0.1) == {"kl": 0.0625, "kept": 0.25}
    assert model.weight.item() == 0.25
    assert torch.equal(model.bias, bias)


def test_a_step_within_the_limit_is_left_alone_to_the_bit() -> None:
    model = line(0.0)
    before = remembered(model)
    torch.nn.init.constant_(model.weight, 0.3)
    made = weights(model)
    assert draw_back(model, before, squared(model), 0.1)["kept"] == 1
    assert same(made, weights(model))


@pytest.mark.parametrize("at", [math.nan, math.inf, 1e9])
def test_a_step_that_no_halving_mends_is_not_made(at: float) -> None:
    model = line(0.7)
    before = remembered(model)
    torch.nn.init.constant_(model.weight, at)
    assert draw_back(model, before, squared(model), 0.1) == {"kl": 0.0, "kept": 0.0}
    assert same(before, [model.weight])


def test_the_last_halving_counts() -> None:
    model = line(0.0)
    before = remembered(model)
    torch.nn.init.constant_(model.weight, 2.0**HALVINGS)
    assert draw_back(model, before, squared(model), 1.0) == {"kl": 1.0, "kept": 0.5**HALVINGS}


def test_the_estimate_is_the_divergence_where_all_tokens_are_drawn_as_often_as_they_come() -> None:
    old = torch.tensor([0.5, 0.25, 0.25])
    new = torch.tensor([0.25, 0.25, 0.5])
    drawn = torch.tensor([[0, 0, 1, 2, 0]])  # as often as `old` says, then one of an observation
    action = torch.tensor([[True, True, True, True, False]])
    exact = float((old * (old / new).log()).sum())
    assert kl_between(old[drawn].log(), new[drawn].log(), action) == pytest.approx(exact)


def test_ppo_goes_no_further_than_it_may(tmp_path: Path) -> None:
    steep = replace(FAST, iterations=3, actor=AdamW(lr=3e-2))

    def history(name: str, config: PpoConfig) -> list[dict[str, float]]:
        actor = small_actor()
        critic = new_critic(actor)
        return ppo(actor, critic, lambda i: play(actor, 48, i), config, tmp_path / name, silent)

    free = history("free", replace(steep, max_kl=math.inf))
    assert max(m["kl"] for m in free) > 0.05
    assert {m["kept"] for m in free} == {1.0}
    held = history("held", replace(steep, max_kl=0.01))
    assert max(m["kl"] for m in held) <= 0.01
    assert min(m["kept"] for m in held) < 1
    assert all("kl" not in m for m in history("as in the paper", steep))


def test_the_policy_that_may_not_move_does_not_and_its_critic_learns(tmp_path: Path) -> None:
    actor = small_actor()
    critic = new_critic(actor)
    before = weights(actor), weights(critic)
    config = replace(FAST, iterations=2, max_kl=0.0)
    said: list[str] = []
    ppo(actor, critic, lambda i: play(actor, 32, i), config, tmp_path, said.append)
    assert same(before[0], weights(actor))
    assert not same(before[1], weights(critic))
    assert ", 0.0% of the step" in said[0]


def test_a_limit_below_zero_is_refused() -> None:
    assert configure(PpoConfig(), None, ["max_kl=0.01"]).max_kl == 0.01
    with pytest.raises(ConfigError, match="max_kl"):
        configure(PpoConfig(), None, ["max_kl=-1"])
