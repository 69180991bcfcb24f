"""Draw the charts of the page as SVG: distribution of speedups, roofline scatter, families.

Pure functions on records. Axes of ratios and times are logarithmic. A chart without data says so.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from cuagent.bench.columns import OVERALL, family_of, passed, ratio_of, rows_by
from cuagent.bench.results import Record

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 460, 260, 46, 34, 20
BINS = (0.25, 0.5, 0.71, 0.87, 0.95, 1.05, 1.15, 1.41, 2.0, 4.0, 8.0)
"""Edges of the histogram; the first and the last bin are open."""
SERIES = (("compile", "torch.compile", "one"), ("best_rung", "best rung", "two"))
RULE = "strict"


def histogram(records: Sequence[Record]) -> str:
    """Return the distribution of strict speedups over torch.compile and over the best rung."""
    counted = []
    for baseline, _, _ in SERIES:
        ratios = [ratio_of(record, RULE, baseline) for record in records]
        values = [ratio["value"] for ratio in ratios if ratio is not None]
        counted.append([_in_bin(values, n) for n in range(len(BINS) + 1)])
    largest = max(map(max, counted))
    if not largest:
        return _empty()
    step = (WIDTH - LEFT) / (len(BINS) + 1)
    parts = [_axis()]
    for series, counts in enumerate(counted):
        for n, count in enumerate(counts):
            height = (HEIGHT - BOTTOM - TOP) * count / largest
            x = LEFT + n * step + 2 + series * (step - 4) / 2
            name = f"{count} problems, {_bin_name(n)} over {SERIES[series][1]}"
            parts.append(
                f'<rect class="{SERIES[series][2]}" x="{x:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" '
                f'width="{(step - 4) / 2:.1f}" height="{height:.1f}"><title>{name}</title></rect>'
            )
    for n, edge in enumerate(BINS):
        parts.append(_label(LEFT + (n + 1) * step, HEIGHT - BOTTOM + 14, f"{edge:g}", "middle"))
    parts.append(_label(LEFT - 6, TOP + 4, str(largest), "end"))
    parts.append(_label(WIDTH, HEIGHT - 4, "speedup", "end"))
    return _svg([*parts, *_legend()])


def _in_bin(values: Sequence[float], n: int) -> int:
    low = BINS[n - 1] if n else 0.0
    high = BINS[n] if n < len(BINS) else math.inf
    return sum(low <= value < high for value in values)


def _bin_name(n: int) -> str:
    if n == 0:
        return f"below {BINS[0]:g}x"
    return f"{BINS[n - 1]:g}x to {BINS[n]:g}x" if n < len(BINS) else f"above {BINS[-1]:g}x"


def roofline_scatter(records: Sequence[Record]) -> str:
    """Return each result's time against the floor of its task; on the line it is at the floor."""
    points = []
    for record in records:
        result = (record.get("times") or {}).get("candidate")
        if passed(record, RULE) and result and record.get("floor_s"):
            points.append((record["floor_s"], result["median_s"], record))
    if not points:
        return _empty()
    values = [value for point in points for value in point[:2]]
    low = math.floor(math.log10(min(values)))
    high = max(math.ceil(math.log10(max(values))), low + 1)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 24) * (math.log10(value) - low) / (high - low)

    def y(value: float) -> float:
        share = (math.log10(value) - low) / (high - low)
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share

    ends = 10.0**low, 10.0**high
    parts = [_axis(), _line(x(ends[0]), y(ends[0]), x(ends[1]), y(ends[1]), "mark")]
    for exponent in range(low, high + 1):
        value, name = 10.0**exponent, _time_name(exponent)
        parts.append(_label(x(value), HEIGHT - BOTTOM + 14, name, "middle"))
        parts.append(_label(LEFT - 6, y(value) + 4, name, "end"))
    for floor, time, record in points:
        title = f"{record['problem']}: {floor / time:.0%} of the roofline, {record['bound']}"
        style = "one" if record["bound"] == "memory" else "two"
        parts.append(
            f'<circle class="{style}" cx="{x(floor):.1f}" cy="{y(time):.1f}" r="4" '
            f'fill-opacity=".75"><title>{html.escape(title)}</title></circle>'
        )
    parts.append(_label(WIDTH, HEIGHT - 4, "floor", "end"))
    return _svg([*parts, *_legend((("memory bound", "one"), ("compute bound", "two")))])


def _time_name(exponent: int) -> str:
    for unit, power in (("s", 0), ("ms", -3), ("us", -6)):
        if exponent >= power:
            return f"{10 ** (exponent - power):g} {unit}"
    return f"{10 ** (exponent + 9):g} ns"


def family_chart(records: Sequence[Record]) -> str:
    """Return the geometric means by family, with their intervals."""
    rows = rows_by(records, family_of, (RULE,))
    shown = [row for row in rows if row.group != OVERALL and row.speedup is not None]
    names = sorted({row.group for row in shown})
    if not names:
        return _empty()
    limits = [
        value
        for row in shown
        if row.speedup is not None
        for value in (row.speedup.value, row.speedup.low, row.speedup.high)
        if value is not None
    ]
    low, high = min(0.5, *limits) * 0.9, max(2.0, *limits) * 1.1
    left, line = 228, 26
    height = TOP + line * len(names) + BOTTOM

    def x(value: float) -> float:
        return left + (WIDTH - left - 10) * math.log(value / low) / math.log(high / low)

    bottom = height - BOTTOM
    parts = [_line(x(1), TOP, x(1), bottom, "mark"), _line(left, bottom, WIDTH, bottom, "axis")]
    for n, name in enumerate(names):
        y = TOP + n * line + line / 2
        parts.append(_label(left - 8, y + 4, name, "end"))
        for offset, (baseline, label, style) in zip((-5, 5), SERIES, strict=True):
            row = next((r for r in shown if (r.group, r.baseline) == (name, baseline)), None)
            if row is None or row.speedup is None:
                continue
            mean = row.speedup
            title = f"{name}: {mean.value:.2f}x over {label}, {mean.count} problems"
            if mean.low is not None and mean.high is not None:
                parts.append(_line(x(mean.low), y + offset, x(mean.high), y + offset, "limit"))
            parts.append(
                f'<circle class="{style}" cx="{x(mean.value):.1f}" cy="{y + offset:.1f}" r="4">'
                f"<title>{html.escape(title)}</title></circle>"
            )
    for value in (0.25, 0.5, 1, 2, 4, 8, 16, 64):
        if low <= value <= high:
            parts.append(_label(x(value), bottom + 14, f"{value:g}x", "middle"))
    return _svg([*parts, *_legend()], height)


def bars(counts: Mapping[str, int]) -> str:
    """Return one horizontal bar for each count, with its name and its number."""
    if not counts:
        return _empty()
    left, line, largest = 170, 18, max(1, *counts.values())
    parts = []
    for n, (name, count) in enumerate(counts.items()):
        y, width = TOP + n * line, (WIDTH - left - 50) * count / largest
        parts.append(_label(left - 8, y + 11, name, "end"))
        parts.append(
            f'<rect class="one" x="{left}" y="{y}" width="{width:.1f}" height="{line - 4}">'
            f"<title>{html.escape(name)}: {count}</title></rect>"
        )
        parts.append(_label(left + width + 6, y + 11, str(count), "start"))
    return _svg(parts, TOP + line * len(counts) + 6)


def _legend(entries: Sequence[tuple[str, str]] = ()) -> list[str]:
    entries = entries or [(f"over {label}", style) for _, label, style in SERIES]
    parts, x = [], LEFT + 10
    for label, style in entries:
        parts.append(f'<rect class="{style}" x="{x}" y="2" width="10" height="10"/>')
        parts.append(_label(x + 14, 11, label, "start"))
        x += 30 + 7 * len(label)
    return parts


def _axis() -> str:
    return _line(LEFT, HEIGHT - BOTTOM, WIDTH, HEIGHT - BOTTOM, "axis") + _line(
        LEFT, TOP, LEFT, HEIGHT - BOTTOM, "axis"
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _empty() -> str:
    return _svg([_label(WIDTH / 2, HEIGHT / 2, "no timed result yet", "middle")])


def _svg(parts: Sequence[str], height: float = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{"".join(parts)}</svg>'
