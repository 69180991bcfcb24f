"""Summarise the measured rows of each gate, and decide if the gate is passed.

A gate is a limit that a measurement of the timing must meet. `gates.py` measures the rows; a failed
step is a row with an `error`. For each gate there is a function that returns a summary as text
(`turnaround_summary`, ...), and one that returns True if the gate is passed.
Invariant: a row that failed, or whose attempt was rejected, never counts as a success.
"""

from __future__ import annotations

from itertools import groupby
from statistics import median

from ladder_agreement import WITHIN, differences
from slices import Row, successful

from cuagent.timing import Standing

FOUND, FALSE, SLOWEST_S, QUICKER = 0.95, 0.01, 8.0, 10.0
"""Limits of the gates: least share of delays found, largest share of false positives, longest
turnaround in seconds, and least factor by which other tools are slower."""
OURS = "ours"


# -- the gates `turnaround` and `peers`; their steps are named `EXAMPLE NUMBER TOOL`


def _whose(row: Row) -> str:
    return row["step"].split()[2]


def median_waits(rows: list[Row]) -> dict[str, float]:
    """Return cuagent's median seconds from a changed source to verdict, timing and profile, by
    example."""
    ours = [row for row in successful(rows) if _whose(row) == OURS]
    return {
        name: median(row["all"] for row in ours if row["example"] == name)
        for name in dict.fromkeys(row["example"] for row in ours)
    }


def turnaround_summary(rows: list[Row]) -> str:
    all_ = sorted(median_waits(rows).values())
    if not all_:
        return "none of ours was timed"
    refused = sum(not _judged_whole(row) for row in successful(rows) if _whose(row) == OURS)
    middle = (
        f"median {median(all_):.1f} s [{all_[0]:.1f}, {all_[-1]:.1f}] over {len(all_)} examples"
    )
    return f"{middle} ({SLOWEST_S:.0f} are allowed)" + f"; {refused} not accepted" * bool(refused)


def turnaround_is_short(rows: list[Row]) -> bool:
    """Return True if all of cuagent's attempts were accepted and timed, and the median time over
    examples is within `SLOWEST_S`."""
    ours = [row for row in rows if _whose(row) == OURS]
    whole = all("error" not in row and _judged_whole(row) for row in ours)
    return whole and bool(ours) and median(median_waits(rows).values()) <= SLOWEST_S


def _judged_whole(row: Row) -> bool:
    """Return True if the attempt was accepted and timed. A rejected one would end sooner."""
    return bool(row["accepted"]) and row["timing"] is not None


def slowdowns_of_peers(rows: list[Row]) -> dict[str, list[float]]:
    """Return, for each other tool, its seconds divided by cuagent's, one value per completed run.

    Cuagent's seconds are the mean of its runs right before and after the tool's run, so that a
    disturbance of the machine affects both sides.
    """
    found: dict[str, list[float]] = {}
    ordered = sorted(rows, key=lambda row: row["step"].split()[0])
    for _, taken in groupby(ordered, key=lambda row: row["step"].split()[0]):
        turns = sorted(taken, key=lambda row: int(row["step"].split()[1]))
        for at, row in enumerate(turns):
            beside = [
                other["all"]
                for other in turns[max(0, at - 1) : at + 2]
                if "error" not in other and _whose(other) == OURS
            ]
            if "error" not in row and _whose(row) != OURS and row["ended"] and beside:
                ratio = row["seconds"]["all"] / (sum(beside) / len(beside))
                found.setdefault(row["tool"], []).append(ratio)
    return found


def peers_summary(rows: list[Row]) -> str:
    said = [
        f"{tool} takes {median(times):.1f} times as long [{min(times):.1f}, {max(times):.1f}] "
        f"in {len(times)} runs"
        for tool, times in slowdowns_of_peers(rows).items()
    ]
    broken = [
        f"{row['tool']} on {row['example']} came to no end"
        for row in successful(rows)
        if _whose(row) != OURS and not row["ended"]
    ]
    return ", ".join(said or ["no run of theirs came to its end"]) + "".join(
        f"; {what}" for what in broken
    )


def peers_are_slower(rows: list[Row]) -> bool:
    """Return True if every other tool takes at least `QUICKER` times as long as cuagent, in the
    median."""
    return min(map(median, slowdowns_of_peers(rows).values()), default=0.0) >= QUICKER


# -- the gates `aa` and `delays`: the reference against itself, without and with a delay


def count_false_positives(rows: list[Row]) -> int:
    """Return the number of A/A runs that failed, or in which the timing reported a difference or a
    contradiction."""
    return sum(
        "error" in row or row["standing"] != Standing.INCONCLUSIVE or bool(row["contradiction"])
        for row in rows
    )


def few_false_positives(rows: list[Row]) -> bool:
    return count_false_positives(rows) <= FALSE * len(rows)


def aa_summary(rows: list[Row]) -> str:
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    busy = median(row["busy"] for row in rows)
    middle = f", median ratio {median(ratios):.4f}" if ratios else ""
    called = f"{count_false_positives(rows)} of {len(rows)} called"
    return f"{called}{middle}, {busy:.0%} of the processors by others"


def count_found_delays(rows: list[Row]) -> int:
    return sum(row["standing"] == Standing.SLOWER for row in successful(rows))


def delays_summary(rows: list[Row]) -> str:
    return f"{count_found_delays(rows)} of {len(rows)} delays of 3 % found"


def delays_found(rows: list[Row]) -> bool:
    return count_found_delays(rows) >= FOUND * len(rows)


# -- the gates `ladder` and `do_bench`


def ladder_agrees(rows: list[Row]) -> bool:
    """Return True if every problem was compared, and every ratio of the ladder differs by at most
    `WITHIN` from that by CUDA events."""
    return len(successful(rows)) == len(rows) and max(differences(rows), default=1.0) <= WITHIN


def all_ran(rows: list[Row]) -> bool:
    return len(successful(rows)) == len(rows)
