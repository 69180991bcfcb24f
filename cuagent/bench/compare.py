"""Compare two benchmarks: which problems became faster, slower, newly accepted or newly failing.

A problem is reported as faster or slower only if two pairs of intervals are disjoint: those of the
times and those of the speedups over eager. Eager was timed together with the result in each
benchmark, so a busy or slow machine changes the times but not the speedups.
Not covered: results of different devices, which are not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuagent.arms import EAGER
from cuagent.bench.columns import Mean, geometric_mean, time_of
from cuagent.bench.record_form import KERNEL, RESULTS
from cuagent.bench.results import Record, latest


@dataclass(frozen=True)
class Change:
    """A problem whose result differs between the two benchmarks."""

    problem: str
    text: str
    ratio: float | None = None
    """Speedup over eager in the new benchmark divided by that in the old one; None if one of them
    was not timed."""


@dataclass(frozen=True)
class Comparison:
    """Differences between an older benchmark (before) and a newer one (after)."""

    newly_accepted: tuple[Change, ...]
    newly_failing: tuple[Change, ...]
    faster: tuple[Change, ...]
    slower: tuple[Change, ...]
    unchanged: int
    missing: tuple[str, ...]
    """Names of problems that only one of the two benchmarks has."""
    speedup: Mean | None
    """Geometric mean of `Change.ratio` over the problems with a result in both benchmarks."""
    notes: tuple[str, ...]


def compare(before: Sequence[Record], after: Sequence[Record]) -> Comparison:
    """Compare two benchmarks by the newest record of each problem; return the differences."""
    old = {record["problem"]: record for record in latest(list(before))}
    new = {record["problem"]: record for record in latest(list(after))}
    found: dict[str, list[Change]] = {"accepted": [], "failing": [], "faster": [], "slower": []}
    ratios, unchanged = [], 0
    for name in (name for name in old if name in new):
        a, b = old[name], new[name]
        if (a["status"] in RESULTS) != (b["status"] in RESULTS):
            kind = "accepted" if b["status"] in RESULTS else "failing"
            found[kind].append(Change(name, f"{_state(a)} -> {_state(b)}"))
        elif (figures := _figures(a, b)) is not None:
            times, speedups = figures
            ratio = speedups[1]["value"] / speedups[0]["value"]
            ratios.append(ratio)
            kind = _direction(times, speedups)
            if kind:
                found[kind].append(Change(name, f"{ratio:.2f}x{_kinds(a, b)}", ratio))
            unchanged += not kind
        else:
            unchanged += 1
    return Comparison(
        tuple(found["accepted"]),
        tuple(found["failing"]),
        tuple(sorted(found["faster"], key=lambda change: -(change.ratio or 0))),
        tuple(sorted(found["slower"], key=lambda change: change.ratio or 0)),
        unchanged,
        tuple(sorted(set(old) ^ set(new))),
        geometric_mean(ratios),
        _notes(list(old.values()), list(new.values())),
    )


def _state(record: Record) -> str:
    if record["status"] in RESULTS:
        return "accepted" if record["status"] == KERNEL else _kind(record)
    return f"{record['status']}: {record['reason']}"


def _kind(record: Record) -> str:
    """Return the kind of a problem's result: a kernel, or the name of a free option."""
    kernel = record["status"] == KERNEL
    return KERNEL if kernel else f"{record['status']} {record['best_rung']}"


def _kinds(a: Record, b: Record) -> str:
    """Return text on a result of another kind than before; "" for two kernels or one option."""
    return f" ({_kind(a)} -> {_kind(b)})" if _kind(a) != _kind(b) else ""


Pair = tuple[dict[str, float], dict[str, float]]
"""One figure (value with interval limits) in the old benchmark, and the same figure in the new
one."""


def _figures(a: Record, b: Record) -> tuple[Pair, Pair] | None:
    """Return (times of the result before and after, speedups over eager before and after) of one
    problem.

    None if a figure is missing or the devices differ.
    """
    if a.get("device") != b.get("device"):
        return None
    first, second = time_of(a), time_of(b)
    before, after = ((record.get("ratios") or {}).get(EAGER) for record in (a, b))
    if not (first and second and before and after):
        return None
    return (first, second), (before, after)


def _direction(times: Pair, speedups: Pair) -> str:
    (before, after), (gain_before, gain_after) = times, speedups
    if None in (*before.values(), *after.values()):
        return ""  # a time of a quick ladder has no limits
    if before["low_s"] > after["high_s"] and gain_before["high"] < gain_after["low"]:
        return "faster"
    is_slower = before["high_s"] < after["low_s"] and gain_before["low"] > gain_after["high"]
    return "slower" if is_slower else ""


def _notes(old: Sequence[Record], new: Sequence[Record]) -> tuple[str, ...]:
    """Return one line for each difference in device, cuagent version or settings between the two
    benchmarks."""
    notes = []
    for what in ("device", "cuagent"):
        values = [sorted({str(record.get(what, "unknown")) for record in r}) for r in (old, new)]
        if values[0] != values[1]:
            notes.append(f"{what}: {', '.join(values[0])} -> {', '.join(values[1])}")
    settings = [
        sorted({f"{k}={v}" for record in r for k, v in record["settings"].items()})
        for r in (old, new)
    ]
    gone, come = (set(settings[0]) - set(settings[1])), (set(settings[1]) - set(settings[0]))
    if gone or come:
        notes.append(f"settings: {', '.join(sorted(gone))} -> {', '.join(sorted(come))}")
    return tuple(notes)
