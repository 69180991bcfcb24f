"""Define the protocol of engines, which sample token ids and log-probabilities after a prompt of
token ids; and `LocalEngine`.

Four engines implement the protocol. `LocalEngine` decodes the model in training itself, so sampler
and trainer agree to the last bits and no weights are copied; its tokens depend on a request's seed,
not on the rest of the batch (up to rounding). `CachedEngine` (`cached.py`) also decodes this model;
requests join and leave its batch at any token, and conversations stay in memory. `ContinuousEngine`
(`continuous.py`) uses transformers' continuous batching. `ServerEngine` (`server.py`) calls a
server with token ids as input and output (vLLM, SGLang).
Not covered: text and chat templates (`chat.py`), batching of concurrent episodes (`rollout.py`).

Invariant: `logprobs` are those of the distribution that was sampled from; at temperature 1 this is
the model's own. Training uses no top-p or top-k, which would make the ratios of PPO wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

DeviceGuard = Callable[[], AbstractContextManager[None]]
"""Function that returns a context to enter while the device computes, so that no kernel is timed
there at the same time."""


@dataclass(frozen=True)
class Request:
    """One request to an engine: continue a prompt."""

    prompt: tuple[int, ...]
    max_tokens: int
    """Largest number of tokens to sample for this request."""
    seed: int
    temperature: float = 1.0
    """Sampling temperature; 0 selects the likeliest token."""


@dataclass(frozen=True)
class Sampled:
    """Tokens that an engine sampled for one request, with their log-probabilities.

    `cut`: True if the length limit ended `ids`; otherwise `ids` end with the end-of-turn token.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cut: bool


class Engine(Protocol):
    """Protocol of samplers: token ids in, sampled token ids with log-probabilities out."""

    needs_batches: bool
    """True if one `sample` call must collect the requests of all threads. False if each thread may
    call `sample` separately."""

    def conversations(self) -> int | None:
        """Return how many conversations fit into the engine's memory at the same time.

        None: the engine keeps no conversations, or limits their number itself. Raises OutOfMemory.
        """
        ...

    def open(self) -> AbstractContextManager[None]:
        """Start the engine; `sample` may be called inside this context, and the weights must not
        change.

        Requests that are pending at the end fail. Raises EngineError.
        """
        ...

    def sample(self, requests: Sequence[Request]) -> list[Sampled]:
        """Return one result for each request, in the same order. Raises EngineError."""
        ...


class EngineError(Exception):
    """Error: an engine failed to sample. The message is one line, with the remedy."""


class OutOfMemory(EngineError):
    """Error: the engine's device has too little memory. It ends the collection of episodes."""


PREFILL_TOKENS = 16384
"""Largest number of padded prompt tokens computed in one pass; it bounds the memory of
activations."""
RESERVED_SHARE = 0.6
"""Share of a GPU's free memory that the local engine's cache leaves to judges and activations."""


class LocalEngine:
    """`Engine` that decodes batches with a transformers model in this process.

    A batch has at most `max_rows` requests and at most `tokens` padded tokens, prompts and answers
    together, but at least one request. `tokens` None: what fits into a GPU's free memory. `end`: id
    of the end-of-turn token.
    """

    needs_batches = True

    def __init__(
        self,
        actor: Any,
        end: int,
        max_rows: int = 256,
        guard: DeviceGuard = nullcontext,
        tokens: int | None = None,
    ) -> None:
        """Create the engine. `guard`: function that returns a context to enter for each batch."""
        self.actor = actor
        self.end = end
        self.max_rows = max_rows
        self.tokens = tokens
        self.guard = guard
        self._over = False

    def conversations(self) -> None:
        return None

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
        budget = self.tokens or fitting_tokens(self.actor)
        lengths = [len(requests[i].prompt) + requests[i].max_tokens for i in order]
        for part in batches(lengths, self.max_rows, budget):
            chosen = [order[at] for at in part]
            asked = [requests[i] for i in chosen]
            try:
                with self.guard():
                    decoded = self._decode(asked)
            except (RuntimeError, MemoryError) as error:
                if not lacks_memory(error):
                    raise
                raise out_of_memory(asked) from error
            results |= zip(chosen, decoded, strict=True)
        return [results[i] for i in range(len(requests))]

    def _check_open(self) -> None:
        if self._over:
            raise EngineError("stopped")

    @torch.no_grad()
    def _decode(self, requests: Sequence[Request]) -> list[Sampled]:
        """Sample the answers to all requests token by token, in one batch with a common key-value
        cache."""
        from transformers import DynamicCache

        device, n = self.actor.device, len(requests)
        ids, real = (tensor.to(device) for tensor in _padded(requests))
        longest = max(r.max_tokens for r in requests)
        limits = torch.tensor([r.max_tokens for r in requests], device=device)
        temperatures = torch.tensor([r.temperature for r in requests], device=device)
        # One number for each step and request, drawn in advance from the request's seed.
        draws = np.stack([np.random.default_rng(r.seed).random(longest) for r in requests])
        uniform = torch.from_numpy(draws).to(device)

        cache, name = DynamicCache(), cache_argument(self.actor)
        position_ids = (real.cumsum(1) - 1).clamp(min=0)
        rows = torch.arange(n, device=device)  # index of the request of each cache row
        tokens = torch.full((n, longest), self.end, device=device)
        logps = torch.zeros(n, longest, device=device)
        lengths = torch.zeros(n, dtype=torch.int64, device=device)
        ended = torch.zeros(n, dtype=torch.bool, device=device)
        ids, position_ids = self._prefill(ids, real, position_ids, cache)
        for step in range(longest):
            self._check_open()
            out = self.actor(
                input_ids=ids,
                attention_mask=real,
                position_ids=position_ids,
                use_cache=True,
                logits_to_keep=1,
                **{name: cache},
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

    def _prefill(
        self, ids: Tensor, real: Tensor, position_ids: Tensor, cache: Any
    ) -> tuple[Tensor, Tensor]:
        """Compute the keys and values of all but the last part of the prompts; return (ids,
        positions) of the last part.

        All tensors are [requests, tokens]. The forward pass over the last part gives the first
        sampled token.
        """
        part = max(1, PREFILL_TOKENS // len(ids))
        while ids.shape[1] > part:
            self._check_open()
            self.actor(
                input_ids=ids[:, :part],
                attention_mask=real[:, : cache.get_seq_length() + part],
                position_ids=position_ids[:, :part],
                use_cache=True,
                logits_to_keep=1,
                **{cache_argument(self.actor): cache},
            )
            ids, position_ids = ids[:, part:], position_ids[:, part:]
        return ids, position_ids


def cache_argument(actor: Any) -> str:
    """Return the parameter name of the key-value cache in the model's forward function.

    It is `cache`, or `past_key_values` in older versions of transformers.
    """
    model = actor.get_base_model() if hasattr(actor, "get_base_model") else actor
    known = signature(type(model).forward).parameters
    return "cache" if "cache" in known else "past_key_values"


def _padded(requests: Sequence[Request]) -> tuple[Tensor, Tensor]:
    """Return (ids, real) of the prompts, both [requests, longest prompt]; `real` is 1 on tokens and
    0 on padding.

    Rows are padded on the left, so that all of them grow at the end.
    """
    n, width = len(requests), max(len(r.prompt) for r in requests)
    ids = torch.zeros(n, width, dtype=torch.int64)
    real = torch.zeros(n, width, dtype=torch.int64)
    for i, request in enumerate(requests):
        ids[i, width - len(request.prompt) :] = torch.tensor(request.prompt)
        real[i, width - len(request.prompt) :] = 1
    return ids, real


def batches(lengths: Sequence[int], rows: int, tokens: int | None) -> Iterator[range]:
    """Yield ranges of indices into `lengths`, one for each batch of requests.

    A batch has at most `rows` requests and `tokens` padded tokens (None: no limit), but at least
    one request.
    """
    first, width = 0, 0
    for at, length in enumerate(lengths):
        wider = max(width, length)
        over = tokens is not None and (at - first + 1) * wider > tokens
        if at > first and (at - first == rows or over):
            yield range(first, at)
            first, wider = at, length
        width = wider
    if lengths:
        yield range(first, len(lengths))


def token_bytes(actor: Any) -> int:
    """Return the number of bytes of one token's keys and values in all layers."""
    config = actor.config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    return 2 * int(config.num_hidden_layers * groups * width) * actor.dtype.itemsize


def fitting_tokens(actor: Any) -> int | None:
    """Return the number of tokens whose keys and values fit into the unreserved free GPU memory;
    None on the CPU."""
    free = free_memory(actor.device)
    return None if free is None else max(1, int((1 - RESERVED_SHARE) * free) // token_bytes(actor))


def free_memory(device: torch.device) -> int | None:
    """Return the GPU memory in bytes that this process can still use; None on the CPU."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    # Blocks that torch holds but does not use are free as well.
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + int(held)


def lacks_memory(error: BaseException | str) -> bool:
    """Return True if an error of torch, or an error message, means that memory is exhausted."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text


def out_of_memory(requests: Sequence[Request]) -> OutOfMemory:
    """Return the error for a batch of requests that did not fit into memory, with its size and the
    remedy."""
    longest = max(len(r.prompt) + r.max_tokens for r in requests)
    return OutOfMemory(
        f"out of memory while sampling {len(requests)} conversations of up to {longest} tokens; "
        "lower play.most_rows, play.cache_tokens or play.at_once, or play.context"
    )


def sample_tokens(logits: Tensor, temperature: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Sample one token per row from uniform numbers `u` [n] in [0, 1); return (token,
    log-probability).

    `logits` [n, V], `temperature` [n]; both results [n]. The distribution function is inverted at
    `u`, in fp64, so that rare tokens of a large vocabulary keep their probability.
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
