"""Convert a judgement and a ladder to the figures of a record, in plain values with units.

`parts` splits the speedup over eager into factors: torch.compile or another mode (`compiler`,
`graph`), memory format (`layout`), admitted arithmetic (`precision`), and the kernel over the best
rung. `algebra_at_least` is a lower bound of the factor that comes from fewer operations: the least
time for the reference's operations at the device's highest rate, divided by the result's time.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cuagent.arms import CANDIDATE, COMPILE, EAGER
from cuagent.bench.certificates import Certification
from cuagent.device_lock import ALONE, DeviceLock
from cuagent.judgement import Result, free_of
from cuagent.measure.ladder import GRAPHS
from cuagent.measure.rungs import gain_of
from cuagent.measure.statistics import median_interval
from cuagent.task import Task, TaskError
from cuagent.timing import Ratio
from cuagent.worker import ForkServer

if TYPE_CHECKING:
    from cuagent.judgement import Judgement
    from cuagent.measure.rungs import Ladder, Rung
    from cuagent.timing import Arm, Timing

CERTAIN = 1.1
"""Margin of the claim that a speedup comes from algebra: the result must take less than 1/1.1 of
the least time for the reference's operations."""
PARTS = {
    "channels_last": "layout",
    "tf32": "precision",
    "bf16": "precision",
    "cuda_graph": "graph",
    "cudnn_benchmark": "algorithms",
}
"""Name of the factor in `parts` for each option of a rung's name."""


def figures(
    judgement: Judgement | None,
    ladder: Ladder | None,
    certification: Certification,
    arithmetic_s: float | None,
    given: Result,
) -> dict[str, Any]:
    """Return the fields of a record that contain times, ratios, roofline, parts and verdicts; None
    where a figure is missing.

    The ratios are those of the result, which may be the best rung; `attempt_ratios` are those of an
    attempt that is not the result.

    `arithmetic_s`: seconds for the reference's operations at the highest rate of the device.
    `given`: kind of the problem's result.
    """
    timing = judgement.timing if judgement is not None else None
    best = ladder.best if ladder is not None else None
    floor = timing.floor if timing is not None else (ladder.floor if ladder is not None else None)
    gain = judgement.gain if judgement is not None else None
    if gain is None and timing is not None and ladder is not None:
        gain = gain_of(timing, ladder)
    times = _times(timing, ladder)
    result_s = times.get(CANDIDATE, {}).get("median_s")
    over = {
        "eager": _ratio(gain.end_to_end if gain else _over(timing, EAGER)),
        "compile": _ratio(gain.over_compile if gain else _over(timing, COMPILE)),
        "best_rung": _ratio(gain.kernel if gain else None),
        "free": _ratio(gain.free if gain else (best.over_eager if best else None)),
    }
    of_attempt, suspect = None, timing.suspect if timing is not None else ""
    if given is Result.RUNG and ladder is not None and best is not None:
        of_attempt, over, suspect, gain = over, _over_rung(judgement, ladder, best), "", None
        result_s = best.seconds
    elif given is not Result.KERNEL:
        of_attempt, over, gain, result_s = over, {"free": over["free"]}, None, None
    algebra = arithmetic_s / result_s if arithmetic_s and result_s else None
    return {
        "times": times,
        "best_rung": best.name if best is not None else None,
        "ratios": over,
        "attempt_ratios": of_attempt if timing is not None else None,
        "suspect": suspect,
        "lax": _rule(judgement, "lax"),
        "strict": _rule(judgement, "strict"),
        "arithmetic": _arithmetic(judgement),
        "floor_s": floor.seconds if floor is not None else None,
        "bound": floor.bound if floor is not None else None,
        "roofline_share": (None if floor is None or result_s is None else floor.share(result_s)),
        "parts": _parts(times, best.name if best else None, gain, algebra),
        "algebra_only": bool(algebra is not None and algebra > CERTAIN),
        "degenerate": certification.degenerate,
        "versions": timing.versions if timing else (ladder.versions if ladder else {}),
        "remarks": list(timing.remarks if timing else (ladder.notes if ladder else ())),
    }


def _over_rung(judgement: Judgement | None, ladder: Ladder, best: Rung) -> dict[str, Any]:
    """Return the ratios of a problem whose result is the best rung: times of eager, torch.compile
    and the rung itself over the rung's time.

    Eager was timed together with both, so the ratio over torch.compile is that of two ratios over
    eager. Its limits are those of independent ratios, which are wider than those of pairs.
    """
    eager, compiled, same = free_of(judgement, ladder), ladder.rung(COMPILE), Ratio(1.0, 1.0, 1.0)
    over_compile = same if best.name == COMPILE else None
    if over_compile is None and best.over_eager and compiled and compiled.over_eager:
        top, bottom = best.over_eager, compiled.over_eager
        over_compile = Ratio(top.value / bottom.value, top.low / bottom.high, top.high / bottom.low)
    return {
        "eager": _ratio(eager),
        "compile": _ratio(over_compile),
        "best_rung": _ratio(same),
        "free": _ratio(eager),
    }


def _times(timing: Timing | None, ladder: Ladder | None) -> dict[str, Any]:
    """Return the time of each arm by name: from the timing of the result, or else from the
    ladder."""
    times: dict[str, Any] = {}
    for rung in ladder.rungs if ladder is not None else ():
        if not math.isnan(rung.seconds):
            times[rung.name] = {"median_s": rung.seconds, "low_s": None, "high_s": None}
    for arm in timing.arms if timing is not None else ():
        if arm.samples and not math.isnan(arm.median):
            times[arm.name] = _time(arm)
    return times


def _time(arm: Arm) -> dict[str, float]:
    low, high = median_interval(arm.samples)
    # On a CPU `arm.median` uses the quietest blocks only, so it can lie below the interval.
    low, high = min(low, arm.median), max(high, arm.median)
    return {"median_s": arm.median, "low_s": low, "high_s": high}


def _over(timing: Timing | None, name: str) -> Ratio | None:
    return timing.ratios.get(name) if timing is not None else None


def _ratio(ratio: Ratio | None) -> dict[str, float] | None:
    if ratio is None or not all(map(math.isfinite, (ratio.value, ratio.low, ratio.high))):
        return None
    return asdict(ratio)


def _rule(judgement: Judgement | None, name: str) -> dict[str, Any] | None:
    rule = getattr(judgement.verdict, name) if judgement is not None else None
    if rule is None:
        return None
    worst = rule.worst if math.isfinite(rule.worst) else None
    return {"passed": rule.passed, "worst": worst, "detail": rule.detail}


def _arithmetic(judgement: Judgement | None) -> str | None:
    precision = judgement.verdict.precision if judgement is not None else None
    return None if precision is None else str(precision)


def arithmetic_seconds(task: Task, fork_server: ForkServer, lock: DeviceLock) -> float | None:
    """Return the seconds for the reference's matrix products at the device's highest rate.

    None if the operations cannot be counted.
    """
    from cuagent.measure.roofline.ceilings import RATES, ceilings
    from cuagent.measure.roofline.count import count, is_counted

    try:
        with nullcontext(ALONE) if is_counted(task) else lock.shared() as sharing:
            work, _ = count(task, fork_server, sharing)
    except TaskError:
        return None
    found = ceilings(task.device, alone=lock.exclusive)
    highest = max(getattr(found, name) for name in RATES if name != "copy")
    return float(work.matrix_flops / highest) if highest else None


def _parts(
    times: dict[str, Any], best: str | None, gain: Any, algebra: float | None
) -> dict[str, float]:
    """Return the factors of the speedup over eager by name (see the module); factors without a
    measurement are left out.

    `best`: name of the best rung. `algebra`: the bound `algebra_at_least`.
    """
    parts: dict[str, float] = {}
    if best is not None and best != EAGER and EAGER in times:
        mode, *options = best.split("+")
        names, last = [mode, *(f"{mode}+{'+'.join(options)}" for _ in options[:1])], EAGER
        for name in names:
            if name in times and name != last:
                factor = times[last]["median_s"] / times[name]["median_s"]
                kind = PARTS.get(name.partition("+")[2], "graph" if mode == GRAPHS else "compiler")
                parts[kind] = parts.get(kind, 1.0) * factor
                last = name
    if gain is not None:
        parts["kernel"] = gain.kernel.value
    if algebra is not None and algebra > 1:
        parts["algebra_at_least"] = algebra
    return parts
