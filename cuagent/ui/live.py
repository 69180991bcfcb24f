"""Lay out the status below the transcript in two columns, for a wide terminal.

The left column shows the agent's activity; the right one the ladder, the attempts and the best over
time. Pure functions; `ui.terminal` decides when and where the columns are shown.

Invariant: never wider than `width`, and never higher than half of the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from cuagent.ui.attempts import AttemptTable, table_lines
from cuagent.ui.growth import growth_lines
from cuagent.ui.status import Status
from cuagent.ui.text import UNICODE, Glyphs, clip, wrap

WIDE, WIDEST = 118, 150
"""Smallest width in characters of a terminal for two columns, and the largest width that they
use."""
RIGHT = 80
"""Width in characters of the right column, enough for the whole table."""
TALL = 20
"""Smallest height in rows of a terminal for two columns."""
CHART = 3
"""Height of the chart in rows."""


def two_sided(attempt_table: AttemptTable, width: int, height: int) -> bool:
    """Return True if both columns fit into the terminal and the table has content."""
    return (
        width >= WIDE and height >= TALL and bool(attempt_table.baselines or attempt_table.attempts)
    )


def panel_lines(
    status: Status,
    recent_output: Sequence[str],
    attempt_table: AttemptTable,
    seconds: float,
    width: int,
    height: int,
    glyphs: Glyphs = UNICODE,
    tick: int | None = None,
) -> list[Text]:
    """Return a horizontal rule and the two columns below it, as lines.

    `recent_output` is the newest text of the model or a tool, `seconds` the time of the run,
    `height` the number of rows of the terminal. `tick` advances the spinner; None leaves it out.
    """
    width = min(width, WIDEST)
    left_width = width - RIGHT - 3
    right = _right(attempt_table, seconds, height // 2 - 1, glyphs)
    left = _left(status, recent_output, seconds, left_width, len(right), glyphs, tick)
    rule = Text(glyphs.rule * width, "dim")
    return [rule, *(_joined(a, b, left_width, glyphs) for a, b in zip(left, right, strict=True))]


def _right(attempt_table: AttemptTable, seconds: float, most: int, glyphs: Glyphs) -> list[Text]:
    """Return the right column, at most `most` rows: the table, and the chart if both fit."""
    rows = [row for _, row in sorted(attempt_table.attempts.items())]
    chart = growth_lines(attempt_table.best_over_time, seconds, RIGHT, CHART, glyphs)
    room = most - 1 - len(attempt_table.baselines)
    shown = chart if room - len(chart) >= min(len(rows), 3) else []
    room = max(room - len(shown), 1)
    attempts = len(rows) if len(rows) <= room else max(room - 1, 1)
    table = table_lines(attempt_table.baselines, rows, RIGHT, glyphs, attempt_table.rung, attempts)
    return [*table[: max(most, 2)], *(Text(line, "green") for line in shown)]


def _left(
    status: Status,
    recent_output: Sequence[str],
    seconds: float,
    width: int,
    height: int,
    glyphs: Glyphs,
    tick: int | None,
) -> list[Text]:
    """Return the left column, exactly `height` rows: the run's figures and its activity."""
    figures = status.parts(seconds)
    activity = wrap(status.activity, width)[:2] if status.activity else []
    spin = "" if tick is None else glyphs.spinner[tick % len(glyphs.spinner)] + " "
    first = Text(clip(spin + f" {glyphs.dot} ".join(figures[:3]), width, glyphs.more), "bold")
    lines = [first]
    if figures[3:]:
        rest = f" {glyphs.dot} ".join(figures[3:])
        lines.append(Text(clip(rest, width, glyphs.more), "dim"))
    lines += [Text(line) for line in activity]
    room = height - len(lines)
    pieces = [piece for line in recent_output for piece in wrap(line, width)]
    lines += [Text(piece, "dim") for piece in pieces[-room:]] if room > 0 else []
    lines = lines[:height]
    return lines + [Text() for _ in range(height - len(lines))]


def _joined(left: Text, right: Text, width: int, glyphs: Glyphs) -> Text:
    gap = " " * max(width - cell_len(left.plain), 0)
    return Text.assemble(left, gap, (f" {glyphs.bar} ", "dim"), right)
