"""The course of one verdict: rounds of draws, two calls each, and what the referee sees of them.

Inputs come from the oracle, and the worker is lent a copy; outputs lie in the referee's memory,
poisoned before a call and copied away at once after it; only then is the oracle asked what was
right. Of the two calls one is made by itself, with poison wherever the candidate finds memory; the
other in a block with those of other draws, in the very form in which calls are timed. Either comes
first by turns. The referee opens and closes all that is used here.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cuagent.task import Device, Precision
from cuagent.verify.inputs import LENIENT, SWEEPS, Inputs, Weights
from cuagent.verify.oracle import OPPOSITES, Answered, Doubt, Oracle
from cuagent.verify.rounds import ROUNDS, Rejected, Round, Tally, Trial, When
from cuagent.verify.seeds import Seeds
from cuagent.verify.specials import strays
from cuagent.verify.stage import Stage
from cuagent.verify.tolerance import Expected, Finding, constants
from cuagent.verify.verdict import Reason
from cuagent.worker import Session
from cuagent.worker.arena import POISONS

if TYPE_CHECKING:
    from torch import Tensor

SPREAD_S, LOGIC_SPREAD_S = 0.1, 0.02
"""About how long the oracle may perturb for one draw; those that judge logic have wide bounds."""
KEPT_BYTES = 1 << 30
"""Of inputs and outputs that the draws of a block need; it is of one call whatever its size."""
FEW_OPPOSITES = 2
"""Pairs of perturbations by which a draw of a sweep, one of many, looks for ties."""
DOUBTED = 3
"""Pairs of perturbations in doubt for each of the spread: 24 where the reference is quick."""
TOGETHER = 4
"""Draws whose calls are made in one block."""
FLUSH = 256 << 20
"""Bytes: overwrites the L2 of every GPU so far, and takes long enough to hide the launch's latency,
without which a kernel of 10 us measures as 12."""
FEW_ELEMENTS = 1 << 22
"""Below this many, comparing on the CPU takes one thread: a pool that must share its cores with
other processes waits for itself (measured: 65 s for what one thread does in 0.1 s)."""


class Course:
    """One verdict's way through the rounds. Raises Rejected, SessionEnded, OracleLost."""

    def __init__(
        self, stage: Stage, oracle: Oracle, session: Session, tally: Tally, call_s: float
    ) -> None:
        self.stage = stage
        self.oracle = oracle
        self.session = session
        self.tally = tally
        self.call_s = call_s
        self._poisons = itertools.cycle(POISONS)
        self._block_first = itertools.cycle((False, True))

    def run(self, seed: int, seeds: Seeds) -> None:
        """`seed` is for the weights; it was the session's at its construction."""
        stage = self.stage
        for arena in (stage.outputs, stage.weights):
            arena.mend_guards()
        with self._threads():
            self._rounds(seed, seeds)

    def _rounds(self, seed: int, seeds: Seeds) -> None:
        for part in ROUNDS:
            if any(kind in self.stage.kinds for kind in part.kinds):
                with self.tally.clock("oracle"):
                    self.oracle.weigh(part.weights, seed, self.stage.weights)
                with self.tally.clock("worker"):
                    self.session.load(self.stage.weights, fresh=part.fresh)
                self._round(part, seeds)
            if (worst := self.tally.worst_in_use()) is not None:
                self._in_a_fresh_model(worst)
            if self.tally.failed:
                break  # the first round has all that the lax rule needs

    def _round(self, part: Round, seeds: Seeds) -> None:
        in_use = When.SWAPPED if self.stage.weights.tensors() else When.IN_USE
        when = When.FIRST if part.fresh else in_use
        trials = [
            Trial(kind, part.weights, seeds.draw(), when)
            for kind in part.kinds
            if kind in self.stage.kinds
        ]
        most = self.stage.inputs.count
        first: list[tuple[Trial, list[Tensor]]] = []
        for begun in range(0, len(trials), most):
            group = trials[begun : begun + most]
            outputs = self._try(group)
            first += zip(group, outputs, strict=True)
            del first[part.again :]
        if first and not self.tally.failed:
            random.Random(seeds.draw()).shuffle(first)
            for begun in range(0, len(first), most):
                self._try_again(first[begun : begun + most])
        for kind in part.sweeps:
            if kind in self.stage.kinds and not self.tally.failed:
                self._sweep(kind, part.weights, seeds)

    def _sweep(self, kind: Inputs, weights: Weights, seeds: Seeds) -> None:
        """The draws of `kind` that belong together, until one fails."""
        turns, most = self.stage.turns[kind], self.stage.inputs.count
        trials = [Trial(kind, weights, seed) for seed in seeds.draw_several(turns.made)]
        for begun in range(0, len(trials), most):
            group = trials[begun : begun + most]
            for slot, trial in enumerate(group):
                self._draw(trial, slot)
                self.stage.inputs.mend_guards(slot, next(self._poisons))
            for slot, output in enumerate(self._block(group)):
                self._compare(group[slot], slot, [output], POISONS[0])
            if self.tally.failed:
                return
        if len(trials) < turns.needed:
            reached = f"{len(trials)} of the {turns.needed} draws that would reach every place"
            self.tally.remark(f"{kind}: {reached}")

    def _in_a_fresh_model(self, trial: Trial) -> None:
        """What went wrong in the model in use once more: is it the use, or are it the inputs?"""
        with self.tally.clock("worker"):
            self.session.load(self.stage.weights)
        self._try([replace(trial, when=When.FIRST)])

    def _try(self, trials: Sequence[Trial]) -> list[list[Tensor]]:
        """Draws of one block: two calls each, then the oracle, then the rules; the outputs."""
        poisons = [next(self._poisons) for _ in trials]
        for slot, trial in enumerate(trials):
            self._draw(trial, slot)
            # What is read past the end of an input shows, though it is multiplied by zero.
            self.stage.inputs.mend_guards(slot, poisons[slot])
        together = self._block(trials) if next(self._block_first) else None
        alone = [self._alone(trial, slot, poisons[slot]) for slot, trial in enumerate(trials)]
        together = together or self._block(trials)
        for slot, trial in enumerate(trials):
            self._compare(trial, slot, [alone[slot], together[slot]], poisons[slot])
        return alone

    def _try_again(self, before: Sequence[tuple[Trial, list[Tensor]]]) -> None:
        """What came before once more, in another order; the same output again needs no judging."""
        trials = [replace(trial, when=When.AGAIN) for trial, _ in before]
        for slot, trial in enumerate(trials):
            self._draw(trial, slot)
        for slot, output in enumerate(self._block(trials)):
            if not _equal(output, before[slot][1]):
                self._compare(trials[slot], slot, [output], POISONS[0])

    def _alone(self, trial: Trial, slot: int, poison: int) -> list[Tensor]:
        """The output of one call by itself; `poison` lies in whatever memory the candidate gets."""
        stage = self.stage
        stage.lent.lay(stage.inputs, slot)
        stage.outputs.poison(poison, slot)
        with self.tally.clock("candidate"):
            self.session.run(
                stage.lent, stage.outputs, [(slot, slot)], deadline_s=self.call_s, poison=poison
            )
            snapshot = stage.outputs.snapshot(slot)
        self._check_memory(trial, slot)
        return snapshot

    def _block(self, trials: Sequence[Trial]) -> list[list[Tensor]]:
        """The outputs of a block of calls, made in the form in which calls are timed."""
        stage, slots = self.stage, range(len(trials))
        for slot in slots:
            stage.lent.lay(stage.inputs, slot)
            stage.outputs.poison(POISONS[0], slot)
        with self.tally.clock("candidate"):
            self.session.block(
                stage.lent,
                stage.outputs,
                # The other way round, so that what a call does to the one after it shows.
                [(slot, slot) for slot in reversed(slots)],
                deadline_s=self.call_s * len(trials),
                flush=FLUSH if stage.task.device is Device.CUDA else 0,
            )
            snapshots = [stage.outputs.snapshot(slot) for slot in slots]
        for slot, trial in enumerate(trials):
            self._check_memory(trial, slot)
        return snapshots

    def _draw(self, trial: Trial, slot: int) -> None:
        with self.tally.clock("oracle"):
            self.oracle.draw(trial.kind, trial.seed, self.stage.inputs, slot)

    def _compare(
        self, trial: Trial, slot: int, snapshots: Sequence[Sequence[Tensor]], poison: int
    ) -> None:
        """Judge what calls on one draw gave; `poison` lay in the memory of the first."""
        # Equal outputs are judged once: that is nearly always, and halves the work.
        distinct = snapshots[:1] if _equal(snapshots[0], snapshots[-1]) else snapshots
        count = next(self.tally.to_perturb, 0)
        spread = count > 0 or self._wants_spread(trial)
        answered, findings = self._judged(trial, slot, distinct, count, spread=spread)
        if not spread and not all(finding.passed for finding in findings):
            answered, findings = self._judged(trial, slot, distinct, count, spread=True)
        self.tally.perturbations.append(answered.perturbations)
        if not findings:
            return
        with self.tally.clock("compare"):
            expected = self.stage.expected()
            if trial.kind in LENIENT and (told := strays(distinct[0], expected)):
                self.tally.remark(f"{trial.kind}: {told}")
            unwritten = not findings[0].passed and _poisoned(distinct[0], poison)
            if findings[0].passed and not findings[-1].passed:
                trial = replace(trial, when=When.TIMED)
            self.tally.add(trial, distinct, expected, findings, unwritten)
            if self.tally.trivial:
                if self.tally.constants is None:
                    self.tally.constants = constants(expected)
                self.tally.trivial = self._constant_passes(
                    self.tally.constants, expected, trial.kind
                )

    def _judged(
        self,
        trial: Trial,
        slot: int,
        outputs: Sequence[Sequence[Tensor]],
        count: int,
        *,
        spread: bool,
    ) -> tuple[Answered, list[Finding]]:
        """What the oracle says, and the rules on each of `outputs`; none where it says nothing."""
        answered = self._answer(trial, slot, count, spread=spread)
        if not answered.tells(trial.kind):
            return answered, []
        asked = spread and not self.tally.failed
        doubt = self._doubt(trial, slot, answered.perturbations) if asked else None
        with self.tally.clock("compare"):
            expected = self.stage.expected()
            return answered, [
                self.stage.judged(output, expected, trial.kind, doubt) for output in outputs
            ]

    def _wants_spread(self, trial: Trial) -> bool:
        """Whether more hangs on the spread than the passing of what passes without it as well.

        Every bound grows with it. But a zero-mean draw tells what precision was seen, coarser
        arithmetic is held against it, near-ties are found by it, and a constant must fail in spite
        of it.
        """
        stage = self.stage
        plain = stage.task.precision is Precision.MATCH and not stage.discrete
        return trial.kind is Inputs.NORMAL or not plain or self.tally.trivial

    def _answer(self, trial: Trial, slot: int, count: int, *, spread: bool) -> Answered:
        thorough = trial.kind is Inputs.NORMAL and trial.when is not When.AGAIN
        patience = SPREAD_S if thorough else LOGIC_SPREAD_S
        with self.tally.clock("oracle"):
            return self.oracle.answer(
                self.stage.inputs,
                slot,
                self.stage.answers,
                trial.seed,
                (0.0 if trial.kind in SWEEPS else patience) if spread else None,
                FEW_OPPOSITES if trial.kind in SWEEPS else OPPOSITES,
                count=count,
            )

    def _doubt(self, trial: Trial, slot: int, perturbations: int) -> Doubt:
        """By the more perturbations the quicker the reference is; an audit takes as many."""
        stage, pairs = self.stage, DOUBTED * perturbations
        return Doubt(self.oracle, stage.inputs, slot, stage.answers, trial.seed, pairs)

    def _constant_passes(self, levels: Sequence[float], expected: Expected, kind: Inputs) -> bool:
        """One constant for all draws: a loss is one number in each of them, yet not the same."""
        import torch

        flat = [torch.full_like(r, c) for r, c in zip(expected.declared, levels, strict=True)]
        return self.stage.judged(flat, expected, kind).passed

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """One thread for little work on the CPU."""
        import torch

        before = torch.get_num_threads()
        elements = sum(view.numel() for view in self.stage.outputs.tensors())
        little = self.stage.task.device is Device.CPU and elements < FEW_ELEMENTS
        torch.set_num_threads(1 if little else before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _check_memory(self, trial: Trial, slot: int) -> None:
        """The inputs must be as they were lent, and everything beside the tensors too."""
        if not self.stage.lent.holds(self.stage.inputs, slot):
            if self.stage.lent.guards_like(self.stage.inputs, slot):
                what = f"after a call on {trial.kind} inputs they are not as they were"
                raise Rejected(Reason.CHANGED_INPUT, what, self.session.output())
            raise Rejected(Reason.WROTE_OUTSIDE, "wrote beside an input", self.session.output())
        if not self.stage.outputs.guards_hold():
            raise Rejected(Reason.WROTE_OUTSIDE, "wrote beside an output", self.session.output())


def _equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Bit for bit; poison differs from draw to draw, so that unwritten elements are not."""
    import torch

    return all(torch.equal(_words(a), _words(b)) for a, b in zip(first, second, strict=True))


def _words(tensor: Tensor) -> Tensor:
    import torch

    return tensor.reshape(-1).view(torch.uint8)


def _poisoned(outputs: Sequence[Tensor], byte: int) -> bool:
    """Whether some tensor holds the poison in a place; as an integer 0xFF.. is -1, and no sign."""
    for tensor in outputs:
        telling = tensor.is_floating_point() or byte != POISONS[0]
        if tensor.numel() and tensor.element_size() > 1 and telling:
            words = _words(tensor).view(-1, tensor.element_size())
            if bool((words == byte).all(dim=1).any()):
                return True
    return False
