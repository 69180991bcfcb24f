"""Run the repeats of one round: in each repeat every arm makes a block of calls on new inputs.

The inputs of a repeat are drawn for it and laid out again for each arm, and the outputs are
poisoned, so no arm finds results of another. After its block each arm makes one single call on new
inputs: a user gains nothing from work that a block saves by processing several inputs together.

The candidate's outputs are judged (`agreement.py`). Some of its blocks have inputs of other kinds
and are not counted as times. It cannot tell which, so it must be right in all of them.

Not covered: the choice of arms and the use of the times (`timer.py`, `rounds.py`).
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from cuagent.arms import CANDIDATE, EAGER
from cuagent.measure import system_load
from cuagent.measure.roofline.ceilings import cache_bytes
from cuagent.measure.statistics import steady
from cuagent.measure.timing.agreement import Agreement
from cuagent.measure.timing.timed_arm import GROUPS, BlockTime, TimedArm
from cuagent.task import Device
from cuagent.verdict import RuleResult, on_inputs
from cuagent.verify.batch import Batch
from cuagent.verify.calls import FLUSH
from cuagent.verify.inputs.kinds import EXACT, UNPERTURBED, Inputs
from cuagent.verify.referee import Referee
from cuagent.worker.memory.fingerprint import Fingerprint
from cuagent.worker.session import Block

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_S = {Device.CPU: 0.005, Device.CUDA: 0.01}
"""Approximate duration in seconds of the slowest arm's block. On the CPU it is short, because a
shorter block is less likely to be interrupted."""
GLANCE_S = BLOCK_S | {Device.CPU: 0.001}
"""Approximate duration in seconds of a block at `Effort.GLANCE`. A block fits into a time slice of
the scheduler, because many judges keep the machine busy and few repeats cannot spare one."""
REPEATS = {Device.CPU: (15, 60), Device.CUDA: (5, 10)}
"""Smallest and largest number of repeats of a round. On a GPU more would not narrow an interval
that the variation between processes has widened already: in 242 runs the first 10 repeats give the
same as 15, to 0.02 % of the width."""
GLANCE_REPEATS = {Device.CPU: (4 * GROUPS, 4 * GROUPS), Device.CUDA: (2 * GROUPS, 2 * GROUPS)}
"""Smallest and largest number of repeats at `Effort.GLANCE`."""
DRAWING_S = 0.05
"""Seconds that drawing the inputs of one repeat may take; the number of calls is reduced to fit, to
1 at the least."""
LONG_DRAWING_S = 3.0
"""Seconds that drawing inputs may take in a round; the number of repeats is reduced to fit."""
SETTLE_S = 0.001
"""Pause in seconds before a block on the CPU, because threads of the previous arm may still spin
(`worker/fork_server.py`)."""
TIMED_CALL_S = 60.0
"""Time limit of a timed call in seconds."""
CHECK_EVERY = 5
"""Number of repeats per check. A check is a block with other kinds of inputs, whose outputs are
judged; it precedes a random one of these repeats."""
CERTAIN_CHECKS = 3
"""Number of checks in a round that run in any case. Later ones run only while judging takes less
than `JUDGING_SHARE`."""
JUDGED_CALLS = 4
"""Largest number of outputs that are judged in one check."""
JUDGING_SHARE = 0.25
"""Largest share of a round's time for judging random calls."""


@dataclass
class Repeats:
    """Runs and judges the repeats of one round. The `timed_arms` have run before, so that their
    time per call is roughly known."""

    referee: Referee
    batch: Batch
    timed_arms: Mapping[str, TimedArm]
    slots: Sequence[int]
    draw_s: float
    """Seconds that it takes to draw the inputs of one call."""
    glance: bool = False
    """True for `Effort.GLANCE`: shorter blocks on the CPU and as few repeats as the statistic
    permits."""
    wakes: bool = False
    """True if each block follows a call on the inputs for warming up, which is not judged and does
    not count; `counted` charges work that a candidate moves there. A process that was stopped is
    slow at first: single calls of an RNN of 14 ms, all of which are launches, took 21 ms (H200
    host). A user calls a module again and again."""
    slowed: int = field(default=0, init=False)
    """Number of repeats that are used although the GPU throttled, because too many were discarded
    already."""
    judged_s: float = field(default=0.0, init=False)
    _prints: list[list[list[int]]] = field(default_factory=list, init=False)
    """Fingerprints of the candidate's latest outputs, for a large task."""
    _calls_so_far: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.device = self.referee.task.device
        self.random = random.SystemRandom()
        self.agreement = Agreement(self._strict)
        self._next_check = self.random.randrange(CHECK_EVERY)
        self._states: list[system_load.GpuState | None] = []

    def run(self, budget_s: float, give_way: Callable[[], None] = lambda: None) -> str:
        """Run repeats until `budget_s` seconds are spent, and call `give_way` between two of them.

        Returns a message if an output of the candidate was wrong, else "".
        """
        started = time.perf_counter()
        calls, fewest, most = self._plan()
        done, discarded = 0, 0
        while done < fewest or (done < most and time.perf_counter() - started < budget_s):
            may_judge = self.judged_s <= JUDGING_SHARE * (time.perf_counter() - started)
            fault = ""
            if self._check_is_due(done, may_judge):
                fault = self._check_on_other_kinds(self._next(calls))
            fault = fault or self._repeat(self._next(calls + (calls > 1)), calls, int(may_judge))
            if fault:
                return f"while it was timed, {fault}"
            fit = self._device_is_fit()
            if fit or discarded == most:
                done += 1
                self.slowed += not fit
            else:
                discarded += 1
                for timed_arm in self.timed_arms.values():
                    del timed_arm.blocks[-1:], timed_arm.single_calls[-1:], timed_arm.wakes[-1:]
            given_up = time.perf_counter()
            give_way()
            started += time.perf_counter() - given_up
        return ""

    def _plan(self) -> tuple[int, int, int]:
        """Return the number of calls in a block, and the smallest and largest number of repeats.

        Deletes the block times so far, from which it estimates the time of a call.
        """
        slowest = max(
            min(block.wall for block in timed_arm.blocks) for timed_arm in self.timed_arms.values()
        )
        for timed_arm in self.timed_arms.values():
            timed_arm.blocks.clear()
            timed_arm.single_calls.clear()
            timed_arm.wakes.clear()
        drawable = DRAWING_S / max(self.draw_s, 1e-6)
        block_s = (GLANCE_S if self.glance else BLOCK_S)[self.device]
        # One input set is left for the single call.
        calls = max(1, min(len(self.slots) - 1, int(block_s / slowest), int(drawable)))
        fewest, most = GLANCE_REPEATS[self.device] if self.glance else REPEATS[self.device]
        affordable = int(LONG_DRAWING_S / (calls * max(self.draw_s, 1e-6)))
        return calls, min(fewest, max(GROUPS, affordable)), most

    def _next(self, calls: int) -> list[int]:
        """Return the next `calls` slots in rotation, so that on the CPU their data has left the
        caches."""
        first = self._calls_so_far
        self._calls_so_far += calls
        return [self.slots[k % len(self.slots)] for k in range(first, first + calls)]

    def _check_is_due(self, done: int, may_judge: bool) -> bool:
        """Return True if a check precedes the repeat after `done` repeats.

        There is one in each stretch of `CHECK_EVERY` repeats, at a random place.
        """
        if CANDIDATE not in self.timed_arms or done < self._next_check:
            return False
        stretch = done // CHECK_EVERY
        if stretch >= CERTAIN_CHECKS and not may_judge:
            return False  # it runs as soon as there is time again
        self._next_check = (stretch + 1) * CHECK_EVERY + self.random.randrange(CHECK_EVERY)
        return True

    def _repeat(self, slots: Sequence[int], calls: int, sample: int) -> str:
        """Time a block of `calls` calls of each arm on new inputs, then a single call on the last
        slot.

        The strict rule judges `sample` of the candidate's outputs in any case. Returns a message if
        the candidate did something wrong, else "".
        """
        self.referee.batches.refill(self.batch, slots)
        outputs: dict[str, list[list[Tensor]]] = {}
        changed = ""
        for name in self.random.sample(list(self.timed_arms), len(self.timed_arms)):
            timed_arm = self.timed_arms[name]
            timed_arm.wakes += self._wake(timed_arm)
            timed_arm.calls = calls
            timed_arm.blocks.append(clock(timed_arm, self.batch, slots[:calls]))
            if single := slots[calls:]:
                # No pause, so that the arm's code is still in the caches: arms differ in how much
                # they need of them.
                timed_arm.single_calls.append(clock(timed_arm, self.batch, single, settle_s=0.0))
            if self.device is Device.CUDA:
                self._states.append(system_load.gpu_state())
            if name == CANDIDATE:
                changed = self._changed(slots)
            if name in (CANDIDATE, EAGER):
                outputs[name] = self._outputs(name, slots)
        changed = changed or self._written_late(slots)
        if changed or CANDIDATE not in outputs:
            return changed
        return self.agreement.first_wrong(slots, outputs[CANDIDATE], outputs.get(EAGER), sample)

    def _wake(self, timed_arm: TimedArm) -> list[BlockTime]:
        """Let an arm make a call before its block if `wakes`; return its time, which is only
        audited. The inputs of the block are laid out afterwards, so the arm learns nothing about
        them."""
        if not self.wakes:
            return []
        last = self.batch.inputs.count - 1
        self.batch.lay_out(timed_arm.name, [last])
        block = _block(timed_arm, self.batch, [last], lean=False)
        return [BlockTime(sum(block.claimed_s), block.wall_s)]

    def _device_is_fit(self) -> bool:
        """Return True if the GPU ran at a steady clock since the last call of this method."""
        states = [state for state in self._states if state is not None]
        self._states.clear()
        clocks, slowed = [s.clock for s in states], [s.slowed for s in states]
        return all(steady(clocks, slowed, system_load.gpu_nominal_clock() if states else 0))

    def _check_on_other_kinds(self, slots: Sequence[int]) -> str:
        """Run a block of the candidate on inputs of other kinds and judge its outputs.

        The candidate cannot distinguish it from a timed block. Returns a message if an output is
        wrong, else "".
        """
        kinds = checked_kinds(self.referee.facts.kinds)
        self.random.shuffle(kinds)
        kind_of = dict(zip(slots, itertools.cycle(kinds), strict=False))
        for slot, kind in kind_of.items():
            self.referee.batches.refill(self.batch, [slot], kind)
        self._wake(self.timed_arms[CANDIDATE])
        clock(self.timed_arms[CANDIDATE], self.batch, slots)
        if changed := self._changed(slots):
            return changed
        outputs = dict(zip(slots, self._outputs(CANDIDATE, slots), strict=True))
        if late := self._written_late(slots):
            return late
        for slot in self.random.sample(list(slots), min(JUDGED_CALLS, len(slots))):
            result = self._strict(slot, outputs[slot], kind_of[slot])
            if not result.passed:
                return f"a call on {on_inputs(kind_of[slot])} was wrong: {result.detail}"
        return ""

    def _strict(
        self, slot: int, outputs: Sequence[Tensor], kind: Inputs = Inputs.OWN
    ) -> RuleResult:
        started = time.perf_counter()
        result = self.referee.batches.check(self.batch, slot, outputs, kind)
        self.judged_s += time.perf_counter() - started
        return result

    def _changed(self, slots: Sequence[int]) -> str:
        """Return a message if the candidate changed the inputs of one secretly chosen call, else
        ""."""
        slot = self.random.choice(slots)
        unchanged = self.batch.lent.slot_equals(self.batch.inputs, slot)
        return "" if unchanged else "it wrote to its inputs, or to memory next to them"

    def _outputs(self, name: str, slots: Sequence[int]) -> list[list[Tensor]]:
        """Return an arm's outputs of these slots as copies, which later calls do not overwrite.

        Outputs of a large task are not copied if no other arm overwrites them. Fingerprints of the
        candidate's outputs then show if they change later.
        """
        outputs = self.batch.outputs_of(name)
        trusted = len(self.timed_arms.keys() - {CANDIDATE})
        if not self.batch.lean or (name != CANDIDATE and trusted > 1):
            return [outputs.snapshot(slot) for slot in slots]
        if name == CANDIDATE:
            self._prints = [self._key.of_all(outputs.tensors(slot)) for slot in slots]
        return [outputs.tensors(slot) for slot in slots]

    def _written_late(self, slots: Sequence[int]) -> str:
        """Return a message if the candidate changed its outputs of a large task after its calls,
        else ""."""
        if not self.batch.lean or CANDIDATE not in self.timed_arms:
            return ""
        outputs = self.batch.outputs_of(CANDIDATE)
        prints = [self._key.of_all(outputs.tensors(slot)) for slot in slots]
        return "" if prints == self._prints else "it wrote to its output after the call"

    @cached_property
    def _key(self) -> Fingerprint:
        return Fingerprint.random(self.device.value)


def checked_kinds(kinds: Iterable[Inputs]) -> list[Inputs]:
    """Return those of a task's kinds of inputs on which timed outputs are judged, with the weights
    of the timing."""
    return [kind for kind in kinds if kind not in (*EXACT, *UNPERTURBED)]


def clock(
    timed_arm: TimedArm, batch: Batch, slots: Sequence[int], settle_s: float = SETTLE_S
) -> BlockTime:
    """Time one block of calls of one arm, given the slots of its inputs.

    An arm of a large task releases its memory between its blocks. So it is called first on other
    inputs, untimed, which lets its allocator get the memory again.
    """
    if batch.lean:
        batch.lay_out(timed_arm.name, slots, rotated=True)
        _block(timed_arm, batch, slots, lean=False)
    batch.lay_out(timed_arm.name, slots)
    if batch.inputs.device == "cpu":
        time.sleep(settle_s)
    block = _block(timed_arm, batch, slots, lean=batch.lean)
    return BlockTime(sum(block.claimed_s) / len(slots), block.wall_s / len(slots))


def _block(timed_arm: TimedArm, batch: Batch, slots: Sequence[int], *, lean: bool) -> Block:
    return timed_arm.session.block(
        batch.lent,
        batch.outputs_of(timed_arm.name),
        [(slot, slot) for slot in slots],
        deadline_s=TIMED_CALL_S * len(slots),
        # The CPU rotates through input sets instead.
        flush=0 if batch.inputs.device == "cpu" else max(FLUSH, 2 * cache_bytes(Device.CUDA)),
        lean=lean,
    )
