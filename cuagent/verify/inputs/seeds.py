"""Draw the secret seeds of a verdict and record them for an audit."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from cuagent.verify.inputs.kinds import MAX_SWEEP

BITS = 62
"""Number of random bits of a seed."""


class Seeds:
    """Source of secret seeds: 62 bits from os.urandom each, or the seeds of an earlier verdict."""

    def __init__(self, replay: Sequence[int] = ()) -> None:
        self._replay = list(reversed(replay))
        self.drawn: list[int] = []
        """Seeds in the order in which they were drawn; an audit repeats the verdict from them."""

    def draw(self) -> int:
        """Return the next seed and record it."""
        seed = self._replay.pop() if self._replay else secrets.randbits(BITS)
        self.drawn.append(seed)
        return seed

    def draw_several(self, count: int) -> list[int]:
        """Return the seeds of a sweep: `count` consecutive numbers from a multiple of MAX_SWEEP.

        One number is recorded for all: the first seed plus `count`. An audit takes both from it.
        """
        seed = (
            self._replay.pop()
            if self._replay
            else secrets.randbits(BITS) // MAX_SWEEP * MAX_SWEEP + count
        )
        self.drawn.append(seed)
        first, count = seed - seed % MAX_SWEEP, seed % MAX_SWEEP
        return [first + step for step in range(count)]
