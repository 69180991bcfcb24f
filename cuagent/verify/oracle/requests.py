"""The queue of requests in the oracle's process."""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any

from cuagent.worker.channel import receive_message, send_message


class Requests:
    """The referee's requests in order.

    A "drop" request that has arrived cancels all requests before it.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._queue: deque[tuple[dict[str, Any], list[int]]] = deque()

    def __iter__(self) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """Yield the requests until the referee closes the channel."""
        while True:
            while not self._queue or select.select([self._channel], [], [], 0)[0]:
                if (received := receive_message(self._channel)) is None:
                    return
                self._queue.append(received)
            self._drop()
            if self._queue:
                yield self._queue.popleft()

    def _drop(self) -> None:
        """Answer all requests up to the last "drop" request without executing them."""
        drops = [n for n, (message, _) in enumerate(self._queue) if message["do"] == "drop"]
        for _ in range(drops[-1] + 1 if drops else 0):
            message, _ = self._queue.popleft()
            send_message(self._channel, {} if message["do"] == "drop" else {"dropped": True})

    def await_reply(self) -> None:
        """Wait for the referee's reply in a break; keep requests that were sent before it."""
        while (received := receive_message(self._channel)) is not None and received[0]:
            self._queue.append(received)
