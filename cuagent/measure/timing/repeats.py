"""The repeats of one round: every arm gets a block of calls on inputs that nobody has seen before.

The inputs of a repeat are drawn for it, laid out anew for each arm, and the outputs poisoned, so
that no arm finds what another one left. Right after its block each arm makes one call by itself, on
inputs that were not there before: what a block saves by working on several inputs at once, no user
gets.

What the candidate gives is judged (`agreement.py`). Some of its blocks hold other kinds of inputs
and are not counted: it cannot know which, and so must be right on all while it is timed. Not
covered: which arms there are and what becomes of the numbers (`protocol.py`).
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cuagent.measure import system_load
from cuagent.measure.roofline.ceilings import cache_bytes
from cuagent.measure.statistics import steady
from cuagent.measure.timing.agreement import Agreement
from cuagent.measure.timing.timed_arm import GROUPS, Clocked, TimedArm
from cuagent.task import Device
from cuagent.verdict import RuleResult
from cuagent.verify.batch import Batch
from cuagent.verify.inputs.kinds import EXACT, Inputs
from cuagent.verify.referee import Referee
from cuagent.verify.run import FLUSH
from cuagent.worker.arms import CANDIDATE, EAGER

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_S = {Device.CPU: 0.005, Device.CUDA: 0.01}
"""About how long the slowest arm's block takes. Short on the CPU: the shorter, the likelier that
nobody interrupts it."""
GLANCE_S = BLOCK_S | {Device.CPU: 0.001}
"""The same at a glance, which has no repeats to waste: within a slice of the scheduler, since many
judges at once are a busy machine by themselves."""
REPEATS = {Device.CPU: (15, 60), Device.CUDA: (5, 10)}
"""Fewest and most of a round. On a GPU more would not narrow an interval that what processes differ
by has widened already: of 242 runs the first 10 repeats say what 15 do, to 0.02 % of the width."""
GLANCES = {Device.CPU: (4 * GROUPS, 4 * GROUPS), Device.CUDA: (2 * GROUPS, 2 * GROUPS)}
DRAWING_S = 0.05
"""That drawing inputs may take for one repeat, if one call's take less; there are fewer calls."""
LONG_DRAWING_S = 3.0
"""That it may take for a round; else there are fewer repeats."""
SETTLE_S = 0.001
"""Before a block on the CPU: threads of the arm before may still spin (`worker/fork_server.py`)."""
CALL_S = 60.0
SURPRISE_EVERY = 5
"""Repeats, at a random one of which a block with other kinds of inputs comes first."""
CERTAIN_SURPRISES = 3
"""Of a round; after these, only while judging takes no larger share than it may."""
SAMPLED = 4
"""Calls of such a block that are judged."""
JUDGING_SHARE = 0.25
"""Of the time of a round that may go to judging calls at random."""


@dataclass
class Repeats:
    """One round's; `lanes` have run before, so that about how long a call takes is known."""

    referee: Referee
    batch: Batch
    timed_arms: Mapping[str, TimedArm]
    slots: Sequence[int]
    draw_s: float
    """Seconds that drawing the inputs of one call takes."""
    glance: bool = False
    """Shorter blocks on the CPU, and no more of them than the statistic needs."""
    slowed: int = field(default=0, init=False)
    """Repeats that count although the device was not fit: as many as may be were discarded."""
    judged_s: float = field(default=0.0, init=False)
    _turn: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.device = self.referee.task.device
        self.random = random.SystemRandom()
        self.agreement = Agreement(self._strict)
        self._surprise_at = self.random.randrange(SURPRISE_EVERY)
        self._states: list[system_load.GpuState | None] = []

    def run(self, budget_s: float) -> str:
        """Until the budget is spent. What was wrong with the candidate's answers, or nothing."""
        begun = time.perf_counter()
        calls, fewest, most = self._plan()
        done, discarded = 0, 0
        while done < fewest or (done < most and time.perf_counter() - begun < budget_s):
            patient = self.judged_s <= JUDGING_SHARE * (time.perf_counter() - begun)
            wrong = self._surprise(self._next(calls)) if self._is_due(done, patient) else ""
            wrong = wrong or self._turns(self._next(calls + (calls > 1)), calls, int(patient))
            if wrong:
                return f"while it was timed, {wrong}"
            calm = self._calm()
            if calm or discarded == most:
                done += 1
                self.slowed += not calm
            else:
                discarded += 1
                for timed_arm in self.timed_arms.values():
                    del timed_arm.blocks[-1:], timed_arm.alone[-1:]
        return ""

    def _plan(self) -> tuple[int, int, int]:
        """Calls of a block, fewest and most repeats. What was clocked so far is forgotten."""
        slowest = max(
            min(block.wall for block in timed_arm.blocks) for timed_arm in self.timed_arms.values()
        )
        for timed_arm in self.timed_arms.values():
            timed_arm.blocks.clear()
            timed_arm.alone.clear()
        drawn = DRAWING_S / max(self.draw_s, 1e-6)
        long = (GLANCE_S if self.glance else BLOCK_S)[self.device]
        # One set is left for the call by itself.
        calls = max(1, min(len(self.slots) - 1, int(long / slowest), int(drawn)))
        fewest, most = GLANCES[self.device] if self.glance else REPEATS[self.device]
        affordable = int(LONG_DRAWING_S / (calls * max(self.draw_s, 1e-6)))
        return calls, min(fewest, max(GROUPS, affordable)), most

    def _next(self, calls: int) -> list[int]:
        """Slots by turns, so that on the CPU caches are left behind."""
        self._turn += calls
        return [self.slots[k % len(self.slots)] for k in range(self._turn - calls, self._turn)]

    def _is_due(self, done: int, patient: bool) -> bool:
        """Whether a surprise comes before this repeat: one in each stretch, nobody knows where."""
        if CANDIDATE not in self.timed_arms or done < self._surprise_at:
            return False
        stretch = done // SURPRISE_EVERY
        if stretch >= CERTAIN_SURPRISES and not patient:
            return False  # but as soon as there is time again
        self._surprise_at = (stretch + 1) * SURPRISE_EVERY + self.random.randrange(SURPRISE_EVERY)
        return True

    def _turns(self, slots: Sequence[int], calls: int, sample: int) -> str:
        """A block of each arm on new inputs, and one call by itself on those that are left.

        What the candidate did wrong; `sample` of its calls are judged in any case.
        """
        self.referee.refill(self.batch, slots)
        kept: dict[str, list[list[Tensor]]] = {}
        changed = ""
        for name in self.random.sample(list(self.timed_arms), len(self.timed_arms)):
            timed_arm = self.timed_arms[name]
            timed_arm.blocks.append(clock(timed_arm, self.batch, slots[:calls]))
            if alone := slots[calls:]:
                # At once, while its code lies in the caches: arms differ in what they need of them.
                timed_arm.alone.append(clock(timed_arm, self.batch, alone, settle_s=0.0))
            if self.device is Device.CUDA:
                self._states.append(system_load.gpu_state())
            if name == CANDIDATE:
                changed = self._changed(slots)
            if name in (CANDIDATE, EAGER):
                kept[name] = self._outputs(name, slots)
        if changed or CANDIDATE not in kept:
            return changed
        return self.agreement.wrong(slots, kept[CANDIDATE], kept.get(EAGER), sample)

    def _calm(self) -> bool:
        """Whether the device was fit to be timed since this was last asked."""
        known = [state for state in self._states if state is not None]
        self._states.clear()
        clocks, slowed = [s.clock for s in known], [s.slowed for s in known]
        return all(steady(clocks, slowed, system_load.gpu_nominal_clock() if known else 0))

    def _surprise(self, slots: Sequence[int]) -> str:
        """A block like any other to the candidate, on inputs of other kinds, held to the rules."""
        kinds = [kind for kind in self.referee.facts.kinds if kind not in EXACT]
        self.random.shuffle(kinds)
        drawn = dict(zip(slots, itertools.cycle(kinds), strict=False))
        for slot, kind in drawn.items():
            self.referee.refill(self.batch, [slot], kind)
        clock(self.timed_arms[CANDIDATE], self.batch, slots)
        if changed := self._changed(slots):
            return changed
        given = dict(zip(slots, self._outputs(CANDIDATE, slots), strict=True))
        for slot in self.random.sample(list(slots), min(SAMPLED, len(slots))):
            result = self._strict(slot, given[slot], drawn[slot])
            if not result.passed:
                return f"a call on {drawn[slot]} inputs was wrong: {result.detail}"
        return ""

    def _strict(
        self, slot: int, outputs: Sequence[Tensor], kind: Inputs = Inputs.OWN
    ) -> RuleResult:
        begun = time.perf_counter()
        result = self.referee.check(self.batch, slot, outputs, kind)
        self.judged_s += time.perf_counter() - begun
        return result

    def _changed(self, slots: Sequence[int]) -> str:
        """Looks at the inputs of one call, which one is secret."""
        slot = self.random.choice(slots)
        held = self.batch.lent.holds(self.batch.inputs, slot)
        return "" if held else "its inputs were not as they were, or bytes beside them"

    def _outputs(self, name: str, slots: Sequence[int]) -> list[list[Tensor]]:
        return [self.batch.outputs_of(name).snapshot(slot) for slot in slots]


def clock(
    timed_arm: TimedArm, batch: Batch, slots: Sequence[int], settle_s: float = SETTLE_S
) -> Clocked:
    """One block of one arm."""
    batch.lay_out(timed_arm.name, slots)
    on_cpu = batch.inputs.device == "cpu"
    if on_cpu:
        time.sleep(settle_s)
    block = timed_arm.session.block(
        batch.lent,
        batch.outputs_of(timed_arm.name),
        [(slot, slot) for slot in slots],
        deadline_s=CALL_S * len(slots),
        # The CPU goes from one input set to the next instead.
        flush=0 if on_cpu else max(FLUSH, 2 * cache_bytes(Device.CUDA)),
    )
    return Clocked(sum(block.claimed_s) / len(slots), block.wall_s / len(slots))
