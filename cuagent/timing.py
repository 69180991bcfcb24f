"""Timing data: samples of each arm, the ratios between them and their confidence intervals.

How the samples are taken is `measure/timing/timer.py`; how the intervals are made is
`measure/statistics.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

MARGIN = 0.01
"""Differences under 1 % are never called: memory layout and clocks do that to equal code."""


class Standing(StrEnum):
    """What an interval allows to say."""

    FASTER = "faster"
    SLOWER = "slower"
    INCONCLUSIVE = "inconclusive"


class Effort(StrEnum):
    GLANCE = "glance"
    """About a second, for rollouts by the thousand: as quick, with as few repeats as can be."""
    QUICK = "quick"
    """1-3 s, for the agent's loop: feedback, not a claim."""
    RECORD = "record"
    """Several fresh processes: the score of record."""


@dataclass(frozen=True)
class Arm:
    """One thing that was timed. Seconds per call."""

    name: str
    """`candidate`, `eager`, `compile`, or another rung of the ladder."""
    median: float
    """Of the blocks; on the CPU of the quietest block of each stretch of the run."""
    samples: tuple[float, ...]
    """One for each block: as claimed, and at least what the wall clock leaves (`lane.py`)."""
    compile_seconds: float | None = None
    failed: str = ""
    """Why there are no samples, if there are none."""
    rounds: tuple[int, ...] = ()
    """How many of the samples are of each round."""
    charged: float = 0.0
    """Of `median`, what its own clock did not claim (`lane.py`)."""


@dataclass(frozen=True)
class Ratio:
    """Baseline time over candidate time: above 1 is faster.

    95 % limits; 99 % for a quick look on the CPU, which other processes disturb.
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
    """What a call cannot undercut (`roofline.py`). Seconds."""

    seconds: float
    bound: str
    """`memory` or `compute`."""
    memory: float
    """Below this nobody moved what must be moved; 0 where caches or a busy machine forbid to say
    so."""

    def share(self, seconds: float) -> float:
        """Of the roofline: 1 is at the floor."""
        return self.seconds / seconds


@dataclass(frozen=True)
class Timing:
    """Paired measurement of the arms in one run."""

    arms: tuple[Arm, ...]
    ratios: dict[str, Ratio]
    """By baseline name."""
    effort: Effort
    device: str
    """What it ran on, in words."""
    seconds: float
    """How long measuring took."""
    contradiction: str = ""
    """Set when the worker's own clock contradicts the referee's, in fresh processes again; or where
    it left the processors that all arms are timed on."""
    wrong: str = ""
    """Set when an answer was wrong, or an input changed, while it was timed."""
    busy: float = 0.0
    """Share of the processors, or of the GPU's blocks, that others took while this was measured."""
    floor: Floor | None = None
    """None where the task's work could not be counted."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know, e.g. `machine busy: 40 % by others`."""
    versions: dict[str, str] = field(default_factory=dict)
    free: dict[str, Ratio] = field(default_factory=dict)
    """Beside a candidate: eager's time over each other baseline's, in the same rounds."""
    apart: tuple[float, ...] = ()
    """Log ratios of twins, here and in timings before: the limits of a quick look hang on them."""

    @property
    def suspect(self) -> str:
        """Why the candidate's time is no score, in one line; else nothing."""
        candidate = self.arm("candidate")
        if self.floor is None or candidate is None or not candidate.median < self.floor.memory:
            return ""
        return (
            f"SUSPECT: {candidate.median * 1e6:.1f} us a call, and the memory alone takes "
            f"{self.floor.memory * 1e6:.1f} us"
        )

    @property
    def share(self) -> float | None:
        """The candidate's, of the roofline: 1 is at the floor."""
        candidate = self.arm("candidate")
        if self.floor is None or candidate is None or not candidate.median > 0:
            return None
        return self.floor.share(candidate.median)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What belongs beside the figures wherever they are shown, the gravest first."""
        disagreement = f"clocks disagree: {self.contradiction}" if self.contradiction else ""
        return tuple(filter(None, [self.wrong, disagreement, self.suspect, *self.notes]))

    @property
    def refused(self) -> str:
        """What timing showed against the candidate, in one line; else nothing."""
        return self.wrong or self.contradiction

    def arm(self, name: str) -> Arm | None:
        return next((arm for arm in self.arms if arm.name == name), None)
