"""Continuous batching by transformers: requests join the running batch, and leave it, at any token.

For: policies with long conversations. Keys and values lie in pages, and what a request has in
common with one before, all earlier turns of its episode, is not computed again.
Not covered: samples that can be had again (`LocalEngine`): what comes depends on what shares the
batch and on when it joined; only its log-probabilities do not.
Invariant: between two collections nothing is left of it, neither memory nor keys and values of
weights that have been trained since.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from typing import Any

from cuagent.training.engine import EngineError, Request, Sampled

POLL_S = 0.2
MEMORY_SHARE = 0.4
"""Of the memory that is free when it opens, at most: kernels are judged beside it."""
PAGE = 256
"""Tokens of a page; transformers' own value, which has had two names."""
MAX_BATCH_TOKENS = 512
"""Tokens computed in one pass. Without flash attention each meets the keys of all conversations."""


class ContinuousEngine:
    """Any number of threads may ask at once, while it is open.

    `tokens`: of all conversations that are to be kept beside each other, where that fits.
    """

    needs_batches = False

    def __init__(self, actor: Any, end: int, tokens: int, temperature: float = 1.0) -> None:
        self.actor = actor
        self.end = end
        self.tokens = tokens
        self.temperature = temperature
        self._manager: Any = None
        self._ids = count()
        self._pending: dict[str, Future[Any]] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Raises EngineError where this model, or this transformers, cannot."""
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
            try:
                manager = self._make_manager(-(-self.tokens // PAGE))
            except MemoryError:  # as many conversations at a time as fit
                manager = self._make_manager(None)
        except (AttributeError, TypeError, ValueError, MemoryError, RuntimeError) as error:
            raise EngineError(
                f"no continuous batching of this model ({error}); set play.engine=local"
            ) from error
        manager.start()
        return manager

    def _make_manager(self, pages: int | None) -> Any:
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        generation = GenerationConfig(
            do_sample=self.temperature > 0,
            temperature=self.temperature or None,
            top_k=0,  # unless told, transformers draws from the likeliest 50 alone
            top_p=1.0,
            eos_token_id=self.end,
        )
        batching = ContinuousBatchingConfig(
            return_logprobs=True,
            num_blocks=pages,
            max_batch_tokens=MAX_BATCH_TOKENS,
            max_memory_percent=MEMORY_SHARE,
        )
        manager = self.actor.init_continuous_batching(generation, batching)
        manager.warmup()  # here, and not in its thread, what cannot be is said
        return manager

    def _submit(self, request: Request) -> Future[Any]:
        if request.temperature != self.temperature:
            raise EngineError(f"open for temperature {self.temperature}, not {request.temperature}")
        name = str(next(self._ids))
        future: Future[Any] = Future()
        self._pending[name] = future
        prompt = list(request.prompt)
        if not self._manager.add_request(
            prompt, request_id=name, max_new_tokens=request.max_tokens
        ):
            self._fail_all()  # it has ended, and answers nothing any more
        return future

    def _read(self, stopping: threading.Event) -> None:
        """Give every result to who asked for it."""
        while not stopping.is_set():
            result = self._manager.get_result(timeout=POLL_S)
            if result is not None:
                # None was told already that it failed.
                if (future := self._pending.pop(result.request_id, None)) is not None:
                    future.set_result(result)
            elif not self._manager.is_running():
                self._fail_all()
                stopping.wait(POLL_S)

    def _fail_all(self) -> None:
        for name in list(self._pending):
            if (future := self._pending.pop(name, None)) is not None:
                future.set_exception(EngineError("continuous batching has ended; see above"))

    def _sampled(self, found: Any) -> Sampled:
        if found.error is not None:
            raise EngineError(f"continuous batching failed ({found.error})")
        ids = tuple(found.generated_tokens)
        return Sampled(ids, tuple(found.logprobs), ids[-1:] != (self.end,))
