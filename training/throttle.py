"""How often a long work says how far it has come."""

from __future__ import annotations

import time

INTERVAL_S = 30.0
"""Between two lines."""


class Throttle:
    """Ask it after each piece of the work."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def due(self, force: bool = False) -> bool:
        """Whether to say a line now; `anyway` is a reason besides the time."""
        due = force or time.monotonic() - self._last > INTERVAL_S
        if due:
            self._last = time.monotonic()
        return due
