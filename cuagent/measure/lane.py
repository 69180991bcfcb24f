"""One arm while it is timed: its session, its blocks under two clocks, and what may be counted.

A block counts as what its worker claims, but not as less than the referee's wall clock leaves once
the overhead of the trusted arms is taken off. So work hidden from the worker's own clock pays
nothing beyond the noise of the wall clock, and nobody needs to be accused.

Invariant: mean claims, never medians: a worker that puts one call's work into the next must gain
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from cuagent.measure.statistics import median_interval, quantile
from cuagent.task import Device
from cuagent.worker import Session
from cuagent.worker.arms import CANDIDATE, EAGER

AUDIT_CONFIDENCE = 0.99
AUDIT_SHARE = 0.25
AUDIT_S = {Device.CPU: 20e-6, Device.CUDA: 30e-6}
"""What a call may cost beyond its claim more than eager's does before anybody speaks of a lie."""
SEEN_SHARE = 0.6
"""On inputs seen before, a call may not take less than this share of its first time."""
FEWEST_SEEN = 4
"""Blocks on inputs seen before that it takes to say so."""


@dataclass(frozen=True)
class Clocked:
    """One block, in seconds per call."""

    claim: float
    """Mean of the worker's own clock."""
    wall: float
    """By the referee: message, flush and copying the output included."""
    seen: bool = False
    """Whether this process had the inputs before."""

    @property
    def beyond(self) -> float:
        return self.wall - self.claim


@dataclass
class Lane:
    """One arm: its session and what was clocked."""

    name: str
    session: Session
    opened_s: float
    """Opening and first call, in which torch.compile compiles."""
    blocks: list[Clocked] = field(default_factory=list)
    memory: int | None = None
    """Bytes of the GPU that its process took, context included."""

    @property
    def claims(self) -> list[float]:
        return [block.claim for block in self.blocks]


def trusted(lanes: Mapping[str, Lane]) -> list[Lane]:
    """The lanes that run the reference."""
    return [lane for name, lane in lanes.items() if name != CANDIDATE and lane.blocks]


def counted(lanes: Mapping[str, Lane], device: Device) -> dict[str, list[float]]:
    """Seconds per call of each block of each arm, as they enter the statistics."""
    if device is Device.CPU:
        # Only the quietest blocks will be used, so the usual overhead is what is in them.
        beyond = [block.beyond for lane in trusted(lanes) for block in lane.blocks]
        usual = median(beyond) if beyond else 0.0
        return {
            name: [max(block.claim, block.wall - usual) for block in lane.blocks]
            for name, lane in lanes.items()
        }
    return {name: _with_excess(name, lanes) for name in lanes}


def _with_excess(name: str, lanes: Mapping[str, Lane]) -> list[float]:
    """Claims, and what the arm surely costs beyond them more than eager does.

    Over all blocks together: processes that take turns on a GPU jitter by 5 to 10 us a call, which
    block by block would drown a kernel of 30 us.
    """
    claims = lanes[name].claims
    if name == EAGER or EAGER not in lanes:
        return claims
    pairs = zip(lanes[name].blocks, lanes[EAGER].blocks, strict=True)
    more = [block.beyond - eager.beyond for block, eager in pairs]
    excess = median_interval(more, AUDIT_CONFIDENCE)[0] if more else 0.0
    return [claim + max(0.0, excess) for claim in claims]


def hidden(lanes: Mapping[str, Lane], device: Device) -> str:
    """What the referee's clock says against the candidate's, or nothing.

    For gross cases only, since what is hidden is counted anyway: the lower 99 % limit of what its
    calls cost beyond their claims more than eager's has to exceed the allowance and whatever the
    trusted arms show among their own blocks.
    """
    candidate, trust = lanes.get(CANDIDATE), trusted(lanes)
    if candidate is None or not candidate.blocks or not trust:
        return ""
    eager = lanes[EAGER] if EAGER in lanes and lanes[EAGER].blocks else trust[0]
    claimed, usual = median(candidate.claims), median(eager.claims)
    more = [c.beyond - e.beyond for c, e in zip(candidate.blocks, eager.blocks, strict=True)]
    excess, _ = median_interval(more, AUDIT_CONFIDENCE)
    allowed = max(AUDIT_S[device], AUDIT_SHARE * max(claimed, usual / 5), *map(_jitter, trust))
    if excess > allowed:
        return (
            f"a call claims {claimed * 1e6:.1f} us and costs {excess * 1e6:.1f} us more by the "
            f"wall clock than eager's beyond its own claim ({allowed * 1e6:.1f} us are allowed)"
        )
    return _remembered(candidate, eager, AUDIT_S[device])


def _jitter(lane: Lane) -> float:
    """By how much the overhead of a trusted arm varies: its upper limit over its median."""
    beyond = [block.beyond for block in lane.blocks]
    return quantile(beyond, 0.95) - median(beyond)


def _remembered(candidate: Lane, eager: Lane, least: float) -> str:
    """Whether calls on inputs seen before cost too little, and eager's do not."""
    first, again = _split(candidate.blocks)
    usual_first, usual_again = _split(eager.blocks)
    if len(again) < FEWEST_SEEN or not first or not usual_again or not usual_first:
        return ""
    slower = max(1.0, min(usual_first) / median(usual_again))
    if min(first) - median(again) > least and median(again) < SEEN_SHARE * min(first) / slower:
        return (
            f"a call takes {min(first) * 1e6:.1f} us on new inputs and "
            f"{median(again) * 1e6:.1f} us on inputs it has seen"
        )
    return ""


def _split(blocks: Sequence[Clocked]) -> tuple[list[float], list[float]]:
    return (
        [block.claim for block in blocks if not block.seen],
        [block.claim for block in blocks if block.seen],
    )
