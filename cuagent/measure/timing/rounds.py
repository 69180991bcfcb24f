"""Decide which rounds of a timing are valid, and compute arms and ratios from their blocks.

On a GPU all pairs of a round are used, because cuagent holds the GPU exclusively. On the CPU any
process may interrupt, so only the quietest blocks of consecutive stretches are used.

Not covered: how blocks are measured (`repeats.py`) and how their times are audited
(`timed_arm.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from cuagent.arms import CANDIDATE, COMPILE, EAGER
from cuagent.measure.rungs import POSSIBLE_GAIN
from cuagent.measure.statistics import (
    Looks,
    log_ratios,
    over_few_rounds,
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
"""Numbers of rounds after which a record timing may stop, and the confidence of both tests
together.

If two modules are equal, it calls one faster in at most 1 % of timings, however much processes
differ: each limit of the interval has 1 %.
"""
HOPELESS = 0.05
"""A record timing ends early if a baseline is faster than the candidate by this log ratio in every
round."""
HOPELESS_RUNG = 0.1
"""A rung is dropped from a record timing if the fastest rung is faster by this share."""
FAR, LONG_CALL_S = 2.0, 2e-3
"""A rung on a GPU is dropped after one timing if it takes this many times as long as the fastest,
and the fastest takes this many seconds: the host delays so long calls by much less."""
CLEAR = 0.1
"""Least share by which the candidate must beat every baseline for a record timing on a GPU to end
after `CLEAR_ROUNDS`. Equal modules differ by a twentieth of it."""
CLEAR_ROUNDS = 2
AGREEING = 0.02
"""Largest log ratio between the rounds of a timing that ends after `CLEAR_ROUNDS`. A baseline that
the host delays scatters more."""
AGREEING_SHARE = 0.06
"""Rounds whose log ratios differ by more than `AGREEING` also agree if they differ by at most this
share of the smallest one: how slow a baseline of 15 times the candidate's time is need not be known
to 2 %."""
SCATTERED = 0.1
"""Standard deviation of a log ratio from one set of processes to the next that is assumed if the
rounds of a timing that ends early differ by more than `AGREEING`. It is that of a busy host."""
QUICK_CONFIDENCE = {Device.CPU: 0.99, Device.CUDA: 0.95}
BETWEEN_PROCESSES = {Device.CPU: 0.03, Device.CUDA: 0.004}
"""Standard deviation of a log ratio from one set of processes to the next. For CUDA it was
measured. For the CPU it is a prior, because it was 1 % on one machine and 7 % on another; see
`twins`."""
PRIOR_WEIGHT = 4
"""Weight of `BETWEEN_PROCESSES`: on the CPU as a number of timings of twins; on a GPU as a number
of further rounds, if a record timing ends before the first of `LOOKS`."""
ROUNDS_TO_CONFIRM = 3
"""Number of consecutive rounds, each in fresh processes, in which the wall clock must contradict
the candidate before it is refused. On a GPU also the number in which the wall clock must add to the
claims before the addition counts. One process in twenty is woken more slowly than the others,
regardless of its code (docs/concepts/timing.md)."""
DELAYED_FACTOR = 1.3
"""A baseline counts as delayed if it is slower than usual by this factor, unless another baseline
is equally slow. On a busy host torch.compile took 47 to 229 us instead of 26 in 10 of 48 timings,
steadily enough for narrow limits: a kernel four times slower was called twice as fast
(docs/concepts/timing.md)."""
USUAL_QUANTILE = 0.1
"""Quantile of a baseline's times over all rounds that counts as its usual time. It is low because
other processes only lengthen a round; it is not 0 because a single fast round must not decide."""
MOST_RETRIES = 2
"""Number of rounds in a timing that may be repeated because a baseline was delayed. The last
repetition has a fresh process."""
TWIN = "eager again"
"""Name of a second eager process, on the CPU. The ratio of both eager processes shows how much
equal processes differ."""
RESOLUTION_S = {Device.CPU: 1e-6, Device.CUDA: 0.25e-6}
"""Measured difference in seconds between equal kernels in two processes, at any duration."""


@dataclass(frozen=True)
class Round:
    """Times of one round, in which all arms run in one set of processes."""

    timed_arms: dict[str, TimedArm]
    counted: dict[str, list[float]]
    """Seconds per call of each block after the audit, by arm. Blocks of equal index are a pair."""
    wrong: str
    """Message if an output of the candidate was wrong in this round, else ""."""
    outside_cores: str
    """Message if a thread of the candidate could run on processors that the arms may not use, else
    ""."""
    clock_contradiction: str
    """Message if the wall clock contradicts the candidate's claims, else ""."""
    busy: float
    """Share of the processors that other processes used during the round."""
    slowed: int = 0
    """Number of repeats that are used although the GPU throttled."""

    @property
    def charged(self) -> float:
        """Smallest share, over all blocks, that the audit added to the candidate's claimed time.

        It is 0 without a candidate.
        """
        if not self.counted.get(CANDIDATE):
            return 0.0
        claims = [max(claim, LEAST_S) for claim in self.timed_arms[CANDIDATE].claims]
        return min(c / claim for c, claim in zip(self.counted[CANDIDATE], claims, strict=True)) - 1


@dataclass
class Rounds:
    """Rounds of one timing so far, and the evidence of a wrong output or clock of the candidate."""

    device: Device
    baseline_times: dict[str, list[float]] = field(default_factory=dict)
    """Seconds per call of each baseline in each of its rounds so far, earlier timings included."""
    valid: list[Round] = field(default_factory=list)
    """Rounds whose times enter the result."""
    wrong: str = ""
    contradiction: str = ""
    _contradicted_in_a_row: int = 0
    """Number of latest rounds in a row in which the wall clock contradicted the candidate."""
    _doubtful_in_a_row: int = 0
    """Number of latest rounds in a row with a contradiction, or with so much time added to the
    candidate's claims that faster or slower may change."""
    process_to_replace: str = ""
    """Name of a baseline that was delayed twice, so that its process must be replaced; else ""."""
    _retries: int = 0
    """Number of rounds that were discarded because a baseline was delayed."""
    _delay_note: str = ""
    """Note on a delayed baseline in a valid round; "" if there was none."""

    @property
    def refused(self) -> bool:
        return bool(self.wrong or self.contradiction)

    @property
    def busy(self) -> float:
        """Return the largest share of the processors that other processes used in a valid round."""
        return max((taken.busy for taken in self.valid), default=0.0)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes on a busy machine, throttling and delays, to show with the figures."""
        slowed = sum(taken.slowed for taken in self.valid)
        busy = f"machine busy: {self.busy:.0%} used by other processes"
        notes = [busy] * (self.busy > BUSY_SHARE)
        notes += [f"the GPU throttled in {slowed} repeats that count"] * (slowed > 0)
        return (*notes, *[self._delay_note] * bool(self._delay_note))

    def add(self, taken: Round) -> bool:
        """Add a round; return True if it is valid, so that its times are used.

        It is not valid if time was added to the candidate's claims and further rounds must confirm
        that, or if a baseline was delayed and may be timed again.
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
        """Return the delayed baseline and its time over its usual time; ("", 1.0) if none was
        delayed.

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
    """Return by name each baseline's time over the candidate's; above 1 the candidate is faster.

    If `alone` (no candidate), return eager's time over each other baseline's. Baselines that were
    not timed in every round have no ratio. `twin_ratios` are the log ratios of `twins` so far.
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
    """Return the time of `baseline` over the time of `arm`, with its interval; both are in every
    round.

    `twin_ratios` are the log ratios of `twins` so far.
    """
    logs = [
        log_ratios(levels(taken, baseline, device), levels(taken, arm, device)) for taken in rounds
    ]
    resolution = RESOLUTION_S[device] / min(rounds[0].counted[arm])
    if effort is Effort.RECORD and len(rounds) >= LOOKS.rounds[0]:
        return over_rounds(logs, LOOKS.per_look)
    if effort is Effort.RECORD:
        prior = math.hypot(BETWEEN_PROCESSES[device], resolution)
        medians = [median(pairs) for pairs in logs]
        if device is Device.CUDA and max(medians) - min(medians) > AGREEING:
            prior = max(prior, SCATTERED)
        return over_few_rounds(logs, LOOKS.per_look, prior, PRIOR_WEIGHT)
    confidence = QUICK_CONFIDENCE[device]
    if device is Device.CPU:
        between, df = pooled(twin_ratios, BETWEEN_PROCESSES[device], PRIOR_WEIGHT)
        return over_groups(logs[0], confidence, between + resolution, df)
    return over_rounds(logs, confidence, math.hypot(BETWEEN_PROCESSES[device], resolution))


def twins(taken: Round, device: Device) -> list[float]:
    """Return [log ratio of two eager processes in this round]; [] if only one was timed."""
    if not (taken.counted.get(EAGER) and taken.counted.get(TWIN)):
        return []
    return [median(log_ratios(levels(taken, EAGER, device), levels(taken, TWIN, device)))]


def levels(taken: Round, name: str, device: Device) -> list[float]:
    """Return the seconds per call of those blocks of an arm that enter a ratio.

    On a GPU these are all blocks; on the CPU the quietest block of each stretch of the round.
    """
    blocks = taken.counted[name]
    return quietest(blocks, GROUPS) if device is Device.CPU else blocks


def is_decided(
    rounds: Sequence[Round], ratios: Mapping[str, Ratio], device: Device, *, alone: bool
) -> bool:
    """Return True if a record timing may stop after these rounds.

    `ratios` are those of the baselines over the candidate, or without a candidate (`alone`) those
    of eager over the other baselines.
    """
    least = CLEAR_ROUNDS if device is Device.CUDA else LOOKS.rounds[0]
    if len(rounds) >= least:
        if alone and device is Device.CUDA and _are_settled(rounds, ratios, device):
            return True
        if not alone and is_hopeless(rounds, ratios, device):
            return True
        if not alone and is_clear(rounds, ratios, device):
            return True
    return may_stop(len(rounds), ratios.values())


def _are_settled(rounds: Sequence[Round], over_eager: Mapping[str, Ratio], device: Device) -> bool:
    """Return True if each rung clearly beats eager, or surely gains less than `POSSIBLE_GAIN`.

    A timing that stops because nothing gains claims no gain, so it needs no share of alpha.
    """
    return all(
        _agree(_medians(rounds, EAGER, name, device))
        if ratio.low > 1 + CLEAR
        else ratio.high < 1 + POSSIBLE_GAIN and ratio.standing is not Standing.FASTER
        for name, ratio in over_eager.items()
    )


def may_stop(rounds: int, ratios: Iterable[Ratio]) -> bool:
    """Return True if a record timing may stop after this number of rounds.

    It may stop only at a planned look, if all ratios are decided or it is the last look.
    """
    if rounds not in LOOKS.rounds:
        return False
    return rounds == LOOKS.rounds[-1] or all(
        ratio.standing is not Standing.INCONCLUSIVE for ratio in ratios
    )


def is_clear(
    rounds: Sequence[Round], ratios: Mapping[str, Ratio], device: Device, arm: str = CANDIDATE
) -> bool:
    """Return True if so few rounds show beyond doubt that the candidate beats every baseline.

    `ratios` are those of the baselines over the candidate. Only on a GPU, where the scatter between
    processes is known. Noise that makes equal modules differ by `CLEAR` would not repeat within
    `AGREEING`, nor any larger noise within `AGREEING_SHARE` of itself, so this early end needs no
    share of alpha.
    """
    if device is not Device.CUDA or len(rounds) < CLEAR_ROUNDS or not ratios:
        return False
    return all(
        ratio.low > 1 + CLEAR and _agree(_medians(rounds, name, arm, device))
        for name, ratio in ratios.items()
    )


def _medians(rounds: Sequence[Round], baseline: str, arm: str, device: Device) -> list[float]:
    """Return the median log ratio of each round."""
    return [
        median(log_ratios(levels(taken, baseline, device), levels(taken, arm, device)))
        for taken in rounds
    ]


def _agree(medians: Sequence[float]) -> bool:
    """Return True if the log ratios of the rounds differ by little, for their size."""
    return max(medians) - min(medians) <= max(AGREEING, AGREEING_SHARE * min(medians))


def is_hopeless(rounds: Sequence[Round], baselines: Iterable[str], device: Device) -> bool:
    """Return True if one baseline was clearly faster than the candidate in every round.

    A timing that stops for this reason claims no gain, so it needs no share of alpha.
    """
    return any(max(_medians(rounds, name, CANDIDATE, device)) < -HOPELESS for name in baselines)


def hopeless_rungs(
    taken: Round,
    baselines: Iterable[str],
    device: Device,
    times: Mapping[str, Sequence[float]],
    twin_ratios: Sequence[float] = (),
) -> tuple[str, ...]:
    """Return the rungs that later rounds need not time, because they cannot be the best one or do
    not decide.

    Eager and torch.compile stay, since scores name them. Another rung is hopeless if the fastest is
    faster by `HOPELESS_RUNG` with the confidence of a quick timing. It must also have been slower
    by as much in every timing so far, at least two (`times`, seconds by rung). So a process that
    was delayed once cannot remove the best rung. If the candidate beats the fastest rung by
    `CLEAR`, the fastest alone decides: a rung leaves that was never as fast as it usually is, in
    two timings or more. One fast round of a rung that is usually slower removes no other. A rung
    that is far slower (`FAR`) leaves after one timing.
    """
    timed = {n: median(levels(taken, n, device)) for n in baselines if taken.counted.get(n)}
    if not timed:
        return ()
    best = min(timed, key=timed.__getitem__)
    others = (name for name in timed if name not in (EAGER, COMPILE, best))
    limit = 1 + HOPELESS_RUNG
    is_long = device is Device.CUDA and timed[best] >= LONG_CALL_S
    least = {name: 1 if is_long and timed[name] > FAR * timed[best] else 2 for name in timed}
    known = [name for name in others if len(times.get(name, ())) >= least[name]]
    if device is Device.CUDA and taken.counted.get(CANDIDATE):
        over_best = ratio([taken], best, CANDIDATE, Effort.QUICK, device, twin_ratios)
        usual = median((timed[best], *times.get(best, ())))
        if over_best.low > 1 + CLEAR:
            return tuple(name for name in known if min(times[name]) > usual)
    return tuple(
        name
        for name in known
        if min(times[name]) > limit * timed[best]
        and ratio([taken], name, best, Effort.QUICK, device, twin_ratios).low > limit
    )


def arm_of(name: str, rounds: Sequence[Round], failed: str, device: Device) -> Arm:
    """Return an arm's figures over all rounds; `failed` is why it did not finish, or ""."""
    valid = [taken for taken in rounds if taken.counted.get(name)]
    if not valid:
        return Arm(name, float("nan"), (), failed=failed or "was not reached")
    typical = [level for taken in valid for level in levels(taken, name, device)]
    samples = tuple(block for taken in valid for block in taken.counted[name])
    blocks = tuple(len(taken.counted[name]) for taken in valid)
    claims = (block.claim for taken in valid for block in taken.timed_arms[name].blocks)
    charged = median(max(0.0, c - claim) for c, claim in zip(samples, claims, strict=True))
    rows = [row for taken in valid if (row := taken.timed_arms[name].in_a_row_s) is not None]
    return Arm(
        name,
        median(typical),
        samples,
        valid[0].timed_arms[name].opened_s,
        failed,
        blocks,
        charged,
        min(rows, default=None),
    )
