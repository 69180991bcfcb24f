"""Test packed rows: outputs, losses and gradients are those of padded rows, and no row sees
another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from toy_game import END, play, silent, small_actor

from cuagent.training.algorithms.losses import imitation_loss
from cuagent.training.algorithms.ppo_update import PpoConfig, update
from cuagent.training.algorithms.rft import RftConfig, rft
from cuagent.training.algorithms.value import value_step
from cuagent.training.data.batch import Batch, collate, packed_microbatches, take
from cuagent.training.data.segments import Episode, Kind, Segment
from cuagent.training.engines.continuous import ContinuousEngine
from cuagent.training.engines.engine import LocalEngine, Request
from cuagent.training.policy.lora import Lora, adapt
from cuagent.training.policy.model import (
    device_microbatches,
    logprobs_and_entropy,
    logprobs_of,
    new_critic,
    per_token,
    save_model,
    values,
)
from cuagent.training.policy.optimize import AdamW, make_optimizer
from cuagent.training.policy.packed_attention import packs, use_packing
from cuagent.training.policy.placement import Placement, place

WORDS = 40
SHAPE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, head_dim=8),
    "mistral, last 5 tokens": lambda: transformers.MistralConfig(**SHAPE, sliding_window=5),
    "gemma3, last 5 tokens": lambda: transformers.Gemma3TextConfig(
        **SHAPE, head_dim=8, sliding_window=5, layer_types=["sliding_attention", "full_attention"]
    ),
}


def actor_of(family: str) -> Any:
    torch.manual_seed(3)
    return transformers.AutoModelForCausalLM.from_config(
        FAMILIES[family](), attn_implementation="sdpa"
    ).eval()


def episodes(seed: int = 0, lengths: tuple[int, ...] = (3, 21, 9, 14, 2, 30)) -> list[Episode]:
    """Make episodes of random tokens; the third has two context windows."""
    g = torch.Generator().manual_seed(seed)

    def some(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, WORDS, (n,), generator=g).tolist())

    def acted(n: int, context: int) -> Segment:
        return Segment(Kind.ACTION, some(n), (-3.0,) * n, context=context)

    made = []
    for i, n in enumerate(lengths):
        parts = [Segment(Kind.PROMPT, some(4)), acted(n, 0), Segment(Kind.OBSERVATION, some(5))]
        parts.append(acted(2, 0))
        if i == 2:
            parts += [Segment(Kind.PROMPT, some(3), context=1), acted(6, 1)]
        made.append(Episode(f"e{i}", f"t{i}", f"t{i}", tuple(parts), (-1.0, 1.0, 3.0)[i % 3], ""))
    return made


def gradients(model: Any) -> torch.Tensor:
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad(set_to_none=True)
    return found


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if two tensors agree within the rounding of fp32, relative to the largest
    number."""
    return float((a - b).abs().max()) <= 5e-6 * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_rows_give_the_outputs_and_gradients_of_padded_rows(family: str) -> None:
    actor, batch = actor_of(family), collate(episodes())

    def measured() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = per_token(actor, batch, 64, logprobs_and_entropy, channels=2)
        losses = []
        for _, part in device_microbatches(batch, 64, actor):
            loss = imitation_loss(logprobs_of(actor, part), part.action, batch.action_tokens)
            loss.backward()
            losses.append(loss.detach())
        return found, torch.stack(losses).sum(), gradients(actor)

    padded = measured()
    assert use_packing(actor), "the family must be packed, or this test compares nothing"
    packed = measured()
    assert all(close(a, b) for a, b in zip(packed, padded, strict=True))
    assert padded[2].abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "mistral, last 5 tokens"])
def test_critic_gets_the_same_values_and_gradients(family: str) -> None:
    batch = collate(episodes())
    critic = new_critic(actor_of(family)).eval()
    torch.nn.init.normal_(critic.score.weight)

    def measured() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = per_token(critic, batch, 64, values)
        loss = value_step(critic, batch, batch.outcome, 64, found, 0.2)
        return found, torch.tensor(loss), gradients(critic)

    padded = measured()
    assert use_packing(critic)
    packed = measured()
    kept = batch.real.clone()  # V at padding is never read
    assert close(packed[0][kept], padded[0][kept])
    assert close(packed[1], padded[1])
    assert close(packed[2], padded[2])


def test_update_of_ppo_gives_the_same_weights_and_metrics() -> None:
    def updated(packed: bool) -> tuple[dict[str, float], torch.Tensor]:
        actor = actor_of("qwen2")
        critic = new_critic(actor)
        if packed:
            assert use_packing(actor)
            assert use_packing(critic)
        config = PpoConfig(
            minibatches=2,
            actor=AdamW(1e-3),
            critic=AdamW(1e-3),
            kl_weight=0.1,
            tokens_per_microbatch=50,
        )
        optimizers = {
            "actor": make_optimizer(actor, config.actor),
            "critic": make_optimizer(critic, config.critic),
        }
        metrics = update(
            actor, critic, optimizers, episodes(), config, 0, reference=actor_of("qwen2")
        )
        return metrics, torch.cat([p.detach().flatten() for p in actor.parameters()])

    (padded, before), (packed, after) = updated(False), updated(True)
    assert packed == pytest.approx(padded, rel=1e-4, abs=1e-5)
    # The size of Adam's first step is its rate, for any gradient, so compare with the rate.
    assert float((after - before).abs().max()) < 1e-4


def test_a_row_does_not_see_the_rows_packed_before_it() -> None:
    actor = actor_of("llama")
    assert use_packing(actor)
    one, other = episodes(0), episodes(1)
    same = [one[0], one[1], one[4]]
    changed = [other[0], one[1], other[4]]

    def logprobs(chosen: list[Episode]) -> torch.Tensor:
        return per_token(actor, collate(chosen), 500, logprobs_of)

    assert torch.equal(logprobs(same)[1], logprobs(changed)[1])
    assert not torch.equal(logprobs(same)[0], logprobs(changed)[0])


def test_recomputed_layers_attend_within_rows_too() -> None:
    batch = collate(episodes())

    def gradient(placement: Placement) -> torch.Tensor:
        actor = place(actor_of("qwen3"), placement, "cpu")
        assert packs(actor) is placement.packed
        for _, part in device_microbatches(batch, 200, actor):
            imitation_loss(logprobs_of(actor, part), part.action, 10).backward()
        return gradients(actor)

    wanted = gradient(Placement(packed=False))
    assert close(gradient(Placement(recompute=True)), wanted)


def test_adapters_train_on_packed_rows() -> None:
    batch = collate(episodes())

    def gradient(packed: bool) -> torch.Tensor:
        torch.manual_seed(0)
        actor = place(adapt(actor_of("llama"), Lora(rank=2)), Placement(packed=packed), "cpu")
        for p in actor.parameters():  # B starts at 0, which would hide A's gradient
            if p.requires_grad:
                torch.nn.init.normal_(p, std=0.1)
        for _, part in device_microbatches(batch, 200, actor):
            assert (part.packing is not None) is packed
            imitation_loss(logprobs_of(actor, part), part.action, 10).backward()
        return gradients(actor)

    assert close(gradient(True), gradient(False))


def test_models_that_carry_a_state_over_rows_are_padded() -> None:
    config = transformers.MambaConfig(
        vocab_size=WORDS, hidden_size=16, state_size=4, num_hidden_layers=1
    )
    torch.manual_seed(0)
    mamba = transformers.AutoModelForCausalLM.from_config(config)
    assert not use_packing(mamba)
    assert not packs(mamba)


def test_attention_that_ignores_the_rows_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that drops the extra arguments would attend over all packed rows."""
    actor = actor_of("llama")
    whole = type(actor.model).forward

    def forgetful(self: Any, **kwargs: Any) -> Any:
        kwargs.pop("packed_lengths", None)
        return whole(self, **kwargs)

    monkeypatch.setattr(type(actor.model), "forward", forgetful)
    assert not use_packing(actor)
    assert not packs(actor)


def test_groups_hold_every_row_once_and_at_most_the_budget() -> None:
    lengths = torch.tensor([700, 40, 300, 300, 650, 41, 350, 1200])
    groups = packed_microbatches(lengths, 1000)
    assert sorted(i for g in groups for i in g.tolist()) == list(range(8))
    sums = [int(lengths[g].sum()) for g in groups]
    assert [s for s in sums if s > 1000] == [1200], "only a row that is longer by itself"
    assert len(groups) == 4, "1200; 700 + 300; 650 + 350; 300 + 41 + 40"


def test_a_packed_batch_has_no_padding() -> None:
    batch = collate(episodes())
    part = take(batch, torch.arange(len(batch.ids)), packs=True)
    assert part.packing is not None
    assert part.packing.ids.shape == (1, int(batch.real.sum()))
    assert torch.equal(part.ids[part.real], part.packing.ids[0])
    assert torch.equal(part.packing.ids[0, part.packing.drawn], part.ids[part.action])
    assert part.packing.positions[0, part.packing.starts[:-1].long()].tolist() == [0] * 7


def test_rft_reaches_the_same_weights(tmp_path: Path) -> None:
    def trained(packed: bool) -> torch.Tensor:
        actor = actor_of("qwen2")
        if packed:
            use_packing(actor)
        config = RftConfig(4, 3, AdamW(1e-3), tokens_per_microbatch=50)
        rft(actor, episodes(), [], config, tmp_path / str(packed), silent)
        return torch.cat([p.detach().flatten() for p in actor.parameters()])

    assert float((trained(True) - trained(False)).abs().max()) < 1e-4


def test_a_packed_policy_samples_the_same_tokens() -> None:
    plain, packed = small_actor(), small_actor()
    assert use_packing(packed)
    requests = [Request((2, 4 + i % 3) * (1 + i % 5), 6, seed=i) for i in range(6)]
    wanted, found = (LocalEngine(a, END).sample(requests) for a in (plain, packed))
    assert [s.ids for s in found] == [s.ids for s in wanted]
    batch: Batch = collate(play(packed, 4, 0))
    gap = (per_token(packed, batch, 64, logprobs_of) - batch.logprobs)[batch.action]
    assert float(gap.abs().max()) < 1e-5


def test_continuous_batching_plays_with_a_packed_policy_and_leaves_it_packed() -> None:
    actor = small_actor()
    assert use_packing(actor)
    engine = ContinuousEngine(actor, END, 2048)
    with engine.open():
        [sampled] = engine.sample([Request((2, 4, 3), 5, seed=1)])
    assert sampled.ids
    assert packs(actor)


def test_the_saved_policy_does_not_name_the_attention(tmp_path: Path) -> None:
    actor = small_actor()
    use_packing(actor)
    save_model(actor, tmp_path)
    assert "cuagent" not in (tmp_path / "config.json").read_text()


def test_placement_packs_by_default_and_can_be_told_not_to() -> None:
    assert packs(place(small_actor(), Placement(), "cpu"))
    assert not packs(place(small_actor(), replace(Placement(), packed=False), "cpu"))
