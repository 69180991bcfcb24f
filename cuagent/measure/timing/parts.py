"""A timing in parts, where the device has no room for all models at once.

The candidate is timed against one baseline after another, or each baseline against eager; every
part is a timing of its own, interleaved in itself, so that a ratio never compares two parts. Not
covered: how much room a timing takes (`verify/memory_plan.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cuagent.task.memory import free
from cuagent.timing import Arm, Timing
from cuagent.verify.referee import Referee
from cuagent.worker.arms import CANDIDATE, EAGER

SLACK = 1.15
"""What allocators and contexts take beside what is reckoned: three models of 126 GiB together did
not fit into 137."""


def parts(referee: Referee, baselines: Sequence[str], attempted: bool) -> list[tuple[str, ...]]:
    """The baselines of each part: all in one, but for a large task that has no room for that.

    `attempted`: whether a candidate is timed with each.
    """
    whole, models = tuple(baselines), len(baselines) + attempted
    if not referee.large or models < 3:
        return [whole]
    if SLACK * referee.room.timing(models) <= free(referee.task.device.value):
        return [whole]
    if attempted:
        return [(name,) for name in whole]
    return [(EAGER, name) for name in whole if name != EAGER]


def together(timings: Sequence[Timing]) -> Timing:
    """Parts as one timing; of an arm that is in several, the figures of the first, or why it failed
    in any."""
    arms: dict[str, Arm] = {}
    for arm in (arm for part in timings for arm in part.arms):
        if arm.name not in arms or arm.failed:
            arms[arm.name] = arm
    return replace(
        timings[0],
        arms=tuple(arms.values()),
        ratios={name: found for part in timings for name, found in part.ratios.items()},
        seconds=sum(part.seconds for part in timings),
        contradiction=timings[-1].contradiction,
        wrong=timings[-1].wrong,
        busy=max(part.busy for part in timings),
        notes=tuple(dict.fromkeys(note for part in timings for note in part.notes)),
        apart=timings[-1].apart,
    )


def is_last(timing: Timing) -> bool:
    """Whether no further part is of use: the candidate was refused, or did not get through."""
    candidate = timing.arm(CANDIDATE)
    return bool(timing.refused or (candidate is not None and candidate.failed))
