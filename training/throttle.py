"""Limit how often a long stage prints its progress."""

from __future__ import annotations

import time

INTERVAL_S = 30.0
"""Least time in seconds between two progress lines."""


class Throttle:
    """Timer that limits how often progress is printed; the caller asks `due` after each step of its
    work."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def due(self, force: bool = False) -> bool:
        """Return True if a progress line should be printed now; `force` overrides the interval."""
        due = force or time.monotonic() - self._last > INTERVAL_S
        if due:
            self._last = time.monotonic()
        return due
