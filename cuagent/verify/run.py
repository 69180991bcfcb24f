"""The course of one verdict: rounds of draws, two calls each, and what the referee sees of them.

Inputs come from the oracle, and the worker is lent a copy; outputs lie in the referee's memory,
poisoned before a call and copied away at once after it; only then is the oracle asked what was
right. Of the two calls one is made by itself, with poison wherever the candidate finds memory; the
other in a block with those of other draws, in the very form in which calls are timed. Either comes
first by turns. The referee opens and closes all that is used here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cuagent.task import Device
from cuagent.verdict import Reason
from cuagent.verify.context import VerifyContext
from cuagent.verify.inputs.kinds import LENIENT, MAX_SWEEP, SWEEPS, Inputs
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.oracle.client import SensitivityQuery
from cuagent.verify.plan import Planned
from cuagent.verify.prefetch import OraclePrefetcher
from cuagent.verify.rules.nonfinite import nonfinite_differences
from cuagent.verify.rules.tolerance import constants
from cuagent.verify.rules.types import Expected, Finding
from cuagent.verify.tally import Rejected, Tally, Trial, When
from cuagent.worker import Session
from cuagent.worker.memory.arena import POISONS, STRETCH, same_bytes

if TYPE_CHECKING:
    from torch import Tensor

PAIRS_PER_PERTURBATION = 3
"""Pairs of perturbations in doubt for each of the spread: 24 where the reference is quick."""
FLUSH = 256 << 20
"""Bytes: overwrites the L2 of every GPU so far, and takes long enough to hide the launch's latency,
without which a kernel of 10 us measures as 12."""
FEW_ELEMENTS = 1 << 22
"""Below this many, comparing on the CPU takes one thread: a pool that must share its cores with
other processes waits for itself (measured: 65 s for what one thread does in 0.1 s)."""


OTHERS = 2
"""Further draws of a kind that decide where one was refused by no more than its elements move."""
LEFT = f"past its bound by no more than roundoff may move it; {OTHERS} other draws decide"


@dataclass(frozen=True)
class _Judged:
    expected: Expected
    findings: list[Finding]
    perturbations: int

    @property
    def steep(self) -> bool:
        """Refused, but only where the answer is so steep that honest roundoff moves it as far."""
        return not all(f.passed for f in self.findings) and all(
            f.passed or f.within_sensitivity for f in self.findings
        )

    def left(self) -> _Judged:
        """The same, with nothing held against anybody: other draws decide."""
        findings = [
            f if f.passed else replace(f, passed=True, ratio=1.0, note=LEFT) for f in self.findings
        ]
        return replace(self, findings=findings)


class VerificationRun:
    """One verdict's way through the rounds. Raises Rejected, SessionEnded, OracleLost."""

    def __init__(
        self,
        context: VerifyContext,
        prefetcher: OraclePrefetcher,
        session: Session,
        tally: Tally,
        call_s: float,
        seeds: Seeds,
    ) -> None:
        """`seeds` are those of the plan, for draws that nobody could foresee."""
        self.context = context
        self.prefetcher = prefetcher
        self.seeds = seeds
        self._deciding = False
        """Whether draws are made to decide about another one."""
        self.session = session
        self.tally = tally
        self.call_s = call_s
        self._poisons = itertools.cycle(POISONS)
        self._block_first = itertools.cycle((False, True))

    def run(self) -> None:
        """The weights come from the seed that was the session's at its construction."""
        self.context.outputs.mend_guards()
        with self._threads():
            self._rounds()

    def _rounds(self) -> None:
        for number, planned in enumerate(self.prefetcher.planned):
            with self.tally.clock("oracle"):
                self.prefetcher.load_weights(number)
            with self.tally.clock("worker"):
                self.session.load(self.context.weights, fresh=planned.part.fresh)
            self._round(planned)
            if (worst := self.tally.worst_in_use()) is not None:
                self._in_a_fresh_model(worst)
            if self.tally.failed:
                break  # the first round has all that the lax rule needs

    def _round(self, planned: Planned) -> None:
        wanted = {trial.seed for trial in planned.again}
        first: dict[int, list[Tensor]] = {}
        for group in self._groups(planned.trials):
            outputs = self._try(group)
            first |= {t.seed: o for t, o in zip(group, outputs, strict=True) if t.seed in wanted}
            del outputs
        for group in self._groups(planned.again):
            if not self.tally.failed:
                self._try_again(group, [first[trial.seed] for trial in group])
        for sweep in planned.sweeps:
            if not self.tally.failed:
                self._sweep(sweep)

    def _groups(self, trials: Sequence[Trial]) -> Iterator[Sequence[Trial]]:
        """Those whose calls are made in one block."""
        most = self.context.lent.count
        return (trials[begun : begun + most] for begun in range(0, len(trials), most))

    def _sweep(self, trials: Sequence[Trial]) -> None:
        """Draws that belong together, until one fails."""
        for group in self._groups(trials):
            for trial in group:
                self.context.inputs.mend_guards(self._drawn(trial), next(self._poisons))
            for slot, output in enumerate(self._block(group)):
                self._compare(group[slot], [output], POISONS[0])
            if self.tally.failed:
                return
        turns = self.context.turns[trials[0].kind]
        if len(trials) < turns.needed:
            reached = f"{len(trials)} of the {turns.needed} draws that would reach every place"
            self.tally.remark(f"{trials[0].kind}: {reached}")

    def _in_a_fresh_model(self, trial: Trial) -> None:
        """What went wrong in the model in use once more: is it the use, or are it the inputs?"""
        with self.tally.clock("worker"):
            self.session.load(self.context.weights)
        afresh = replace(trial, when=When.FIRST)
        self.prefetcher.insert(afresh, like=trial)
        self._try([afresh])

    def _try(self, trials: Sequence[Trial]) -> list[list[Tensor]]:
        """Draws of one block: two calls each, then the oracle, then the rules; the outputs."""
        poisons = [next(self._poisons) for _ in trials]
        for trial, poison in zip(trials, poisons, strict=True):
            # What is read past the end of an input shows, though it is multiplied by zero.
            self.context.inputs.mend_guards(self._drawn(trial), poison)
        together = self._block(trials) if next(self._block_first) else None
        alone = [self._alone(trial, slot, poisons[slot]) for slot, trial in enumerate(trials)]
        together = together or self._block(trials)
        # Equal outputs are judged once, and kept once: that is nearly always, and halves the work.
        distinct = [[a] if _equal(a, b) else [a, b] for a, b in zip(alone, together, strict=True)]
        del together
        for slot, trial in enumerate(trials):
            self._compare(trial, distinct[slot], poisons[slot])
        return alone

    def _try_again(self, trials: Sequence[Trial], before: Sequence[list[Tensor]]) -> None:
        """What came before once more, in another order; the same output again needs no judging."""
        for trial in trials:
            self._drawn(trial)
        for slot, output in enumerate(self._block(trials)):
            if _equal(output, before[slot]):
                self.prefetcher.done(trials[slot])
            else:
                self._compare(trials[slot], [output], POISONS[0])

    def _drawn(self, trial: Trial) -> int:
        """The slot where its inputs lie."""
        with self.tally.clock("oracle"):
            return self.prefetcher.inputs(trial)

    def _alone(self, trial: Trial, slot: int, poison: int) -> list[Tensor]:
        """The output of one call by itself; `poison` lies in whatever memory the candidate gets."""
        context = self.context
        context.lent.lay(context.inputs, slot, self.prefetcher.slot(trial))
        context.outputs.poison(poison, slot)
        with self.tally.clock("candidate"):
            self.session.run(
                context.lent, context.outputs, [(slot, slot)], deadline_s=self.call_s, poison=poison
            )
            snapshot = context.outputs.snapshot(slot)
        self._check_memory(trial, slot)
        return snapshot

    def _block(self, trials: Sequence[Trial]) -> list[list[Tensor]]:
        """The outputs of a block of calls, made in the form in which calls are timed."""
        context, slots = self.context, range(len(trials))
        for slot, trial in enumerate(trials):
            context.lent.lay(context.inputs, slot, self.prefetcher.slot(trial))
            context.outputs.poison(POISONS[0], slot)
        with self.tally.clock("candidate"):
            self.session.block(
                context.lent,
                context.outputs,
                # The other way round, so that what a call does to the one after it shows.
                [(slot, slot) for slot in reversed(slots)],
                deadline_s=self.call_s * len(trials),
                flush=FLUSH if context.task.device is Device.CUDA else 0,
            )
            snapshots = [context.outputs.snapshot(slot) for slot in slots]
        for slot, trial in enumerate(trials):
            self._check_memory(trial, slot)
        return snapshots

    def _compare(self, trial: Trial, distinct: Sequence[Sequence[Tensor]], poison: int) -> None:
        """Judge what calls on one draw gave; `poison` lay in the memory of the first."""
        count = next(self.tally.to_perturb, 0)
        # A constant must fail in spite of the spread, and so it is asked for until that has.
        spread = count > 0 or self.tally.trivial or self.context.wants_spread(trial.kind)
        said = self._judged(trial, distinct, count, spread=spread)
        if not spread and not all(finding.passed for finding in said.findings):
            said = self._judged(trial, distinct, count, spread=True)
        self.tally.perturbations.append(said.perturbations)
        leave = said.steep and not self._deciding and not self.tally.failed
        if said.findings:
            with self.tally.clock("compare"):
                self._count(trial, distinct, said.left() if leave else said, poison)
        self.prefetcher.done(trial)
        if leave:
            self._let_others_decide(trial)

    def _let_others_decide(self, trial: Trial) -> None:
        """Further draws of the kind, which all must pass.

        Where an answer is steep the spread of a draw says little, and one honest draw in a thousand
        is refused by it. What is wrong for any other reason is so on the next draw as well.
        """
        self.tally.remark(f"{trial.kind}: {LEFT}")
        self._deciding = True
        for _ in range(OTHERS):
            seed = self.seeds.draw()
            turn = trial.seed % MAX_SWEEP - seed % MAX_SWEEP if trial.kind in SWEEPS else 0
            other = replace(trial, seed=seed + turn)
            self.prefetcher.insert(other, like=trial)
            self._try([other])
        self._deciding = False

    def _count(
        self, trial: Trial, outputs: Sequence[Sequence[Tensor]], said: _Judged, poison: int
    ) -> None:
        expected, findings = said.expected, said.findings
        if trial.kind in LENIENT and (told := nonfinite_differences(outputs[0], expected)):
            self.tally.remark(f"{trial.kind}: {told}")
        unwritten = not findings[0].passed and _poisoned(outputs[0], poison)
        timed = findings[0].passed and not findings[-1].passed
        seen = replace(trial, when=When.TIMED) if timed else trial
        self.tally.add(seen, outputs, expected, findings, unwritten)
        if self.tally.trivial:
            if self.tally.constants is None:
                self.tally.constants = constants(expected)
            self.tally.trivial = self._constant_passes(self.tally.constants, expected, trial.kind)

    def _judged(
        self, trial: Trial, outputs: Sequence[Sequence[Tensor]], count: int, *, spread: bool
    ) -> _Judged:
        """What the oracle says, and the rules on each of `outputs`; none where it says nothing."""
        with self.tally.clock("oracle"):
            answered, slot = self.prefetcher.answer(trial, spread=spread, count=count)
        expected = replace(self.context.expected(slot), certain=answered.certain)
        if not answered.is_decisive(trial.kind, trial.weights):
            return _Judged(expected, [], answered.perturbations)
        asked = spread and not self.tally.failed
        sensitivity = self._sensitivity(trial, answered.perturbations) if asked else None
        with self.tally.clock("compare"):
            findings = [self.context.judged(x, expected, trial.kind, sensitivity) for x in outputs]
            return _Judged(expected, findings, answered.perturbations)

    def _sensitivity(self, trial: Trial, perturbations: int) -> SensitivityQuery:
        """By the more perturbations the quicker the reference is; an audit takes as many."""
        return self.prefetcher.sensitivity(trial, PAIRS_PER_PERTURBATION * perturbations)

    def _constant_passes(self, levels: Sequence[float], expected: Expected, kind: Inputs) -> bool:
        """One constant for all draws: a loss is one number in each of them, yet not the same."""
        both = zip(expected.declared, levels, strict=True)
        flat = [r.new_full((), c).expand(r.shape) for r, c in both]  # one number in memory
        return self.context.judged(flat, expected, kind, told=False).passed

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """One thread for little work on the CPU."""
        import torch

        before = torch.get_num_threads()
        elements = sum(view.numel() for view in self.context.outputs.tensors())
        little = self.context.task.device is Device.CPU and elements < FEW_ELEMENTS
        torch.set_num_threads(1 if little else before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _check_memory(self, trial: Trial, slot: int) -> None:
        """The inputs must be as they were lent, and everything beside the tensors too."""
        context, drawn = self.context, self.prefetcher.slot(trial)
        if not context.lent.holds(context.inputs, slot, drawn):
            if context.lent.guards_like(context.inputs, slot, drawn):
                what = f"after a call on {trial.kind} inputs they are not as they were"
                raise Rejected(Reason.CHANGED_INPUT, what, self.session.output())
            raise Rejected(Reason.WROTE_OUTSIDE, "wrote beside an input", self.session.output())
        if not self.context.outputs.guards_hold():
            raise Rejected(Reason.WROTE_OUTSIDE, "wrote beside an output", self.session.output())


def _equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Bit for bit; poison differs from draw to draw, so that unwritten elements are not."""
    return all(same_bytes(_words(a), _words(b)) for a, b in zip(first, second, strict=True))


def _words(tensor: Tensor) -> Tensor:
    import torch

    return tensor.reshape(-1).view(torch.uint8)


def _poisoned(outputs: Sequence[Tensor], byte: int) -> bool:
    """Whether some tensor holds the poison in a place; as an integer 0xFF.. is -1, and no sign."""
    for tensor in outputs:
        telling = tensor.is_floating_point() or byte != POISONS[0]
        if tensor.numel() and tensor.element_size() > 1 and telling:
            words = _words(tensor).view(-1, tensor.element_size())
            if any(bool((some == byte).all(dim=1).any()) for some in words.split(STRETCH // 8)):
                return True
    return False
