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

LOOK_S = 0.2
SHARE = 0.4
"""Of the memory that is free when it opens, at most: kernels are judged beside it."""
PAGE = 256
"""Tokens of a page; transformers' own value, which has had two names."""
MOST_NEW = 512
"""Tokens computed in one pass. Without flash attention each meets the keys of all conversations."""


class ContinuousEngine:
    """Any number of threads may ask at once, while it is open.

    `tokens`: of all conversations that are to be kept beside each other, where that fits.
    """

    gathers = False

    def __init__(self, actor: Any, end: int, tokens: int, temperature: float = 1.0) -> None:
        self.actor = actor
        self.end = end
        self.tokens = tokens
        self.temperature = temperature
        self._manager: Any = None
        self._numbers = count()
        self._asked: dict[str, Future[Any]] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Raises EngineError where this model, or this transformers, cannot."""
        self._manager = self._started()
        over = threading.Event()
        reader = threading.Thread(target=self._read, args=(over,), daemon=True)
        reader.start()
        try:
            yield
        finally:
            over.set()
            reader.join()
            self._manager.stop(hard_stop=True)
            self._manager = None
            self._fail_all()

    def sample(self, requests: Sequence[Request]) -> list[Sampled]:
        return [self._sampled(asked.result()) for asked in list(map(self._ask, requests))]

    def _started(self) -> Any:
        try:
            try:
                manager = self._manager_of(-(-self.tokens // PAGE))
            except MemoryError:  # as many conversations at a time as fit
                manager = self._manager_of(None)
        except (AttributeError, TypeError, ValueError, MemoryError, RuntimeError) as error:
            raise EngineError(
                f"no continuous batching of this model ({error}); set play.engine=local"
            ) from error
        manager.start()
        return manager

    def _manager_of(self, pages: int | None) -> Any:
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
            max_batch_tokens=MOST_NEW,
            max_memory_percent=SHARE,
        )
        manager = self.actor.init_continuous_batching(generation, batching)
        manager.warmup()  # here, and not in its thread, what cannot be is said
        return manager

    def _ask(self, request: Request) -> Future[Any]:
        if request.temperature != self.temperature:
            raise EngineError(f"open for temperature {self.temperature}, not {request.temperature}")
        name = str(next(self._numbers))
        asked: Future[Any] = Future()
        self._asked[name] = asked
        prompt = list(request.prompt)
        if not self._manager.add_request(prompt, request_id=name, max_new_tokens=request.most):
            self._fail_all()  # it has ended, and answers nothing any more
        return asked

    def _read(self, over: threading.Event) -> None:
        """Give every result to who asked for it."""
        while not over.is_set():
            result = self._manager.get_result(timeout=LOOK_S)
            if result is not None:
                # None was told already that it failed.
                if (asked := self._asked.pop(result.request_id, None)) is not None:
                    asked.set_result(result)
            elif not self._manager.is_running():
                self._fail_all()
                over.wait(LOOK_S)

    def _fail_all(self) -> None:
        for name in list(self._asked):
            if (asked := self._asked.pop(name, None)) is not None:
                asked.set_exception(EngineError("continuous batching has ended; see above"))

    def _sampled(self, found: Any) -> Sampled:
        if found.error is not None:
            raise EngineError(f"continuous batching failed ({found.error})")
        ids = tuple(found.generated_tokens)
        return Sampled(ids, tuple(found.logprobs), ids[-1:] != (self.end,))
