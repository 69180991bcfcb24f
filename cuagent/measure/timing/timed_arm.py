"""One arm while it is timed: its session, its blocks under two clocks, and what may be counted.

A block counts as what its worker claims, but not as less than the referee's wall clock leaves once
the overhead of the trusted arms is taken off. So work hidden from the worker's own clock pays
nothing beyond the noise of the wall clock, and nobody needs to be accused.

What a call takes more by itself than among others, beyond what eager does, is added: a worker that
looks ahead and does the work of a block at once saves what no user would.

Invariant: mean claims, never medians: a worker that puts one call's work into the next must gain
nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from statistics import median

from cuagent.measure.statistics import median_interval, quantile, quietest
from cuagent.task import Device
from cuagent.worker import Session
from cuagent.worker.arms import CANDIDATE, EAGER

GROUPS = 5
"""Stretches of a round on the CPU, each represented by its quietest blocks."""
LEAST_S = 1e-7
"""No call takes less, whatever it claims."""
AUDIT_CONFIDENCE = 0.99
ALONE_CONFIDENCE = 0.8
"""That single calls claim more than calls of a block, on a CPU: there walls scatter ten times as
much as claims, and one cheat in thirty was believed by walls alone."""
COLD_S = 10e-6
"""What an honest candidate's single call may claim more than one of a block, and eager's does not:
whose code has left the caches differs from arm to arm (up to 9 us for loaded kernels, measured)."""
FLUSH_S = 5e-6
"""By how much overwriting the L2 may take one process longer than another, within a wall clock: it
takes 60 us, and what memory a process was given decides on some percent of it."""
AUDIT_SHARE = 0.25
AUDIT_S = {Device.CPU: 20e-6, Device.CUDA: 30e-6}
"""What a call may cost beyond its claim more than eager's does before anybody speaks of a lie."""


@dataclass(frozen=True)
class Clocked:
    """One block, in seconds per call."""

    claim: float
    """Mean of the worker's own clock."""
    wall: float
    """By the referee: message, flush and copying the output included."""

    @property
    def beyond(self) -> float:
        return self.wall - self.claim


@dataclass
class TimedArm:
    """One arm: its session and what was clocked."""

    name: str
    session: Session
    opened_s: float
    """Opening and first call, in which torch.compile compiles."""
    blocks: list[Clocked] = field(default_factory=list)
    alone: list[Clocked] = field(default_factory=list)
    """One call by itself beside each block; empty where blocks are of one call."""
    memory: int | None = None
    """Bytes of the GPU that its process took, context included."""

    @property
    def claims(self) -> list[float]:
        return [block.claim for block in self.blocks]


def trusted(timed_arms: Mapping[str, TimedArm]) -> list[TimedArm]:
    """The lanes that run the reference."""
    return [
        timed_arm
        for name, timed_arm in timed_arms.items()
        if name != CANDIDATE and timed_arm.blocks
    ]


def counted(timed_arms: Mapping[str, TimedArm], device: Device) -> dict[str, list[float]]:
    """Seconds per call of each block of each arm, as they enter the statistics."""
    trust = {timed_arm.name for timed_arm in trusted(timed_arms)}
    together = _audited(
        {name: timed_arm.blocks for name, timed_arm in timed_arms.items()}, trust, device
    )
    alone = _audited(
        {name: timed_arm.alone for name, timed_arm in timed_arms.items()}, trust, device
    )
    saved = _saved(timed_arms, alone, together, device)
    return {
        name: [call + saved for call in calls] if name == CANDIDATE else calls
        for name, calls in together.items()
    }


def _audited(
    blocks: Mapping[str, Sequence[Clocked]], trust: Set[str], device: Device
) -> dict[str, list[float]]:
    """Claims, and what the wall clock adds to them."""
    if device is Device.CPU:
        # Only the quietest blocks will be used, so no more may be taken off than what is in them:
        # on a busy machine the usual overhead is many times as much, and would hide work.
        quiet = [quietest([b.beyond for b in blocks[name]], GROUPS) for name in trust]
        usual = median(itertools.chain(*quiet)) if any(quiet) else 0.0
        return {
            name: [max(block.claim, block.wall - usual, LEAST_S) for block in taken]
            for name, taken in blocks.items()
        }
    dearest = _dearest(blocks, trust)
    return {
        name: _with_excess(taken, [] if name in trust or dearest is None else blocks[dearest])
        for name, taken in blocks.items()
    }


def _dearest(blocks: Mapping[str, Sequence[Clocked]], trust: Set[str]) -> str | None:
    """The trusted arm whose calls cost most beyond their claims: an honest one's may cost that.

    Arms differ there: a compiled softmax of 21 us was charged 6.5 us when eager's was the measure.
    """
    held = [name for name in trust if blocks[name]]
    return max(held, key=lambda name: median(b.beyond for b in blocks[name]), default=None)


def _with_excess(blocks: Sequence[Clocked], usual: Sequence[Clocked]) -> list[float]:
    """Claims, and what they surely cost beyond them more than the `usual` of the same repeats do.

    Over all blocks together: processes that take turns on a GPU jitter by 5 to 10 us a call, which
    block by block would drown a kernel of 30 us.
    """
    excess = _excess(blocks, usual) if blocks and usual else 0.0
    return [max(block.claim + max(0.0, excess), LEAST_S) for block in blocks]


def _excess(blocks: Sequence[Clocked], usual: Sequence[Clocked]) -> float:
    """Lower limit of what `blocks` cost beyond their claims more than the `usual`, in seconds."""
    more = [a.beyond - b.beyond for a, b in zip(blocks, usual, strict=True)]
    return median_interval(more, AUDIT_CONFIDENCE)[0]


def _saved(
    timed_arms: Mapping[str, TimedArm],
    alone: Mapping[str, Sequence[float]],
    together: Mapping[str, Sequence[float]],
    device: Device,
) -> float:
    """Seconds by which a candidate's call surely takes longer by itself, and eager's does not."""
    arms = [
        timed_arms[name]
        for name in (CANDIDATE, EAGER)
        if name in timed_arms and timed_arms[name].alone
    ]
    if len(arms) < 2:
        return 0.0
    pairs = len(arms[0].alone)  # a round that was broken off has a block more
    walls = [times[timed_arm.name][:pairs] for timed_arm in arms for times in (alone, together)]
    claims = [[b.claim for b in taken[:pairs]] for a in arms for taken in (a.alone, a.blocks)]
    if device is Device.CUDA:
        surely = _more(walls, AUDIT_CONFIDENCE) - FLUSH_S
        return max(0.0, surely, _more(claims, AUDIT_CONFIDENCE))
    # Quiet stretches tell most on a busy machine; but they are few, and one bad one hides it all.
    quiet = [quietest(times, GROUPS) for times in walls]
    least = max(_more(walls, AUDIT_CONFIDENCE), _more(quiet, AUDIT_CONFIDENCE))
    return max(0.0, least, _more(claims, ALONE_CONFIDENCE) - COLD_S)


def _more(arms: Sequence[Sequence[float]], confidence: float) -> float:
    """Lower limit of the median of (a - b) - (c - d), in seconds."""
    more = [(a - b) - (c - d) for a, b, c, d in zip(*arms, strict=True)]
    return median_interval(more, confidence)[0]


def hidden(timed_arms: Mapping[str, TimedArm], device: Device) -> str:
    """What the referee's clock says against the candidate's, or nothing.

    For gross cases only, since what is hidden is counted anyway: the lower 99 % limit of what its
    calls cost beyond their claims more than a trusted arm's has to exceed the allowance and
    whatever the trusted arms show among their own blocks.
    """
    candidate, trust = timed_arms.get(CANDIDATE), trusted(timed_arms)
    blocks = {timed_arm.name: timed_arm.blocks for timed_arm in trust}
    usual = _dearest(blocks, blocks.keys())
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
    """By how much the overhead of a trusted arm varies: its upper limit over its median."""
    beyond = [block.beyond for block in timed_arm.blocks]
    return quantile(beyond, 0.95) - median(beyond)
