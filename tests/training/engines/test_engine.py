"""Test sampling by the local engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toy_game import END, play, small_actor

from cuagent.training.data.batch import collate
from cuagent.training.engines.engine import LocalEngine, OutOfMemory, Request, batches, token_bytes
from cuagent.training.policy.model import logprobs_of, per_token


def test_engine_logprobs_equal_trainer_logprobs() -> None:
    actor = small_actor()
    batch = collate(play(actor, 32, 1))
    trained = per_token(actor, batch, 200, logprobs_of)
    torch.testing.assert_close(
        trained[batch.action], batch.logprobs[batch.action], atol=1e-5, rtol=0
    )


def test_tokens_of_request_do_not_depend_on_batch() -> None:
    engine = LocalEngine(small_actor(), END, max_rows=5)
    requests = [Request((2, 4 + i % 3) * (1 + i % 4), 3 + i % 9, seed=i) for i in range(12)]
    together = engine.sample(requests)
    assert [engine.sample([r])[0].ids for r in requests] == [s.ids for s in together]
    assert all(len(s.ids) <= r.max_tokens for s, r in zip(together, requests, strict=True))
    assert all((s.ids[-1] != END) == s.cut for s in together)


def test_samples_follow_model_distribution() -> None:
    actor = small_actor()
    drawn = LocalEngine(actor, END).sample([Request((2, 4, 3), 1, seed) for seed in range(4000)])
    logits = actor(torch.tensor([[2, 4, 3]])).logits[0, -1]
    expected = torch.softmax(logits.detach(), -1) * 4000
    counts = torch.bincount(torch.tensor([s.ids[0] for s in drawn]), minlength=16)
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < 37.7  # 15 degrees of freedom, p = 0.001


@pytest.mark.filterwarnings("error::FutureWarning")
def test_long_prompts_enter_the_cache_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = small_actor()
    requests = [Request(tuple(2 + (i + k) % 13 for k in range(3 + 9 * i)), 6, i) for i in range(5)]
    whole = LocalEngine(actor, END).sample(requests)
    monkeypatch.setattr(
        "cuagent.training.engines.engine.PREFILL_TOKENS", 20
    )  # four columns of five rows
    widths: list[int] = []
    forward = actor.forward

    def watched(*args: Any, **given: Any) -> Any:
        widths.append(given["input_ids"].numel())
        return forward(*args, **given)

    monkeypatch.setattr(actor, "forward", watched)
    parts = LocalEngine(actor, END).sample(requests)
    assert max(widths) <= 20
    assert [s.ids for s in parts] == [s.ids for s in whole]
    for a, b in zip(parts, whole, strict=True):
        torch.testing.assert_close(torch.tensor(a.logprobs), torch.tensor(b.logprobs))


def test_batches_keep_within_rows_and_tokens() -> None:
    assert list(batches([5, 6, 7, 30, 31], rows=3, tokens=20)) == [
        range(2), range(2, 3), range(3, 4), range(4, 5)
    ]  # fmt: skip
    assert list(batches([1] * 5, rows=2, tokens=None)) == [range(2), range(2, 4), range(4, 5)]
    assert list(batches([], 4, None)) == []


def test_cache_size_of_a_token_counts_the_groups_of_heads() -> None:
    actor = small_actor()
    actor.config.num_key_value_heads = 1
    assert token_bytes(actor) == 2 * 1 * 1 * 16 * 4  # keys and values, 1 layer, 1 head of 16, fp32


def test_exhausted_memory_is_named_with_the_settings_to_lower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor = small_actor()

    def greedy(*_: Any, **__: Any) -> None:
        torch.empty(2**56)  # more than any machine has

    monkeypatch.setattr(actor, "forward", greedy)
    with pytest.raises(OutOfMemory, match=r"2 conversations of up to 7 tokens; lower play\.most"):
        LocalEngine(actor, END).sample([Request((2, 4), 5, 0), Request((2,), 4, 1)])
