"""Where the secret numbers of a verdict come from, and how they are kept for an audit."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from cuagent.verify.inputs.kinds import MAX_SWEEP

BITS = 62


class Seeds:
    """62 bits from os.urandom each; or, for an audit, those of an earlier verdict again."""

    def __init__(self, again: Sequence[int] = ()) -> None:
        self._again = list(reversed(again))
        self.drawn: list[int] = []
        """In order: all that is needed to give the verdict again."""

    def draw(self) -> int:
        seed = self._again.pop() if self._again else secrets.randbits(BITS)
        self.drawn.append(seed)
        return seed

    def draw_several(self, count: int) -> list[int]:
        """`count` seeds that differ in their low bits, or as many as in the earlier verdict."""
        seed = (
            self._again.pop()
            if self._again
            else secrets.randbits(BITS) // MAX_SWEEP * MAX_SWEEP + count
        )
        self.drawn.append(seed)
        first, count = seed - seed % MAX_SWEEP, seed % MAX_SWEEP
        return [first + step for step in range(count)]
