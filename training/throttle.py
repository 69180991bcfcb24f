"""How often a long work says how far it has come."""

from __future__ import annotations

import time

SAID_S = 30.0
"""Between two lines."""


class Throttle:
    """Ask it after each piece of the work."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def due(self, anyway: bool = False) -> bool:
        """Whether to say a line now; `anyway` is a reason besides the time."""
        due = anyway or time.monotonic() - self._said > SAID_S
        if due:
            self._said = time.monotonic()
        return due
