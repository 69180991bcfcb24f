"""Compute the result table from records: three rules, against eager, torch.compile and best rung.

lax      the published rule: 5 inputs, atol = rtol = 1e-2; speedup is the ratio of median times
strict   cuagent's rule; faster means that the lower limit of the interval lies above the threshold
clean    strict, without problems that are degenerate or whose gain is certainly algebra alone

The lax rule judges the best attempt, as the published comparisons do. The others judge the result
that the user gets: a kernel, or the best free option if no kernel is surely faster. Under the rule
kernels-only they judge kernels alone.

fast_p is the share of all problems that pass and are more than p times as fast (KernelBench);
fast_0 is the pass rate. Speedups are geometric means over the problems that pass, as in Table 1 of
CUDA Agent (arXiv 2602.24286), with bootstrap intervals over problems. Pure functions on records.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cuagent.arms import CANDIDATE
from cuagent.bench.record_form import FREE, KERNEL, RESULTS
from cuagent.bench.results import Record
from cuagent.durations import Stage

RULES = ("lax", "strict", "clean")
BASELINES = ("eager", "compile", "best_rung")
THRESHOLDS = (0.0, 1.0, 1.05, 2.0)
OVERALL = "overall"
RESAMPLES = 2000
CONFIDENCE = 0.95
SHOWN_S = 0.05
"""Least median time in seconds of a stage in the table of stages."""


@dataclass(frozen=True)
class Mean:
    """Geometric mean of `count` speedups with the limits of its interval; the limits are None for
    one problem."""

    value: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True)
class Row:
    """Pass rate, fast_p and mean speedup of one group of problems under one rule, against one
    baseline."""

    group: str
    rule: str
    baseline: str
    problems: int
    fast: dict[float, float]
    """fast_p by threshold p: share of the problems that pass and are more than p times as fast."""
    speedup: Mean | None
    """Geometric mean speedup of the problems that pass; None if none of them was timed."""


def counts(record: Record, rule: str) -> bool:
    """Return True if the problem of a record is included in the figures of `rule`."""
    if rule != "clean":
        return True
    degenerate = any(
        certificate["degenerate"]
        for certificate in record.get("certification", {}).get("certificates", ())
    )
    return not (degenerate or record.get("algebra_only"))


def passed(record: Record, rule: str) -> bool:
    """Return True if the best attempt (`lax`) or the result of a record passed `rule`.

    An attempt that passes only the lax rule passes here without a speedup, because it is not timed.
    """
    if rule == "lax":
        return bool((record.get("lax") or {}).get("passed") or record.get("lax_passed"))
    return record["status"] in RESULTS and not record.get("suspect")


def ratio_of(record: Record, rule: str, baseline: str) -> dict[str, float] | None:
    """Return the speedup over `baseline` (value, low, high) of the best attempt (`lax`) or of the
    result; None if it did not pass the rule or was not timed."""
    if not passed(record, rule):
        return None
    of_attempt = rule == "lax" and record["status"] != KERNEL
    table = record.get("attempt_ratios" if of_attempt else "ratios")
    found: dict[str, float] | None = (table or {}).get(baseline)
    return found


def time_of(record: Record) -> dict[str, Any] | None:
    """Return the time of the result (`median_s`, `low_s`, `high_s`); None without a result."""
    names = {KERNEL: CANDIDATE, FREE: record.get("best_rung")}
    name = names.get(record["status"])
    found: dict[str, Any] | None = (record.get("times") or {}).get(name)
    return found


def row(records: Sequence[Record], group: str, rule: str, baseline: str) -> Row:
    """Compute the pass rate, fast_p and mean speedup of the records of one group."""
    chosen = [record for record in records if counts(record, rule)]
    ratios = [ratio_of(record, rule, baseline) for record in chosen]
    limit = "value" if rule == "lax" else "low"
    fast = {
        p: _share(
            [
                passed(record, rule) and (p == 0 or (ratio is not None and ratio[limit] > p))
                for record, ratio in zip(chosen, ratios, strict=True)
            ]
        )
        for p in THRESHOLDS
    }
    values = [ratio["value"] for ratio in ratios if ratio is not None]
    return Row(group, rule, baseline, len(chosen), fast, geometric_mean(values))


def rows_by(
    records: Sequence[Record], key: Callable[[Record], str], rules: Sequence[str] = RULES
) -> list[Row]:
    """Return a row for each group, rule and baseline, and rows for all records together
    (`OVERALL`).

    `key`: function that returns the group of a record. A single group is left out, because it
    equals `OVERALL`.
    """
    groups = {OVERALL: list(records)}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    if len(groups) == 2:
        del groups[next(name for name in groups if name != OVERALL)]
    return [
        row(chosen, name, rule, baseline)
        for name, chosen in groups.items()
        for rule in rules
        for baseline in BASELINES
    ]


def group_of(record: Record) -> str:
    return str(record["group"])


def family_of(record: Record) -> str:
    return str(record.get("certification", {}).get("family", "not certified"))


def geometric_mean(values: Sequence[float]) -> Mean | None:
    """Return the geometric mean of positive values with a percentile bootstrap interval; None
    without values."""
    logs = [math.log(value) for value in values if value > 0]
    if not logs:
        return None
    centre = sum(logs) / len(logs)
    if len(logs) == 1:
        return Mean(math.exp(centre), None, None, 1)
    draw = random.Random(0)  # the same records give the same interval
    means = sorted(sum(draw.choices(logs, k=len(logs))) / len(logs) for _ in range(RESAMPLES))
    tail = round((1 - CONFIDENCE) / 2 * (RESAMPLES - 1))
    low, high = means[tail], means[-1 - tail]
    return Mean(math.exp(centre), math.exp(low), math.exp(high), len(logs))


def statuses(records: Sequence[Record]) -> dict[str, int]:
    """Return the number of problems by status, the most frequent first."""
    names = [str(record["status"]) for record in records]
    return {name: names.count(name) for name in sorted(set(names), key=lambda n: -names.count(n))}


def device_seconds(records: Sequence[Record]) -> list[float]:
    """Return, for each problem, the seconds of exclusive use of its device for timing."""
    held: list[Any] = [record.get("seconds", {}).get("timing_s") for record in records]
    return [float(seconds) for seconds in held if seconds is not None]


def stage_seconds(records: Sequence[Record]) -> dict[str, float]:
    """Return the median seconds of each stage over all problems, the longest stage first.

    A stage that a problem skipped takes zero seconds.
    """
    tables = [stages for record in records if isinstance(stages := record.get("stages"), dict)]
    found = {
        stage: median([_seconds(table.get(f"{stage}_s")) for table in tables])
        for stage in (Stage if tables else ())
    }
    longest = sorted(found, key=found.__getitem__, reverse=True)
    return {str(stage): found[stage] for stage in longest if found[stage] >= SHOWN_S}


def lock_seconds(records: Sequence[Record], figure: str) -> dict[str, float]:
    """Return the mean seconds of a figure of the device lock (`kept_s`, `drain_s`; see
    `lock_uses.Uses`) in each stage over all problems, the longest stage first."""
    tables = [lock for record in records if isinstance(lock := record.get("lock"), dict)]
    stages = dict.fromkeys(str(stage) for table in tables for stage in table)
    found = {stage: sum(_used(table, stage, figure) for table in tables) for stage in stages}
    longest = sorted(found, key=found.__getitem__, reverse=True)
    means = {stage: found[stage] / len(tables) for stage in longest}
    return {stage: seconds for stage, seconds in means.items() if seconds >= SHOWN_S}


def _used(table: dict[str, Any], stage: str, figure: str) -> float:
    uses = table.get(stage)
    return _seconds(uses.get(figure)) if isinstance(uses, dict) else 0.0


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found) if found else 0.0
