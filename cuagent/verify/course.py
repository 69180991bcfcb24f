"""The course of one verdict: rounds of draws, two calls each, and what the referee sees of them.

Inputs come from the oracle and are kept a second time; outputs lie in the referee's memory,
poisoned before a call and copied away at once after it; only then is the oracle asked what was
right. The referee opens and closes all that is used here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cuagent.task import Device, Task
from cuagent.verify.inputs import Inputs
from cuagent.verify.oracle import Oracle
from cuagent.verify.rounds import ROUNDS, Rejected, Round, Tally, Trial, When
from cuagent.verify.seeds import Seeds
from cuagent.verify.tolerance import Expected, Finding, constants, strict
from cuagent.verify.verdict import Reason
from cuagent.worker import Arena, Session
from cuagent.worker.arena import POISONS

if TYPE_CHECKING:
    from torch import Tensor

SPREAD_S, LOGIC_SPREAD_S = 0.1, 0.02
"""About how long the oracle may perturb for one draw; those that judge logic have wide bounds."""
KEPT_BYTES = 1 << 30
"""Of first outputs that are kept to compare a second pass with; one is kept whatever its size."""
FEW_ELEMENTS = 1 << 22
"""Below this many, comparing on the CPU takes one thread: a pool that must share its cores with
other processes waits for itself (measured: 65 s for what one thread does in 0.1 s)."""


@dataclass(frozen=True)
class Stage:
    """What a task is judged with: the referee's memory and what the oracle said about the task."""

    task: Task
    inputs: Arena
    outputs: Arena
    """One slot for each poison."""
    weights: Arena
    answers: dict[str, Arena]
    """declared, precise, spread."""
    kinds: frozenset[Inputs]
    longest_sum: int

    def expected(self) -> Expected:
        return Expected(*(self.answers[n].tensors() for n in ("declared", "precise", "spread")))

    def judged(self, outputs: Sequence[Tensor], expected: Expected, kind: Inputs) -> Finding:
        return strict(outputs, expected, kind, self.longest_sum, self.task.precision)


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

    def run(self, seed: int, seeds: Seeds) -> None:
        """`seed` is for the weights; it was the session's at its construction."""
        stage = self.stage
        for arena in (stage.inputs, stage.outputs, stage.weights):
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
            if self.tally.failed:
                break  # the first round has all that the lax rule needs

    def _round(self, part: Round, seeds: Seeds) -> None:
        when = When.FIRST if part.fresh else When.SWAPPED
        first: list[tuple[Trial, list[Tensor]]] = []
        room = max(1, KEPT_BYTES // max(1, self.stage.outputs.layout.size))
        for kind in part.kinds:
            if kind in self.stage.kinds:
                trial = Trial(kind, part.weights, seeds.draw(), when)
                output = self._try(trial)
                if len(first) < min(part.again, room):
                    first.append((trial, output))
        if self.tally.failed or not part.again:
            return
        random.Random(seeds.draw()).shuffle(first)
        for trial, output in first:
            self._try(replace(trial, when=When.AGAIN), output)

    def _try(self, trial: Trial, before: Sequence[Tensor] | None = None) -> list[Tensor]:
        """One draw: a call on each poison, then the oracle, then the rules; the first output.

        `before` is what came out for the same inputs earlier: the same again needs no judging.
        """
        with self.tally.clock("oracle"):
            self.oracle.draw(trial.kind, trial.seed, self.stage.inputs)
        master = _memory(self.stage.inputs).clone()
        snapshots: list[list[Tensor]] = []
        for slot, byte in enumerate(POISONS if before is None else POISONS[:1]):
            self.stage.outputs.poison(byte, slot)
            with self.tally.clock("candidate"):
                self.session.run(
                    self.stage.inputs,
                    self.stage.outputs,
                    [(0, slot)],
                    deadline_s=self.call_s,
                    poison=byte,
                )
                snapshots.append(self.stage.outputs.snapshot(slot))
            self._check_memory(master, trial)
        if before is None or not _equal(snapshots[0], before):
            self._compare(trial, snapshots)
        return snapshots[0]

    def _compare(self, trial: Trial, snapshots: Sequence[Sequence[Tensor]]) -> None:
        with self.tally.clock("oracle"):
            patience = SPREAD_S if trial.kind is Inputs.NORMAL else LOGIC_SPREAD_S
            finite = self.oracle.answer(
                self.stage.inputs, 0, self.stage.answers, trial.seed, patience
            )
        if not finite and trial.kind is not Inputs.OWN:
            return
        with self.tally.clock("compare"):
            expected = self.stage.expected()
            # Equal outputs are judged once: that is nearly always, and halves the work.
            distinct = snapshots[:1] if _equal(snapshots[0], snapshots[-1]) else snapshots
            findings = [self.stage.judged(snapshot, expected, trial.kind) for snapshot in distinct]
            unwritten = len(distinct) > 1 and all(
                _poisoned(s, byte) for s, byte in zip(distinct, POISONS, strict=True)
            )
            self.tally.add(trial, distinct, expected, findings, unwritten)
            if self.tally.trivial:
                if self.tally.constants is None:
                    self.tally.constants = constants(expected)
                self.tally.trivial = self._constant_passes(
                    self.tally.constants, expected, trial.kind
                )

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

    def _check_memory(self, master: Tensor, trial: Trial) -> None:
        """The inputs must be as they were lent, and everything beside the tensors too."""
        import torch

        if not torch.equal(_memory(self.stage.inputs), master):
            if self.stage.inputs.guards_hold():
                what = f"after a call on {trial.kind} inputs they are not as they were"
                raise Rejected(Reason.CHANGED_INPUT, what, self.session.output())
            raise Rejected(Reason.WROTE_OUTSIDE, "wrote beside an input", self.session.output())
        if not self.stage.outputs.guards_hold():
            raise Rejected(Reason.WROTE_OUTSIDE, "wrote beside an output", self.session.output())


def _memory(arena: Arena) -> Tensor:
    assert arena.memory is not None
    return arena.memory


def _equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Bit for bit; poison differs from draw to draw, so that unwritten elements are not."""
    import torch

    return all(torch.equal(_words(a), _words(b)) for a, b in zip(first, second, strict=True))


def _words(tensor: Tensor) -> Tensor:
    import torch

    return tensor.reshape(-1).view(torch.uint8)


def _poisoned(outputs: Sequence[Tensor], byte: int) -> bool:
    """Whether some tensor holds the poison in a place, and not by being right."""
    for tensor in outputs:
        if tensor.numel() and tensor.element_size() > 1:
            words = _words(tensor).view(-1, tensor.element_size())
            if bool((words == byte).all(dim=1).any()):
                return True
    return False
