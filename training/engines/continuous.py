"""Sample with transformers' continuous batching: requests join and leave the batch at any token.

This engine is meant for long conversations. Keys and values are paged. If a request begins like an
earlier one (as the next turn of an episode does), the common prefix is not computed again.
Not covered: reproducible samples (`LocalEngine`). The sampled tokens depend on which requests share
the batch and on when they joined.
Invariant: when the engine closes, it frees its memory and drops all keys and values, so none are of
old weights.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from itertools import count
from typing import Any

import torch

from cuagent.training.engines.engine import EngineError, OutOfMemory, Request, Sampled, lacks_memory
from cuagent.training.policy.packed_attention import NAME as PACKED
from cuagent.training.policy.packed_attention import packs
from cuagent.training.policy.placement import narrow_sums

POLL_S = 0.2
"""Seconds between two checks of the results and of the stop event."""
MEMORY_SHARE = 0.4
"""Largest share of the free GPU memory that the cache occupies; judges use the rest."""
PAGE = 256
"""Number of tokens per page of the cache, as in transformers, which names this value differently in
each version."""
MAX_BATCH_TOKENS = 512
"""Largest number of tokens computed in one pass without flash attention."""
MAX_FLASH_TOKENS = 8192
"""Largest number of tokens computed in one pass with flash attention."""


FLASH = ("flash_attn", "flash_attn_interface", "kernels")
"""Packages that provide flash attention to transformers; `kernels` downloads it."""


class ContinuousEngine:
    """`Engine` based on transformers' continuous batching; any number of threads may call it while
    it is open.

    `end`: id of the end-of-turn token. `tokens`: size of the cache in tokens, over all concurrent
    conversations; reduced if it does not fit. None: `MEMORY_SHARE` of the free memory. A
    conversation waits while its pages do not fit, so a small cache costs time, but loses no
    episode.
    """

    needs_batches = False

    def __init__(self, actor: Any, end: int, tokens: int | None, temperature: float = 1.0) -> None:
        self.actor = actor
        self.end = end
        self.tokens = tokens
        self.temperature = temperature
        self._manager: Any = None
        self._ids = count()
        self._pending: dict[str, Future[Any]] = {}

    def conversations(self) -> None:
        return None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Start the batching thread; stop it at the end of the context. Raises EngineError if the
        model or this version of transformers does not support batching."""
        real = hasattr(self.actor, "config")
        packed = real and packs(self.actor)
        if packed:  # transformers accepts only its own attentions
            self.actor.set_attn_implementation("sdpa")
        try:
            with narrow_sums(self.actor) if real else nullcontext(), self._running():
                yield
        finally:
            if packed:
                self.actor.set_attn_implementation(PACKED)

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._manager = self._start_manager()
        stopping = threading.Event()
        reader = threading.Thread(target=self._read, args=(stopping,), daemon=True)
        reader.start()
        try:
            yield
        finally:
            stopping.set()
            reader.join()
            self._manager.stop(hard_stop=True)
            self._manager = None
            self._fail_all()

    def sample(self, requests: Sequence[Request]) -> list[Sampled]:
        return [self._sampled(future.result()) for future in list(map(self._submit, requests))]

    def _start_manager(self) -> Any:
        try:
            pages = None if self.tokens is None else -(-self.tokens // PAGE)
            try:
                manager = self._make_manager(pages)
            except MemoryError:  # let transformers choose the number of pages that fit
                manager = self._make_manager(None)
        except (AttributeError, TypeError, ValueError, MemoryError, RuntimeError) as error:
            raise EngineError(
                f"this model does not support continuous batching ({error}); set play.engine=local"
            ) from error
        manager.start()
        return manager

    def _make_manager(self, pages: int | None) -> Any:
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        generation = GenerationConfig(
            do_sample=self.temperature > 0,
            temperature=self.temperature or None,
            top_k=0,  # transformers' default samples from the 50 likeliest tokens only
            top_p=1.0,
            eos_token_id=self.end,
        )
        options: dict[str, Any] = {"num_blocks": pages, "max_memory_percent": MEMORY_SHARE}
        if not uses_flash(self.actor):
            # Without flash attention a pass has a mask of its tokens by the keys of all
            # conversations, so passes are short.
            options["max_batch_tokens"] = MAX_BATCH_TOKENS
            if hasattr(ContinuousBatchingConfig, "auto_switch_to_flash"):
                options["auto_switch_to_flash"] = False
        else:
            options["max_batch_tokens"] = MAX_FLASH_TOKENS
        batching = ContinuousBatchingConfig(return_logprobs=True, **options)
        manager = self.actor.init_continuous_batching(generation, batching)
        manager.warmup()  # an error here would otherwise occur in the thread
        return manager

    def _submit(self, request: Request) -> Future[Any]:
        if request.temperature != self.temperature:
            raise EngineError(
                f"the engine samples at temperature {self.temperature}, not {request.temperature}"
            )
        name = str(next(self._ids))
        future: Future[Any] = Future()
        self._pending[name] = future
        prompt = list(request.prompt)
        if not self._manager.add_request(
            prompt, request_id=name, max_new_tokens=request.max_tokens
        ):
            self._fail_all()  # the manager has stopped and will not answer
        return future

    def _read(self, stopping: threading.Event) -> None:
        """Set each result as the result of its request's future; the main function of the reading
        thread."""
        while not stopping.is_set():
            result = self._manager.get_result(timeout=POLL_S)
            if result is not None:
                # A request that is missing here was already failed.
                if (future := self._pending.pop(result.request_id, None)) is not None:
                    future.set_result(result)
            elif not self._manager.is_running():
                self._fail_all()
                stopping.wait(POLL_S)

    def _fail_all(self) -> None:
        for name in list(self._pending):
            if (future := self._pending.pop(name, None)) is not None:
                future.set_exception(
                    EngineError("continuous batching has stopped; see the log above")
                )

    def _sampled(self, found: Any) -> Sampled:
        if found.error is not None:
            if lacks_memory(str(found.error)):
                raise OutOfMemory(
                    f"out of memory in continuous batching with {self.tokens or 'all free'} cached "
                    "tokens; lower play.cache_tokens or play.at_once"
                )
            raise EngineError(f"continuous batching failed ({found.error})")
        ids = tuple(found.generated_tokens)
        return Sampled(ids, tuple(found.logprobs), ids[-1:] != (self.end,))


def uses_flash(actor: Any) -> bool:
    """Return True if the actor can use flash attention: half-precision weights on a GPU, and a
    package of `FLASH` is installed."""
    half = actor.device.type == "cuda" and actor.dtype is not torch.float32
    return half and any(find_spec(name) is not None for name in FLASH)
