"""The referee: it holds the seeds, the memory, the clock and the decision.

It opens a task once (warm process, oracle, arenas) and then judges attempts, each in processes of
its own. It runs neither the candidate's code nor the user's. Seeds come from os.urandom after the
attempt is frozen; outputs lie in its own memory, poisoned before a call and copied away at once
after it; nothing that a worker sends is more than "done, at this time by my clock".

One thread at a time.
"""

from __future__ import annotations

import platform
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from cuagent import __version__
from cuagent.attempt import Attempt
from cuagent.build import Build, environment
from cuagent.sandbox import SandboxError, Tier, probe, stamp
from cuagent.task import Task, TaskError
from cuagent.verify.inputs import Inputs, Weights
from cuagent.verify.oracle import Oracle, OracleLost
from cuagent.verify.rounds import ROUNDS, Rejected, Tally, Trial
from cuagent.verify.tolerance import Expected, Finding, constants, strict
from cuagent.verify.verdict import Reason, RuleResult, Verdict
from cuagent.worker import (
    Arena,
    Layout,
    Nursery,
    NurseryError,
    Order,
    Session,
    SessionEnded,
    Status,
)
from cuagent.worker.arena import POISONS
from cuagent.worker.arms import CANDIDATE

if TYPE_CHECKING:
    from torch import Tensor

Isolation = Literal["auto", "landlock", "none"]

REASONS = {
    Status.IMPORT_FAILED: Reason.IMPORT_FAILED,
    Status.CONSTRUCT_FAILED: Reason.CONSTRUCT_FAILED,
    Status.STATE_MISMATCH: Reason.STATE_MISMATCH,
    Status.RAISED: Reason.RAISED,
    Status.WRONG_FORM: Reason.WRONG_FORM,
    Status.WROTE_OUTSIDE: Reason.WROTE_OUTSIDE,
    Status.CRASHED: Reason.CRASHED,
    Status.FORGED: Reason.CRASHED,
    Status.TIMED_OUT: Reason.TIMED_OUT,
    Status.LOST: Reason.INFRASTRUCTURE,
}
CALL_S = 30.0
"""Deadline of one call."""
SPREAD_S, LOGIC_SPREAD_S = 0.1, 0.02
"""About how long the oracle may perturb for one draw; those that judge logic have wide bounds."""


@dataclass
class Batch:
    """Input sets for timed calls, output buffers for them, and what is right, once asked for."""

    inputs: Arena
    outputs: Arena
    expected: dict[int, Expected] = field(default_factory=dict)

    @property
    def slots(self) -> list[tuple[int, int]]:
        """(input slot, output slot) of each call, as `Session.block` takes them."""
        return [(number, number) for number in range(self.inputs.count)]


class Referee:
    """Opens `task` once; a context manager. Raises TaskError, NurseryError, OracleLost.

    `isolation`: "auto" is the firmest tier that this machine holds.
    """

    def __init__(self, task: Task, isolation: Isolation = "auto", *, call_s: float = CALL_S):
        self.task = task
        self.call_s = call_s
        self.tier = _tier(isolation)
        self._nursery = Nursery()
        try:
            import torch  # noqa: F401  (while the nursery imports it too)

            self._oracle = Oracle(self._nursery, task)
            self._open()
        except BaseException:
            self._nursery.close()
            raise

    def _open(self) -> None:
        self.about: dict[str, Any] = self._oracle.describe()
        device = self.task.device.value
        layouts = {
            name: Layout.from_json(self.about[name])
            for name in ("inputs_layout", "output_layout", "precise_layout", "state_layout")
        }
        self._layouts = layouts
        self._inputs = Arena.create(layouts["inputs_layout"], 1, device)
        self._outputs = Arena.create(layouts["output_layout"], len(POISONS), device)
        self._weights = Arena.create(layouts["state_layout"], 1, device)
        self._timed_weights = Arena.create(layouts["state_layout"], 1, device)
        self._answers = {
            "declared": Arena.create(layouts["output_layout"], 1, device),
            "precise": Arena.create(layouts["precise_layout"], 1, device),
            "spread": Arena.create(layouts["precise_layout"], 1, device),
        }
        self.kinds = {Inputs(kind) for kind in self.about["kinds"]}
        self.longest_sum: int = self.about["longest_sum"]
        self._timed_seed = _seed()
        self._oracle.weigh(Weights.OWN, self._timed_seed, self._timed_weights)

    @property
    def bytes_per_call(self) -> int:
        """Of one input set and one output, to choose the size of a batch by."""
        return self._layouts["inputs_layout"].size + self._layouts["output_layout"].size

    # -- verdicts

    def verify(self, attempt: Attempt, build: Build) -> Verdict:
        """Judge one frozen attempt. Never raises for a candidate's fault, and never hangs."""
        begun = time.perf_counter()
        tally = Tally()
        reason, detail, output = Reason.ACCEPTED, "", ""
        if not build.ok:
            first = build.diagnostics[0] if build.diagnostics else None
            where = f"{first.file}:{first.line}: {first.message}" if first else "no library"
            reason, detail = Reason.BUILD_FAILED, where
        else:
            try:
                output = self._judge(attempt, build, tally)
                reason, detail = tally.conclusion()
            except Rejected as rejected:
                reason, detail = rejected.reason, str(rejected)
                output = rejected.output
            except SessionEnded as ended:
                reason, detail, output = REASONS[ended.status], ended.detail, ended.output
            except TaskError as error:
                reason, detail = Reason.NOT_CERTIFIABLE, str(error)
            except (NurseryError, OracleLost, SandboxError, MemoryError) as error:
                reason, detail = Reason.INFRASTRUCTURE, str(error)
        tally.spend("total", time.perf_counter() - begun)
        return Verdict(
            accepted=reason is Reason.ACCEPTED,
            reason=reason,
            detail=detail,
            task=self.task.digest,
            attempt=attempt.digest,
            lax=tally.lax_rule(),
            strict=tally.strict_rule(),
            precision=tally.precision(),
            draws=tuple(tally.draws),
            tier=stamp(self.tier),
            seconds=dict(tally.seconds),
            output=output,
            versions=_versions(),
        )

    def _judge(self, attempt: Attempt, build: Build, tally: Tally) -> str:
        """Go through the rounds; what the candidate printed. Raises Rejected, SessionEnded."""
        seed = _seed()
        with tally.clock("worker"):
            session = self._session(CANDIDATE, seed, attempt, build)
        with session:
            for weights, kinds in ROUNDS:
                wanted = [kind for kind in kinds if kind in self.kinds]
                if wanted:
                    with tally.clock("oracle"):
                        self._oracle.weigh(weights, seed, self._weights)
                    with tally.clock("worker"):
                        session.load(self._weights)
                for kind in wanted:
                    self._try(session, Trial(kind, weights, _seed()), tally)
                if tally.failed:
                    break  # the first round has all that the lax rule needs
            return session.output()

    def _try(self, session: Session, trial: Trial, tally: Tally) -> None:
        """One draw: two calls on poisoned memory, then the oracle, then the rules."""
        import torch

        with tally.clock("oracle"):
            self._oracle.draw(trial.kind, trial.seed, self._inputs)
        master = self._memory(self._inputs).clone()
        snapshots: list[list[Tensor]] = []
        for slot, byte in enumerate(POISONS):
            self._outputs.poison(byte, slot)
            with tally.clock("candidate"):
                session.run(
                    self._inputs, self._outputs, [(0, slot)], deadline_s=self.call_s, poison=byte
                )
                snapshots.append(self._outputs.snapshot(slot))
            self._check_memory(master, trial, session)
        with tally.clock("oracle"):
            patience = SPREAD_S if trial.kind is Inputs.NORMAL else LOGIC_SPREAD_S
            finite = self._oracle.answer(self._inputs, 0, self._answers, trial.seed, patience)
        if not finite and trial.kind is not Inputs.OWN:
            return
        with tally.clock("compare"):
            expected = self._expected()
            findings = [self._judged(snapshot, expected, trial.kind) for snapshot in snapshots]
            unwritten = [_poisoned(s, byte) for s, byte in zip(snapshots, POISONS, strict=True)]
            tally.add(trial, snapshots, expected, findings, all(unwritten))
            if tally.constants is None:
                tally.constants = constants(expected)
            # One constant for all draws: a loss is one number in each of them, yet not the same.
            flat = [
                torch.full_like(r, c)
                for r, c in zip(expected.declared, tally.constants, strict=True)
            ]
            tally.trivial = tally.trivial and self._judged(flat, expected, trial.kind).passed

    def _judged(self, outputs: Sequence[Tensor], expected: Expected, kind: Inputs) -> Finding:
        return strict(outputs, expected, kind, self.longest_sum, self.task.precision)

    def _check_memory(self, master: Tensor, trial: Trial, session: Session) -> None:
        """The inputs must be as they were lent, and everything beside the tensors too."""
        import torch

        if not torch.equal(self._memory(self._inputs), master):
            if self._inputs.guards_hold():
                what = f"after a call on {trial.kind} inputs they are not as they were"
                raise Rejected(Reason.CHANGED_INPUT, what, session.output())
            raise Rejected(Reason.WROTE_OUTSIDE, "wrote beside an input", session.output())
        if not self._outputs.guards_hold():
            raise Rejected(Reason.WROTE_OUTSIDE, "wrote beside an output", session.output())

    @staticmethod
    def _memory(arena: Arena) -> Tensor:
        assert arena.memory is not None
        return arena.memory

    def _expected(self) -> Expected:
        answers = self._answers
        return Expected(*(answers[n].tensors() for n in ("declared", "precise", "spread")))

    # -- sessions and batches, for measuring

    def candidate(self, attempt: Attempt, build: Build) -> Session:
        """A session of the attempt with the weights all timed arms share. Raises SessionEnded."""
        session = self._session(CANDIDATE, self._timed_seed, attempt, build)
        session.load(self._timed_weights)
        return session

    def reference(self, mode: str, *, environment: dict[str, str] | None = None) -> Session:
        """A session of the reference: "eager", "compile", or a mode of torch.compile.

        `environment` is for caches of compiled graphs, which a candidate must never share.
        """
        session = self._session(mode, self._timed_seed, extra=environment or {})
        session.load(self._timed_weights)
        return session

    def batch(self, count: int) -> Batch:
        """`count` fresh secret input sets of the task's own kind; close it with `discard`."""
        device = self.task.device.value
        batch = Batch(
            Arena.create(self._layouts["inputs_layout"], count, device),
            Arena.create(self._layouts["output_layout"], count, device),
        )
        self.refill(batch)
        return batch

    def refill(self, batch: Batch) -> None:
        """New contents for a batch, and poison in its outputs."""
        batch.expected.clear()
        for slot in range(batch.inputs.count):
            self._oracle.draw(Inputs.OWN, _seed(), batch.inputs, slot)
        batch.outputs.poison(POISONS[0])

    def check(self, batch: Batch) -> RuleResult:
        """The strict rule on every output of a batch that was run; compute it off the clock."""
        if not batch.expected:
            self._oracle.weigh(Weights.OWN, self._timed_seed, self._timed_weights)
        worst = 0.0
        for slot in range(batch.inputs.count):
            if slot not in batch.expected:
                self._oracle.answer(batch.inputs, slot, self._answers, _seed(), 0.0)
                batch.expected[slot] = _kept(self._expected())
            finding = self._judged(batch.outputs.tensors(slot), batch.expected[slot], Inputs.OWN)
            worst = max(worst, finding.ratio)
            if not finding.passed:
                return RuleResult(False, worst, f"call {slot}: {finding.note}")
        return RuleResult(True, worst)

    def discard(self, batch: Batch) -> None:
        """Give the memory of a batch back. Sessions that were lent it must be closed before."""
        self._oracle.forget(batch.inputs)
        batch.inputs.close()
        batch.outputs.close()

    def _session(
        self,
        arm: str,
        seed: int,
        attempt: Attempt | None = None,
        build: Build | None = None,
        extra: dict[str, str] | None = None,
    ) -> Session:
        order = Order(
            arm=arm,
            device=self.task.device,
            precision=self.task.precision,
            inputs=self.about["inputs"],
            output=self.about["output"],
            state=tuple(self.about["state"]),
            init=self.about["init"],
            seed=seed,
            task=None if arm == CANDIDATE else self.task,
        )
        if build is None:
            return Session.open(self._nursery, order, environment=extra)
        read = tuple(library.path for library in build.libraries)
        return Session.open(
            self._nursery,
            order,
            attempt,
            tier=self.tier,
            read=read,
            environment=environment(build),
        )

    def close(self) -> None:
        """End every process and give all memory back."""
        self._nursery.close()
        arenas = [self._inputs, self._outputs, self._weights, self._timed_weights]
        for arena in [*arenas, *self._answers.values()]:
            arena.close()

    def __enter__(self) -> Referee:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _kept(expected: Expected) -> Expected:
    parts = (expected.declared, expected.precise, expected.spread)
    return replace(
        expected,
        **{
            name: [tensor.clone() for tensor in part]
            for name, part in zip(("declared", "precise", "spread"), parts, strict=True)
        },
    )


def _poisoned(outputs: Sequence[Tensor], byte: int) -> bool:
    """Whether some tensor holds the poison in a place, and not by being right."""
    import torch

    for tensor in outputs:
        if tensor.numel() and tensor.element_size() > 1:
            words = tensor.reshape(-1).view(torch.uint8).view(-1, tensor.element_size())
            if bool((words == byte).all(dim=1).any()):
                return True
    return False


def _seed() -> int:
    return secrets.randbits(62)


def _tier(isolation: Isolation) -> Tier:
    if isolation == "none":
        return Tier.NONE
    if isolation == "landlock":
        return Tier.LANDLOCK
    # Bubblewrap gives commands a file system; a forked child gets what Landlock gives.
    return Tier.NONE if probe() is Tier.NONE else Tier.LANDLOCK


def _versions() -> dict[str, str]:
    import torch

    return {
        "cuagent": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
