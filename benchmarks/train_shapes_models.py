"""Define decoders with the layer sizes of real models for `train_shapes.py`, and random
episodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from cuagent.training.data.segments import Episode, Kind, Segment
from cuagent.training.engines.engine import free_memory, token_bytes
from cuagent.training.policy.placement import Dtype
from cuagent.training.settings import TrainConfig

ROOM = 8 << 30
"""Bytes of GPU memory that the cache leaves to activations, recorded passes and judges."""


@dataclass(frozen=True)
class Shape:
    """Layer sizes of a decoder, and sizes of the episodes that it plays."""

    layers: int
    width: int
    inner: int
    heads: int
    groups: int
    vocabulary: int
    tied: bool
    context: int
    turns: int
    episodes: int
    batch: int
    """Number of episodes in a step of RFT and of value pretraining."""
    rank: int = 0
    """Rank of the adapters; 0 trains all weights."""


SHAPES = {
    "tiny": Shape(2, 32, 64, 2, 1, 4096, True, 9216, 4, 4, 1),
    "tiny-lora": Shape(2, 32, 64, 2, 1, 4096, False, 9216, 4, 4, 1, rank=4),
    "qwen-1.5b": Shape(28, 1536, 8960, 12, 2, 151936, True, 32768, 20, 64, 16),
    "qwen-7b-lora": Shape(28, 3584, 18944, 28, 4, 152064, False, 32768, 20, 64, 16, rank=32),
}


FAMILIES = {
    "llama": "LlamaConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "mistral": "MistralConfig",
    "gemma3": "Gemma3TextConfig",
}
"""Class name of the transformers configuration, by model family."""


def decoder(shape: Shape, family: str, chat: Any, dtype: Dtype, device: str) -> Any:
    """Return a causal language model of this shape with random weights, on the device."""
    import transformers

    torch.manual_seed(0)
    settings = getattr(transformers, FAMILIES[family])(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        head_dim=shape.width // shape.heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=chat.end,
        pad_token_id=chat.pad,
    )
    with torch.device(device):  # random numbers for billions of weights take minutes on a CPU
        return transformers.AutoModelForCausalLM.from_config(
            settings, attn_implementation="sdpa", dtype=dtype.torch
        )


def with_room(config: TrainConfig, actor: Any) -> TrainConfig:
    """Return settings whose cache leaves `ROOM` bytes of the GPU's free memory; report a change."""
    free, asked = free_memory(actor.device), config.play.cache_tokens
    if free is None or asked is None:
        return config
    # On a GPU a key or value has two bytes, also if the weights have four.
    fits = (free - ROOM) // (token_bytes(actor) // actor.dtype.itemsize * 2)
    if asked <= fits:
        return config
    whole = max(1, fits // config.play.context) * config.play.context
    print(f"cache of {whole} tokens instead of {asked}: {free / 2**30:.1f} GiB are free")
    return replace(config, play=replace(config.play, cache_tokens=whole))


def random_episodes(shape: Shape, context: int) -> list[Episode]:
    """Return episodes of random ids: a prompt of 7,000 tokens (or a quarter of `context`), then
    turns of 250 sampled tokens and tool output that fills the context."""
    generator = torch.Generator().manual_seed(2)
    prompt = min(7000, context // 4)
    each = (context - prompt) // shape.turns
    found = []
    for number in range(shape.episodes):
        segments = []
        parts = [(Kind.PROMPT, prompt)]
        parts += [(Kind.ACTION, each // 4), (Kind.OBSERVATION, each - each // 4)] * shape.turns
        for kind, n in parts:
            ids = torch.randint(3, shape.vocabulary, (n,), generator=generator).tolist()
            logprobs = (-10.0,) * n if kind is Kind.ACTION else None
            segments.append(Segment(kind, tuple(ids), logprobs))
        found.append(
            Episode(f"e{number}", "t", "t", tuple(segments), float(number % 4), "submitted")
        )
    return found
