"""Delay Ctrl-C until the end of a block of code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def shielded() -> Iterator[None]:
    """Context that delays KeyboardInterrupt to its end.

    Only the main thread receives KeyboardInterrupt, so the context has no effect in other threads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held and callable(handler):
            handler(*held[0])
