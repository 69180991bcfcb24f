"""Choose which problem a slot runs next.

Each problem claims a share of its GPU's memory (`memory.py`). A slot takes the problem with the
largest share that still fits on its GPU. So large problems start while a GPU is empty, smaller ones
use the memory that is left, and no slot is occupied by a problem that waits. Without known shares
(CPU, Ray) the problems run in the given order.

Invariant: the shares of the problems that run on one GPU add up to at most 1, unless one is alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from cuagent.bench.order import Order

SIZING_S = 20.0
"""Longest time in seconds for which slots wait until the shares of all problems are known. A slot
that starts a small problem earlier may delay a large one, which needs an empty GPU."""
ROUNDING = 1e-12
"""Tolerance for sums of shares."""


@dataclass(frozen=True)
class Waiting:
    """An order that waits for a slot."""

    order: Order
    share: float
    """Share of the GPU's usable memory, from 0 to 1."""


class Queue:
    """Orders that wait, and the memory of the GPUs that run the others. Several threads may use
    it."""

    def __init__(self, orders: Iterable[Order] = (), *, unsized: Collection[str] = ()) -> None:
        """`orders`: run in this order, without shares. `unsized`: names of problems that `add` will
        add."""
        self._waiting = [Waiting(order, 0.0) for order in orders]
        self._unsized = set(unsized)
        self._running: dict[str, tuple[str | None, float]] = {}
        self._changed = threading.Condition()
        self._sized_until = time.monotonic() + SIZING_S
        self._closed = False

    def add(self, order: Order, share: float) -> None:
        """Add an order whose problem needs this share of a GPU's memory; with 1 it is alone
        there."""
        with self._changed:
            self._unsized.discard(order.problem)
            self._waiting.append(Waiting(order, share))
            self._waiting.sort(key=lambda waiting: -waiting.share)  # keeps the order of equals
            self._changed.notify_all()

    def take(self, gpu: str | None) -> Order | None:
        """Return the next order for a slot of this GPU; wait until its memory is free.

        Returns None when no order is left. The caller must call `ended` after the problem.
        """
        with self._changed:
            while not self._closed and (self._waiting or self._unsized):
                if (found := self._fitting(gpu)) is not None:
                    self._waiting.remove(found)
                    self._running[found.order.problem] = (gpu, found.share)
                    return replace(found.order, alone=found.order.alone or found.share >= 1)
                self._changed.wait(self._patience())
        return None

    def ended(self, order: Order) -> None:
        """Free the memory of a problem that `take` has given out."""
        with self._changed:
            del self._running[order.problem]
            self._changed.notify_all()

    def close(self) -> None:
        """Drop all orders that wait; `take` then returns None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _fitting(self, gpu: str | None) -> Waiting | None:
        """Return the first order in the queue that fits on the GPU; None if there is none yet."""
        if self._unsized and time.monotonic() < self._sized_until:
            return None
        here = [share for where, share in self._running.values() if where == gpu]
        free = 1 - sum(here) + ROUNDING
        fits = (found for found in self._waiting if found.share <= free or not here)
        return next(fits, None)

    def _patience(self) -> float | None:
        """Return the longest time in seconds to wait for a change; None: no limit."""
        left = self._sized_until - time.monotonic()
        return left if self._unsized and left > 0 else None
