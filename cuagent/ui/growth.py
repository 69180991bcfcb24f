"""Draw a small chart of the best ratio over the time of the run.

Pure: from points to lines. For one line of it by attempts see `attempts.trend`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from cuagent.ui.text import UNICODE, Glyphs, clock, times

CAPTION = "best attempt so far, vs. best free option"


def growth_lines(
    points: Sequence[tuple[float, float]],
    seconds: float,
    width: int,
    height: int,
    glyphs: Glyphs = UNICODE,
) -> list[str]:
    """Return `height` rows of bars and a time axis; nothing without measurements.

    `points` are (seconds into the run, best ratio from then on), `seconds` is now. The chart
    begins at 1x, or lower where the first attempt was slower.
    """
    if not points or height < 1:
        return []
    low, high = min(1.0, points[0][1]), max(1.0, points[-1][1])
    labels = [times(high), times(low)]
    first = max(map(cell_len, labels)) + 1
    columns = max(width - first - 1, 8)
    until = max(seconds, points[-1][0], 1.0)
    levels = [_level(points, until * (at + 1) / columns, low, high) for at in range(columns)]
    rows = []
    for row in range(height):
        floor = height - 1 - row
        label = labels[0] if row == 0 else labels[1] if row == height - 1 else ""
        bars = "".join(_bar(level * height - floor, glyphs) for level in levels)
        rows.append(f"{label:>{first - 1}} {glyphs.bar}{bars}".rstrip())
    begin, end = "0:00", clock(until)
    gap = max(columns - len(begin) - len(end), 1)
    caption = CAPTION if gap >= len(CAPTION) + 2 else ""
    return [*rows, f"{'':>{first}} {begin}{caption:^{gap}}{end}"]


def _level(points: Sequence[tuple[float, float]], at: float, low: float, high: float) -> float:
    """Return the bar height in [0, 1]; at least 0.05 for any measured value, so it shows."""
    gain = next((value for when, value in reversed(points) if when <= at), None)
    if gain is None:
        return 0.0
    return 1.0 if high == low else max((gain - low) / (high - low), 0.05)


def _bar(filled: float, glyphs: Glyphs) -> str:
    """Return one cell of a column, filled to the given share."""
    if filled <= 0:
        return " "
    return glyphs.bars[min(int(filled * len(glyphs.bars)), len(glyphs.bars) - 1)]
