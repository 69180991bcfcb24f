"""From rounds of counted blocks to arms and ratios: which rounds count, and which statistic holds.

On a GPU all pairs of a round are used, since it is ours alone or the run is not taken; on the CPU,
where anybody may interrupt, the quietest blocks of consecutive stretches. Not covered: where blocks
come from (`protocol.py`), what of them counts (`lane.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from cuagent.measure.statistics import (
    Looks,
    log_ratios,
    over_groups,
    over_rounds,
    pooled,
    quantile,
    quietest,
)
from cuagent.measure.system_load import BUSY
from cuagent.measure.timing.timed_arm import GROUPS, LEAST_S, TimedArm
from cuagent.task import Device
from cuagent.timing import MARGIN, Arm, Effort, Ratio, Standing
from cuagent.worker.arms import CANDIDATE, EAGER

LOOKS = Looks((3, 5))
QUICK_CONFIDENCE = {Device.CPU: 0.99, Device.CUDA: 0.95}
BETWEEN = {Device.CPU: 0.03, Device.CUDA: 0.004}
"""Standard deviation of a log ratio from one set of processes to the next. Measured on a GPU; on
the CPU a first guess, since it was 1 % on one machine and 7 % on another: see `twins`."""
GUESS_WEIGHT = 4
"""Timings of twins that the guess counts for."""
STRIKES = 3
"""So often, in fresh processes, must the wall clock contradict before it is a verdict, and on a GPU
add to the claims before that counts: one process in twenty is woken more slowly than its fellows,
whatever it runs (docs/concepts/timing.md)."""
HELD_UP = 1.3
"""A baseline that takes so many times what it usually takes, when another does not, was held up.
Beside other work on the host torch.compile took 47 to 229 us for 26 in 10 of 48 timings, steadily
enough for narrow limits: a kernel four times slower was called twice as fast
(docs/concepts/timing.md)."""
USUAL = 0.1
"""What a baseline usually takes: this quantile of its rounds. Others only ever lengthen one, and a
single lucky one must not count for good."""
PATIENCE = 2
"""So often in a timing is a round taken again for that, the last time with a fresh process."""
TWIN = "eager again"
"""A second process of eager, on the CPU: how far the two lie apart is what processes do here."""
RESOLUTION_S = {Device.CPU: 1e-6, Device.CUDA: 0.25e-6}
"""By how much equal kernels differ from process to process whatever their length (measured)."""


@dataclass(frozen=True)
class Round:
    """One set of processes, timed."""

    timed_arms: dict[str, TimedArm]
    counted: dict[str, list[float]]
    """Seconds per call of each block of each arm; blocks of one index make a pair."""
    wrong: str
    """Set when the candidate's answers were not right while it was timed."""
    astray: str
    """Set when it left the processors that all arms are timed on."""
    hidden: str
    """Set when the wall clock speaks against the candidate's."""
    busy: float
    """Share of the processors that others had."""
    slowed: int = 0
    """Repeats in which the GPU throttled and that count all the same."""

    @property
    def charged(self) -> float:
        """Share by which a call of the candidate surely counts for more than it claims."""
        if not self.counted.get(CANDIDATE):
            return 0.0
        claims = [max(claim, LEAST_S) for claim in self.timed_arms[CANDIDATE].claims]
        return min(c / claim for c, claim in zip(self.counted[CANDIDATE], claims, strict=True)) - 1


@dataclass
class Rounds:
    """The rounds of one timing so far, and what they say against the candidate."""

    device: Device
    known: dict[str, list[float]] = field(default_factory=dict)
    """Seconds that each baseline took in its rounds so far, in earlier timings too."""
    held: list[Round] = field(default_factory=list)
    """Those that count."""
    wrong: str = ""
    contradiction: str = ""
    _lies: int = 0
    """Rounds in a row in which the wall clock spoke against the candidate's."""
    _strikes: int = 0
    """The same, or it added to the claims so much that somebody might call it a difference."""
    stale: str = ""
    """A baseline that was held up twice: its process is not to be asked again."""
    _waited: int = 0
    """Rounds that did not count because a baseline was held up."""
    _late: str = ""
    """What is to be said of one that was in a round that counts all the same."""

    @property
    def refused(self) -> bool:
        return bool(self.wrong or self.contradiction)

    @property
    def busy(self) -> float:
        """The largest share of the processors that others had in a round."""
        return max((taken.busy for taken in self.held), default=0.0)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures should know of the machine."""
        slowed = sum(taken.slowed for taken in self.held)
        said = [f"machine busy: {self.busy:.0%} by others"] * (self.busy > BUSY)
        said += [f"the GPU throttled in {slowed} repeats that count"] * (slowed > 0)
        return (*said, *[self._late] * bool(self._late))

    def take(self, taken: Round) -> bool:
        """Whether it counts: what the walls say against the candidate must be seen again first,
        and a baseline that was held up gets another try."""
        charged = self.device is Device.CUDA and taken.charged > MARGIN
        self._lies = self._lies + 1 if taken.hidden else 0
        self._strikes = self._strikes + 1 if taken.hidden or charged else 0
        self.wrong = taken.wrong
        self.contradiction = taken.astray or (taken.hidden if self._lies == STRIKES else "")
        name, times = self._held_up(taken) if self.device is Device.CUDA else ("", 1.0)
        seen_again = 0 < self._strikes < STRIKES
        again = bool(name) and self._waited < PATIENCE and not seen_again
        self._waited += again
        self.stale = name if again and self._waited == PATIENCE else ""
        counts = self.refused or not (seen_again or again)
        if counts and name:
            self._late = (
                f"{name} was held up: {times:.1f} times what it usually takes, "
                "so the speedup over it is too large"
            )
        if counts:
            self.held.append(taken)
        return counts

    def _held_up(self, taken: Round) -> tuple[str, float]:
        """The baseline that was, and how many times what it usually takes; what slows all of them
        alike is no hold-up."""
        now = {n: median(c) for n, c in taken.counted.items() if n not in (CANDIDATE, TWIN) and c}
        # Of one that was never timed here all that is known is what it is to beat.
        usual = {
            name: quantile(self.known[name], USUAL) if name in self.known else now.get(EAGER, time)
            for name, time in now.items()
        }
        slower = {name: now[name] / usual[name] for name in now}
        for name, time in now.items():
            self.known.setdefault(name, []).append(time)
        worst = max(slower, key=slower.__getitem__, default="")
        if not worst or slower[worst] <= HELD_UP * max(1.0, min(slower.values())):
            return "", 1.0
        return worst, slower[worst]


def ratio(
    rounds: Sequence[Round],
    baseline: str,
    arm: str,
    effort: Effort,
    device: Device,
    apart: Sequence[float] = (),
) -> Ratio:
    """Time of `baseline` over time of `arm`, both timed in every round.

    `apart` are the log ratios of twins so far, from `twins`.
    """
    logs = [
        log_ratios(levels(taken, baseline, device), levels(taken, arm, device)) for taken in rounds
    ]
    if effort is Effort.RECORD:
        return over_rounds(logs, LOOKS.per_look)
    confidence = QUICK_CONFIDENCE[device]
    resolution = RESOLUTION_S[device] / min(rounds[0].counted[arm])
    if device is Device.CPU:
        between, known = pooled(apart, BETWEEN[device], GUESS_WEIGHT)
        return over_groups(logs[0], confidence, between + resolution, known)
    return over_rounds(logs, confidence, math.hypot(BETWEEN[device], resolution))


def twins(taken: Round, device: Device) -> list[float]:
    """How far two processes of eager lay apart in this round: a log ratio, or nothing."""
    if not (taken.counted.get(EAGER) and taken.counted.get(TWIN)):
        return []
    return [median(log_ratios(levels(taken, EAGER, device), levels(taken, TWIN, device)))]


def levels(taken: Round, name: str, device: Device) -> list[float]:
    """What of an arm's blocks is compared."""
    blocks = taken.counted[name]
    return quietest(blocks, GROUPS) if device is Device.CPU else blocks


def enough(rounds: int, ratios: Iterable[Ratio]) -> bool:
    """Whether a record may stop: at a look only, when all is decided or it was the last."""
    if rounds not in LOOKS.rounds:
        return False
    return rounds == LOOKS.rounds[-1] or all(
        ratio.standing is not Standing.INCONCLUSIVE for ratio in ratios
    )


def arm_of(name: str, rounds: Sequence[Round], failed: str, device: Device) -> Arm:
    """An arm's figures over all rounds."""
    held = [taken for taken in rounds if taken.counted.get(name)]
    if not held:
        return Arm(name, float("nan"), (), failed=failed or "was not reached")
    typical = [level for taken in held for level in levels(taken, name, device)]
    samples = tuple(block for taken in held for block in taken.counted[name])
    blocks = tuple(len(taken.counted[name]) for taken in held)
    claims = (block.claim for taken in held for block in taken.timed_arms[name].blocks)
    charged = median(max(0.0, c - claim) for c, claim in zip(samples, claims, strict=True))
    opened_s = held[0].timed_arms[name].opened_s
    return Arm(name, median(typical), samples, opened_s, failed, blocks, charged)
