"""Test that sampler and trainer agree on log-probabilities for small models of five families.

The trainer packs rows as it does by default; in bf16 products are rounded in both. The limit for
the mean difference of a token is 0.02.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from cuagent.training.data.batch import collate
from cuagent.training.data.segments import Episode, Kind, Segment
from cuagent.training.engines.cached import CachedEngine
from cuagent.training.engines.continuous import ContinuousEngine
from cuagent.training.engines.engine import LocalEngine, Request
from cuagent.training.policy.model import logprobs_of, per_token
from cuagent.training.policy.packed_attention import NAME, packs, register
from cuagent.training.policy.placement import Dtype, Placement, copy_weights, place

LIMIT = 0.02
END = 1
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": END,
    "pad_token_id": 2,
    "initializer_range": 0.1,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, head_dim=16),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, sliding_window=40),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SHAPE, head_dim=16, sliding_window=40,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}  # fmt: skip


def actor_of(family: str) -> Any:
    torch.manual_seed(3)
    return transformers.AutoModelForCausalLM.from_config(
        FAMILIES[family](), attn_implementation="sdpa"
    ).eval()


def conversations(engine: Any) -> list[Episode]:
    """Sample two turns each of conversations with prompts of several lengths."""
    prompts = [tuple(3 + (7 * i + k * k) % 500 for k in range(5 + 17 * i)) for i in (0, 1, 3, 5)]
    first = engine.sample([Request(p, 8, n) for n, p in enumerate(prompts)])
    asked = [
        Request((*p, *s.ids, 9, 8, 7), 8, 50 + n)
        for n, (p, s) in enumerate(zip(prompts, first, strict=True))
    ]
    second = engine.sample(asked)
    return [
        Episode(
            str(n), "t", "t",
            (
                Segment(Kind.PROMPT, p), Segment(Kind.ACTION, a.ids, a.logprobs),
                Segment(Kind.OBSERVATION, (9, 8, 7)), Segment(Kind.ACTION, b.ids, b.logprobs),
            ),
            1.0, "submitted",
        )
        for n, (p, a, b) in enumerate(zip(prompts, first, second, strict=True))
    ]  # fmt: skip


LLAMA = ("llama", Dtype.FP32)
CASES = [
    pytest.param(family, kind, compute, marks=() if quick else pytest.mark.slow)
    for family in FAMILIES
    for kind in ("local", "cached", "continuous")
    for compute in (Dtype.FP32, Dtype.BF16)
    for quick in [(kind == "cached" and compute is Dtype.BF16) or (family, compute) == LLAMA]
]
"""Parameters (model family, engine, dtype) of the test. Slow: all but the case that training uses,
and those of Llama in float32."""


@pytest.mark.parametrize(("family", "kind", "compute"), CASES)
def test_sampler_agrees_with_trainer(family: str, kind: str, compute: Dtype) -> None:
    trained = place(actor_of(family), Placement(compute=compute), "cpu")
    assert packs(trained)
    if kind == "continuous":
        # As in training: the engine's own copy, in the type of the products.
        sampling = actor_of(family).to(getattr(torch, compute.value))
        copy_weights(trained, sampling)
        engine: Any = ContinuousEngine(sampling, END, 2048)
    elif kind == "cached":
        engine = CachedEngine(trained, END, 256, rows=3, dtype=compute.torch)
    else:
        engine = LocalEngine(trained, END)
    with engine.open():
        played = conversations(engine)
    batch = collate(played)
    found = per_token(trained, batch, 4096, logprobs_of)
    gap = (found - batch.logprobs)[batch.action].abs()
    print(family, kind, compute, float(gap.mean()), float(gap.max()))
    assert int(batch.action.sum()) > 30
    if compute is Dtype.FP32:
        assert float(gap.max()) < 1e-4
    assert float(gap.mean()) < LIMIT


def deep_actor() -> Any:
    """Return a model of 16 layers whose logits reach about 20, with weights in bf16."""
    torch.manual_seed(3)
    shape = SHAPE | {"num_hidden_layers": 16, "initializer_range": 0.05}
    actor = transformers.AutoModelForCausalLM.from_config(
        transformers.Qwen2Config(**shape), attn_implementation="sdpa", dtype=torch.bfloat16
    )
    with torch.no_grad():
        actor.lm_head.weight.mul_(16)
    return actor.eval()


def gap_of(actor: Any) -> float:
    """Return the mean difference between the log-probabilities of sampler and trainer."""
    engine = CachedEngine(actor, END, 256, rows=4, dtype=torch.bfloat16)
    with engine.open():
        batch = collate(conversations(engine))
    found = per_token(actor, batch, 4096, logprobs_of)
    return float((found - batch.logprobs)[batch.action].abs().mean())


def test_sums_and_logits_in_fp32_lower_the_difference_in_bf16() -> None:
    plain = deep_actor()
    register()
    plain.set_attn_implementation(NAME)
    placed = place(deep_actor(), Placement(compute=Dtype.BF16), "cpu")
    assert gap_of(placed) < 0.6 * gap_of(plain)
