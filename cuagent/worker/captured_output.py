"""Capture the text that a worker prints, up to a size limit, to show it to a person or an agent.

No code decides anything by this text.
"""

from __future__ import annotations

import os

OUTPUT_CAP = 64 << 10
"""Largest number of stored bytes of a worker's output: half from its beginning, half from its
end."""


class CapturedOutput:
    """Reader of the text that a process prints to a pipe. `descriptor` is the pipe's non-blocking
    read end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._head = b""
        self._tail = b""

    def drain(self) -> bool:
        """Read the bytes that are available now. Returns False once the writer has closed the
        pipe."""
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
        """Text captured so far; `[...]` replaces the middle if the output was longer than
        OUTPUT_CAP."""
        cut = b"\n[...]\n" if len(self._tail) == OUTPUT_CAP // 2 else b""
        return (self._head + cut + self._tail).decode(errors="replace")
