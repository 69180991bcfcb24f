"""Test sampling by the local engine."""

from __future__ import annotations

import torch
from toy_game import END, play, small_actor

from cuagent.training.batch import collate
from cuagent.training.engine import LocalEngine, Request
from cuagent.training.model import logprobs_of, per_token


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
