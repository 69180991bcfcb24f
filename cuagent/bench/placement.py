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
"""Longest time in seconds, after the first share is known, for which slots wait for those of all
problems. A slot that starts a small problem earlier may delay a large one, which needs an empty
GPU."""
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
        self._running: list[tuple[Order, str | None, float]] = []
        """Orders given out, with GPU and share. A problem may be in it twice for a moment, because
        it is added again before it has `ended`."""
        self._changed = threading.Condition()
        self._sized_until: float | None = None
        """Time of the monotonic clock until which slots wait for shares; None before the first."""
        self._closed = False

    def add(self, order: Order, share: float) -> None:
        """Add an order whose problem needs this share of a GPU's memory; with 1 it is alone
        there."""
        with self._changed:
            if self._sized_until is None:
                self._sized_until = time.monotonic() + SIZING_S
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
                    order = replace(found.order, alone=found.order.alone or found.share >= 1)
                    self._running.append((order, gpu, found.share))
                    return order
                self._changed.wait(self._patience())
        return None

    def ended(self, order: Order) -> None:
        """Free the memory of a problem. `order` is the object that `take` returned."""
        with self._changed:
            self._running = [given for given in self._running if given[0] is not order]
            self._changed.notify_all()

    def close(self) -> None:
        """Drop all orders that wait; `take` then returns None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _fitting(self, gpu: str | None) -> Waiting | None:
        """Return the first order in the queue that fits on the GPU; None if there is none yet."""
        if self._unsized and self._left_s() != 0:
            return None
        here = [share for _, where, share in self._running if where == gpu]
        free = 1 - sum(here) + ROUNDING
        fits = (found for found in self._waiting if found.share <= free or not here)
        return next(fits, None)

    def _patience(self) -> float | None:
        """Return the longest time in seconds to wait for a change; None: no limit."""
        return (self._left_s() or None) if self._unsized else None

    def _left_s(self) -> float | None:
        """Return the seconds for which slots still wait for shares; None before the first."""
        if self._sized_until is None:
            return None
        return max(0.0, self._sized_until - time.monotonic())
