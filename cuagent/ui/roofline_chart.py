"""Draw a profile: a bar for each kernel or operator, and the model on the roofline.

`svg` draws both as SVG, without a library. `roofline` draws the roofline in characters for a
terminal, where `Profile.lines` has the bars.

Invariant: every name is escaped, because an attempt chooses the names of its kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from cuagent.measure.profile.profile import Cost, Profile
from cuagent.measure.roofline.model import amount, seconds_text

WIDTH, ROW, LEFT, MARGIN, ROOF = 880, 22, 330, 20, 220
MOST_BARS = 16
COLUMNS, ROWS = 76, 9
"""Largest width and height, in characters, of the roofline in a terminal."""
STYLE = (
    "text{font:13px sans-serif;fill:#222}.bar{fill:#4878a8}.roof{stroke:#222;stroke-width:2;"
    "fill:none}.floor{stroke:#b04030;stroke-dasharray:4 3}.dot{fill:#b04030}"
)


def svg(profile: Profile) -> str:
    """Return the SVG of a profile, `WIDTH` pixels wide; the height depends on the bars."""
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


@dataclass(frozen=True)
class Plane:
    """The roofline diagram: FLOP/s over FLOP/byte, both logarithmic, and the model's point in
    it."""

    copy: float
    """Memory bandwidth of the device in bytes/s."""
    rate: float
    """Peak arithmetic rate of the device in FLOP/s."""
    here: float
    """Arithmetic intensity of the task in FLOP/byte: the x value of the model's point."""
    reached: float
    """FLOP/s that the model reaches: the y value of its point."""

    @staticmethod
    def of(profile: Profile) -> Plane | None:
        """Return the diagram for a profile; None if a count or measurement is missing."""
        work, limits = profile.roofline.work, profile.roofline.ceilings
        rate = limits.rate(profile.roofline.unit)
        flops = work.matrix_flops + work.other_flops
        if not (flops and work.bytes and limits.copy and rate and profile.seconds > 0):
            return None
        return Plane(limits.copy, rate, flops / work.bytes, flops / profile.seconds)

    @property
    def ends(self) -> tuple[float, float]:
        """FLOP/byte at the left and the right end of the diagram."""
        ridge = self.rate / self.copy
        return min(self.here, ridge) / 8, max(self.here, ridge) * 8

    def allowed(self, intensity: float) -> float:
        """Return the roofline at an intensity (FLOP/byte): the largest possible FLOP/s."""
        return min(self.rate, self.copy * intensity)

    def across(self, intensity: float) -> float:
        """Return the horizontal position of an intensity (FLOP/byte): 0 at the left end, 1 at the
        right."""
        low, high = self.ends
        return math.log(intensity / low) / math.log(high / low)

    def up(self, speed: float) -> float:
        """Return the vertical position of a speed in FLOP/s: 0 at the bottom, 1 at twice `rate`."""
        least = min(self.reached, self.copy * self.ends[0]) / 4
        return math.log(speed / least) / math.log(2 * self.rate / least)


def roofline(profile: Profile, width: int) -> list[str]:
    """Return the roofline diagram in characters, with the model as a dot; [] if a count or
    measurement is missing."""
    plane = Plane.of(profile)
    columns = min(width, COLUMNS)
    if plane is None or columns < 2:
        return []
    grid = [[" "] * columns for _ in range(ROWS)]

    def row(speed: float) -> int:
        return ROWS - 1 - min(ROWS - 1, round(plane.up(speed) * (ROWS - 1)))

    low, high = plane.ends
    for column in range(columns):
        allowed = plane.allowed(low * (high / low) ** (column / (columns - 1)))
        grid[row(allowed)][column] = "─" if allowed == plane.rate else "╱"
    at, dot = round(plane.across(plane.here) * (columns - 1)), row(plane.reached)
    for line in range(row(plane.allowed(plane.here)) + 1, dot):
        grid[line][at] = "┊"
    share = f"● {profile.roofline.share(profile.seconds):.0%}"
    start = min(at, columns - len(share))
    grid[dot][start : start + len(share)] = share
    drawn = ["".join(line).rstrip() for line in grid]
    top = f"{amount(plane.rate)}FLOP/s {profile.roofline.unit}"
    footer = f"{plane.here:.3g} FLOP a byte, the ridge at {plane.rate / plane.copy:.3g}"
    return [top.rjust(columns), *(line for line in drawn if line), footer]


def _roofline(profile: Profile, top: int) -> list[str]:
    plane = Plane.of(profile)
    if plane is None:
        return []
    bottom, right = top + ROOF - 50, WIDTH - MARGIN

    def x(intensity: float) -> float:
        return LEFT / 2 + (right - LEFT / 2) * plane.across(intensity)

    def y(speed: float) -> float:
        return bottom - (bottom - top - 10) * plane.up(speed)

    low, high = plane.ends
    points = [(k, plane.allowed(k)) for k in (low, plane.rate / plane.copy, high)]
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    at, reached = x(plane.here), y(plane.reached)
    share = profile.roofline.share(profile.seconds)
    return [
        f'<polyline class="roof" points="{path}"/>',
        f'<line class="floor" x1="{at:.1f}" x2="{at:.1f}" '
        f'y1="{y(plane.allowed(plane.here)):.1f}" y2="{reached:.1f}"/>',
        f'<circle class="dot" cx="{at:.1f}" cy="{reached:.1f}" r="5"/>',
        _text(at + 9, reached + 4, f"{share:.0%} of the roofline"),
        _text(
            x(high) - 210, y(plane.rate) - 6, f"{amount(plane.rate)}FLOP/s {profile.roofline.unit}"
        ),
        _text(MARGIN, bottom + 34, profile.roofline.line()),
    ]


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
