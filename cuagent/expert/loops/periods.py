"""Find periodically repeated parts in a sequence of operators.

torch.export unrolls a loop into one copy of its body for each step, so that the operators of the
loop repeat with a fixed period.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_REPEATS = 4
"""Least number of steps of a loop that becomes a kernel."""
LONGEST_PERIOD = 192
"""Largest number of operators of a loop's body."""


@dataclass(frozen=True)
class Repeat:
    """A part of a sequence in which item `k + period` equals item `k`."""

    start: int
    period: int
    length: int
    """Number of items of the repeated part; the last period may be incomplete."""

    @property
    def end(self) -> int:
        return self.start + self.length


def repeats(items: Sequence[str]) -> list[Repeat]:
    """Return the repeated parts, the longest first; of equally long ones that with the shortest
    period.
    """
    import numpy as np

    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(item, len(numbers)) for item in items], dtype=np.int64)
    found: list[Repeat] = []
    for period in range(1, min(LONGEST_PERIOD, len(codes) // LEAST_REPEATS) + 1):
        equal = np.concatenate(([False], codes[period:] == codes[:-period], [False]))
        edges = np.flatnonzero(equal[1:] != equal[:-1])
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            length = int(end - start) + period
            if length >= LEAST_REPEATS * period:
                found.append(Repeat(int(start), period, length))
    return sorted(found, key=lambda part: (-part.length, part.period, part.start))
