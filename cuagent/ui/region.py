"""Redraw the last lines of a terminal in place.

The methods only return text with control sequences; the caller writes it in one call under a lock.
Invariant: nothing above the first of these lines changes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text


class Region:
    """The last lines of a terminal; `drawn` has the width in characters of each drawn line."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.drawn: list[int] = []
        self.reflows = os.environ.get("TERM") != "linux" and "XTERM_VERSION" not in os.environ
        """True if the terminal rewraps long lines when it becomes narrower."""

    def erase(self) -> str:
        """Return the control sequence that erases the drawn lines."""
        if not self.drawn:
            return ""
        text = self._to_start() + ("\x1b[K" if len(self.drawn) == 1 else "\x1b[J")
        self.drawn = []
        return text

    def draw(self, lines: Sequence[Text]) -> str:
        """Return the text that draws the lines; the cursor must be at the beginning of a line."""
        self.drawn = [cell_len(line.plain) for line in lines]
        shown = []
        for line in lines:
            with self.console.capture() as capture:
                self.console.print(line, end="", soft_wrap=True)
            shown.append(capture.get())
        return "\x1b[K\n".join(shown)

    def redraw(self, lines: Sequence[Text]) -> str:
        """Return the text that replaces the drawn lines by `lines`."""
        fewer = len(lines) < len(self.drawn)
        start = self._to_start() + ("\x1b[J" if fewer else "")
        return start + self.draw(lines) + "\x1b[K"

    def _to_start(self) -> str:
        """Return the control sequence that moves the cursor to the beginning of the first drawn
        line.

        In a terminal that has become narrower, each line may have been broken into several.
        """
        if not self.drawn:
            return "\r"
        width = self.console.width
        broken = sum(max(columns - 1, 0) // width for columns in self.drawn) if self.reflows else 0
        up = len(self.drawn) - 1 + broken
        return (f"\x1b[{up}A" if up else "") + ("\r\x1b[J" if broken else "\r")
