"""Compare two results of `train_scaling.py`: the efficiency of many processes over few."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]
PARTS = ("seconds", "rollouts", "updates")
SAME = ("torch", "device", "size", "processors", "judging")
"""Fields of the result that must be equal for two runs to be compared."""


def rates(found: Mapping[str, Any], part: str) -> list[float]:
    """Return episodes per second for each measured iteration: its episodes over the seconds of
    `part`."""
    return [row["episodes"] / row[part] for row in found["iterations"]]


def medians(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the median seconds of each part of an iteration, and the median episodes per
    second."""
    rows = found["iterations"]
    seconds = {part: round(statistics.median(row[part] for row in rows), 4) for part in PARTS}
    return seconds | {"episodes a second": round(statistics.median(rates(found, "seconds")), 4)}


def compared(few: Mapping[str, Any], many: Mapping[str, Any]) -> Row:
    """Return the efficiency of a run with `many` processes relative to one with `few`, overall and
    by part.

    An efficiency is the median over iterations, with the smallest and the largest value that any
    two iterations of the two runs give. Raises SystemExit if the runs differ in setup or have no
    iterations.
    """
    differ = [name for name in SAME if few[name] != many[name]]
    if differ:
        raise SystemExit(f"the runs cannot be compared; they differ in: {', '.join(differ)}")
    if not few["iterations"] or not many["iterations"]:
        raise SystemExit("a run has only warmed up; repeat it with more --iterations")
    more = many["processes"] / few["processes"]
    found: Row = {name: few[name] for name in SAME}
    found["processes"] = [run["processes"] for run in (few, many)]
    found["iterations"] = [len(run["iterations"]) for run in (few, many)]
    found["median"] = [medians(run) for run in (few, many)]
    found["peak GiB of each process"] = [peaks(run) for run in (few, many)]
    found["replicas are equal"] = many["replicas are equal"]
    found["seconds of adding gradients"] = many.get("seconds of adding gradients")
    for part, name in zip(PARTS, ("whole", "rollouts", "updates"), strict=True):
        a, b = rates(few, part), rates(many, part)
        found[f"efficiency, {name}"] = {
            "median": round(statistics.median(b) / statistics.median(a) / more, 4),
            "least": round(min(b) / max(a) / more, 4),
            "most": round(max(b) / min(a) / more, 4),
        }
    return found


def peaks(found: Mapping[str, Any]) -> list[float]:
    """Return the peak GPU memory of each process over all measured iterations, in GiB."""
    each = zip(*(row["of each process"] for row in found["iterations"]), strict=True)
    return [max(own["peak GiB"] for own in rows) for rows in each]
