"""Make the consoles of all views; they remove control sequences from foreign text.

Invariant: what `rich` prints through such a console holds no control character but line ends,
tabs, and what `rich` itself makes of styles.
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
"""Columns of a file or a pipe, where nothing is cut or wrapped unless COLUMNS is set."""


class _HarmlessConsole(Console):
    """Makes every piece of text harmless, also inside tables, groups and live views."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or (changed := harmless(segment.text)) == segment.text:
                yield segment
            else:
                yield Segment(changed, segment.style)


class _Harmless(RenderHook):
    """Makes each text harmless before it is measured; its styles stay where they are."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_harmless(one) if isinstance(one, Text) else one for one in renderables]


def make_console(stream: TextIO, *, footer: bool = False) -> Console:
    """Return a console on `stream`; `footer` treats `stream` as a terminal in any case."""
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
    """Print foreign text, made harmless."""
    print(harmless(text), file=stream or sys.stdout)


def _harmless(text: Text) -> Text:
    plain = text.plain
    if (changed := harmless(plain)) != plain:
        text = text.copy()
        text.plain = changed
    return text
