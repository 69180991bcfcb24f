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
from cuagent.training.policy.lora import (
    Lora,
    adapt,
    load_adapter,
    merged,
    own_backbone,
    share_backbone,
)
from cuagent.training.policy.model import (
    load_actor,
    load_critic,
    logprobs_of,
    new_critic,
    per_token,
    save_model,
    values,
)
from cuagent.training.policy.optimize import AdamW

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
RANK = Lora(rank=4)


def trained(model: Any) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad]


def test_adapters_start_alike_in_every_process() -> None:
    def start(seed: int) -> list[torch.Tensor]:
        plain = small_actor()
        torch.manual_seed(seed)  # processes that did other work before have other states
        found = weights(adapt(plain, RANK))
        after = torch.rand(3)
        torch.manual_seed(seed)
        assert torch.equal(after, torch.rand(3))
        return found

    assert same(start(1), start(2))


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


def adapted_pair(seed: int) -> tuple[Any, Any]:
    """Return an actor and a critic with trained adapters, each on its own copy of the weights."""
    plain = small_actor()
    torch.manual_seed(seed)
    pair = adapt(plain, RANK), adapt(new_critic(small_actor()), RANK)
    for model in pair:
        for p in model.parameters():
            if p.requires_grad:
                torch.nn.init.normal_(p, std=0.05)
    return pair


def test_shared_backbone_changes_no_result_and_saves_its_memory(tmp_path: Path) -> None:
    def run(shared: bool) -> tuple[list[torch.Tensor], int]:
        actor, critic = adapted_pair(1)
        saved = share_backbone(critic, actor) if shared else 0
        ppo(
            actor, critic, lambda i: play(actor, 16, i), replace(FAST, iterations=3),
            tmp_path / str(shared), silent,
        )  # fmt: skip
        held = {p.data_ptr(): p.nbytes for m in (actor, critic) for p in m.parameters()}
        assert sum(held.values()) + saved == sum(
            p.nbytes for m in adapted_pair(1) for p in m.parameters() if p.data_ptr()
        )
        return weights(actor) + weights(critic), saved

    (together, saved), (apart, _) = run(True), run(False)
    assert same(together, apart)
    backbone = sum(p.nbytes for p in small_actor().base_model.parameters())
    assert saved == backbone, "all of the backbone is held once"


def test_models_on_one_backbone_are_saved_with_their_own_adapters(tmp_path: Path) -> None:
    actor, critic = adapted_pair(2)
    share_backbone(critic, actor)
    batch = collate(play(small_actor(), 8, 3))
    expected = [per_token(actor, batch, 500, logprobs_of), per_token(critic, batch, 500, values)]
    own_backbone(critic, actor)
    save_model(merged(actor, tmp_path / "a"), tmp_path / "actor")
    save_model(merged(critic, tmp_path / "c"), tmp_path / "critic")
    found = [
        per_token(load_actor(tmp_path / "actor"), batch, 500, logprobs_of),
        per_token(load_critic(tmp_path / "critic"), batch, 500, values),
    ]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_critic_goes_on_with_the_adapter_of_value_pretraining(tmp_path: Path) -> None:
    _, critic = adapted_pair(3)
    batch = collate(play(small_actor(), 8, 3))
    expected = per_token(critic, batch, 500, values)
    merged(critic, tmp_path)
    again = adapt(new_critic(small_actor()), RANK)
    load_adapter(again, tmp_path)
    torch.testing.assert_close(per_token(again, batch, 500, values), expected, atol=1e-5, rtol=0)
    with pytest.raises(ConfigError, match="the adapter has r=4, the settings 2"):
        load_adapter(adapt(new_critic(small_actor()), Lora(rank=2)), tmp_path)
    with pytest.raises(ConfigError, match="no adapter"):
        load_adapter(again, tmp_path / "nothing")


def test_critic_of_another_backbone_is_not_shared() -> None:
    critic = adapt(new_critic(small_actor(9)), RANK)
    with pytest.raises(ConfigError, match="another policy"):
        share_backbone(critic, adapt(small_actor(), RANK))


def test_shared_backbone_needs_adapters() -> None:
    with pytest.raises(ConfigError, match=r"lora\.shared needs lora\.rank"):
        Lora(shared=True)


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
