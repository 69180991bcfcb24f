"""Capture a bounded amount of a worker's printed text, as feedback for a person or an agent.

No program reads this text.
"""

from __future__ import annotations

import os

OUTPUT_CAP = 64 << 10
"""Largest number of bytes of printed text that are stored: half from the beginning, half from the
end."""


class CapturedOutput:
    """Text from the read end of a non-blocking pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._head = b""
        self._tail = b""

    def drain(self) -> bool:
        """Read the bytes that are available now. Returns False at the end of the pipe."""
        half = OUTPUT_CAP // 2
        # A bounded number of reads: a process that prints without pause must not block us here.
        for _ in range(64):
            try:
                piece = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return True
            if not piece:
                return False
            room = half - len(self._head)
            self._head += piece[:room]
            self._tail = (self._tail + piece[room:])[-half:]
        return True

    @property
    def text(self) -> str:
        """Text captured so far, with a mark where the middle is missing."""
        cut = b"\n[...]\n" if len(self._tail) == OUTPUT_CAP // 2 else b""
        return (self._head + cut + self._tail).decode(errors="replace")
