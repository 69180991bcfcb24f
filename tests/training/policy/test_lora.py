"""Test adapters: few weights change, a run resumes, and the saved model is complete."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_game import FAST, play, same, silent, small_actor, weights

from cuagent.training.algorithms.ppo import ppo
from cuagent.training.algorithms.rft import RftConfig, rft
from cuagent.training.config import ConfigError
from cuagent.training.data.batch import collate
from cuagent.training.policy.chat import Chat
from cuagent.training.policy.folder import save_served
from cuagent.training.policy.lora import Lora, adapt, merged
from cuagent.training.policy.model import load_actor, logprobs_of, new_critic, per_token, save_model
from cuagent.training.policy.optimize import AdamW

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
RANK = Lora(rank=4)


def trained(model: Any) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad]


def test_adapter_learns_and_is_saved_merged(tmp_path: Path) -> None:
    plain = small_actor()
    before = weights(plain)
    actor = adapt(plain, RANK)
    assert all("lora_" in name for name in trained(actor))
    episodes = [e for e in play(small_actor(7), 64, 5) if e.reward > 0]
    found = rft(actor, episodes, episodes[:9], RftConfig(20, 16), tmp_path / "rft", silent)
    frozen = [p for name, p in actor.named_parameters() if "lora_" not in name]
    assert same(before, frozen)

    batch = collate(episodes)
    expected = per_token(actor, batch, 500, logprobs_of)
    save_model(merged(actor, tmp_path / "adapter"), tmp_path / "model")
    again = per_token(load_actor(tmp_path / "model"), batch, 500, logprobs_of)
    torch.testing.assert_close(again, expected, atol=1e-5, rtol=0)
    assert not torch.allclose(
        per_token(small_actor(), batch, 500, logprobs_of), expected, atol=1e-4
    )
    assert (tmp_path / "adapter" / "adapter_config.json").exists()
    assert found["heldout_loss"] < -float(
        per_token(small_actor(), collate(episodes[:9]), 500, logprobs_of)[
            collate(episodes[:9]).action
        ].mean()
    )


def test_ppo_trains_adapters_and_critic_head_and_resumes(tmp_path: Path) -> None:
    def run(out: Path, iterations: int) -> list[torch.Tensor]:
        plain = small_actor()
        critic, actor = adapt(new_critic(plain), RANK), adapt(plain, RANK)
        assert any("score" in name for name in trained(critic))
        some = replace(FAST, iterations=iterations)
        ppo(actor, critic, lambda i: play(actor, 16, i), some, out, silent)
        return weights(actor) + weights(critic)

    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 2)
    assert same(run(tmp_path / "parts", 4), whole)
    size = sum(f.stat().st_size for f in (tmp_path / "whole" / "step-00000004").rglob("*"))
    assert size < 4 * sum(4 * w.numel() for w in whole)


def test_missing_peft_is_reported_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"pip install 'cuagent\[train-lora\]'"):
        adapt(small_actor(), RANK)


def test_unknown_target_layers_are_named() -> None:
    with pytest.raises(ConfigError, match="no_such_layer"):
        adapt(small_actor(), Lora(rank=2, targets=("no_such_layer",)))


def test_server_gets_the_merged_weights_and_training_goes_on(chat: Chat, tmp_path: Path) -> None:
    actor = adapt(small_actor(), RANK)
    episodes = [e for e in play(small_actor(7), 64, 5) if e.reward > 0]
    rft(actor, episodes, [], RftConfig(10, 16, AdamW(lr=1e-2)), tmp_path / "rft", silent)
    before, batch = weights(actor), collate(episodes)
    expected = per_token(actor, batch, 500, logprobs_of)
    save_served(actor, tmp_path / "served", chat)
    again = per_token(load_actor(tmp_path / "served"), batch, 500, logprobs_of)
    torch.testing.assert_close(again, expected, atol=1e-5, rtol=0)
    assert same(before, weights(actor))
    assert torch.equal(per_token(actor, batch, 500, logprobs_of), expected)
