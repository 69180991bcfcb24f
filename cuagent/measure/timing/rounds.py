"""Decide which rounds of a timing count, and turn their blocks into arms and ratios.

On a GPU all pairs of a round are used, because cuagent holds the GPU exclusively. On the CPU any
process may interrupt, so only the quietest blocks of consecutive stretches are used. Not covered:
how blocks are measured (`repeats.py`) and how their times are audited (`timed_arm.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from cuagent.arms import CANDIDATE, COMPILE, EAGER
from cuagent.measure.statistics import (
    Looks,
    log_ratios,
    over_groups,
    over_rounds,
    pooled,
    quantile,
    quietest,
)
from cuagent.measure.system_load import BUSY_SHARE
from cuagent.measure.timing.timed_arm import GROUPS, LEAST_S, TimedArm
from cuagent.task import Device
from cuagent.timing import MARGIN, Arm, Effort, Ratio, Standing

LOOKS = Looks((4, 6), confidence=0.98)
"""Numbers of rounds after which a record timing may stop. Both looks together call equal modules
faster in at most 1 % of timings, however much processes differ: each limit has 1 %."""
HOPELESS = 0.05
"""Log ratio by which a baseline must beat the candidate in every round to end a record timing."""
LEAVES = 0.1
"""Share by which the fastest rung must beat another rung for that one to leave a record timing."""
QUICK_CONFIDENCE = {Device.CPU: 0.99, Device.CUDA: 0.95}
BETWEEN_PROCESSES = {Device.CPU: 0.03, Device.CUDA: 0.004}
"""Standard deviation of a log ratio from one set of processes to the next. Measured on a GPU. On
the CPU a prior, because it was 1 % on one machine and 7 % on another; see `twins`."""
PRIOR_WEIGHT = 4
"""Number of twin timings that the prior of `BETWEEN_PROCESSES` counts for."""
ROUNDS_TO_CONFIRM = 3
"""Number of consecutive rounds, each in fresh processes, in which the wall clock must contradict
the candidate before it is refused, or on a GPU add to the claims before the addition counts. One
process in twenty is woken more slowly than the others, regardless of its code
(docs/concepts/timing.md)."""
DELAYED_FACTOR = 1.3
"""Smallest slowdown of a baseline, relative to its usual time, that counts as a delay, unless
another baseline is equally slow. On a busy host torch.compile took 47 to 229 us instead of 26 in 10
of 48 timings, steadily enough for narrow limits: a kernel four times slower was called twice as
fast (docs/concepts/timing.md)."""
USUAL_QUANTILE = 0.1
"""Quantile of a baseline's rounds that is its usual time. Other processes only lengthen a round,
and a single fast round must not set the standard."""
MOST_RETRIES = 2
"""Number of rounds in a timing that are repeated because a baseline was delayed. The last one has a
fresh process."""
TWIN = "eager again"
"""Name of a second eager process, on the CPU. Its distance from the first shows how much processes
differ."""
RESOLUTION_S = {Device.CPU: 1e-6, Device.CUDA: 0.25e-6}
"""Seconds by which equal kernels of any length differ from process to process (measured)."""


@dataclass(frozen=True)
class Round:
    """Times of one round, in which all arms run in one set of processes."""

    timed_arms: dict[str, TimedArm]
    counted: dict[str, list[float]]
    """Seconds per call of each block of each arm. Blocks of equal index are a pair."""
    wrong: str
    """Message if an output of the candidate was wrong while it was timed, else ""."""
    outside_cores: str
    """Message if a thread of the candidate could run outside the processors of all arms, else "".
    """
    clock_contradiction: str
    """Message if the wall clock contradicts the candidate's claims, else ""."""
    busy: float
    """Share of the processors that other processes used during the round."""
    slowed: int = 0
    """Number of repeats that count although the GPU throttled."""

    @property
    def charged(self) -> float:
        """Smallest share, over all blocks, by which the counted time exceeds the candidate's claim.

        It is 0 without a candidate.
        """
        if not self.counted.get(CANDIDATE):
            return 0.0
        claims = [max(claim, LEAST_S) for claim in self.timed_arms[CANDIDATE].claims]
        return min(c / claim for c, claim in zip(self.counted[CANDIDATE], claims, strict=True)) - 1


@dataclass
class Rounds:
    """Rounds of one timing so far, and the evidence against the candidate."""

    device: Device
    baseline_times: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of each baseline in each of its rounds so far, earlier timings included."""
    valid: list[Round] = field(default_factory=list)
    """Rounds whose times enter the result."""
    wrong: str = ""
    contradiction: str = ""
    _contradicted_in_a_row: int = 0
    """Consecutive rounds in which the wall clock contradicted the candidate."""
    _doubtful_in_a_row: int = 0
    """Consecutive rounds with a contradiction, or with a charge large enough to change the
    standing."""
    process_to_replace: str = ""
    """Baseline that was delayed twice, so its process must be replaced; else ""."""
    _retries: int = 0
    """Number of rounds that did not count because a baseline was delayed."""
    _delay_note: str = ""
    """Note on a delayed baseline in a round that counts."""

    @property
    def refused(self) -> bool:
        return bool(self.wrong or self.contradiction)

    @property
    def busy(self) -> float:
        """Return the largest share of the processors that other processes used in a round."""
        return max((taken.busy for taken in self.valid), default=0.0)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes on the state of the machine for the reader of the figures."""
        slowed = sum(taken.slowed for taken in self.valid)
        busy = f"machine busy: {self.busy:.0%} used by other processes"
        notes = [busy] * (self.busy > BUSY_SHARE)
        notes += [f"the GPU throttled in {slowed} repeats that count"] * (slowed > 0)
        return (*notes, *[self._delay_note] * bool(self._delay_note))

    def add(self, taken: Round) -> bool:
        """Add a round and return True if it counts.

        A round does not count if its charges against the candidate must be confirmed first, or if a
        baseline was delayed and may be timed again.
        """
        contradicted = bool(taken.clock_contradiction)
        doubtful = contradicted or (self.device is Device.CUDA and taken.charged > MARGIN)
        self._contradicted_in_a_row = self._contradicted_in_a_row + 1 if contradicted else 0
        self._doubtful_in_a_row = self._doubtful_in_a_row + 1 if doubtful else 0
        confirmed = self._contradicted_in_a_row == ROUNDS_TO_CONFIRM
        self.wrong = taken.wrong
        self.contradiction = taken.outside_cores or (taken.clock_contradiction if confirmed else "")
        name, factor = self._delayed(taken) if self.device is Device.CUDA else ("", 1.0)
        unconfirmed = 0 < self._doubtful_in_a_row < ROUNDS_TO_CONFIRM
        retry = bool(name) and self._retries < MOST_RETRIES and not unconfirmed
        self._retries += retry
        self.process_to_replace = name if retry and self._retries == MOST_RETRIES else ""
        counts = self.refused or not (unconfirmed or retry)
        if counts and name:
            self._delay_note = (
                f"{name} was delayed: it took {factor:.1f} times its usual time, "
                "so the speedup over it is too large"
            )
        if counts:
            self.valid.append(taken)
        return counts

    def _delayed(self, taken: Round) -> tuple[str, float]:
        """Return the name of the delayed baseline and its time over its usual time; ("", 1.0) if
        none was.

        A slowdown common to all baselines does not count as a delay.

        """
        now = {n: median(c) for n, c in taken.counted.items() if n not in (CANDIDATE, TWIN) and c}
        # A baseline without earlier rounds is compared with eager, which it should beat.
        usual = {
            name: quantile(self.baseline_times[name], USUAL_QUANTILE)
            if name in self.baseline_times
            else now.get(EAGER, time)
            for name, time in now.items()
        }
        slower = {name: now[name] / usual[name] for name in now}
        for name, time in now.items():
            self.baseline_times.setdefault(name, []).append(time)
        worst = max(slower, key=slower.__getitem__, default="")
        if not worst or slower[worst] <= DELAYED_FACTOR * max(1.0, min(slower.values())):
            return "", 1.0
        return worst, slower[worst]


def ratios(
    rounds: Sequence[Round],
    baselines: Sequence[str],
    effort: Effort,
    device: Device,
    twin_ratios: Sequence[float],
    *,
    alone: bool,
) -> dict[str, Ratio]:
    """Return the time of each baseline over the candidate's. If the baselines are `alone`, return
    eager's time over that of each other baseline.

    Baselines that were not timed in every round have no ratio.
    """
    valid = [n for n in baselines if rounds and all(taken.counted.get(n) for taken in rounds)]
    if not alone:
        return {n: ratio(rounds, n, CANDIDATE, effort, device, twin_ratios) for n in valid}
    others = [n for n in valid if n != EAGER] if EAGER in valid else []
    return {n: ratio(rounds, EAGER, n, effort, device, twin_ratios) for n in others}


def ratio(
    rounds: Sequence[Round],
    baseline: str,
    arm: str,
    effort: Effort,
    device: Device,
    twin_ratios: Sequence[float] = (),
) -> Ratio:
    """Return the time of `baseline` over the time of `arm`, both timed in every round.

    `twin_ratios` are the log ratios of twins so far, from `twins`.
    """
    logs = [
        log_ratios(levels(taken, baseline, device), levels(taken, arm, device)) for taken in rounds
    ]
    if effort is Effort.RECORD:
        return over_rounds(logs, LOOKS.per_look)
    confidence = QUICK_CONFIDENCE[device]
    resolution = RESOLUTION_S[device] / min(rounds[0].counted[arm])
    if device is Device.CPU:
        between, df = pooled(twin_ratios, BETWEEN_PROCESSES[device], PRIOR_WEIGHT)
        return over_groups(logs[0], confidence, between + resolution, df)
    return over_rounds(logs, confidence, math.hypot(BETWEEN_PROCESSES[device], resolution))


def twins(taken: Round, device: Device) -> list[float]:
    """Return the log ratio of two eager processes in this round, in a list; [] if there are not
    two."""
    if not (taken.counted.get(EAGER) and taken.counted.get(TWIN)):
        return []
    return [median(log_ratios(levels(taken, EAGER, device), levels(taken, TWIN, device)))]


def levels(taken: Round, name: str, device: Device) -> list[float]:
    """Return the seconds per call of the blocks that are compared.

    On a GPU these are all blocks, on the CPU the quietest of each stretch.
    """
    blocks = taken.counted[name]
    return quietest(blocks, GROUPS) if device is Device.CPU else blocks


def may_stop(rounds: int, ratios: Iterable[Ratio]) -> bool:
    """Return True if a record timing may stop.

    It may at a planned look only, if all ratios are decided or it is the last look.
    """
    if rounds not in LOOKS.rounds:
        return False
    return rounds == LOOKS.rounds[-1] or all(
        ratio.standing is not Standing.INCONCLUSIVE for ratio in ratios
    )


def is_hopeless(rounds: Sequence[Round], baselines: Iterable[str], device: Device) -> bool:
    """Return True if one baseline beat the candidate clearly in every round.

    A timing that stops for this reason claims no gain, so it needs no share of alpha.
    """
    return any(
        all(
            median(log_ratios(levels(taken, name, device), levels(taken, CANDIDATE, device)))
            < -HOPELESS
            for taken in rounds
        )
        for name in baselines
    )


def leaving(
    taken: Round,
    baselines: Iterable[str],
    device: Device,
    times: Mapping[str, Sequence[float]],
    twin_ratios: Sequence[float] = (),
) -> tuple[str, ...]:
    """Return the rungs that cannot be the best one, so that later rounds need not time them.

    Eager and torch.compile stay, since scores name them. Another rung leaves if the fastest beats
    it by `LEAVES` with the confidence of a quick timing. It must also have been slower by as much
    in every timing so far, at least two (`times`, seconds by rung). So a process that was delayed
    once cannot remove the best rung.
    """
    timed = {n: median(levels(taken, n, device)) for n in baselines if taken.counted.get(n)}
    if not timed:
        return ()
    best = min(timed, key=timed.__getitem__)
    others = (name for name in timed if name not in (EAGER, COMPILE, best))
    limit = 1 + LEAVES
    return tuple(
        name
        for name in others
        if len(times.get(name, ())) > 1
        and min(times[name]) > limit * timed[best]
        and ratio([taken], name, best, Effort.QUICK, device, twin_ratios).low > limit
    )


def arm_of(name: str, rounds: Sequence[Round], failed: str, device: Device) -> Arm:
    """Return an arm's figures over all rounds."""
    valid = [taken for taken in rounds if taken.counted.get(name)]
    if not valid:
        return Arm(name, float("nan"), (), failed=failed or "was not reached")
    typical = [level for taken in valid for level in levels(taken, name, device)]
    samples = tuple(block for taken in valid for block in taken.counted[name])
    blocks = tuple(len(taken.counted[name]) for taken in valid)
    claims = (block.claim for taken in valid for block in taken.timed_arms[name].blocks)
    charged = median(max(0.0, c - claim) for c, claim in zip(samples, claims, strict=True))
    opened_s = valid[0].timed_arms[name].opened_s
    return Arm(name, median(typical), samples, opened_s, failed, blocks, charged)
