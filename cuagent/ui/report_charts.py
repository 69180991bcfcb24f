"""Draw the charts of one run as SVG, with the functions of `bench/svg.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuagent.arms import CANDIDATE, EAGER
from cuagent.bench import svg
from cuagent.bench.svg import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, label, line, named_bars, point
from cuagent.package.readme import time_text

if TYPE_CHECKING:
    from cuagent.judgement import Judgement
    from cuagent.measure.rungs import Ladder

NAMES, STEP = 190, 26
"""Width in pixels of the names left of horizontal bars, and height in pixels of a bar with its
gap."""


def ladder_chart(ladder: Ladder | None, best: Judgement | None) -> str:
    """Return a bar chart (SVG) of the time per call of each rung and of the best attempt."""
    rungs = [] if ladder is None else [r for r in ladder.rungs if r.seconds > 0]
    times = [(rung.name, rung.seconds, "one") for rung in rungs]
    arm = best.timing.arm(CANDIDATE) if best is not None and best.timing is not None else None
    if arm is not None and arm.median > 0:
        times.append(("kernel", arm.median, "two"))
    rows = [(name, seconds, time_text(seconds), style) for name, seconds, style in times]
    return named_bars(sorted(rows, key=lambda row: -row[1]), NAMES, STEP)


def parts_chart(best: Judgement | None) -> str:
    """Return a bar chart (SVG) of the times of eager, the best free option and the kernel, relative
    to eager."""
    if best is None or best.gain is None:
        return svg.empty()
    gain = best.gain
    shares = [
        ("before: eager", 1.0, "one"),
        (f"free: {gain.rung}", 1 / gain.free.value, "one"),
        ("after: the kernel", 1 / gain.end_to_end.value, "two"),
    ]
    rows = [(name, share, f"{share:.0%}", style) for name, share, style in shares]
    return named_bars(rows, NAMES, STEP)


def roofline_chart(ladder: Ladder | None, best: Judgement | None) -> str:
    """Return a chart (SVG) of the task's floor and each arm's time, on a logarithmic axis."""
    timing = best.timing if best is not None else None
    floor = (timing.floor if timing is not None else None) or (ladder.floor if ladder else None)
    times = {} if timing is None else {arm.name: arm.median for arm in timing.arms}
    if not times and ladder is not None:
        times = {rung.name: rung.seconds for rung in ladder.rungs}
    times = {name: seconds for name, seconds in times.items() if seconds > 0}
    if floor is None or not times or not floor.seconds > 0:
        return svg.empty()
    low, high = svg.decades([floor.seconds, *times.values()])

    def x(seconds: float) -> float:
        share = (math.log10(seconds) - low) / (high - low)
        return NAMES + (WIDTH - NAMES - 50) * share

    height = TOP + STEP * len(times) + BOTTOM
    bottom = height - BOTTOM
    parts = [line(NAMES, bottom, WIDTH, bottom, "axis")]
    parts.append(line(x(floor.seconds), TOP - 4, x(floor.seconds), bottom, "mark"))
    parts.append(label(x(floor.seconds), TOP - 8, f"floor ({floor.bound})", "middle"))
    for exponent in range(low, high + 1):
        parts.append(label(x(10.0**exponent), bottom + 14, svg.time_name(exponent), "middle"))
    for n, (name, seconds) in enumerate(sorted(times.items(), key=lambda item: -item[1])):
        y, style = TOP + n * STEP + 12, "two" if name == CANDIDATE else "one"
        shown = "kernel" if name == CANDIDATE else name
        parts.append(label(NAMES - 8, y + 4, shown[:26], "end"))
        parts.append(point(x(seconds), y, style, f"{shown}: {time_text(seconds)}"))
        parts.append(label(x(seconds) + 9, y + 4, f"{floor.share(seconds):.0%}", "start"))
    return svg.svg(parts, height)


def attempts_chart(points: Sequence[tuple[float, float | None, str]]) -> str:
    """Return a chart (SVG) of each attempt's speedup over eager, by the time of its judgement.

    A point is (seconds, speedup or None, name); None stands for a rejected or untimed attempt.
    """
    if not points:
        return svg.empty()
    last = max(seconds for seconds, _, _ in points) or 1.0
    highest = max([1.0, *(value for _, value, _ in points if value is not None)]) * 1.1

    def x(seconds: float) -> float:
        return LEFT + 12 + (WIDTH - LEFT - 30) * seconds / last

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / highest

    parts = [
        svg.axis(),
        line(LEFT, y(1), WIDTH, y(1), "mark"),
        label(LEFT - 6, y(1) + 4, "1x", "end"),
    ]
    parts.append(label(LEFT - 6, y(highest / 1.1) + 4, f"{highest / 1.1:.3g}x", "end"))
    parts.append(label(WIDTH, HEIGHT - BOTTOM + 14, f"{last:.0f} s", "end"))
    for seconds, value, name in points:
        style = "bad" if value is None else "good"
        shown = "" if value is None else f": {value:.2f}x {EAGER}"
        parts.append(point(x(seconds), y(value or 0), style, name + shown))
    return svg.svg([*parts, *svg.legend([("accepted, over eager", "good"), ("rejected", "bad")])])
