"""Record Ctrl-C, so that it is never lost.

Python raises KeyboardInterrupt wherever the main thread is. The exception is lost inside a weak
reference callback or a finalizer (an import of torch runs thousands of them), and in code that
swallows every error. So an event also records the interrupt for later checks.

Not covered: an immediate stop of the code that swallowed the exception.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_recorded() -> Iterator[threading.Event]:
    """Yield an event that is set on SIGINT and SIGTERM, in addition to the KeyboardInterrupt.

    Only the main thread may call this.
    """
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
    """Raise KeyboardInterrupt if an interrupt was recorded in the event `interrupted`."""
    if interrupted.is_set():
        raise KeyboardInterrupt
