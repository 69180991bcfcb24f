"""Compare the figures of a recorded timing with its own raw samples.

This module recomputes medians, ratios and limits from the samples, with the functions that first
computed them. It measures nothing, so it cannot show that the samples are genuine.
"""

from __future__ import annotations

import math
from itertools import accumulate
from statistics import median

from cuagent.arms import CANDIDATE, EAGER
from cuagent.measure.timing.rounds import Round, levels, ratio
from cuagent.task import Device
from cuagent.timing import Arm, Ratio, Timing

CLOSE = 1e-9
"""Relative tolerance of the comparisons; small, because the computation is the same."""


def contradictions(timing: Timing, device: Device) -> list[str]:
    """Return one line for each figure of a timing that its samples contradict."""
    arms = [arm for arm in timing.arms if arm.samples]
    broken = [arm.name for arm in arms if not _consistent(arm)]
    if broken:
        return [f"timing: the samples of {name} are not those of its rounds" for name in broken]
    found = [f"timing: {line}" for arm in arms for line in _median(arm, device)]
    return found + [f"timing: {line}" for line in _ratios(timing, arms, device)]


def _consistent(arm: Arm) -> bool:
    """Return True if the sizes of the rounds add up to the number of samples, and all samples are
    positive and finite."""
    divided = sum(arm.rounds) == len(arm.samples) and min(arm.rounds, default=0) > 0
    return divided and all(0 < sample < math.inf for sample in arm.samples)


def _median(arm: Arm, device: Device) -> list[str]:
    rounds = [_round({arm.name: samples}) for samples in _samples_by_round(arm)]
    computed = median(level for taken in rounds for level in levels(taken, arm.name, device))
    if math.isclose(computed, arm.median, rel_tol=CLOSE):
        return []
    return [
        f"the median of {arm.name} is recorded as {arm.median:g} s, its samples give {computed:g}"
    ]


def _ratios(timing: Timing, arms: list[Arm], device: Device) -> list[str]:
    candidate = next((arm for arm in arms if arm.name == CANDIDATE), None)
    paired = [] if candidate is None else [a for a in arms if a.rounds == candidate.rounds]
    names = {arm.name for arm in paired} - {CANDIDATE}
    if timing.refused or (timed := timing.arm(CANDIDATE)) is None or timed.failed:
        names = set()
    rounds = [
        _round(dict(zip([arm.name for arm in paired], samples, strict=True)))
        for samples in zip(*map(_samples_by_round, paired), strict=True)
    ]

    def check(label: str, baseline: str, arm: str, said: Ratio | None) -> list[str]:
        if not {baseline, arm} <= names | {CANDIDATE}:
            return [f"a {label} is recorded, but no samples for it"]
        found = ratio(rounds, baseline, arm, timing.effort, device, timing.apart)
        return _compare(label, said, found)

    lines = []
    for name in sorted(names | timing.ratios.keys()):
        lines += check(f"ratio to {name}", name, CANDIDATE, timing.ratios.get(name))
    for name, said in sorted(timing.free.items()):
        lines += check(f"ratio of {EAGER} to {name}", EAGER, name, said)
    return lines


def _compare(label: str, said: Ratio | None, found: Ratio) -> list[str]:
    """Return a line if the recorded ratio `said` differs from `found`, the ratio of the samples."""
    if said is None:
        return [f"no {label} is recorded, but the samples give one"]
    pairs = [(said.value, found.value), (said.low, found.low), (said.high, found.high)]
    if all(math.isclose(a, b, rel_tol=CLOSE) for a, b in pairs):
        return []
    recorded = f"{said.value:.4g} [{said.low:.4g}, {said.high:.4g}]"
    computed = f"{found.value:.4g} [{found.low:.4g}, {found.high:.4g}]"
    return [f"the {label} is recorded as {recorded}, the samples give {computed}"]


def _samples_by_round(arm: Arm) -> list[list[float]]:
    ends = list(accumulate(arm.rounds))
    starts = [end - count for end, count in zip(ends, arm.rounds, strict=True)]
    return [list(arm.samples[start:end]) for start, end in zip(starts, ends, strict=True)]


def _round(counted: dict[str, list[float]]) -> Round:
    return Round({}, counted, wrong="", outside_cores="", clock_contradiction="", busy=0.0)
