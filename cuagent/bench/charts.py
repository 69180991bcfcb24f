"""Draw the charts of the results page as SVG: distribution of speedups, roofline scatter, operator
families.

The functions depend on the records only. Axes of ratios and times are logarithmic. A chart without
data shows a message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cuagent.bench.columns import OVERALL, family_of, passed, ratio_of, rows_by, time_of
from cuagent.bench.results import Record
from cuagent.bench.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    TOP,
    WIDTH,
    axis,
    bar,
    decades,
    empty,
    label,
    legend,
    line,
    named_bars,
    point,
    svg,
    time_name,
)

BINS = (0.25, 0.5, 0.71, 0.87, 0.95, 1.05, 1.15, 1.41, 2.0, 4.0, 8.0)
"""Speedups at the edges of the histogram's bins; the first bin has no lower edge and the last one
no upper edge."""
SERIES = (("compile", "torch.compile", "one"), ("best_rung", "best rung", "two"))
RULE = "strict"


def histogram(records: Sequence[Record]) -> str:
    """Return an SVG histogram of the speedups under the strict rule, over torch.compile and over
    the best rung."""
    counted = []
    for baseline, _, _ in SERIES:
        ratios = [ratio_of(record, RULE, baseline) for record in records]
        values = [ratio["value"] for ratio in ratios if ratio is not None]
        counted.append([_in_bin(values, n) for n in range(len(BINS) + 1)])
    largest = max(map(max, counted))
    if not largest:
        return empty()
    step = (WIDTH - LEFT) / (len(BINS) + 1)
    parts = [axis()]
    for series, counts in enumerate(counted):
        for n, count in enumerate(counts):
            height = (HEIGHT - BOTTOM - TOP) * count / largest
            x = LEFT + n * step + 2 + series * (step - 4) / 2
            name = f"{count} problems, {_bin_name(n)} over {SERIES[series][1]}"
            size = ((step - 4) / 2, height)
            parts.append(bar(x, HEIGHT - BOTTOM - height, size, SERIES[series][2], name))
    for n, edge in enumerate(BINS):
        parts.append(label(LEFT + (n + 1) * step, HEIGHT - BOTTOM + 14, f"{edge:g}", "middle"))
    parts.append(label(LEFT - 6, TOP + 4, str(largest), "end"))
    parts.append(label(WIDTH, HEIGHT - 4, "speedup", "end"))
    return svg([*parts, *_over()])


def _in_bin(values: Sequence[float], n: int) -> int:
    low = BINS[n - 1] if n else 0.0
    high = BINS[n] if n < len(BINS) else math.inf
    return sum(low <= value < high for value in values)


def _bin_name(n: int) -> str:
    if n == 0:
        return f"below {BINS[0]:g}x"
    return f"{BINS[n - 1]:g}x to {BINS[n]:g}x" if n < len(BINS) else f"above {BINS[-1]:g}x"


def roofline_scatter(records: Sequence[Record]) -> str:
    """Return an SVG scatter plot of each result's time over its task's floor, with the line where
    both are equal."""
    points = []
    for record in records:
        result = time_of(record)
        if passed(record, RULE) and result and record.get("floor_s"):
            points.append((record["floor_s"], result["median_s"], record))
    if not points:
        return empty()
    low, high = decades(value for floor, time, _ in points for value in (floor, time))

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 24) * (math.log10(value) - low) / (high - low)

    def y(value: float) -> float:
        share = (math.log10(value) - low) / (high - low)
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share

    ends = 10.0**low, 10.0**high
    parts = [axis(), line(x(ends[0]), y(ends[0]), x(ends[1]), y(ends[1]), "mark")]
    for exponent in range(low, high + 1):
        value, name = 10.0**exponent, time_name(exponent)
        parts.append(label(x(value), HEIGHT - BOTTOM + 14, name, "middle"))
        parts.append(label(LEFT - 6, y(value) + 4, name, "end"))
    for floor, time, record in points:
        title = f"{record['problem']}: {floor / time:.0%} of the roofline, {record['bound']}"
        style = "one" if record["bound"] == "memory" else "two"
        parts.append(point(x(floor), y(time), style, title))
    parts.append(label(WIDTH, HEIGHT - 4, "floor", "end"))
    return svg([*parts, *legend((("memory bound", "one"), ("compute bound", "two")))])


def family_chart(records: Sequence[Record]) -> str:
    """Return an SVG chart of the geometric mean speedup of each operator family, with intervals."""
    rows = rows_by(records, family_of, (RULE,))
    shown = [row for row in rows if row.group != OVERALL and row.speedup is not None]
    names = sorted({row.group for row in shown})
    if not names:
        return empty()
    limits = [
        value
        for row in shown
        if row.speedup is not None
        for value in (row.speedup.value, row.speedup.low, row.speedup.high)
        if value is not None
    ]
    low, high = min(0.5, *limits) * 0.9, max(2.0, *limits) * 1.1
    left, step = 228, 26
    height = TOP + step * len(names) + BOTTOM

    def x(value: float) -> float:
        return left + (WIDTH - left - 10) * math.log(value / low) / math.log(high / low)

    bottom = height - BOTTOM
    parts = [line(x(1), TOP, x(1), bottom, "mark"), line(left, bottom, WIDTH, bottom, "axis")]
    for n, name in enumerate(names):
        y = TOP + n * step + step / 2
        parts.append(label(left - 8, y + 4, name, "end"))
        for offset, (baseline, shown_as, style) in zip((-5, 5), SERIES, strict=True):
            row = next((r for r in shown if (r.group, r.baseline) == (name, baseline)), None)
            if row is None or row.speedup is None:
                continue
            mean = row.speedup
            title = f"{name}: {mean.value:.2f}x over {shown_as}, {mean.count} problems"
            if mean.low is not None and mean.high is not None:
                parts.append(line(x(mean.low), y + offset, x(mean.high), y + offset, "limit"))
            parts.append(point(x(mean.value), y + offset, style, title))
    for value in (0.25, 0.5, 1, 2, 4, 8, 16, 64):
        if low <= value <= high:
            parts.append(label(x(value), bottom + 14, f"{value:g}x", "middle"))
    return svg([*parts, *_over()], height)


def bars(counts: Mapping[str, int]) -> str:
    """Return an SVG chart with one horizontal bar for each count, labelled with its name and
    number."""
    return named_bars([(name, n, str(n), "one") for name, n in counts.items()], 170, 22)


def _over() -> list[str]:
    return legend([(f"over {text}", style) for _, text, style in SERIES])
