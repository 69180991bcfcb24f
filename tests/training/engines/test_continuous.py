"""Test transformers' continuous batching as an engine: log-probabilities and concurrent
requests."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_game import END, small_actor

from cuagent.task import Task
from cuagent.training.data.batch import collate
from cuagent.training.engines.continuous import FLASH, ContinuousEngine, uses_flash
from cuagent.training.engines.engine import EngineError, Request, Sampled
from cuagent.training.policy.chat import Chat
from cuagent.training.policy.model import logprobs_of, new_actor, per_token, small_config
from cuagent.training.rollout.episode import Play, play_many

TOKENS = 2048
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True, scope="module")
def _freeze_imported_objects() -> Iterator[None]:
    """Speed up the garbage collection that transformers runs at each closing."""
    small_actor()
    gc.freeze()
    yield
    gc.unfreeze()


def own_logprobs(actor: Any, request: Request, ids: tuple[int, ...]) -> torch.Tensor:
    """Return the trainer's log-probabilities of the sampled tokens, computed in one pass."""
    whole = torch.tensor([request.prompt + ids])
    with torch.no_grad():
        logps = torch.log_softmax(actor(whole).logits[0, :-1].float(), -1)
    at = len(request.prompt)
    return logps[at - 1 :].gather(1, whole[0, at:, None])[:, 0]


def test_concurrent_requests_follow_model_logprobs() -> None:
    actor = small_actor()
    engine = ContinuousEngine(actor, END, TOKENS)
    requests = [Request((2, 4 + i % 3) * (1 + i % 9), 3 + i % 9, seed=i) for i in range(8)]

    def turns(request: Request) -> list[tuple[Request, Sampled]]:
        """Sample two turns of a conversation; the second prompt extends the first."""
        [first] = engine.sample([request])
        second = Request((*request.prompt, *first.ids, 5, 6), request.max_tokens, request.seed)
        return [(request, first), (second, engine.sample([second])[0])]

    with engine.open(), ThreadPoolExecutor(8) as threads:
        found = [pair for pairs in threads.map(turns, requests) for pair in pairs]
        drawn = engine.sample([Request((2, 4, 3), 1, seed) for seed in range(300)])
    for request, sampled in found:
        assert 1 <= len(sampled.ids) <= request.max_tokens
        assert sampled.cut == (sampled.ids[-1] != END)
        assert END not in sampled.ids[:-1]
        own = own_logprobs(actor, request, sampled.ids)
        torch.testing.assert_close(torch.tensor(sampled.logprobs), own, atol=1e-5, rtol=0)
    expected = torch.softmax(actor(torch.tensor([[2, 4, 3]])).logits[0, -1].detach(), -1) * 300
    counts = torch.bincount(torch.tensor([s.ids[0] for s in drawn]), minlength=16)
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < 50.0  # 15 degrees of freedom, p = 1e-5: its seed cannot be set


def test_episodes_sample_concurrently_without_batcher(
    task: Task, chat: Chat, play: Play, tmp_path: Path
) -> None:
    actor = new_actor(small_config(len(chat.tokenizer), 1, 32, 2, 700, chat.end, chat.pad), seed=3)
    short = replace(play, reply=12, turns=3, together=0.0)
    engine, no_judge = ContinuousEngine(actor, chat.end, TOKENS), lambda _: None
    jobs = [(task, seed) for seed in range(6)]
    played = play_many(jobs, no_judge, "p", chat, engine, short, tmp_path)  # type: ignore[arg-type]
    assert [e and e.id for e in played.episodes] == [f"p-double_relu-{seed}" for seed in range(6)]
    batch = collate([e for e in played.episodes if e])
    gap = (per_token(actor, batch, 4096, logprobs_of) - batch.logprobs)[batch.action].abs().max()
    assert gap < 1e-5


def test_reopened_engine_uses_new_weights() -> None:
    actor = small_actor()
    engine = ContinuousEngine(actor, END, TOKENS)
    request = Request((2, 4, 3) * 200, 8, 0)  # longer than a page, which is cached while it is open
    with engine.open():
        engine.sample([request])
    with torch.no_grad():
        for weight in actor.parameters():
            weight.mul_(1.5)
    with engine.open():
        [sampled] = engine.sample([request])
    own = own_logprobs(actor, request, sampled.ids)
    torch.testing.assert_close(torch.tensor(sampled.logprobs), own, atol=1e-4, rtol=0)


def test_temperature_zero_takes_likeliest_token() -> None:
    actor = small_actor()
    with (engine := ContinuousEngine(actor, END, TOKENS, temperature=0.0)).open():
        one, two = engine.sample([Request((2, 4, 3), 6, seed, temperature=0.0) for seed in (1, 2)])
        with pytest.raises(EngineError, match="temperature"):
            engine.sample([Request((2, 4, 3), 6, 0)])
    assert one.ids == two.ids
    assert one.ids[0] == int(actor(torch.tensor([[2, 4, 3]])).logits[0, -1].argmax())


def test_pending_requests_fail_with_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = small_actor()
    engine = ContinuousEngine(actor, END, TOKENS)

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    with engine.open():
        monkeypatch.setattr(actor, "forward", broken)
        with pytest.raises(EngineError, match="out of memory"):
            engine.sample([Request((2, 4), 3, 0)])
        with pytest.raises(EngineError):
            engine.sample([Request((2, 4), 3, 0)])


def test_abandoned_request_does_not_affect_others() -> None:
    engine = ContinuousEngine(small_actor(), END, TOKENS)
    with engine.open():
        given_up = engine._submit(Request((2, 4), 30, 0))
        engine._fail_all()
        with pytest.raises(EngineError, match="has stopped"):
            given_up.result()
        for _ in range(2):  # sampled after the abandoned one
            assert engine.sample([Request((2, 4), 30, 0)])[0].ids


def test_unsupported_model_is_reported() -> None:
    with (
        pytest.raises(EngineError, match=r"play\.engine=local"),
        ContinuousEngine(torch.nn.Linear(1, 1), END, TOKENS).open(),
    ):
        pass


@dataclass(frozen=True)
class OnGpu:
    """Stand-in for an actor, with the attributes that decide whether flash attention is used."""

    dtype: torch.dtype
    device: torch.device


def test_passes_are_long_only_if_flash_attention_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it a pass of 8,192 tokens has a mask by the keys of all conversations."""
    found = uses_flash(OnGpu(torch.bfloat16, CUDA))
    assert found == any(find_spec(name) is not None for name in FLASH)
    monkeypatch.setattr("cuagent.training.engines.continuous.FLASH", ("torch",))
    assert uses_flash(OnGpu(torch.bfloat16, CUDA))
    assert not uses_flash(OnGpu(torch.float32, CUDA))
    assert not uses_flash(small_actor())
