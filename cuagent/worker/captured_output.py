"""What a worker prints, capped: feedback for a person or an agent, read by nothing else."""

from __future__ import annotations

import os

OUTPUT_CAP = 64 << 10
"""Bytes of what a worker prints that are kept: the first half and the last."""


class CapturedOutput:
    """Taken from the reading end of a pipe, which does not block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._head = b""
        self._tail = b""

    def drain(self) -> bool:
        """Take what there is by now. False at the end of the pipe."""
        half = OUTPUT_CAP // 2
        # A bounded number of turns: a process that prints without pause must not hold us here.
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
        """As far as it was taken."""
        cut = b"\n[...]\n" if len(self._tail) == OUTPUT_CAP // 2 else b""
        return (self._head + cut + self._tail).decode(errors="replace")
