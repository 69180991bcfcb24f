"""Split a timing into parts if the device's memory does not hold all models at the same time.

The candidate is timed against one baseline after another, or each baseline against eager. Every
part is an interleaved timing, so no ratio mixes times of two parts.

Not covered: the memory that a timing takes (`verify/memory_plan.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cuagent.arms import CANDIDATE, EAGER
from cuagent.timing import Arm, Timing
from cuagent.verify.referee import Referee

MEMORY_FACTOR = 1.15
"""Factor on the planned memory, to allow for allocators and contexts: three models of 126 GiB
together did not fit into 137 GiB."""


def parts_of(
    referee: Referee, baselines: Sequence[str], with_candidate: bool
) -> list[tuple[str, ...]]:
    """Return the baselines of each part; a single part if the memory suffices for all.

    Only a timing of a large task is split. `with_candidate`: a candidate is timed in each part.
    """
    whole, models = tuple(baselines), len(baselines) + with_candidate
    if not referee.large or models < 3:
        return [whole]
    if MEMORY_FACTOR * referee.room.timing(models) <= referee.room.available(
        referee.task.device.value
    ):
        return [whole]
    if with_candidate:
        return [(name,) for name in whole]
    return [(EAGER, name) for name in whole if name != EAGER]


def fit_together(referee: Referee, opening: int, models: int) -> bool:
    """Return True if `opening` models of a timing of `models` may open at the same time.

    Those of a large task may if the memory holds their first calls besides the timing.
    """
    if not referee.large:
        return True
    room = referee.room
    needed = room.timing(models) + opening * room.opening
    return MEMORY_FACTOR * needed <= room.available(referee.task.device.value)


def merge(timings: Sequence[Timing]) -> Timing:
    """Merge the timings of all parts into one.

    If an arm is in several parts, its figures are those of the last part in which it failed, or
    else of the first part.
    """
    arms: dict[str, Arm] = {}
    for arm in (arm for part in timings for arm in part.arms):
        if arm.name not in arms or arm.failed:
            arms[arm.name] = arm
    return replace(
        timings[0],
        arms=tuple(arms.values()),
        ratios={name: ratio for part in timings for name, ratio in part.ratios.items()},
        seconds=sum(part.seconds for part in timings),
        contradiction=timings[-1].contradiction,
        wrong=timings[-1].wrong,
        busy=max(part.busy for part in timings),
        notes=tuple(dict.fromkeys(note for part in timings for note in part.notes)),
        apart=timings[-1].apart,
    )


def is_final(timing: Timing) -> bool:
    """Return True if further parts are pointless: the candidate was refused or failed."""
    candidate = timing.arm(CANDIDATE)
    return bool(timing.refused or (candidate is not None and candidate.failed))
