"""Grade the difficulty of a task by measured facts: how hard is it to beat the best baseline?

    difficulty = 0.4 share + 0.3 regions + 0.3 operators - 0.3 expert, between 0 and 1

    share      share of the roofline that the best baseline reaches: if high, little is left to gain
    regions    log2(1 + kernels of torch.compile) / 3, at most 1
    operators  operators of one call / 8, at most 1
    expert     log2 of the expert's gain over the best baseline, between 0 and 1, if `cuagent bench`
               has measured it: a task that the offline expert solves is easier

The grade (1 to 5) is the fifth of the scale in which the difficulty lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LEVELS = 5
REGIONS = 3.0
OPERATORS = 8.0


def measured(record: Mapping[str, Any], copy_rate: float, flop_rate: float) -> dict[str, Any]:
    """Return figures derived from an accepted record: best baseline time, gain over eager, floor
    and share of the roofline.

    `copy_rate`: the device's memory rate in bytes per second. `flop_rate`: its arithmetic rate in
    FLOP per second.
    """
    times = [record[name] for name in ("eager_s", "compile_s") if record.get(name)]
    best = min(times)
    floor = max(record["floor_bytes"] / copy_rate, record["flops"] / flop_rate)
    return {
        "best_s": best,
        "best_gain": record["eager_s"] / best,
        "floor_s": floor,
        "roofline_share": min(1.0, floor / best),
    }


def difficulty(facts: Mapping[str, Any]) -> float:
    """Return the difficulty (0 to 1) from `roofline_share`, `regions`, `operators` and
    `expert_gain`."""
    share = float(facts["roofline_share"])
    regions = min(1.0, math.log2(1 + (facts.get("regions") or 1)) / REGIONS)
    operators = min(1.0, facts["operators"] / OPERATORS)
    gain = facts.get("expert_gain")
    found = min(1.0, max(0.0, math.log2(gain))) if gain else 0.0
    return min(1.0, max(0.0, 0.4 * share + 0.3 * regions + 0.3 * operators - 0.3 * found))


def grade(value: float) -> int:
    """Return the grade, 1 (easy) to 5 (hard), of a difficulty between 0 and 1."""
    return min(LEVELS, 1 + int(value * LEVELS))


def with_bench(row: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a task's row with gains, difficulty and grade updated from the task's record
    of `cuagent bench`."""
    changed = dict(row)
    ratios = record.get("ratios") or {}
    if record.get("status") == "kernel" and "best_rung" in ratios:
        changed["expert_gain"] = float(ratios["best_rung"]["value"])
        if "eager" in ratios:
            changed["best_gain"] = ratios["eager"]["value"] / ratios["best_rung"]["value"]
    elif record.get("status"):
        changed["expert_gain"] = 1.0
    changed["difficulty"] = difficulty(changed)
    changed["grade"] = grade(changed["difficulty"])
    return changed
