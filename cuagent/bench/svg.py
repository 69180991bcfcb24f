"""Build the parts of SVG charts as text: axes, lines, labels and legends.

The colours are CSS classes of `PALETTE`, so that a chart is readable on light and dark pages.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 460, 260, 46, 34, 20
"""Width and height of a chart, and the margins of its axes, in SVG units."""
PALETTE = """
:root { color-scheme: light dark; --text: #1c2024; --dim: #60646c; --line: #d9d9e0;
  --page: #fff; --one: #1f6feb; --two: #d9730d; --good: #18794e; --bad: #c62a2f; }
@media (prefers-color-scheme: dark) { :root { --text: #edeef0; --dim: #b0b4ba; --line: #3a3f45;
  --page: #111113; --one: #70b8ff; --two: #ffa057; --good: #3dd68c; --bad: #ff9592; } }
svg { width: 100%; height: auto; } svg text { fill: var(--dim); font-size: 11px; }
svg .one { fill: var(--one); } svg .two { fill: var(--two); }
svg .axis { stroke: var(--line); } svg .mark { stroke: var(--dim); stroke-dasharray: 3 3; }
svg .limit { stroke: var(--text); stroke-width: 1.5; }
"""
"""CSS text with the colours of charts and of the pages that contain them."""


def time_name(exponent: int) -> str:
    """Return the axis label of 10**exponent seconds, such as `10 us` for -5."""
    for unit, power in (("s", 0), ("ms", -3), ("us", -6)):
        if exponent >= power:
            return f"{10 ** (exponent - power):g} {unit}"
    return f"{10 ** (exponent + 9):g} ns"


def legend(entries: Sequence[tuple[str, str]]) -> list[str]:
    """Return the SVG elements of a legend above the chart. `entries`: (label, CSS class)."""
    parts, x = [], LEFT + 10
    for text, style in entries:
        parts.append(f'<rect class="{style}" x="{x}" y="2" width="10" height="10"/>')
        parts.append(label(x + 14, 11, text, "start"))
        x += 30 + 7 * len(text)
    return parts


def axis() -> str:
    """Return the SVG elements of the horizontal and the vertical axis."""
    return line(LEFT, HEIGHT - BOTTOM, WIDTH, HEIGHT - BOTTOM, "axis") + line(
        LEFT, TOP, LEFT, HEIGHT - BOTTOM, "axis"
    )


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """Return an SVG line from (x1, y1) to (x2, y2)."""
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def label(x: float, y: float, text: str, anchor: str) -> str:
    """Return an SVG text element at (x, y); the text is escaped."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def bar(x: float, y: float, size: tuple[float, float], style: str, title: str) -> str:
    """Return an SVG rectangle with its upper left corner at (x, y); `size` is (width, height).

    `title`: tooltip, which is escaped.
    """
    return (
        f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{size[0]:.1f}" '
        f'height="{size[1]:.1f}"><title>{html.escape(title)}</title></rect>'
    )


def point(x: float, y: float, style: str, title: str) -> str:
    """Return an SVG circle at (x, y) with a tooltip (`title`), which is escaped."""
    return (
        f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill-opacity=".8">'
        f"<title>{html.escape(title)}</title></circle>"
    )


def named_bars(rows: Sequence[tuple[str, float, str, str]], left: float, step: float) -> str:
    """Return an SVG chart of horizontal bars; each row is (name, number, number as text, CSS
    class).

    `left`: width of the names. `step`: height of one bar with its gap, in SVG units.
    """
    if not rows:
        return empty()
    largest = max(number for _, number, _, _ in rows) or 1.0
    parts = []
    for n, (name, number, text, style) in enumerate(rows):
        y, width = TOP + n * step, (WIDTH - left - 80) * number / largest
        parts.append(label(left - 8, y + step / 2, name[:26], "end"))
        parts.append(bar(left, y, (width, step - 8), style, f"{name}: {text}"))
        parts.append(label(left + width + 6, y + step / 2, text, "start"))
    return svg(parts, TOP + step * len(rows) + 6)


def decades(values: Iterable[float]) -> tuple[int, int]:
    """Return the exponents (low, high) of a logarithmic axis: 10**low <= values <= 10**high, and
    low < high."""
    found = [*values]
    low = math.floor(math.log10(min(found)))
    return low, max(math.ceil(math.log10(max(found))), low + 1)


def empty() -> str:
    """Return a chart that shows the text "no timed result yet"."""
    return svg([label(WIDTH / 2, HEIGHT / 2, "no timed result yet", "middle")])


def svg(parts: Sequence[str], height: float = HEIGHT) -> str:
    """Return an `<svg>` element of width `WIDTH` and the given height that contains `parts`."""
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{"".join(parts)}</svg>'
