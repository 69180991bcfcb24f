"""Let a trusted child give up its parent's device lock while another process needs the device.

The parent holds the lock while the child works. A child that finds that a timing waits finishes its
work on the device, sends PAUSING and waits for the reply; the parent gives way and then replies. A
child that computes on the CPU for a while sends IDLE first; until its next PAUSING the parent gives
way whenever a timing waits, and the child need not stop.

Invariant: the child uses the device only while its parent holds the lock.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cuagent.device_lock import DeviceLock
from cuagent.worker.channel import receive_message, send_message
from cuagent.worker.memory.arena import synchronize

PAUSING, IDLE = "pausing", "idle"
"""Keys of the child's messages: it waits for a reply before it uses the device again; it does not
use the device until its next PAUSING."""
POLL_S = 0.02
"""Seconds between two looks of the parent if a timing waits, while the child is idle."""


class Breaks:
    """Breaks in a child's use of the device."""

    def __init__(
        self,
        channel: socket.socket,
        lock: DeviceLock,
        device: str,
        await_reply: Callable[[], object] | None = None,
    ) -> None:
        """`await_reply`: function that receives the reply to PAUSING; by default the next message
        is the reply."""
        self._channel, self._lock, self._device = channel, lock, device
        self._await_reply = await_reply or (lambda: receive_message(channel))
        self._constructs_on_cpu = False
        """True if the construction of a model was seen not to use the GPU."""

    def give_way(self) -> None:
        """If a timing waits for the device, pause until the parent holds the lock again."""
        if self._lock.is_awaited:
            synchronize(self._device)
            self._pause()

    @contextmanager
    def constructing(self) -> Iterator[None]:
        """Context for the construction of a model by the user's code, usually on the CPU.

        Others may have the device meanwhile, unless the first construction used it.
        """
        if self._lock.lock is None:
            yield
            return
        if self._constructs_on_cpu:
            synchronize(self._device)
            send_message(self._channel, {IDLE: True})
            try:
                yield
            finally:
                self._pause()
            return
        self.give_way()
        before = _allocations(self._device)
        yield
        self._constructs_on_cpu = before == _allocations(self._device)
        self.give_way()

    def _pause(self) -> None:
        send_message(self._channel, {PAUSING: True})
        self._await_reply()


def _allocations(device: str) -> int:
    """Return how often this process has allocated GPU memory."""
    if device == "cpu":
        return 0
    import torch

    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))


def receive_giving_way(
    channel: socket.socket, give_way: Callable[[], None], limit_s: float
) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next message of a child with `Breaks`, without those that begin or end a break;
    None at its end.

    `give_way` is called in its breaks. Raises TimeoutError if no message arrives within `limit_s`
    seconds, without those of `give_way`.
    """
    is_idle, left = False, limit_s
    while True:
        begun = time.monotonic()
        readable, _, _ = select.select([channel], [], [], min(left, POLL_S) if is_idle else left)
        left -= time.monotonic() - begun
        if readable:
            received = receive_message(channel)
            if received is None or received[0].keys().isdisjoint((PAUSING, IDLE)):
                return received
            is_idle, left = IDLE in received[0], limit_s
        elif left <= 0:
            raise TimeoutError
        give_way()
        if readable and not is_idle:
            send_message(channel, {})
