"""Test sampling and logits on a CUDA device: agreement with the trainer, bounds of memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from cuagent.training.algorithms.losses import imitation_loss, token_logprobs
from cuagent.training.data.batch import collate
from cuagent.training.data.segments import Episode, Kind, Segment
from cuagent.training.engines.cached import CachedEngine
from cuagent.training.engines.continuous import ContinuousEngine
from cuagent.training.engines.engine import (
    LocalEngine,
    OutOfMemory,
    Request,
    fitting_tokens,
    token_bytes,
)
from cuagent.training.policy import head
from cuagent.training.policy.model import device_microbatches, logprobs_of, per_token
from cuagent.training.policy.packed_attention import has_varlen, use_packing

pytestmark = pytest.mark.gpu

END, VOCABULARY = 1, 152_000


@pytest.fixture
def actor() -> Any:
    """A model in the shape of Qwen2.5 with four narrow layers and the whole vocabulary."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1536, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=16384,
        tie_word_embeddings=True, eos_token_id=END, bos_token_id=None,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.to("cuda", torch.bfloat16).eval()


def requests(count: int, length: int, answer: int) -> list[Request]:
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(2, VOCABULARY, (count, length), generator=generator).tolist()
    return [Request(tuple(p), answer, seed) for seed, p in enumerate(prompts)]


@pytest.mark.parametrize("kind", ["local", "cached", "continuous"])
def test_sampler_agrees_with_trainer_in_bf16(actor: Any, kind: str) -> None:
    asked = requests(16, 1500, 64)
    engine: Any = LocalEngine(actor, END)
    if kind == "continuous":
        engine = ContinuousEngine(actor, END, None)
    if kind == "cached":
        engine = CachedEngine(actor, END, 2048)
    with engine.open():
        found = engine.sample(asked)
    episodes = [
        Episode(
            str(n), "t", "t",
            (Segment(Kind.PROMPT, r.prompt), Segment(Kind.ACTION, s.ids, s.logprobs)),
            1.0, "submitted",
        )
        for n, (r, s) in enumerate(zip(asked, found, strict=True))
    ]  # fmt: skip
    batch = collate(episodes)
    gap = (per_token(actor, batch, 16384, logprobs_of) - batch.logprobs)[batch.action].abs()
    assert float(gap.mean()) < 0.02


def test_cached_conversations_use_the_kernel_of_torch(actor: Any) -> None:
    """Turns of different lengths, prompts in parts, and a decoding pass, against the trainer."""
    engine = CachedEngine(actor, -1, 4096, rows=6)
    first = [
        Request(r.prompt[: 50 + 333 * n], 9 + n, n) for n, r in enumerate(requests(6, 2000, 1))
    ]
    with engine.open():
        assert engine.flash, "torch's variable-length kernel gave other numbers or an error"
        turns = engine.sample(first)
        later = [
            Request((*r.prompt, *s.ids, *range(5, 25)), 8, r.seed)
            for r, s in zip(first, turns, strict=True)
        ]
        before = engine.computed
        again = engine.sample(later)
        assert engine.computed - before == 6 * (1 + 20 + 7)
        assert engine.recorded, "the decoding pass could not be recorded as a CUDA graph"
    for request, sampled in zip((*first, *later), (*turns, *again), strict=True):
        whole = torch.tensor([request.prompt + sampled.ids], device="cuda")
        with torch.no_grad():
            logits = actor(whole, use_cache=False).logits[0, len(request.prompt) - 1 : -1].float()
        own = torch.log_softmax(logits, -1).gather(1, torch.tensor(sampled.ids).cuda()[:, None])
        gap = (own[:, 0].cpu() - torch.tensor(sampled.logprobs)).abs()
        assert float(gap.mean()) < 0.02


def test_batches_of_the_local_engine_fit_into_free_memory(
    actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties().total_memory
    free = total // 2  # fixed, because other processes use the same GPU
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _=None: (free, total))
    tokens = fitting_tokens(actor)
    assert tokens is not None
    held = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    taken = tokens * 2 * 4 * 2 * 64 * 2  # k and v, layers, groups, width, bytes
    assert 0.3 * free < taken < 0.5 * free + held


def test_exhausted_gpu_memory_is_named(actor: Any) -> None:
    gc.collect()  # else engines of earlier tests give back memory during this one
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    reserved, spare, length = torch.cuda.memory_reserved(), 1 << 28, 8000
    torch.cuda.set_per_process_memory_fraction((reserved + spare) / total)
    # Their keys and values are larger than all memory that this process may use.
    asked = requests(64 + (reserved + spare) // (length * token_bytes(actor)), length, 4)
    try:
        with pytest.raises(OutOfMemory, match=r"lower play\.most_rows"):
            LocalEngine(actor, END, max_rows=len(asked), tokens=10**9).sample(asked)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def test_logits_of_many_tokens_take_the_memory_of_one_chunk(actor: Any) -> None:
    """8,192 tokens of the whole vocabulary would take 5 GB in fp32, three times with gradients."""
    prompt, answer = tuple(range(2, 12)), tuple(range(20, 20 + 8192))
    segments = (Segment(Kind.PROMPT, prompt), Segment(Kind.ACTION, answer))
    batch = collate([Episode("e", "t", "t", segments, 1.0, "submitted")]).to("cuda")
    actor.train()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    imitation_loss(logprobs_of(actor, batch), batch.action, batch.action_tokens).backward()
    assert torch.cuda.max_memory_allocated() - before < 5e9


@pytest.mark.parametrize("chunk", [1 << 28, 100 * VOCABULARY])
def test_products_in_bf16_give_fp32_logprobs_and_their_gradients(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels with fp32 results, against fp32 products of the rounded operands."""
    monkeypatch.setattr(head, "CHUNK", chunk)
    torch.manual_seed(0)
    linear = torch.nn.Linear(512, VOCABULARY, bias=False, device="cuda")
    torch.nn.init.normal_(linear.weight, std=0.3)
    hidden = torch.randn(300, 512, device="cuda", requires_grad=True)
    ids, weights = torch.arange(300, device="cuda") * 500, torch.randn(300, device="cuda")

    def measured(found: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return found.detach(), *torch.autograd.grad(
            (found * weights).sum(), [hidden, linear.weight]
        )

    with torch.autocast("cuda", torch.bfloat16):
        ours = measured(head.token_logprobs_of(linear, hidden, ids))
        through = measured(token_logprobs(head.logits(linear, hidden), ids))
    exact = hidden.bfloat16().float() @ linear.weight.bfloat16().float().T
    wanted = measured(token_logprobs(exact, ids))
    for found in (ours, through):
        torch.testing.assert_close(found[0], wanted[0], atol=1e-3, rtol=0)
        for a, b in zip(found[1:], wanted[1:], strict=True):
            assert a.dtype is torch.float32
            assert float((a - b).norm() / b.norm()) < 0.01


def test_packed_rows_agree_with_padded_rows_in_bf16(actor: Any) -> None:
    """torch's variable-length kernel, with grouped heads, against padded rows."""
    generator = torch.Generator().manual_seed(1)
    episodes = []
    for number, length in enumerate((37, 900, 260, 5, 1100)):
        ids = tuple(torch.randint(2, VOCABULARY, (length,), generator=generator).tolist())
        segments = (Segment(Kind.PROMPT, ids[:2]), Segment(Kind.ACTION, ids[2:]))
        episodes.append(Episode(str(number), "t", "t", segments, 1.0, "submitted"))
    batch = collate(episodes)

    def measured(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
        found = per_token(model, batch, 4096, logprobs_of)
        for _, part in device_microbatches(batch, 4096, model):
            imitation_loss(logprobs_of(model, part), part.action, 1000).backward()
        weight = model.model.layers[0].self_attn.k_proj.weight
        gradient = weight.grad.float()
        model.zero_grad(set_to_none=True)
        return found, gradient

    padded, wanted = measured(actor)
    assert use_packing(actor)
    query = torch.zeros(1, 8, 4, 64, device="cuda", dtype=torch.bfloat16)
    assert has_varlen(query), "torch 2.11 or newer has the kernel"
    packed, gradient = measured(actor)
    assert float((packed - padded).abs().max()) < 0.1
    assert float((gradient - wanted).norm() / wanted.norm()) < 0.05
