"""A recorded timing against its own raw samples: do the figures follow from them?

Nothing is measured. Medians, ratios and limits are computed anew by the functions that gave them;
that the samples themselves were measured is not shown.
"""

from __future__ import annotations

import math
from itertools import accumulate
from statistics import median

from cuagent.measure.timing.rounds import Round, levels, ratio
from cuagent.task import Device
from cuagent.timing import Arm, Ratio, Timing
from cuagent.worker.arms import CANDIDATE, EAGER

CLOSE = 1e-9
"""Relative: the same numbers were added in the same order."""


def contradictions(timing: Timing, device: Device) -> list[str]:
    """Where the record of an attempt's timing contradicts itself, a line each."""
    arms = [arm for arm in timing.arms if arm.samples]
    odd = [arm.name for arm in arms if not _whole(arm)]
    if odd:
        return [f"timing: the samples of {name} are not those of its rounds" for name in odd]
    found = [f"timing: {line}" for arm in arms for line in _median(arm, device)]
    return found + [f"timing: {line}" for line in _ratios(timing, arms, device)]


def _whole(arm: Arm) -> bool:
    fit = sum(arm.rounds) == len(arm.samples) and min(arm.rounds, default=0) > 0
    return fit and all(0 < sample < math.inf for sample in arm.samples)


def _median(arm: Arm, device: Device) -> list[str]:
    pieces = _pieces(arm)
    rounds = [_round({arm.name: piece}) for piece in pieces]
    typical = median(level for taken in rounds for level in levels(taken, arm.name, device))
    if math.isclose(typical, arm.median, rel_tol=CLOSE):
        return []
    return [
        f"the median of {arm.name} is recorded as {arm.median:g} s, its samples give {typical:g}"
    ]


def _ratios(timing: Timing, arms: list[Arm], device: Device) -> list[str]:
    candidate = next((arm for arm in arms if arm.name == CANDIDATE), None)
    against = [] if candidate is None else [a for a in arms if a.rounds == candidate.rounds]
    names = {arm.name for arm in against} - {CANDIDATE}
    if timing.refused or (known := timing.arm(CANDIDATE)) is None or known.failed:
        names = set()
    rounds = [
        _round(dict(zip([arm.name for arm in against], pieces, strict=True)))
        for pieces in zip(*map(_pieces, against), strict=True)
    ]

    def off(what: str, baseline: str, arm: str, said: Ratio | None) -> list[str]:
        if not {baseline, arm} <= names | {CANDIDATE}:
            return [f"a {what} is recorded that no samples give"]
        found = ratio(rounds, baseline, arm, timing.effort, device, timing.apart)
        return _apart(what, said, found)

    lines = []
    for name in sorted(names | timing.ratios.keys()):
        lines += off(f"ratio to {name}", name, CANDIDATE, timing.ratios.get(name))
    for name, said in sorted(timing.free.items()):
        lines += off(f"ratio of {EAGER} to {name}", EAGER, name, said)
    return lines


def _apart(what: str, said: Ratio | None, found: Ratio) -> list[str]:
    """A line where the ratio that is recorded is not the one that the samples give."""
    if said is None:
        return [f"no {what} is recorded, and the samples give one"]
    pairs = [(said.value, found.value), (said.low, found.low), (said.high, found.high)]
    if all(math.isclose(a, b, rel_tol=CLOSE) for a, b in pairs):
        return []
    recorded = f"{said.value:.4g} [{said.low:.4g}, {said.high:.4g}]"
    computed = f"{found.value:.4g} [{found.low:.4g}, {found.high:.4g}]"
    return [f"the {what} is recorded as {recorded}, the samples give {computed}"]


def _pieces(arm: Arm) -> list[list[float]]:
    """The samples of each round."""
    ends = list(accumulate(arm.rounds))
    begins = [end - count for end, count in zip(ends, arm.rounds, strict=True)]
    return [list(arm.samples[a:b]) for a, b in zip(begins, ends, strict=True)]


def _round(counted: dict[str, list[float]]) -> Round:
    return Round({}, counted, wrong="", outside_cores="", clock_contradiction="", busy=0.0)
