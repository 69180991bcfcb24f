"""Sample token ids and their log-probabilities from token ids.

One protocol has three engines. `LocalEngine` decodes the model in training itself, so sampler and
trainer agree to the last bits and no weights are copied; its tokens depend on a request's seed, not
on the rest of the batch (up to rounding). `ContinuousEngine` (`continuous.py`) lets requests join
and leave the batch and caches conversations. `ServerEngine` (`server.py`) asks a server that takes
and returns token ids (vLLM, SGLang).
Not covered: text and chat templates (`chat.py`), batching of concurrent episodes (`rollout.py`).

Invariant: `logprobs` belong to the distribution that was sampled from; at temperature 1 that is the
model's own. Training uses no top-p or top-k, which would make the ratios of PPO wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

DeviceGuard = Callable[[], AbstractContextManager[None]]
"""A context to hold while a device computes, if others time kernels on it."""


@dataclass(frozen=True)
class Request:
    """One continuation to sample."""

    prompt: tuple[int, ...]
    max_tokens: int
    """Largest number of tokens to sample."""
    seed: int
    temperature: float = 1.0
    """0 takes the likeliest token."""


@dataclass(frozen=True)
class Sampled:
    """The result of a request; `ids` end with the end-of-turn token unless `cut` by length."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cut: bool


class Engine(Protocol):
    """Samples continuations."""

    needs_batches: bool
    """True if the requests of all threads must come in one call; otherwise each thread may call
    alone."""

    def open(self) -> AbstractContextManager[None]:
        """Start the engine; inside this context it answers and the weights must not change.

        Requests that are pending at the end fail. Raises EngineError.
        """
        ...

    def sample(self, requests: Sequence[Request]) -> list[Sampled]:
        """Return one result for each request, in order. Raises EngineError."""
        ...


class EngineError(Exception):
    """A failure of the engine. One line with the remedy."""


class LocalEngine:
    """Decode batches with a transformers model in this process."""

    needs_batches = True

    def __init__(
        self, actor: Any, end: int, max_rows: int = 256, guard: DeviceGuard = nullcontext
    ) -> None:
        """Take `guard` for each batch, if kernels are timed on the actor's device."""
        self.actor = actor
        self.end = end
        self.max_rows = max_rows
        self.guard = guard
        self._over = False

    @contextmanager
    def open(self) -> Iterator[None]:
        self._over = False
        try:
            yield
        finally:
            self._over = True

    def sample(self, requests: Sequence[Request]) -> list[Sampled]:
        # Sort by length: less padding, and rows of a batch end at similar times.
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].prompt))
        results: dict[int, Sampled] = {}
        for at in range(0, len(order), self.max_rows):
            chosen = order[at : at + self.max_rows]
            with self.guard():
                decoded = self._decode([requests[i] for i in chosen])
            results |= zip(chosen, decoded, strict=True)
        return [results[i] for i in range(len(requests))]

    @torch.no_grad()
    def _decode(self, requests: Sequence[Request]) -> list[Sampled]:
        from transformers import DynamicCache

        device = self.actor.device
        n, width = len(requests), max(len(r.prompt) for r in requests)
        ids = torch.zeros(n, width, dtype=torch.int64)
        real = torch.zeros(n, width, dtype=torch.int64)
        for i, request in enumerate(requests):  # padded left, so that all rows grow at the end
            ids[i, width - len(request.prompt) :] = torch.tensor(request.prompt)
            real[i, width - len(request.prompt) :] = 1
        ids, real = ids.to(device), real.to(device)
        longest = max(r.max_tokens for r in requests)
        limits = torch.tensor([r.max_tokens for r in requests], device=device)
        temperatures = torch.tensor([r.temperature for r in requests], device=device)
        # One number for each step and request, drawn in advance from the request's seed.
        draws = np.stack([np.random.default_rng(r.seed).random(longest) for r in requests])
        uniform = torch.from_numpy(draws).to(device)

        cache = DynamicCache()
        position_ids = (real.cumsum(1) - 1).clamp(min=0)
        rows = torch.arange(n, device=device)  # which request each row of the cache belongs to
        tokens = torch.full((n, longest), self.end, device=device)
        logps = torch.zeros(n, longest, device=device)
        lengths = torch.zeros(n, dtype=torch.int64, device=device)
        ended = torch.zeros(n, dtype=torch.bool, device=device)
        for step in range(longest):
            if self._over:
                raise EngineError("stopped")
            out = self.actor(
                input_ids=ids,
                attention_mask=real,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            chosen, logp = sample_tokens(out, temperatures[rows], uniform[rows, step])
            alive = ~ended[rows] & (lengths[rows] < limits[rows])
            at = rows[alive]
            tokens[at, step], logps[at, step] = chosen[alive], logp[alive]
            lengths[at] += 1
            ended[at] = chosen[alive] == self.end
            going = ~ended[rows] & (lengths[rows] < limits[rows])
            left = int(going.sum())
            if left == 0:
                break
            if left <= len(rows) // 2:  # drop finished rows when half are done
                kept = going.nonzero().flatten()
                cache.batch_select_indices(kept)
                rows, chosen, real, position_ids = (
                    rows[kept],
                    chosen[kept],
                    real[kept],
                    position_ids[kept],
                )
            ids = chosen[:, None]
            real = torch.cat([real, real.new_ones(len(rows), 1)], 1)
            position_ids = position_ids[:, -1:] + 1
        counts = lengths.tolist()
        all_ids, all_logps, all_ended = tokens.tolist(), logps.tolist(), ended.tolist()
        return [
            Sampled(
                tuple(all_ids[i][: counts[i]]), tuple(all_logps[i][: counts[i]]), not all_ended[i]
            )
            for i in range(n)
        ]


def sample_tokens(logits: Tensor, temperature: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Sample by inverting the distribution function at `u` [n]; return (token, log-probability),
    each [n].

    `logits` [n, V], `temperature` [n]. Computed in fp64, so that rare tokens of a large vocabulary
    keep their share.
    """
    greedy = temperature == 0
    scaled = logits.float() / torch.where(greedy, 1.0, temperature)[:, None]
    logp = torch.log_softmax(scaled, -1)
    reach = logp.double().exp().cumsum(-1)
    # The last entry differs from 1 by rounding, so u in [0, 1) is scaled by it.
    drawn = torch.searchsorted(reach, (u * reach[:, -1])[:, None], right=True).flatten()
    drawn = drawn.clamp(max=logits.shape[1] - 1)
    token = torch.where(greedy, logits.argmax(-1), drawn)
    return token, logp.gather(-1, token[:, None]).flatten()
