"""Sample in one batch that requests join and leave at any token; keys and values of conversations
stay in memory between turns.

This engine is meant for long conversations and is the default on GPUs. The memory for keys and
values is divided into slots; a slot has room for one whole context window. A conversation keeps its
slot between its turns, so that a turn computes new tokens only. A new conversation copies the keys
and values of tokens that it shares with another one (the system prompt). If all slots are busy, a
request waits until another request ends, and then uses the slot that was idle for longest.
Not covered: the attention over cached tokens (`policy/cached_attention.py`), text and templates.
Invariants: a slot's `ids` are exactly the tokens whose keys and values are in its memory; slots are
dropped when the context `open` ends, so none has keys of old weights.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cuagent.training.engines.decoding import DecodingStep, Next, rounded
from cuagent.training.engines.engine import (
    EngineError,
    OutOfMemory,
    Request,
    Sampled,
    free_memory,
    lacks_memory,
    sample_tokens,
    token_bytes,
)
from cuagent.training.policy.cached_attention import (
    NAME,
    KeyValues,
    Piece,
    arguments,
    may_flash,
    register,
    why_not_cached,
)

PASS_TOKENS = 8192
"""Largest number of new tokens in one forward pass; it bounds the memory of activations."""
MEMORY_SHARE = 0.6
"""Share of the free GPU memory that the slots occupy; judges and activations use the rest."""
SAME = 0.9
"""Least share of an idle slot's ids that a prompt must begin with to continue in this slot."""
CHUNK = 512
"""Number of token ids that `shared` compares at a time."""


@dataclass
class Slot:
    """Memory for the keys and values of one conversation."""

    start: int
    """Index in `KeyValues` of the first token of the slot."""
    ids: list[int] = field(default_factory=list)
    """Token ids whose keys and values are in the slot."""
    busy: bool = False
    used: int = 0
    """Sequence number of the last request that used the slot; a larger number is more recent."""


@dataclass
class Row:
    """A request in progress, with its slot and the tokens sampled so far."""

    request: Request
    slot: Slot
    result: Future[Sampled]
    uniform: list[float]
    """One random number in [0, 1) for each token that may be sampled, from the request's seed."""
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def missing(self) -> int:
        """Return the number of tokens whose keys and values must be computed before the next token
        is sampled."""
        return len(self.request.prompt) + len(self.sampled) - len(self.slot.ids)

    def next_uniform(self) -> float:
        """Return the random number in [0, 1) that determines the next sampled token."""
        return self.uniform[len(self.sampled)]

    def next_ids(self, count: int) -> list[int]:
        """Return the next `count` token ids whose keys and values are missing."""
        at, prompt = len(self.slot.ids), self.request.prompt
        if at < len(prompt):
            return list(prompt[at : at + count])
        return self.sampled[at - len(prompt) : at - len(prompt) + count]


class CachedEngine:
    """`Engine` that keeps conversations in memory; any number of threads may call it while it is
    open.

    `end`: id of the end-of-turn token. `context`: largest number of tokens of a conversation.
    `tokens`: size of the cache in tokens; None: `MEMORY_SHARE` of a GPU's free memory. `rows`:
    largest number of slots. `dtype`: type of keys and values; None: that of the weights.
    """

    needs_batches = False

    def __init__(
        self,
        actor: Any,
        end: int,
        context: int,
        tokens: int | None = None,
        rows: int = 256,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.actor = actor
        self.end = end
        self.context = context
        self.tokens = tokens
        self.rows = rows
        self.dtype = dtype or actor.dtype
        self.flash: bool | None = None
        """True if torch's kernel computes the attention; None before the first opening."""
        self.recorded = False
        """True if the last decoding pass was a recorded CUDA graph."""
        self.computed = 0
        """Number of tokens whose keys were computed since the engine was opened."""
        self._changed = threading.Condition()
        self._waiting: list[tuple[Request, Future[Sampled]]] = []
        self._active: list[Row] = []
        self._slots: list[Slot] = []
        self._memory: KeyValues | None = None
        self._steps: dict[int, DecodingStep] = {}
        """Decoding step recorded as a CUDA graph, by its number of rows."""
        self._over = True
        self._count = 0

    def conversations(self) -> int | None:
        """Return the number of slots: as many whole contexts as fit into the cache, at most `rows`.

        Raises OutOfMemory if not even one fits.
        """
        tokens = self.tokens
        if tokens is None:
            free = free_memory(self.actor.device)
            if free is None:
                return self.rows
            each = token_bytes(self.actor) // self.actor.dtype.itemsize * self.dtype.itemsize
            tokens = int(MEMORY_SHARE * free) // each
        if tokens < self.context:
            raise OutOfMemory(
                f"the cache for sampling holds {tokens} tokens, less than one conversation of "
                f"play.context={self.context}; lower play.context, or raise play.cache_tokens"
            )
        return min(self.rows, tokens // self.context)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Start the sampling thread; stop it at the end of the context. Raises EngineError if the
        model cannot be used."""
        before = self.actor.config.get_text_config()._attn_implementation
        register()
        self.actor.set_attn_implementation(NAME)
        try:
            self._try_attention()
            with self._running():
                yield
        finally:
            self.actor.set_attn_implementation(before)
            if self.actor.device.type == "cuda":
                torch.cuda.empty_cache()  # judges on the same GPU need it

    def _try_attention(self) -> None:
        if self.flash is not None:
            return
        ways = [True, False] if may_flash(self.actor.device, self.dtype) else [False]
        reasons = []
        for flash in ways:
            why = why_not_cached(self.actor, self.dtype, flash)
            if why is None:
                self.flash = flash
                return
            reasons.append(f"{'one kernel' if flash else 'calls'}: {why}")
        raise EngineError(
            f"this model cannot use cached conversations ({'; '.join(reasons)}); "
            "set play.engine=local"
        )

    @contextmanager
    def _running(self) -> Iterator[None]:
        slots = self.conversations() or 1
        try:
            # One more token than the slots have: unused rows of a recorded pass write there.
            self._memory = KeyValues(
                self.actor, slots * self.context + 1, self.dtype, self.flash or False
            )
        except (RuntimeError, MemoryError) as error:
            if not lacks_memory(error):
                raise
            raise self._out_of_memory(slots) from error
        self._slots = [Slot(n * self.context) for n in range(slots)]
        self._over, self.computed = False, 0
        thread = threading.Thread(target=self._run, daemon=True, name="sampling")
        thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()
            thread.join()
            self._steps = {}
            self._memory, self._slots = None, []

    def sample(self, requests: Sequence[Request]) -> list[Sampled]:
        return [future.result() for future in [self._submit(r) for r in requests]]

    def _submit(self, request: Request) -> Future[Sampled]:
        length = len(request.prompt) + request.max_tokens
        if length > self.context or not request.prompt:
            raise EngineError(
                f"{len(request.prompt)} tokens of a prompt and {request.max_tokens} of an answer "
                f"do not fit play.context={self.context}"
            )
        future: Future[Sampled] = Future()
        with self._changed:
            if self._over:
                raise EngineError("stopped")
            self._waiting.append((request, future))
            self._changed.notify_all()
        return future

    def _run(self) -> None:
        """Sample until the engine is closed; the main function of the sampling thread. Every
        request gets a result or an error."""
        try:
            while self._take_requests():
                try:
                    self._advance()
                except (RuntimeError, MemoryError, ValueError) as error:
                    lacks = lacks_memory(error)
                    with self._changed:
                        self._fail(self._out_of_memory(len(self._active)) if lacks else error)
        finally:  # also if an error of another kind ends this thread
            with self._changed:
                self._over = True
                self._fail(EngineError("stopped"))

    def _take_requests(self) -> bool:
        """Wait for requests and assign slots to them; return False if the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._waiting or self._active)
            if not self._over:
                self._admit()
            return not self._over

    def _fail(self, error: Exception) -> None:
        """Fail all requests with `error`, and clear all slots."""
        for future in [f for _, f in self._waiting] + [row.result for row in self._active]:
            future.set_exception(error)
        self._waiting, self._active = [], []
        for slot in self._slots:
            slot.ids, slot.busy = [], False

    def _admit(self) -> None:
        """Assign slots to waiting requests while slots are idle."""
        while self._waiting and any(not slot.busy for slot in self._slots):
            request, future = self._waiting.pop(0)
            slot = self._slot_for(request.prompt)
            self._count += 1
            slot.busy, slot.used = True, self._count
            uniform = np.random.default_rng(request.seed).random(request.max_tokens).tolist()
            self._active.append(Row(request, slot, future, uniform))

    def _slot_for(self, prompt: Sequence[int]) -> Slot:
        """Return an idle slot for a prompt, with as many of the prompt's first tokens as possible
        already in it."""
        assert self._memory is not None
        idle = sorted((s for s in self._slots if not s.busy), key=lambda s: s.used)
        for slot in idle:
            if begins(slot.ids, prompt):
                del slot.ids[len(prompt) - 1 :]
                return slot
        known = {id(s): shared(s.ids, prompt) for s in self._slots}
        own = [s for s in idle if s.ids and known[id(s)] >= SAME * len(s.ids)]
        # A new conversation takes the slot that was idle for longest, perhaps an unused one.
        slot = max(own, key=lambda s: known[id(s)], default=idle[0])
        like = max(self._slots, key=lambda s: known[id(s)])
        length = known[id(like)]
        if known[id(slot)] < length:
            self._memory.copy(like.start, slot.start, length)
        # The last token is computed again if all are known: its logits are needed.
        slot.ids = list(prompt[: min(length, len(prompt) - 1)])
        return slot

    def _advance(self) -> None:
        """Run the next pass: sample a token for rows with a complete prompt, and compute parts of
        the other prompts.

        With flash attention the rows with a complete prompt are a separate pass, recorded as a CUDA
        graph.
        """
        rows = sorted(self._active, key=Row.missing)
        decoding = [row for row in rows if row.missing() == 1] if self.flash else []
        if len(rows) > len(decoding):
            self._read(rows[len(decoding) :])
        if decoding:
            self._decode(decoding)

    def _decode(self, rows: Sequence[Row]) -> None:
        """Sample the next token of rows of which only the last token is not yet computed."""
        assert self._memory is not None
        size = rounded(len(rows))
        if size not in self._steps:
            pool = next((step.pool for step in self._steps.values()), None)
            spare = len(self._slots) * self.context
            step = DecodingStep(self.actor, self._memory, size, self.context, spare, pool)
            self._steps[size] = step
        ids = [row.next_ids(1)[0] for row in rows]
        found = self._steps[size](
            [
                Next(i, r.slot.start, len(r.slot.ids), r.request.temperature, r.next_uniform())
                for r, i in zip(rows, ids, strict=True)
            ]
        )
        self.recorded = self._steps[size].graph is not None
        self.computed += len(rows)
        with self._changed:
            for row, i, token, logprob in zip(rows, ids, *found, strict=True):
                row.slot.ids.append(i)
                self._add(row, token, logprob)

    @torch.no_grad()
    def _read(self, rows: Sequence[Row]) -> None:
        """Compute keys and values of the next tokens of rows, at most `PASS_TOKENS` tokens in one
        pass."""
        chosen, room = [], PASS_TOKENS
        for row in rows:
            count = min(row.missing(), room)
            if count:
                chosen.append((row, row.next_ids(count)))
                room -= count
        assert self._memory is not None
        pieces = [Piece(ids, row.slot.start, len(row.slot.ids)) for row, ids in chosen]
        device = self.actor.device
        logits = self.actor(**arguments(self._memory, pieces, device)).logits[0]
        for row, ids in chosen:
            row.slot.ids += ids
            self.computed += len(ids)
        ready = [i for i, (row, _) in enumerate(chosen) if not row.missing()]
        if not ready:
            return
        rows = [chosen[i][0] for i in ready]
        draws = [[r.request.temperature, r.next_uniform()] for r in rows]
        temperature, uniform = torch.tensor(draws, dtype=torch.float64).to(device).unbind(1)
        tokens, logprobs = sample_tokens(
            logits[ready] if len(ready) < len(chosen) else logits, temperature.float(), uniform
        )
        with self._changed:
            for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
                self._add(row, token, logprob)

    def _add(self, row: Row, token: int, logprob: float) -> None:
        """Append a sampled token to a row; finish the request if this was its last token."""
        row.sampled.append(token)
        row.logprobs.append(logprob)
        cut = token != self.end
        if cut and len(row.sampled) < row.request.max_tokens:
            return
        row.slot.busy = False
        self._active.remove(row)
        row.result.set_result(Sampled(tuple(row.sampled), tuple(row.logprobs), cut))

    def _out_of_memory(self, conversations: int) -> OutOfMemory:
        return OutOfMemory(
            f"out of memory while sampling {conversations} conversations of up to {self.context} "
            "tokens; lower play.cache_tokens, play.at_once or play.context"
        )


def begins(ids: Sequence[int], prompt: Sequence[int]) -> bool:
    """Return True if all token ids of a conversation, `ids`, are a prefix of `prompt`, so that the
    prompt can use its slot."""
    n = len(ids)
    return 0 < n <= len(prompt) and ids[-1] == prompt[n - 1] and shared(ids, prompt) == n


def shared(ids: Sequence[int], prompt: Sequence[int]) -> int:
    """Return the length of the common prefix of two token sequences."""
    most, at = min(len(ids), len(prompt)), 0
    while at < most and list(ids[at : at + CHUNK]) == list(prompt[at : at + CHUNK]):
        at += CHUNK
    pairs = zip(ids[at : at + CHUNK], prompt[at : at + CHUNK], strict=False)
    return min(most, at + next((i for i, (a, b) in enumerate(pairs) if a != b), CHUNK))
