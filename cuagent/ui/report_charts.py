"""Draw the charts of one run as SVG, of the parts that the page of the bench uses too."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuagent.arms import CANDIDATE, EAGER
from cuagent.bench.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    TOP,
    WIDTH,
    axis,
    empty,
    label,
    legend,
    line,
    svg,
    time_name,
)
from cuagent.package.readme import time_text

if TYPE_CHECKING:
    from cuagent.judge import Judgement
    from cuagent.measure.ladder import Ladder

NAMES, STEP = 170, 26
"""Width of the names beside horizontal bars, and the height of one bar with its gap."""


def ladder_chart(ladder: Ladder | None, best: Judgement | None) -> str:
    """Return the time of each rung and of the best attempt, as bars."""
    rungs = [] if ladder is None else [r for r in ladder.rungs if r.seconds > 0]
    bars = [(rung.name, rung.seconds, "one") for rung in rungs]
    arm = best.timing.arm(CANDIDATE) if best is not None and best.timing is not None else None
    if arm is not None and arm.median > 0:
        bars.append(("kernel", arm.median, "two"))
    return _bars(sorted(bars, key=lambda bar: -bar[1]))


def _bars(bars: Sequence[tuple[str, float, str]]) -> str:
    if not bars:
        return empty()
    largest = max(seconds for _, seconds, _ in bars)
    parts = []
    for n, (name, seconds, style) in enumerate(bars):
        y = TOP + n * STEP
        width = (WIDTH - NAMES - 80) * seconds / largest
        parts.append(label(NAMES - 8, y + 13, name[:26], "end"))
        parts.append(
            f'<rect class="{style}" x="{NAMES}" y="{y}" width="{width:.1f}" height="{STEP - 8}">'
            f"<title>{html.escape(f'{name}: {time_text(seconds)}')}</title></rect>"
        )
        parts.append(label(NAMES + width + 6, y + 13, time_text(seconds), "start"))
    return svg(parts, TOP + STEP * len(bars) + 6)


def parts_chart(best: Judgement | None) -> str:
    """Return the time of a call before, with what is free, and with the kernel, as shares."""
    if best is None or best.gain is None:
        return empty()
    gain = best.gain
    shares = [
        ("before: eager", 1.0, "one"),
        (f"free: {gain.rung}", 1 / gain.free.value, "one"),
        ("after: the kernel", 1 / gain.end_to_end.value, "two"),
    ]
    parts = []
    for n, (name, share, style) in enumerate(shares):
        y, width = TOP + n * STEP, (WIDTH - NAMES - 80) * share / max(s for _, s, _ in shares)
        parts.append(label(NAMES - 8, y + 13, name[:26], "end"))
        parts.append(
            f'<rect class="{style}" x="{NAMES}" y="{y}" width="{width:.1f}" height="{STEP - 8}"/>'
        )
        parts.append(label(NAMES + width + 6, y + 13, f"{share:.0%}", "start"))
    return svg(parts, TOP + STEP * len(shares) + 6)


def roofline_chart(ladder: Ladder | None, best: Judgement | None) -> str:
    """Return the floor of the task and the times of a call on a logarithmic axis."""
    timing = best.timing if best is not None else None
    floor = (timing.floor if timing is not None else None) or (ladder.floor if ladder else None)
    times = {} if timing is None else {arm.name: arm.median for arm in timing.arms}
    if not times and ladder is not None:
        times = {rung.name: rung.seconds for rung in ladder.rungs}
    times = {name: seconds for name, seconds in times.items() if seconds > 0}
    if floor is None or not times or not floor.seconds > 0:
        return empty()
    low = math.floor(math.log10(min(floor.seconds, *times.values())))
    high = max(math.ceil(math.log10(max(times.values()))), low + 1)

    def x(seconds: float) -> float:
        share = (math.log10(seconds) - low) / (high - low)
        return NAMES + (WIDTH - NAMES - 50) * share

    height = TOP + STEP * len(times) + BOTTOM
    bottom = height - BOTTOM
    parts = [line(NAMES, bottom, WIDTH, bottom, "axis")]
    parts.append(line(x(floor.seconds), TOP - 4, x(floor.seconds), bottom, "mark"))
    parts.append(label(x(floor.seconds), TOP - 8, f"floor ({floor.bound})", "middle"))
    for exponent in range(low, high + 1):
        parts.append(label(x(10.0**exponent), bottom + 14, time_name(exponent), "middle"))
    for n, (name, seconds) in enumerate(sorted(times.items(), key=lambda item: -item[1])):
        y, style = TOP + n * STEP + 12, "two" if name == CANDIDATE else "one"
        shown = "kernel" if name == CANDIDATE else name
        title = html.escape(f"{shown}: {time_text(seconds)}")
        parts.append(label(NAMES - 8, y + 4, shown[:26], "end"))
        parts.append(
            f'<circle class="{style}" cx="{x(seconds):.1f}" cy="{y}" r="5">'
            f"<title>{title}</title></circle>"
        )
        parts.append(label(x(seconds) + 9, y + 4, f"{floor.share(seconds):.0%}", "start"))
    return svg(parts, height)


def attempts_chart(points: Sequence[tuple[float, float | None, str]]) -> str:
    """Return the speedup of each attempt over eager, by the time of its judgement.

    A point is (seconds, speedup or None, name); None stands for a rejected or untimed attempt.
    """
    if not points:
        return empty()
    last = max(seconds for seconds, _, _ in points) or 1.0
    highest = max([1.0, *(value for _, value, _ in points if value is not None)]) * 1.1

    def x(seconds: float) -> float:
        return LEFT + 12 + (WIDTH - LEFT - 30) * seconds / last

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / highest

    parts = [axis(), line(LEFT, y(1), WIDTH, y(1), "mark"), label(LEFT - 6, y(1) + 4, "1x", "end")]
    parts.append(label(LEFT - 6, y(highest / 1.1) + 4, f"{highest / 1.1:.3g}x", "end"))
    parts.append(label(WIDTH, HEIGHT - BOTTOM + 14, f"{last:.0f} s", "end"))
    for seconds, value, name in points:
        style = "bad" if value is None else "good"
        shown = "" if value is None else f": {value:.2f}x {EAGER}"
        parts.append(
            f'<circle class="{style}" cx="{x(seconds):.1f}" cy="{y(value or 0):.1f}" r="5">'
            f"<title>{html.escape(name + shown)}</title></circle>"
        )
    return svg([*parts, *legend([("accepted, over eager", "good"), ("rejected", "bad")])])
