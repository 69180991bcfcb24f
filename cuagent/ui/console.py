"""Make the consoles of all views; they replace control characters in foreign text.

Invariant: output through such a console contains no control characters except line ends, tabs, and
those that `rich` writes for styles.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import Segment
from rich.text import Text

from cuagent.ui.text import harmless

UNCUT = 1_000_000
"""Width in characters of a console for a file or a pipe: so large that nothing is cut or wrapped.
The environment variable COLUMNS overrides it."""


class _HarmlessConsole(Console):
    """Console that replaces control characters in all text, also inside tables and live views."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or (changed := harmless(segment.text)) == segment.text:
                yield segment
            else:
                yield Segment(changed, segment.style)


class _Harmless(RenderHook):
    """Render hook that replaces control characters before a text is measured; styles stay."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_harmless(one) if isinstance(one, Text) else one for one in renderables]


def make_console(stream: TextIO, *, footer: bool = False) -> Console:
    """Return a console on `stream`; with `footer`, `stream` always counts as a terminal."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # output of a tool may not fit the encoding
    to_file = not footer and not stream.isatty() and "COLUMNS" not in os.environ
    console = _HarmlessConsole(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        width=UNCUT if to_file else None,
    )
    console.push_render_hook(_Harmless())
    return console


def say(text: str, stream: TextIO | None = None) -> None:
    """Print foreign text with its control characters replaced, by default on stdout."""
    print(harmless(text), file=stream or sys.stdout)


def _harmless(text: Text) -> Text:
    plain = text.plain
    if (changed := harmless(plain)) != plain:
        text = text.copy()
        text.plain = changed
    return text
