"""Data classes of a timing: samples of each arm, the ratios between arms, confidence intervals.

`measure/timing/timer.py` takes the samples; `measure/statistics.py` computes the intervals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cuagent.arms import CANDIDATE

MARGIN = 0.01
"""Relative difference below which a ratio counts as 1.

Memory layout and clocks change the time of equal code by 1 %.
"""


class Standing(StrEnum):
    """Conclusion from the interval of a ratio: faster, slower or inconclusive."""

    FASTER = "faster"
    SLOWER = "slower"
    INCONCLUSIVE = "inconclusive"


class Effort(StrEnum):
    """Thoroughness of a timing, which determines its duration and how its result may be used."""

    GLANCE = "glance"
    """About a second: `QUICK` with the fewest repeats, for thousands of rollouts."""
    QUICK = "quick"
    """1 to 3 s: feedback in the agent's loop, not a claim."""
    RECORD = "record"
    """Several sets of fresh processes: the timing on which the score of record is based."""


def interval_title(effort: Effort) -> str:
    """Return the title of a column of intervals; quick timings have several confidences
    (`Ratio`)."""
    return "98 % interval" if effort is Effort.RECORD else "interval"


@dataclass(frozen=True)
class Arm:
    """One timed model with its samples. Times are in seconds per call."""

    name: str
    """`candidate`, `eager`, `compile`, or the name of another rung."""
    median: float
    """Median time of the blocks.

    On the CPU only the quietest block of each stretch of a round is used.
    """
    samples: tuple[float, ...]
    """Time of each block: the worker's claim plus the excess of the wall clock (`timed_arm.py`)."""
    compile_seconds: float | None = None
    failed: str = ""
    """Reason why the arm has no samples; "" if it has."""
    rounds: tuple[int, ...] = ()
    """Number of samples in each round."""
    charged: float = 0.0
    """Part of `median`, in seconds, by which the wall clock exceeded the worker's own clock."""
    in_a_row_s: float | None = None
    """Seconds per call of calls without a pause between them, the host's time included. None on a
    CPU, for a large task and for calls that keep the GPU busy."""


@dataclass(frozen=True)
class Ratio:
    """Baseline time over candidate time: above 1 is faster.

    `low` and `high` are confidence limits: 98 % for a record timing over all its looks, 95 % for a
    quick timing on a GPU, and 99 % for one on the CPU, which other processes disturb.
    """

    value: float
    low: float
    high: float

    @property
    def standing(self) -> Standing:
        if self.low > 1 + MARGIN:
            return Standing.FASTER
        if self.high < 1 - MARGIN:
            return Standing.SLOWER
        return Standing.INCONCLUSIVE

    @property
    def is_equal(self) -> bool:
        """True if the whole interval lies within MARGIN of 1: any difference is too small to
        count."""
        return self.low >= 1 - MARGIN and self.high <= 1 + MARGIN

    @property
    def doubt(self) -> str:
        """Text in parentheses, after a space, if the ratio is neither faster nor slower."""
        if self.standing is not Standing.INCONCLUSIVE:
            return ""
        return f" (equal within {MARGIN:.0%})" if self.is_equal else " (inconclusive)"


@dataclass(frozen=True)
class Floor:
    """Lower bound of a call's time with the reference's algorithm (`roofline/model.py`)."""

    seconds: float
    bound: str
    """Resource that determines the bound: `memory` or `compute`."""
    memory: float
    """Seconds below which no correct implementation is possible: the least time in which the
    device can move the inputs and outputs. Weights do not count, because they may be prepared once.

    0 if caches or a busy machine make this bound unreliable.
    """

    def share(self, seconds: float) -> float:
        """Return the floor divided by `seconds`, a measured time; 1 means that the time equals the
        floor.
        """
        return self.seconds / seconds


@dataclass(frozen=True)
class Timing:
    """Result of timing several arms in the same rounds."""

    arms: tuple[Arm, ...]
    ratios: dict[str, Ratio]
    """Each baseline's time over the candidate's, by the baseline's name.

    Without a candidate: eager's time over each other baseline's.
    """
    effort: Effort
    device: str
    """Name of the device, for example of the GPU."""
    seconds: float
    """Duration of the timing."""
    contradiction: str = ""
    """Message if the candidate's time cannot be trusted; else "".

    Either the worker's clock contradicts the referee's, again in fresh processes, or a thread of
    the worker could run on processors that the timing does not use.
    """
    wrong: str = ""
    """Message if an output was wrong, or an input changed, in a timed call; else ""."""
    busy: float = 0.0
    """Share of the processors, or of the GPU's blocks, that other processes used during the
    timing.
    """
    floor: Floor | None = None
    """Lower bound of the task's time; None if its work could not be counted."""
    notes: tuple[str, ...] = ()
    """Notes for the reader of the figures, e.g. `machine busy: 40% used by other processes`."""
    versions: dict[str, str] = field(default_factory=dict)
    free: dict[str, Ratio] = field(default_factory=dict)
    """Speedup without a kernel: eager's time over each other baseline's, by name, in the same
    rounds.

    Empty if no candidate was timed; `ratios` has these ratios then.
    """
    apart: tuple[float, ...] = ()
    """Log of the time ratio of two equal eager processes in each round of this and earlier timings.

    The confidence limits of a quick timing depend on its variation.
    """

    @property
    def suspect(self) -> str:
        """One line that says why the candidate's time is too short to be true; "" if it is not."""
        candidate = self.arm(CANDIDATE)
        if self.floor is None or candidate is None or not candidate.median < self.floor.memory:
            return ""
        return (
            f"SUSPECT: {candidate.median * 1e6:.1f} us a call, but moving the inputs and outputs "
            f"alone takes {self.floor.memory * 1e6:.1f} us"
        )

    @property
    def share(self) -> float | None:
        """Share of the roofline: floor over the candidate's time; None if either is unknown."""
        candidate = self.arm(CANDIDATE)
        if self.floor is None or candidate is None or not candidate.median > 0:
            return None
        return self.floor.share(candidate.median)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks to show with the figures, the most serious first."""
        disagreement = f"clocks disagree: {self.contradiction}" if self.contradiction else ""
        return tuple(filter(None, [self.wrong, disagreement, self.suspect, *self.notes]))

    @property
    def refused(self) -> str:
        """One line that says why the timing rejects the candidate; "" if it does not."""
        return self.wrong or self.contradiction

    def arm(self, name: str) -> Arm | None:
        return next((arm for arm in self.arms if arm.name == name), None)
