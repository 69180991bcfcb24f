"""How an attempt is timed: arms interleaved in random order, under two clocks, on unseen inputs.

Each repeat gives every arm (the candidate and the baselines, each in a process of its own) one
block of calls on the same input sets, in an order drawn anew; a pair is two blocks of one repeat,
so drift hits both. The worker's own clock gives the fine number. The referee's wall clock around
the block audits it: what a call costs beyond its claim is equal for all arms by construction, so a
candidate with more of it has hidden work from its clock. Outputs of every block are compared with
the eager arm's on the same inputs. docs/TIMING.md has the formulas and the error model.

Not covered: whether outputs are right to the last digit (the verdict says that, before), clocks and
throttling of the device. Invariant: nothing that the candidate reports can make it faster than the
wall clock allows.
"""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.events import Emit, Phase, ignore
from cuagent.measure.agreement import disagreement
from cuagent.measure.ceilings import cache_bytes, describe
from cuagent.measure.statistics import BETWEEN, Looks, log_ratios, median_interval, over_rounds
from cuagent.measure.timing import Arm, Effort, Ratio, Standing, Timing
from cuagent.task import Device
from cuagent.verify.referee import Batch, Referee
from cuagent.worker import Session, SessionEnded
from cuagent.worker.arms import CANDIDATE, COMPILE, EAGER

if TYPE_CHECKING:
    from torch import Tensor

BASELINES = (EAGER, COMPILE)
BLOCK_S = 0.02
"""About how long the slowest arm's block takes."""
MOST_SLOTS, FEWEST_SLOTS = 24, 2
MEMORY = 1 << 30
"""Bytes of input and output sets at most, beyond the fewest."""
FEWEST_REPEATS, MOST_REPEATS = 5, 25
LOOKS = Looks((3, 5))
BUDGET_S = {Effort.QUICK: 1.5, Effort.RECORD: 30.0}
"""For the repeats of a quick timing, for all rounds of one of record; the fewest come anyway."""
FLUSH = 256 << 20
"""Bytes: overwrites the L2 of every GPU so far, and takes long enough to hide the launch's latency,
without which a kernel of 10 us measures as 12."""
CHEAP_S = 0.5
"""A baseline that opens within this gets a fresh process for every timing."""
COMPILE_S = 900.0
CALL_S = 60.0
REDRAW_SHARE = 0.3
"""Of the budget that drawing new inputs may take; else the same ones change places."""
AUDIT_CONFIDENCE = 0.99
AUDIT_SHARE = 0.25
AUDIT_S = {Device.CPU: 20e-6, Device.CUDA: 30e-6}
"""What a call may cost beyond its claim more than eager's does; two processes that take turns on a
GPU jitter by 5 to 10 us a call."""
RESOLUTION_S = {Device.CPU: 1e-6, Device.CUDA: 0.5e-6}
"""By how much equal kernels differ from process to process whatever their length (measured)."""
SEEN_SHARE = 0.6
"""On inputs seen before, a call may not take less than this share of its first time."""


def time_arms(
    referee: Referee,
    attempt: Attempt,
    build: Build,
    baselines: Sequence[str] = BASELINES,
    effort: Effort = Effort.QUICK,
    emit: Emit = ignore,
) -> Timing:
    """Time an accepted attempt once; a `Timer` kept open spares later timings the compiling."""
    with Timer(referee, baselines, emit) as timer:
        return timer.time(attempt, build, effort)


@dataclass
class Lane:
    """One arm while it is timed: its session and what was clocked. Seconds per call."""

    name: str
    session: Session
    opened_s: float
    """Opening and first call, in which torch.compile compiles."""
    claims: list[float] = field(default_factory=list)
    """Per block, the median claim."""
    beyond: list[float] = field(default_factory=list)
    """Per block, wall time over the number of calls, less the mean claim."""
    first: list[float] = field(default_factory=list)
    """Median claims of blocks on inputs that this process had not seen."""
    again: list[float] = field(default_factory=list)


class Timer:
    """Keeps the baselines' processes warm from one timing to the next. A context manager."""

    def __init__(
        self, referee: Referee, baselines: Sequence[str] = BASELINES, emit: Emit = ignore
    ) -> None:
        self.referee = referee
        self.baselines = tuple(baselines)
        self.emit = emit
        self._random = random.SystemRandom()
        self._warm: dict[str, Lane] = {}
        self._failed: dict[str, str] = {}
        self._batch: Batch | None = None
        self._draw_s = 0.0

    def time(self, attempt: Attempt, build: Build, effort: Effort = Effort.QUICK) -> Timing:
        """Time one attempt that was accepted. A candidate's fault is told in its `Arm.failed`."""
        begun = time.perf_counter()
        rounds: list[Mapping[str, Lane]] = []
        failed, contradiction = "", ""
        try:
            for _ in range(1 if effort is Effort.QUICK else LOOKS.rounds[-1]):
                self._renew(effort, time.perf_counter() - begun)
                lanes, contradiction = self._round(attempt, build, effort)
                rounds.append(lanes)
                spent = time.perf_counter() - begun
                if contradiction or self._enough(rounds, effort, spent):
                    break
        except SessionEnded as ended:
            failed = str(ended)
        ratios = {} if failed or contradiction else self._ratios(rounds, effort)
        return Timing(
            arms=tuple(self._arm(name, rounds, failed) for name in (CANDIDATE, *self.baselines)),
            ratios=ratios,
            effort=effort,
            device=describe(self.referee.task.device),
            seconds=time.perf_counter() - begun,
            contradiction=contradiction,
            versions=_versions(),
        )

    def close(self) -> None:
        """End the baselines' processes and give the memory back. Idempotent."""
        for lane in self._warm.values():
            lane.session.close()
        self._warm.clear()
        if self._batch is not None:
            self.referee.discard(self._batch)
            self._batch = None

    def __enter__(self) -> Timer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one round: a fresh process for the candidate, and the repeats

    def _round(self, attempt: Attempt, build: Build, effort: Effort) -> tuple[dict[str, Lane], str]:
        """The arms as they were clocked, and the contradiction if there was one."""
        batch = self._fresh_batch()
        base = self._baseline_lanes(batch)
        session = self.referee.candidate(attempt, build)
        try:
            lane = self._warmed(CANDIDATE, session, batch, time.perf_counter())
            lanes = {CANDIDATE: lane, **base}
            contradiction = self._repeats(lanes, batch, effort)
        finally:
            session.close()
        return lanes, contradiction or audit(lanes, self.referee.task.device)

    def _repeats(self, lanes: dict[str, Lane], batch: Batch, effort: Effort) -> str:
        # The last slot was for warming up; what is timed starts on inputs that no arm has seen.
        calls, repeats, redraw = self._plan(lanes, effort, batch.inputs.count - 1)
        slots = list(range(batch.inputs.count - 1))
        masters = None if redraw else [_clones(batch.inputs.tensors(slot)) for slot in slots]
        unseen = slots
        for _ in range(repeats):
            seen = len(unseen) < calls and masters is not None
            if len(unseen) < calls and masters is None:
                self.referee.refill(batch)
                unseen = slots
            elif masters is not None and seen:
                # Whoever remembers answers by address now gives wrong ones.
                self._random.shuffle(masters)
                for slot, master in zip(slots, masters, strict=True):
                    batch.inputs.write(master, slot)
            chosen = self._random.sample(slots, calls) if seen else unseen[:calls]
            unseen = unseen[calls:]
            kept: dict[str, list[list[Tensor]]] = {}
            for name in self._random.sample(list(lanes), len(lanes)):
                self._clock(lanes[name], batch, chosen, seen)
                if name in (CANDIDATE, EAGER):
                    kept[name] = [_clones(batch.outputs.tensors(slot)) for slot in chosen]
            if EAGER in kept:
                wrong = disagreement(kept[CANDIDATE], kept[EAGER], self.referee.task.precision)
                if wrong:
                    return f"while it was timed, {wrong}"
        return ""

    def _plan(self, lanes: Mapping[str, Lane], effort: Effort, most: int) -> tuple[int, int, bool]:
        """Calls per block, repeats, and whether inputs can be drawn anew for each repeat."""
        each = [median(lane.claims) + median(lane.beyond) for lane in lanes.values()]
        for lane in lanes.values():
            lane.claims.clear()
            lane.beyond.clear()
        calls = max(1, min(most, int(BLOCK_S / max(each))))
        budget = BUDGET_S[effort] / (1 if effort is Effort.QUICK else 2 * LOOKS.rounds[-1])
        cost = calls * sum(each)
        redraw = self._draw_s * FEWEST_REPEATS < budget * REDRAW_SHARE
        cost += self._draw_s * redraw
        return calls, max(FEWEST_REPEATS, min(MOST_REPEATS, int(budget / cost))), redraw

    def _clock(self, lane: Lane, batch: Batch, slots: Sequence[int], seen: bool) -> None:
        """One block of one arm."""
        batch.outputs.poison(0xFF)
        block = lane.session.block(
            batch.inputs,
            batch.outputs,
            [(slot, slot) for slot in slots],
            deadline_s=CALL_S * len(slots),
            flush=self._flush(),
        )
        claim = median(block.claimed_s)
        lane.claims.append(claim)
        lane.beyond.append((block.wall_s - sum(block.claimed_s)) / len(slots))
        (lane.again if seen else lane.first).append(claim)

    def _flush(self) -> int:
        """Bytes to overwrite before a call; the CPU goes from one input set to the next instead."""
        device = self.referee.task.device
        return max(FLUSH, 2 * cache_bytes(device)) if device is Device.CUDA else 0

    # -- arms and inputs

    def _fresh_batch(self) -> Batch:
        """The batch with contents drawn now, after the attempt was frozen."""
        begun = time.perf_counter()
        if self._batch is None:
            fitting = MEMORY // max(1, self.referee.bytes_per_call)
            self._batch = self.referee.batch(1 + max(FEWEST_SLOTS, min(MOST_SLOTS, fitting)))
        else:
            self.referee.refill(self._batch)
        self._draw_s = time.perf_counter() - begun
        return self._batch

    def _baseline_lanes(self, batch: Batch) -> dict[str, Lane]:
        """The baselines' lanes with nothing clocked yet, opened where they are not."""
        lanes = {}
        for name in self.baselines:
            if name in self._failed:
                continue
            try:
                if name not in self._warm:
                    self._warm[name] = self._open(name, batch)
                known = self._warm[name]
                lanes[name] = self._warmed(name, known.session, batch, opened_s=known.opened_s)
            except SessionEnded as ended:
                self._warm.pop(name, None)
                self._failed[name] = str(ended)
        return lanes

    def _open(self, name: str, batch: Batch) -> Lane:
        self.emit(Phase(f"timing: opening {name}"))
        begun = time.perf_counter()
        session = self.referee.reference(name, environment=_compiled_graphs())
        return self._warmed(name, session, batch, begun)

    def _warmed(
        self,
        name: str,
        session: Session,
        batch: Batch,
        begun: float | None = None,
        opened_s: float = 0.0,
    ) -> Lane:
        """A lane whose model has run; three calls tell about how long one takes."""
        slot = batch.inputs.count - 1
        lane = Lane(name, session, opened_s)
        if begun is not None:
            session.block(batch.inputs, batch.outputs, [(slot, slot)], deadline_s=COMPILE_S)
            lane.opened_s = time.perf_counter() - begun
        for _ in range(3):
            self._clock(lane, batch, [slot], seen=False)
        lane.first.clear()
        return lane

    def _renew(self, effort: Effort, spent: float) -> None:
        """Fresh processes for the baselines whose opening the budget allows.

        A process that is older than the candidate's is not its equal: on one machine an old eager
        was 1.5 times slower than a young one. So eager is as young as the candidate each time.
        """
        allowed = CHEAP_S
        if effort is Effort.RECORD and spent < BUDGET_S[effort] / 2:
            allowed = BUDGET_S[effort] / 6
        for name, lane in list(self._warm.items()):
            if lane.opened_s < allowed:
                lane.session.close()
                del self._warm[name]

    # -- results

    def _enough(self, rounds: Sequence[Mapping[str, Lane]], effort: Effort, spent: float) -> bool:
        if effort is Effort.QUICK or len(rounds) < LOOKS.rounds[0]:
            return effort is Effort.QUICK
        if len(rounds) not in LOOKS.rounds:
            return False
        decided = all(
            ratio.standing is not Standing.INCONCLUSIVE
            for ratio in self._ratios(rounds, effort).values()
        )
        return decided or spent > BUDGET_S[Effort.RECORD]

    def _ratios(self, rounds: Sequence[Mapping[str, Lane]], effort: Effort) -> dict[str, Ratio]:
        confidence = LOOKS.confidence if effort is Effort.QUICK else LOOKS.per_look
        resolution = RESOLUTION_S[self.referee.task.device]
        return {
            name: over_rounds(
                [log_ratios(lanes[name].claims, lanes[CANDIDATE].claims) for lanes in rounds],
                confidence,
                BETWEEN + resolution / median(rounds[0][CANDIDATE].claims),
            )
            for name in self.baselines
            if rounds and all(name in lanes for lanes in rounds)
        }

    def _arm(self, name: str, rounds: Sequence[Mapping[str, Lane]], failed: str) -> Arm:
        lanes = [lanes[name] for lanes in rounds if name in lanes]
        samples = tuple(claim for lane in lanes for claim in lane.claims)
        why = failed if name == CANDIDATE else self._failed.get(name, "")
        if not samples:
            return Arm(name, float("nan"), (), failed=why or "was not reached")
        return Arm(name, median(samples), samples, lanes[0].opened_s, why)


def audit(lanes: Mapping[str, Lane], device: Device) -> str:
    """What the referee's clock says against the candidate's, or nothing.

    Compared with eager, or with the first baseline where eager is not among them.
    """
    candidate = lanes[CANDIDATE]
    trusted = lanes.get(EAGER) or next((x for n, x in lanes.items() if n != CANDIDATE), None)
    if trusted is None or not candidate.claims:
        return ""
    claimed, usual = median(candidate.claims), median(trusted.claims)
    beyond = [c - t for c, t in zip(candidate.beyond, trusted.beyond, strict=True)]
    # The lower limit: other users of the machine lengthen what is beyond the claim too.
    excess, _ = median_interval(beyond, AUDIT_CONFIDENCE)
    allowed = max(AUDIT_S[device], AUDIT_SHARE * max(claimed, usual / 5))
    if excess > allowed:
        return (
            f"a call claims {claimed * 1e6:.1f} us and costs {excess * 1e6:.1f} us more by the "
            f"wall clock than eager's beyond its own claim ({allowed * 1e6:.1f} us are allowed)"
        )
    if len(candidate.again) >= FEWEST_REPEATS - 1 and candidate.first:
        first, again = min(candidate.first), median(candidate.again)
        slower = min(trusted.first) / median(trusted.again)
        if first - again > AUDIT_S[device] and again < SEEN_SHARE * first / max(1.0, slower):
            return (
                f"a call takes {first * 1e6:.1f} us on new inputs and {again * 1e6:.1f} us on "
                "inputs it has seen"
            )
    return ""


def _clones(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


def _compiled_graphs() -> dict[str, str]:
    """Where torch.compile keeps what it compiled: ours, and no candidate can write there."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cuagent"
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(base / "inductor"),
        "TRITON_CACHE_DIR": str(base / "triton"),
        "HOME": str(Path.home()),
    }


def _versions() -> dict[str, str]:
    import torch

    return {"torch": torch.__version__, "python": platform.python_version()}
