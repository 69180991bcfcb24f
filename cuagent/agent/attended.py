"""Waiting for long work in such a way that a person, or a limit, can end the waiting at once.

The work runs in a thread of its own. When the waiting is given up the work is left to itself and
its result is dropped: so whatever it uses must stand being used on until it ends. Not covered:
ending the work itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
LOOK = 0.05
"""Seconds between two looks at whether to give up; an end of the work is noticed at once."""


class Interrupted(Exception):
    """The user wants the step in flight to end."""


class Overdue(Exception):
    """The work has not ended by its deadline."""


class _Work(threading.Thread, Generic[T]):
    """One piece of work and what came of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(daemon=True, name="cuagent-work")
        self._work = work
        self.ended = threading.Event()
        self.result: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result.append(self._work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the work is waited for
            self.error = error
        finally:
            self.ended.set()


def attend(work: Callable[[], T], cancelled: threading.Event, deadline: float | None = None) -> T:
    """The result of `work`, or the error that it raised.

    Raises Interrupted once `cancelled` is set and Overdue at `deadline` (on the monotonic clock).
    KeyboardInterrupt passes through.
    """
    thread = _Work(work)
    thread.start()
    while not thread.ended.wait(LOOK):
        if cancelled.is_set():
            raise Interrupted
        if deadline is not None and time.monotonic() > deadline:
            raise Overdue
    if thread.error is not None:
        raise thread.error
    return thread.result[0]
