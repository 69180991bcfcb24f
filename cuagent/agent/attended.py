"""Wait for long work in such a way that the user or a deadline can end the wait immediately.

The work runs in a separate thread. If the wait ends early, the thread continues and its result is
dropped, so the objects that it uses must stay usable until it ends. No function here ends the work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.05
"""Seconds between two checks if the user interrupts; the end of the work itself is noticed at
once.
"""


class Interrupted(Exception):
    """Raised when the user interrupts the current step."""


class Overdue(Exception):
    """Raised when the work has not ended at its deadline."""


class _Work(threading.Thread, Generic[T]):
    """Thread that runs one function; `result` or `error` is set when the function has ended."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(daemon=True, name="cuagent-work")
        self._work = work
        self.ended = threading.Event()
        self.result: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result.append(self._work())
        except BaseException as error:  # noqa: BLE001 - `attend` raises it again
            self.error = error
        finally:
            self.ended.set()


def attend(work: Callable[[], T], cancelled: threading.Event, deadline: float | None = None) -> T:
    """Run `work` in a thread and wait; return its result, or raise the error that it raised.

    Raises Interrupted once `cancelled` is set, and Overdue at `deadline` (time.monotonic seconds).
    KeyboardInterrupt passes through.
    """
    thread = _Work(work)
    thread.start()
    while not thread.ended.wait(POLL_SECONDS):
        if cancelled.is_set():
            raise Interrupted
        if deadline is not None and time.monotonic() > deadline:
            raise Overdue
    if thread.error is not None:
        raise thread.error
    return thread.result[0]
