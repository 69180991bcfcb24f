"""Test sampling with cached conversations: log-probabilities, slots, limits, errors."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from toy_game import END, small_actor

from cuagent.task import Task
from cuagent.training.data.batch import collate
from cuagent.training.engines.cached import CachedEngine, shared
from cuagent.training.engines.decoding import rounded
from cuagent.training.engines.engine import EngineError, LocalEngine, OutOfMemory, Request, Sampled
from cuagent.training.policy.cached_attention import Pass, seen
from cuagent.training.policy.chat import Chat
from cuagent.training.policy.lora import Lora, adapt
from cuagent.training.policy.model import logprobs_of, new_actor, per_token, small_config
from cuagent.training.policy.packed_attention import packs, use_packing
from cuagent.training.policy.placement import Dtype, Placement, place
from cuagent.training.rollout.episode import Play, play_many

CONTEXT = 64


def own_logprobs(actor: Any, request: Request, ids: tuple[int, ...]) -> torch.Tensor:
    """Return the trainer's log-probabilities of the sampled tokens, computed in one pass."""
    whole = torch.tensor([request.prompt + ids])
    with torch.no_grad():
        logps = torch.log_softmax(actor(whole).logits[0, :-1].float(), -1)
    at = len(request.prompt)
    return logps[at - 1 :].gather(1, whole[0, at:, None])[:, 0]


def plain_kernel(
    query: Any, keys: Any, values: Any, cached: Pass, scale: float | None, window: int | None
) -> torch.Tensor:
    """Stand-in for torch's variable-length kernel: compute the attention of one conversation at a
    time."""
    out = torch.zeros_like(query[0].transpose(0, 1))
    bounds = zip(cached.query_starts[:-1], cached.query_starts[1:], cached.key_starts, cached.key_lengths)  # noqa: B905, E501  # fmt: skip
    for first, end, start, length in ([int(x) for x in row] for row in bounds):
        assert end - first <= cached.longest_new
        assert length <= cached.longest
        k, v = (x[start : start + length].transpose(0, 1)[None] for x in (keys, values))
        mask = seen(end - first, length, window, query.device)
        causal = mask is None and end - first > 1
        found = torch.nn.functional.scaled_dot_product_attention(
            query[:, :, first:end], k, v, mask, scale=scale, is_causal=causal, enable_gqa=True
        )
        out[first:end] = found[0].transpose(0, 1)
    return out


@pytest.fixture(params=["calls", "kernel"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool | None:
    """Value of `CachedEngine.flash`: None, or True with a stand-in for torch's kernel."""
    if request.param == "calls":
        return None
    monkeypatch.setattr("cuagent.training.policy.cached_attention.flash", plain_kernel)
    return True


@pytest.mark.parametrize("rows", [1, pytest.param(3, marks=pytest.mark.slow), 8])
def test_concurrent_turns_follow_model_logprobs_with_few_slots(
    rows: int, kernel: bool | None
) -> None:
    actor = small_actor()
    engine = CachedEngine(actor, END, CONTEXT, rows=rows)
    engine.flash = kernel
    requests = [Request((2, 4 + i % 3) * (1 + i % 9), 3 + i % 9, seed=i) for i in range(8)]

    def turns(request: Request) -> list[tuple[Request, Sampled]]:
        [first] = engine.sample([request])
        later = Request((*request.prompt, *first.ids, 5, 6), request.max_tokens, request.seed)
        return [(request, first), (later, engine.sample([later])[0])]

    with engine.open(), ThreadPoolExecutor(8) as threads:
        found = [pair for pairs in threads.map(turns, requests) for pair in pairs]
    for request, sampled in found:
        assert 1 <= len(sampled.ids) <= request.max_tokens
        assert sampled.cut == (sampled.ids[-1] != END)
        assert END not in sampled.ids[:-1]
        own = own_logprobs(actor, request, sampled.ids)
        torch.testing.assert_close(torch.tensor(sampled.logprobs), own, atol=1e-5, rtol=0)


def test_samples_are_those_of_the_local_engine(kernel: bool | None) -> None:
    """The seed of a request decides its tokens in every batch and engine."""
    actor = small_actor()
    requests = [Request((2, 4 + i % 5, 3), 12, seed=i, temperature=1.5) for i in range(20)]
    expected = LocalEngine(actor, END).sample(requests)
    engine = CachedEngine(actor, END, CONTEXT, rows=6)
    engine.flash = kernel
    with engine.open():
        found = engine.sample(requests)
        greedy = engine.sample([Request((2, 4, 3), 5, seed, temperature=0.0) for seed in range(2)])
    assert [s.ids for s in found] == [s.ids for s in expected]
    assert [s.cut for s in found] == [s.cut for s in expected]
    assert greedy[0] == greedy[1]


def test_next_turn_computes_new_tokens_only(kernel: bool | None) -> None:
    actor = small_actor()
    engine = CachedEngine(actor, 15, 200, rows=3)
    engine.flash = kernel
    prompt = tuple(2 + i % 9 for i in range(100))
    with engine.open():
        [first] = engine.sample([Request(prompt, 10, 0)])
        assert engine.computed == 100 + len(first.ids) - 1
        [second] = engine.sample([Request((*prompt, *first.ids, 5, 6), 10, 1)])
        turn = 1 + 2 + len(second.ids) - 1  # the last token of the first turn, and new ones
        assert engine.computed == 100 + len(first.ids) - 1 + turn
        before = engine.computed
        # Another conversation copies the keys of the common prompt.
        [other] = engine.sample([Request((*prompt[:90], 3, 3), 10, 2)])
        assert engine.computed - before == 2 + len(other.ids) - 1
    own = own_logprobs(actor, Request((*prompt[:90], 3, 3), 10, 2), other.ids)
    torch.testing.assert_close(torch.tensor(other.logprobs), own, atol=1e-5, rtol=0)


def test_equal_prompt_is_sampled_again() -> None:
    actor = small_actor()
    engine = CachedEngine(actor, END, CONTEXT, rows=1)
    with engine.open():
        one, other = (engine.sample([Request((2, 4, 3), 4, 7)])[0] for _ in range(2))
    assert one.ids == other.ids


def test_long_prompts_are_computed_in_parts(
    kernel: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuagent.training.engines.cached.PASS_TOKENS", 7)
    actor = small_actor()
    engine = CachedEngine(actor, END, CONTEXT, rows=4)
    engine.flash = kernel
    requests = [Request(tuple(2 + (i * k) % 9 for k in range(9 + 8 * i)), 6, i) for i in range(5)]
    with engine.open():
        found = engine.sample(requests)
    for request, sampled in zip(requests, found, strict=True):
        own = own_logprobs(actor, request, sampled.ids)
        torch.testing.assert_close(torch.tensor(sampled.logprobs), own, atol=1e-5, rtol=0)


def test_weights_may_change_between_openings() -> None:
    actor = small_actor()
    engine = CachedEngine(actor, END, CONTEXT)
    request = Request((2, 4, 3, 5, 6), 8, 1)
    with engine.open():
        engine.sample([request])
    with torch.no_grad():
        for p in actor.parameters():
            p.mul_(1.5)
    with engine.open():
        [found] = engine.sample([request])
    own = own_logprobs(actor, request, found.ids)
    torch.testing.assert_close(torch.tensor(found.logprobs), own, atol=1e-5, rtol=0)


def test_packed_policy_plays_and_stays_packed(
    task: Task, chat: Chat, play: Play, tmp_path: Path
) -> None:
    actor = new_actor(small_config(len(chat.tokenizer), 2, 32, 2, 700, chat.end, chat.pad), seed=3)
    assert use_packing(actor)
    short = replace(play, reply=12, turns=3, together=0.0)
    engine = CachedEngine(actor, chat.end, short.context, rows=2)
    jobs = [(task, seed) for seed in range(3)]
    judges: Any = lambda task: None  # noqa: E731
    played = play_many(jobs, judges, "policy", chat, engine, short, tmp_path)
    assert packs(actor)
    episodes = [e for e in played.episodes if e is not None]
    assert len(episodes) == 3
    batch = collate(episodes)
    found = per_token(actor, batch, 4096, logprobs_of)
    torch.testing.assert_close(found[batch.action], batch.logprobs[batch.action], atol=1e-4, rtol=0)


def test_request_beyond_the_context_is_refused() -> None:
    engine = CachedEngine(small_actor(), END, 16)
    with engine.open(), pytest.raises(EngineError, match=r"play\.context=16"):
        engine.sample([Request((2,) * 10, 7, 0)])


def test_cache_below_one_conversation_is_refused_with_the_numbers() -> None:
    engine = CachedEngine(small_actor(), END, 64, tokens=63)
    with pytest.raises(OutOfMemory, match="holds 63 tokens"), engine.open():
        pass
    assert CachedEngine(small_actor(), END, 64, tokens=200).conversations() == 3
    assert CachedEngine(small_actor(), END, 64, tokens=200, rows=2).conversations() == 2
    assert CachedEngine(small_actor(), END, 64).conversations() == 256


def test_exhausted_memory_names_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CachedEngine(small_actor(), END, CONTEXT, rows=2)
    with engine.open():

        def fail(*_: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

        with monkeypatch.context() as patched:
            patched.setattr("cuagent.training.engines.cached.sample_tokens", fail)
            with pytest.raises(OutOfMemory, match=r"play\.cache_tokens"):
                engine.sample([Request((2, 4, 3), 4, 0)])
        assert engine.sample([Request((2, 4, 3), 4, 0)])[0].ids  # it goes on


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_request_waits_for_a_thread_that_died(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CachedEngine(small_actor(), END, CONTEXT, rows=2)
    with engine.open():
        monkeypatch.setattr("cuagent.training.engines.cached.sample_tokens", {}.__getitem__)
        with pytest.raises(EngineError, match="stopped"):
            engine.sample([Request((2, 4, 3), 4, 0)])
        with pytest.raises(EngineError, match="stopped"):
            engine.sample([Request((2, 4, 3), 4, 0)])


def test_closing_fails_pending_requests() -> None:
    actor = small_actor()
    engine = CachedEngine(actor, 99, 60, rows=1)  # no token ends a turn
    caught: list[Exception] = []

    def ask() -> None:
        try:
            while True:
                engine.sample([Request((2, 4), 50, 0)])
        except EngineError as error:
            caught.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    with engine.open():
        for thread in threads:
            thread.start()
        engine.sample([Request((2, 5), 3, 0)])
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert [str(e) for e in caught] == ["stopped"] * 3
    with pytest.raises(EngineError, match="stopped"):
        engine.sample([Request((2, 4), 5, 0)])


def test_model_with_a_recurrent_state_is_refused() -> None:
    config = transformers.MambaConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4, bos_token_id=0,
        eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    actor = transformers.AutoModelForCausalLM.from_config(config).eval()
    with (
        pytest.raises(EngineError, match=r"cannot use cached.*(Error|differ).*play\.engine=local"),
        CachedEngine(actor, 1, 32).open(),
    ):
        pass


def test_recorded_steps_have_few_sizes() -> None:
    assert [rounded(n) for n in (1, 2, 3, 4, 5, 8, 9, 64, 65)] == [1, 2, 4, 4, 8, 8, 16, 64, 72]


@pytest.mark.parametrize(("noise", "fits"), [(0.06, True), (0.5, False)])
def test_rounding_is_no_reason_to_refuse_a_model_and_the_reason_is_named(
    noise: float, fits: bool
) -> None:
    """In bfloat16 the outputs of wide, deep models differ by some percent between passes."""
    actor = small_actor()
    generator = torch.Generator().manual_seed(0)

    def rounded_more(module: Any, inputs: Any, out: torch.Tensor) -> torch.Tensor:
        return out * (1 + noise * torch.randn(out.shape, generator=generator))

    actor.model.norm.register_forward_hook(rounded_more)
    engine = CachedEngine(actor, END, CONTEXT)
    if fits:
        with engine.open():
            assert engine.sample([Request((2, 4, 3), 4, 0)])[0].ids
    else:
        refused = pytest.raises(EngineError, match=r"logits differ by \d+% .*play\.engine=local")
        with refused, engine.open():
            pass


@pytest.mark.slow
def test_adapters_on_half_precision_weights_sample_and_agree() -> None:
    """The settings of a 7B model: frozen weights in bfloat16, adapters in fp32, recomputation."""
    pytest.importorskip("peft")
    config = transformers.Qwen2Config(
        vocab_size=512, hidden_size=112, intermediate_size=256, num_hidden_layers=12,
        num_attention_heads=28, num_key_value_heads=4, max_position_embeddings=256,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=END, pad_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    actor = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", dtype=torch.bfloat16
    )
    placement = Placement(compute=Dtype.BF16, recompute=True)
    actor = place(adapt(actor, Lora(rank=4)), placement, "cpu").eval()
    engine = CachedEngine(actor, END, 256, rows=4, dtype=torch.bfloat16)
    requests = [
        Request(tuple(3 + (i * k) % 500 for k in range(9 + 8 * i)), 12, i) for i in range(5)
    ]
    with engine.open():
        found = engine.sample(requests)
    gaps = [
        (own_logprobs(actor, r, s.ids) - torch.tensor(s.logprobs)).abs()
        for r, s in zip(requests, found, strict=True)
    ]
    assert float(torch.cat(gaps).mean()) < 0.02


def test_shared_counts_equal_first_tokens() -> None:
    long = list(range(2000))
    assert shared(long, tuple(long)) == 2000
    assert shared(long, (*long[:1200], 5, *long[1201:])) == 1200
    assert shared(long[:700], long) == 700
    assert shared([], long) == 0
    assert shared([9], long) == 0
