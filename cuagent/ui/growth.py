"""Draw a small chart of the best speedup over the time of the run.

Pure functions from points to lines. `attempts.trend` draws one line, by attempts instead of time.
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
    """Return `height` rows of bars and a time axis; [] without points.

    `points` are (seconds into the run, best speedup from then on); `seconds` is the current time in
    the run. The vertical axis begins at 1x, or lower if the first attempt was slower.
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
    """Return the height of the bar at time `at`, in [0, 1].

    It is 0 before the first point and at least 0.05 after it.
    """
    gain = next((value for when, value in reversed(points) if when <= at), None)
    if gain is None:
        return 0.0
    return 1.0 if high == low else max((gain - low) / (high - low), 0.05)


def _bar(filled: float, glyphs: Glyphs) -> str:
    """Return the character for one cell of a bar; `filled` is the filled share of the cell."""
    if filled <= 0:
        return " "
    return glyphs.bars[min(int(filled * len(glyphs.bars)), len(glyphs.bars) - 1)]
