"""Ctrl-C that is heard, whatever the main thread is at.

Python raises KeyboardInterrupt where the main thread happens to be, and there it may be swallowed:
in the callback of a weak reference or the end of an object, of which an import of torch has
thousands, or by code that clears every error. So the wish is kept too, for whoever can look at it.
Not covered: stopping at once the code that swallowed it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_recorded() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, each time, and set it; main thread only."""
    interrupted = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_if_interrupted(interrupted: threading.Event) -> None:
    """Raises KeyboardInterrupt if one was interrupted for."""
    if interrupted.is_set():
        raise KeyboardInterrupt
