"""Hold timing data: samples of each arm, the ratios between arms and their confidence intervals.

`measure/timing/timer.py` takes the samples; `measure/statistics.py` computes the intervals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cuagent.arms import CANDIDATE

MARGIN = 0.01
"""Share below which a difference is not reported: memory layout and clocks change equal code by 1
%."""


class Standing(StrEnum):
    """Conclusion that the interval of a ratio allows."""

    FASTER = "faster"
    SLOWER = "slower"
    INCONCLUSIVE = "inconclusive"


class Effort(StrEnum):
    """Thoroughness of a timing: its duration, and the use that its result is good for."""

    GLANCE = "glance"
    """About a second, for thousands of rollouts: like `QUICK` with the fewest repeats."""
    QUICK = "quick"
    """1 to 3 s, for the agent's loop: feedback, not a claim."""
    RECORD = "record"
    """Several sets of fresh processes: the score of record."""


@dataclass(frozen=True)
class Arm:
    """One timed model. Times are in seconds per call."""

    name: str
    """`candidate`, `eager`, `compile`, or another rung of the ladder."""
    median: float
    """Median of the blocks' times; on the CPU only the quietest block of each stretch of a round
    counts."""
    samples: tuple[float, ...]
    """Time of each block: the worker's claim plus the excess of the wall clock (`timed_arm.py`)."""
    compile_seconds: float | None = None
    failed: str = ""
    """Reason for missing samples, else ""."""
    rounds: tuple[int, ...] = ()
    """Number of samples in each round."""
    charged: float = 0.0
    """Part of `median` that the worker's own clock did not claim (`timed_arm.py`)."""


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


@dataclass(frozen=True)
class Floor:
    """Lower bound on the seconds of a call (`roofline/model.py`)."""

    seconds: float
    bound: str
    """`memory` or `compute`."""
    memory: float
    """Seconds below which the compulsory bytes cannot have been moved; 0 if caches or a busy
    machine make the bound unreliable."""

    def share(self, seconds: float) -> float:
        """Return the floor divided by a measured time; 1 means that the time equals the floor."""
        return self.seconds / seconds


@dataclass(frozen=True)
class Timing:
    """Paired measurement of the arms in one run."""

    arms: tuple[Arm, ...]
    ratios: dict[str, Ratio]
    """Ratio of each baseline's time to the candidate's, by the baseline's name. Without a
    candidate: of eager's time to each other baseline's."""
    effort: Effort
    device: str
    """Name of the device."""
    seconds: float
    """Duration of the measurement."""
    contradiction: str = ""
    """Message if the worker's clock contradicts the referee's, again in fresh processes, or if a
    thread of the worker could run outside the processors of the timing; else ""."""
    wrong: str = ""
    """Message if an output was wrong, or an input changed, while it was timed."""
    busy: float = 0.0
    """Share of the processors, or of the GPU's blocks, that other processes used during the timing.
    """
    floor: Floor | None = None
    """Floor of the task; None if its work could not be counted."""
    notes: tuple[str, ...] = ()
    """Notes for the reader of the figures, e.g. `machine busy: 40% used by other processes`."""
    versions: dict[str, str] = field(default_factory=dict)
    free: dict[str, Ratio] = field(default_factory=dict)
    """Eager's time over each other baseline's, by name, in the same rounds; {} if no candidate was
    timed."""
    apart: tuple[float, ...] = ()
    """Log ratio of two eager processes ("twins") in each round of this and earlier timings. The
    limits of a quick timing depend on them."""

    @property
    def suspect(self) -> str:
        """Return the reason why the candidate's time gets no score, in one line, or ""."""
        candidate = self.arm(CANDIDATE)
        if self.floor is None or candidate is None or not candidate.median < self.floor.memory:
            return ""
        return (
            f"SUSPECT: {candidate.median * 1e6:.1f} us a call, but memory traffic alone takes "
            f"{self.floor.memory * 1e6:.1f} us"
        )

    @property
    def share(self) -> float | None:
        """Return the candidate's share of the roofline: 1 is at the floor."""
        candidate = self.arm(CANDIDATE)
        if self.floor is None or candidate is None or not candidate.median > 0:
            return None
        return self.floor.share(candidate.median)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return the remarks to show with the figures, the most serious first."""
        disagreement = f"clocks disagree: {self.contradiction}" if self.contradiction else ""
        return tuple(filter(None, [self.wrong, disagreement, self.suspect, *self.notes]))

    @property
    def refused(self) -> str:
        """Return the reason why timing refuses the candidate, in one line, or ""."""
        return self.wrong or self.contradiction

    def arm(self, name: str) -> Arm | None:
        return next((arm for arm in self.arms if arm.name == name), None)
