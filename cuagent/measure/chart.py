"""A profile as a chart: a bar for each kernel or operator, and the roofline with the model on it.

SVG as text, without a library: a chart is a handful of rectangles and lines. The terminal's bars
are in `Profile.lines`. Invariant: every name is escaped, since an attempt chooses its kernels'.
"""

from __future__ import annotations

import math
from html import escape

from cuagent.measure.profile import Cost, Profile
from cuagent.measure.roofline import amount, seconds_text

WIDTH, ROW, LEFT, MARGIN, ROOF = 880, 22, 330, 20, 220
MOST_BARS = 16
STYLE = (
    "text{font:13px sans-serif;fill:#222}.bar{fill:#4878a8}.roof{stroke:#222;stroke-width:2;"
    "fill:none}.floor{stroke:#b04030;stroke-dasharray:4 3}.dot{fill:#b04030}"
)


def svg(profile: Profile) -> str:
    """The whole picture; 880 pixels wide, as high as it has bars."""
    costs = (profile.kernels or profile.operators)[:MOST_BARS]
    height = 2 * MARGIN + 30 + ROW * len(costs) + ROOF
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}"><style>{STYLE}</style>',
        '<rect width="100%" height="100%" fill="#fff"/>',
        _text(MARGIN, MARGIN + 12, f"{profile.subject}: {seconds_text(profile.seconds)} a call"),
        *_bars(costs, MARGIN + 30),
        *_roofline(profile, MARGIN + 40 + ROW * len(costs)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _bars(costs: tuple[Cost, ...], top: int) -> list[str]:
    parts = []
    room = WIDTH - LEFT - 130
    for row, cost in enumerate(costs):
        y = top + row * ROW
        name = cost.name if len(cost.name) <= 46 else cost.name[:45] + "…"
        long = max(1.0, room * cost.share)
        parts += [
            _text(MARGIN, y + 14, name),
            f'<rect class="bar" x="{LEFT}" y="{y + 2}" width="{long:.1f}" height="{ROW - 6}"/>',
            _text(LEFT + long + 6, y + 14, f"{seconds_text(cost.seconds)} {cost.share:.0%}"),
        ]
    return parts


def _roofline(profile: Profile, top: int) -> list[str]:
    """Work per second over work per byte, both logarithmic; the dot is the model."""
    roof = profile.roofline
    work, limits = roof.work, roof.ceilings
    rate = limits.rate(roof.unit)
    flops = work.matrix_flops + work.other_flops
    if not (flops and work.bytes and limits.copy and rate and profile.seconds > 0):
        return []
    ridge, here = rate / limits.copy, flops / work.bytes
    low, high = min(here, ridge) / 8, max(here, ridge) * 8
    least, most = min(flops / profile.seconds, limits.copy * low) / 4, rate * 2
    bottom, right = top + ROOF - 50, WIDTH - MARGIN

    def x(intensity: float) -> float:
        return LEFT / 2 + (right - LEFT / 2) * math.log(intensity / low) / math.log(high / low)

    def y(speed: float) -> float:
        return bottom - (bottom - top - 10) * math.log(speed / least) / math.log(most / least)

    points = [(low, limits.copy * low), (ridge, rate), (high, rate)]
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    reached = flops / profile.seconds
    allowed = min(rate, limits.copy * here)
    return [
        f'<polyline class="roof" points="{path}"/>',
        f'<line class="floor" x1="{x(here):.1f}" x2="{x(here):.1f}" y1="{y(allowed):.1f}" '
        f'y2="{y(reached):.1f}"/>',
        f'<circle class="dot" cx="{x(here):.1f}" cy="{y(reached):.1f}" r="5"/>',
        _text(x(here) + 9, y(reached) + 4, f"{roof.share(profile.seconds):.0%} of the roofline"),
        _text(x(high) - 210, y(rate) - 6, f"{amount(rate)}FLOP/s {roof.unit}"),
        _text(MARGIN, bottom + 34, roof.line()),
    ]


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
