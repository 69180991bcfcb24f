"""What stands below the transcript: one line, or in a wide terminal two columns of a few lines.

On the left what the agent does, on the right the ladder and the attempts with a chart of the best
over time. Pure; `ui.terminal` decides when and where it is shown. Invariant: never wider than
told, and never higher than `most_lines` of the terminal.
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
"""Columns from which there are two sides, and those used at most."""
RIGHT = 80
"""Columns of the right side, in which a table has all of its own."""
TALL = 20
"""Rows of the terminal below which one line must do."""
CHART = 3
"""Rows of the chart."""


def two_sided(attempt_table: AttemptTable, width: int, height: int) -> bool:
    """Whether there is room for both sides, and something to show on the right."""
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
    """Both sides under a rule; `recent_output` is what came in last: words of the model, a tool's output.

    `height` is that of the terminal, of which at most half is taken.
    """
    width = min(width, WIDEST)
    left_width = width - RIGHT - 3
    right = _right(attempt_table, seconds, height // 2 - 1, glyphs)
    left = _left(status, recent_output, seconds, left_width, len(right), glyphs, tick)
    rule = Text(glyphs.rule * width, "dim")
    return [rule, *(_joined(a, b, left_width, glyphs) for a, b in zip(left, right, strict=True))]


def _right(attempt_table: AttemptTable, seconds: float, most: int, glyphs: Glyphs) -> list[Text]:
    """The table, and under it the chart if both fit."""
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
    """Figures first, then what is being done; exactly `height` lines."""
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
