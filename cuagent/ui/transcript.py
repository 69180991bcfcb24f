"""Write whole lines and streamed text of a model to a terminal or a file, above a live status.

Printed lines never change. Only the live status is redrawn in place, in one write, so nothing
flickers and the user can scroll back. Without a terminal there is no live status and no control
character.

Invariant: every write holds `lock`, which the thread that redraws the status uses too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TextIO

from rich.text import Text

from cuagent.events import TextDelta
from cuagent.ui.console import UNCUT, make_console
from cuagent.ui.flow import Flow
from cuagent.ui.keys import silent_keys
from cuagent.ui.markdown import Blocks, rendered
from cuagent.ui.region import Region
from cuagent.ui.text import clean

TICK = 0.25
"""Seconds between two updates of the live status."""
WIDEST = 120
"""Largest width of a line in characters; longer lines are hard to read."""


class Transcript:
    """Writes lines to `stream`, with a live status below them. Any thread may call the methods.

    `status` returns the lines of the live status for a tick. `is_tall` returns True if there is
    more than one; a single line is hidden while text streams, several stay. With `footer` the
    caller shows the status, and only whole lines are written.
    """

    def __init__(
        self,
        stream: TextIO,
        status: Callable[[int], list[Text]],
        is_tall: Callable[[], bool],
        *,
        recorded: bool,
        footer: bool,
    ) -> None:
        self.console = make_console(stream, footer=footer)
        self.footer = footer
        self.lock = threading.RLock()
        self.tick = 0
        """Number of updates of the live status so far."""
        self.live = self._is_rich and not recorded and not footer
        self._status = status
        self._is_tall = is_tall
        self._region = Region(self.console)
        self._unwritten = ""
        self._blocks: Blocks | None = None
        """Markdown of the model that is being streamed; None if there is none."""
        self._flow: Flow | None = None
        self._flow_style = ""
        self._echo = ExitStack()
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the thread that redraws the live status, if there is one."""
        if self.live:
            self._echo.enter_context(silent_keys())
            threading.Thread(target=self._keep_ticking, daemon=True, name="status").start()

    def end(self) -> None:
        """Stop redrawing the live status; the last one stays on the screen."""
        self._ended.set()

    def close(self) -> None:
        """Remove the live status from the screen."""
        self.end()
        with self.lock:
            self.live = False
            self._write("")
        self._echo.close()

    @property
    def _is_rich(self) -> bool:
        """True if the stream is a terminal that can move its cursor."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    @property
    def width(self) -> int:
        """Width of a line in characters; `UNCUT` for a file or a pipe."""
        width = self.console.width
        return width if width == UNCUT else min(width, WIDEST)

    @property
    def is_uncut(self) -> bool:
        """True if lines are written whole, to a file or a pipe."""
        return self.console.width == UNCUT

    @property
    def pending(self) -> str:
        """The last line of the streamed text, which is not printed yet."""
        return self._unwritten if self._blocks is None else self._blocks.open

    def print(self, lines: Iterable[Text]) -> None:
        """Print whole lines, after the rest of a streamed text if there is one."""
        with self.lock:
            text = ""
            if self._blocks is not None:
                blocks, self._blocks = self._blocks.end(), None
                said = [[Text(), *rendered(b, self.console, self.width)] for b in blocks]
                lines = [*(line for part in said for line in part), *lines]
            if self._flow is not None:
                text += self._styled(self._unwritten + self._flow.end())
                self._flow, self._unwritten = None, ""
            with self.console.capture() as capture:
                for line in lines:
                    self.console.print(line, soft_wrap=True)
            self._write(text + capture.get())

    def stream(self, event: TextDelta) -> None:
        """Print a piece of the model's text: rendered Markdown on a terminal, else plain."""
        with self.lock:
            if event.kind == "text" and self._is_rich:
                self._add_markdown(clean(event.text))
            else:
                self._add_plain(clean(event.text), "dim" if event.kind == "reasoning" else "")

    def _add_markdown(self, piece: str) -> None:
        """Add a piece of Markdown and print the blocks that are now complete."""
        if self._flow is not None:
            self.print([])
        blocks = self._blocks or Blocks()
        found = blocks.feed(piece)
        self._blocks = None  # else `print` would end it
        for block in found:
            self.print([Text(), *rendered(block, self.console, self.width)])
        self._blocks = blocks

    def _add_plain(self, piece: str, style: str) -> None:
        if self._blocks is not None:
            self.print([])
        if self._flow is not None and self._flow_style != style:
            self.print([])
        elif self._flow is None and (self.live or self.footer):  # else figures are printed here
            self.print([Text()])
        if self._flow is None:
            self._flow = Flow(self.width if self.console.is_terminal else None)
            self._flow_style = style
        # `clean` has removed control characters of the model; `Flow` adds the line ends.
        ready, self._unwritten = self._unwritten + self._flow.feed(piece), ""
        if self.footer or (self.live and self._is_tall()):
            whole, newline, self._unwritten = ready.rpartition("\n")
            ready = whole + newline
        if ready:
            self._write(self._styled(ready))

    def _styled(self, text: str) -> str:
        with self.console.capture() as capture:
            self.console.print(Text(text, self._flow_style), end="", soft_wrap=True)
        return capture.get()

    def _write(self, text: str) -> None:
        """Append `text` to the transcript and redraw the live status, in one write."""
        with self.lock:
            erase = self._region.erase()
            live = self._region.draw(self._status(self.tick)) if self._is_shown else ""
            if erase or text or live:
                self.console.file.write(erase + text + live)
                self.console.file.flush()

    @property
    def _is_shown(self) -> bool:
        """True if the live status is shown now: a single line is hidden while text streams."""
        return self.live and (self._flow is None or self._is_tall())

    def _keep_ticking(self) -> None:
        while not self._ended.wait(TICK):
            with self.lock:
                if self._is_shown:
                    self.tick += 1
                    self.console.file.write(self._region.redraw(self._status(self.tick)))
                    self.console.file.flush()
