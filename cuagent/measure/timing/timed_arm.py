"""Block times of one timed arm on two clocks, and the time per call that is derived from them.

A block counts as the worker claims, but never as less than the referee's wall clock minus the
overhead of the trusted arms. So work hidden from the worker's clock gains at most the noise of the
wall clock, and no candidate needs to be accused.

A single call may take longer than a call within a block. The part of this difference that exceeds
eager's is added to the time: a worker that does the work of a whole block in one call would save
time that no user saves.

Invariant: claims are averaged, never reduced to a median. A worker that shifts one call's work into
the next must gain nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from statistics import median

from cuagent.arms import CANDIDATE, EAGER
from cuagent.measure.statistics import median_interval, quantile, quietest
from cuagent.task import Device
from cuagent.worker import Session

GROUPS = 5
"""Number of consecutive stretches into which a round on the CPU is divided. Only the quietest block
of each stretch is used."""
LEAST_S = 1e-7
"""Shortest time in seconds that a call may count as."""
AUDIT_CONFIDENCE = 0.99
"""Confidence of the lower limit on the time by which the wall clock exceeds a claim."""
SINGLE_CALL_CONFIDENCE = 0.8
"""Confidence, on a CPU, of the lower limit on the time by which a single call's claim exceeds that
of a call in a block. Wall times scatter ten times more there: with them alone, one cheat in thirty
passed."""
COLD_S = 10e-6
"""Seconds by which an honest candidate's single call may exceed a call in a block, beyond eager's
difference. Arms differ in the time to reload code that has left the caches (up to 9 us for loaded
kernels, measured)."""
FLUSH_S = 5e-6
"""Seconds by which two processes may differ in the time to overwrite the L2 cache, which is part of
a wall time. Overwriting takes 60 us, and varies by some percent with the memory of the process."""
AUDIT_SHARE = 0.25
"""A wall time contradicts a claim only if it is longer by at least this share of the claim."""
AUDIT_S = {Device.CPU: 20e-6, Device.CUDA: 30e-6}
"""A wall time contradicts a claim only if it is longer by at least these seconds per call. The
usual overhead, that of a trusted arm, is subtracted before."""


@dataclass(frozen=True)
class BlockTime:
    """Mean time of a block's calls on two clocks, in seconds per call."""

    claim: float
    """Time on the worker's own clock."""
    wall: float
    """Wall time of the referee; it includes the message, the cache flush and the copies of
    outputs."""

    @property
    def beyond(self) -> float:
        """Return the overhead in seconds per call: wall time minus claim."""
        return self.wall - self.claim


@dataclass
class TimedArm:
    """One arm of a timing: its session and the times of its blocks."""

    name: str
    session: Session
    opened_s: float
    """Seconds from the start of the process to the end of the first call, in which torch.compile
    compiles."""
    blocks: list[BlockTime] = field(default_factory=list)
    single_calls: list[BlockTime] = field(default_factory=list)
    """Time of one single call after each block; empty if blocks have one call."""
    wakes: list[BlockTime] = field(default_factory=list)
    """Time of the call before each block, which does not count (`Repeats.wakes`)."""
    calls: int = 1
    """Number of calls in a block."""
    was_timed: bool = False
    """True if the process was in a timing."""
    memory: int | None = None
    """GPU memory of the process in bytes, CUDA context included."""
    in_a_row_s: float | None = None
    """Seconds per call of calls without a pause between them (`in_a_row.py`); None if not
    timed."""

    @property
    def claims(self) -> list[float]:
        return [block.claim for block in self.blocks]


def trusted(timed_arms: Mapping[str, TimedArm]) -> list[TimedArm]:
    """Return the arms that run the reference and have been timed."""
    return [
        timed_arm
        for name, timed_arm in timed_arms.items()
        if name != CANDIDATE and timed_arm.blocks
    ]


def counted(timed_arms: Mapping[str, TimedArm], device: Device) -> dict[str, list[float]]:
    """Return by arm the seconds per call of each block after the audit, for the statistics."""
    trust = {timed_arm.name for timed_arm in trusted(timed_arms)}
    block_times = _audited(
        {name: timed_arm.blocks for name, timed_arm in timed_arms.items()}, trust, device
    )
    single_calls = _audited(
        {name: timed_arm.single_calls for name, timed_arm in timed_arms.items()}, trust, device
    )
    saved = _batching_gain(timed_arms, single_calls, block_times, device)
    if any(timed_arm.wakes for timed_arm in timed_arms.values()):
        wakes = _audited(
            {name: timed_arm.wakes for name, timed_arm in timed_arms.items()}, trust, device
        )
        candidate = timed_arms.get(CANDIDATE)
        saved += _moved(wakes, block_times, trust) / (candidate.calls if candidate else 1)
    return {
        name: [call + saved for call in calls] if name == CANDIDATE else calls
        for name, calls in block_times.items()
    }


def _audited(
    blocks: Mapping[str, Sequence[BlockTime]], trust: Set[str], device: Device
) -> dict[str, list[float]]:
    """Return by arm the claimed seconds of each block, plus the excess of the wall clock.

    `trust` are the names of the arms that run the reference.
    """
    if device is Device.CPU:
        # Only the quietest blocks are used, so subtract only the overhead of the quietest blocks.
        # On a busy machine the median overhead is many times larger and would hide work.
        quiet = [quietest([b.beyond for b in blocks[name]], GROUPS) for name in trust]
        usual = median(itertools.chain(*quiet)) if any(quiet) else 0.0
        return {
            name: [max(block.claim, block.wall - usual, LEAST_S) for block in taken]
            for name, taken in blocks.items()
        }
    slowest = _slowest_trusted(blocks, trust)
    return {
        name: _with_excess(taken, [] if name in trust or slowest is None else blocks[slowest])
        for name, taken in blocks.items()
    }


def _slowest_trusted(blocks: Mapping[str, Sequence[BlockTime]], trust: Set[str]) -> str | None:
    """Return the name of the trusted arm with the largest median overhead; None without blocks.

    A candidate is charged only for overhead beyond this one, because honest arms differ: with
    eager's overhead as the limit, a compiled softmax of 21 us was charged 6.5 us.
    """
    held = [name for name in trust if blocks[name]]
    return max(held, key=lambda name: median(b.beyond for b in blocks[name]), default=None)


def _with_excess(blocks: Sequence[BlockTime], usual: Sequence[BlockTime]) -> list[float]:
    """Return the claims of `blocks` in seconds, each plus the overhead certainly beyond that of
    `usual`.

    `usual` are a trusted arm's blocks in the same repeats; if it is empty, nothing is added. The
    same excess is added to all blocks. Processes that alternate on a GPU jitter by 5 to 10 us a
    call, which would drown a kernel of 30 us if each block were charged alone.
    """
    excess = _excess(blocks, usual) if blocks and usual else 0.0
    return [max(block.claim + max(0.0, excess), LEAST_S) for block in blocks]


def _excess(blocks: Sequence[BlockTime], usual: Sequence[BlockTime]) -> float:
    """Return the lower limit, in seconds, of the overhead of `blocks` minus that of `usual`."""
    differences = [a.beyond - b.beyond for a, b in zip(blocks, usual, strict=True)]
    return median_interval(differences, AUDIT_CONFIDENCE)[0]


def _batching_gain(
    timed_arms: Mapping[str, TimedArm],
    single_calls: Mapping[str, Sequence[float]],
    block_times: Mapping[str, Sequence[float]],
    device: Device,
) -> float:
    """Return the seconds by which the candidate's single calls are certainly slower than its calls
    in a block.

    A trusted arm's own difference is subtracted: eager's on a CPU, the largest one on a GPU.
    `single_calls` and `block_times` are the times after the audit.
    """
    claimed = {name: [call.claim for call in arm.single_calls] for name, arm in timed_arms.items()}
    in_blocks = {name: arm.claims for name, arm in timed_arms.items()}
    walls, claims = (single_calls, block_times), (claimed, in_blocks)
    compared = [name for name, arm in timed_arms.items() if arm.single_calls]
    if device is Device.CPU:
        compared = [name for name in compared if name in (CANDIDATE, EAGER)]
    if CANDIDATE not in compared or len(compared) < 2:
        return 0.0
    names = [name for name in compared if name != CANDIDATE]
    if device is Device.CUDA:
        by_walls = _lower_limit(_with_usual(*walls, names), AUDIT_CONFIDENCE) - FLUSH_S
        return max(0.0, by_walls, _lower_limit(_with_usual(*claims, names), AUDIT_CONFIDENCE))
    pairs = [_paired(*times, (CANDIDATE, EAGER)) for times in (walls, claims)]
    # Quiet stretches are the most precise on a busy machine; but they are few, and one disturbed
    # stretch hides the difference.
    quiet = [quietest(times, GROUPS) for times in pairs[0]]
    least = max(_lower_limit(pairs[0], AUDIT_CONFIDENCE), _lower_limit(quiet, AUDIT_CONFIDENCE))
    return max(0.0, least, _lower_limit(pairs[1], SINGLE_CALL_CONFIDENCE) - COLD_S)


def _moved(
    wakes: Mapping[str, Sequence[float]],
    block_times: Mapping[str, Sequence[float]],
    trust: Set[str],
) -> float:
    """Return the seconds of work that the candidate certainly moved into the calls before its
    blocks (`wakes`), which do not count.

    These calls are slower, because the process was stopped: by a factor that is at most that of a
    trusted arm.
    """
    if not wakes.get(CANDIDATE) or not block_times.get(CANDIDATE):
        return 0.0
    slower = [
        median(wakes[name]) / median(block_times[name])
        for name in trust
        if wakes.get(name) and block_times[name]
    ]
    usual = max(1.0, *slower) if slower else 1.0
    pairs = zip(wakes[CANDIDATE], block_times[CANDIDATE], strict=False)
    differences = [wake - usual * call for wake, call in pairs]
    return max(0.0, median_interval(differences, AUDIT_CONFIDENCE)[0] - COLD_S)


def _paired(
    single: Mapping[str, Sequence[float]],
    in_block: Mapping[str, Sequence[float]],
    names: Sequence[str],
) -> list[Sequence[float]]:
    """Return [single calls, calls in blocks] of one arm after the other, with equal lengths.

    An interrupted round has one block more than single calls.
    """
    pairs = min(len(single[name]) for name in names)
    return [times[name][:pairs] for name in names for times in (single, in_block)]


def _with_usual(
    single: Mapping[str, Sequence[float]],
    in_block: Mapping[str, Sequence[float]],
    names: Sequence[str],
) -> list[Sequence[float]]:
    """Return the times of the candidate and of the trusted arm whose single calls are slowest
    compared with its blocks, as `_paired`.

    An arm that waits for the host takes longer in a block, because the wait before the block hides
    the launches of the first call only. That says nothing about the candidate, so a difference
    below zero counts as none.
    """
    found = [_paired(single, in_block, (CANDIDATE, name)) for name in names]

    def difference(times: list[Sequence[float]]) -> float:
        return median(one - other for one, other in zip(times[2], times[3], strict=True))

    largest = max(found, key=difference)
    return [*largest[:2], largest[2], largest[2]] if difference(largest) < 0 else largest


def _lower_limit(arms: Sequence[Sequence[float]], confidence: float) -> float:
    """Return the lower confidence limit of the median of (a - b) - (c - d) in seconds.

    `arms` is [a, b, c, d], the times of paired blocks.
    """
    differences = [(a - b) - (c - d) for a, b, c, d in zip(*arms, strict=True)]
    return median_interval(differences, confidence)[0]


def contradiction_of(timed_arms: Mapping[str, TimedArm], device: Device) -> str:
    """Return a message if the wall clock contradicts the candidate's claims, else "".

    Only gross cases count, because hidden work is added to the time anyway. The lower 99 % limit of
    the candidate's overhead minus a trusted arm's must exceed the allowance and the variation of
    overhead among the trusted arms' own blocks.
    """
    candidate, trust = timed_arms.get(CANDIDATE), trusted(timed_arms)
    blocks = {timed_arm.name: timed_arm.blocks for timed_arm in trust}
    usual = _slowest_trusted(blocks, blocks.keys())
    if candidate is None or not candidate.blocks or usual is None:
        return ""
    eager = timed_arms[EAGER] if EAGER in blocks else timed_arms[usual]
    claimed = median(candidate.claims)
    excess = _excess(candidate.blocks, timed_arms[usual].blocks)
    allowed = max(
        AUDIT_S[device],
        AUDIT_SHARE * max(claimed, median(eager.claims) / 5),
        *map(_jitter, trust),
    )
    if excess <= allowed:
        return ""
    return (
        f"a call claims {claimed * 1e6:.1f} us and costs {excess * 1e6:.1f} us more by the wall "
        f"clock than {usual}'s beyond its own claim ({allowed * 1e6:.1f} us are allowed)"
    )


def _jitter(timed_arm: TimedArm) -> float:
    """Return the variation of a trusted arm's overhead in seconds: 95 % quantile minus median."""
    beyond = [block.beyond for block in timed_arm.blocks]
    return quantile(beyond, 0.95) - median(beyond)
