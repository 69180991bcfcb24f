"""The referee: it holds the seeds, the memory, the clock and the decision.

It opens a task once (warm process, oracle, arenas) and then judges attempts, each in processes of
its own (`processes.py`). It runs neither the candidate's code nor the user's. Seeds come from
os.urandom after the attempt is frozen; outputs lie in its own memory, poisoned before a call and
copied away at once after it; nothing that a worker sends is more than "done, at this time by my
clock".

One thread at a time.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.sandbox import Policy, Tier, harden, probe_forked, stamp
from cuagent.task import Device, Task, TaskError
from cuagent.verdict import Reason, RuleResult, Verdict
from cuagent.verify.batch import Batch
from cuagent.verify.context import LOGIC_SPREAD_S, VerifyContext, bytes_per_call, layouts_of
from cuagent.verify.domain import Domain, domain_of
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.memory_plan import MemoryPlan
from cuagent.verify.oracle.client import (
    Answered,
    Oracle,
    OracleLost,
    PerturbationBudget,
    SensitivityQuery,
)
from cuagent.verify.pending import PendingVerdict
from cuagent.verify.plan import plan
from cuagent.verify.prefetch import OraclePrefetcher
from cuagent.verify.processes import Processes
from cuagent.verify.report import FORESEEN, build_failure, explain
from cuagent.verify.rules.types import Expected, Finding
from cuagent.verify.run import VerificationRun
from cuagent.verify.tally import Tally, most_calls
from cuagent.verify.versions import versions
from cuagent.worker import Arena, ForkServer, ForkServerError
from cuagent.worker.arms import CANDIDATE
from cuagent.worker.memory.arena import POISONS
from cuagent.worker.memory.heap import give_back

if TYPE_CHECKING:
    from torch import Tensor

Isolation = Literal["auto", "landlock", "none"]

CALL_S = 30.0
"""Deadline of one call, if the reference's takes no longer."""
VERDICT_S = 60.0
"""That a candidate's calls and weights may take together in one verdict, beside SLOWER times what
the reference's would: time for what compiles at its first call, and for a slow first draft."""
SLOWER = 10.0
FEW_PAIRS = 8
"""Of perturbations in doubt, where no verdict hangs on it alone."""


class Referee:
    """Opens `task` once; a context manager. Raises TaskError (TooLarge where the device has no room
    for a verdict), ForkServerError, OracleLost.

    `isolation`: "auto" is the firmest tier that this machine holds. `fork_server`: a warm process that
    several referees share, and that outlives them; else it starts its own.
    """

    def __init__(
        self,
        task: Task,
        isolation: Isolation = "auto",
        *,
        call_s: float = CALL_S,
        fork_server: ForkServer | None = None,
    ):
        self.task = task
        self.call_s = call_s
        self.tier = _tier(isolation)
        if self.tier is not Tier.NONE and os.geteuid() != 0 and task.device is Device.CPU:
            harden()  # a worker under the same user id must not read the seeds out of /proc
        self._closed = False
        self.processes = Processes(task, self.tier, fork_server)
        try:
            self._open()
        except BaseException:
            self.processes.close()
            raise

    def _open(self) -> None:
        self.about = self.processes.about
        self._layouts = layouts_of(self.about)
        self.room = MemoryPlan.of(self._layouts)
        self.room.assure(self.task, "a verdict", self.room.verdict)
        self.context = VerifyContext.open(self.task, self.about)
        self._told: tuple[int, Answered] | None = None
        """Of what was checked last, the seed and what was said; the answer lies on the stage."""
        self.processes.load_timed_weights()

    @property
    def domain(self) -> Domain:
        """The calls that its verdicts cover."""
        return domain_of(self.task, self.about)

    @property
    def bytes_per_call(self) -> int:
        """Of one input set and its outputs, all twice, to choose the size of a batch by."""
        return bytes_per_call(self._layouts)

    def time_limit_s(self, calls: int) -> float:
        """Seconds that a candidate may take for so many calls: then it is ended, wherever it is."""
        return VERDICT_S + SLOWER * calls * self.about["call_s"]

    @property
    def folder(self) -> Path:
        """Where everything that is judged lies while it is judged."""
        return self.fork_server.folder

    @property
    def oracle(self) -> Oracle:
        """As it is now: one that died is started anew."""
        return self.processes.oracle

    @property
    def fork_server(self) -> ForkServer:
        """For trusted children of those who measure."""
        return self.processes.fork_server

    # -- verdicts

    def verify(self, attempt: Attempt, build: Build, *, again: Verdict | None = None) -> Verdict:
        """Judge one frozen attempt. Never raises for a candidate's fault, and never hangs.

        `again` is an earlier verdict, to be given once more on its seeds; secret ones are drawn
        else.
        """
        return self.complete(self.begin(attempt, again=again), build)

    def begin(self, attempt: Attempt, *, again: Verdict | None = None) -> PendingVerdict:
        """What of a verdict can be done while a compiler makes the libraries.

        The attempt is frozen, so that its seeds may be drawn. None of its code runs before
        `complete`, and what compiles it is held in a sandbox. Raises ForkServerError where the referee
        was closed; what else is lost meanwhile the verdict says.
        """
        if self._closed:
            raise ForkServerError("the judge was closed")
        self._told = None
        pending = PendingVerdict(attempt, Seeds(again.seeds if again else ()), again)
        pending.seed = pending.seeds.draw()
        try:
            self.processes.mend()
            planned = plan(
                pending.seeds,
                self.context.kinds,
                self.context.turns,
                weights=self.context.state,
                grown=self.context.grown,
            )
            # An earlier verdict says how often to perturb, and what is not confined could look.
            eager = again is None and self.tier is not Tier.NONE
            pending.prefetcher = OraclePrefetcher(
                self.context, self.oracle, pending.seed, planned, eager=eager
            )
            pending.session = self.processes.waiting(attempt, pending.seed)
        except FORESEEN as failure:
            pending.failure = failure
        return pending

    def refuse(self, attempt: Attempt, build: Build) -> Verdict:
        """The verdict on a build that failed, for which no process is needed."""
        assert not build.ok, "it has to be judged"
        return self.complete(PendingVerdict(attempt, Seeds()), build)

    def complete(self, pending: PendingVerdict, build: Build) -> Verdict:
        """The verdict. Raises ValueError if the build is of another attempt than was begun."""
        attempt, again, seeds = pending.attempt, pending.again, pending.seeds
        if build.attempt != attempt.digest:
            pending.close()
            raise ValueError("the build is of another attempt than the verdict was begun for")
        since = time.perf_counter()
        tally = Tally(again.perturbations if again else ())
        output = ""
        try:
            if not build.ok:
                raise build_failure(build)
            output = self._judge(pending, build, tally)
            reason, detail = tally.conclusion()
        except FORESEEN as failure:
            reason, detail, output = explain(failure)
        finally:
            pending.close()
            self._told = None
            self.make_room()
        tally.spend("total", time.perf_counter() - since)
        return Verdict(
            accepted=reason is Reason.ACCEPTED,
            reason=reason,
            detail=attempt.in_its_words(detail),
            task=self.task.digest,
            attempt=attempt.digest,
            lax=tally.lax_rule(),
            strict=tally.strict_rule(),
            precision=tally.precision(),
            draws=tuple(tally.draws),
            tier=self._stamp(),
            seconds=dict(tally.seconds),
            notes=tally.notes(),
            seeds=tuple(seeds.drawn),
            perturbations=tuple(tally.perturbations),
            output=attempt.in_its_words(output),
            versions=versions(self.task.device),
        )

    def examine(self) -> dict[str, Any]:
        """What the oracle finds out about the reference (`cuagent.verify.fitness.examine`)."""
        self.processes.mend()
        return self.oracle.examine()

    def ask(
        self, weights: Weights, seed: int, kind: Inputs, draw: int
    ) -> tuple[Expected, list[Tensor]]:
        """What is right for one draw, and the inputs; both valid until the next draw."""
        context = self.context
        self._told = None
        self.oracle.load_weights(weights, seed, context.weights)
        self.oracle.draw(kind, draw, context.inputs)
        self.oracle.answer(context.inputs, 0, context.answers, draw, PerturbationBudget(0.0))
        return context.expected(), context.inputs.tensors()

    def judged(
        self,
        outputs: Sequence[Tensor],
        expected: Expected,
        kind: Inputs,
        draw: int,
        pairs: int = FEW_PAIRS,
    ) -> Finding:
        """The strict rule on an answer to what was last asked; `pairs` are perturbed in doubt."""
        context = self.context
        sensitivity = SensitivityQuery(self.oracle, context.inputs, 0, context.answers, draw, pairs)
        return context.judged(outputs, expected, kind, sensitivity)

    @property
    def large(self) -> bool:
        """Whether the task's tensors are so large that there is no room for what is not in use."""
        return self.about["large"]

    def make_room(self) -> None:
        """Of a large task, have no memory for verdicts until the next one."""
        if not self.large:
            return
        self._told = None
        for arena in self.context.arenas:
            if self.oracle.alive:
                with suppress(OracleLost, TaskError):  # told where it is asked next
                    self.oracle.forget(arena)
            arena.give_back()
        give_back(self.task.device.value)

    def _judge(self, pending: PendingVerdict, build: Build, tally: Tally) -> str:
        """Go through the rounds; what the candidate printed. Raises Rejected, SessionEnded."""
        if pending.failure is not None:
            raise pending.failure
        assert pending.session is not None
        assert pending.prefetcher is not None
        with pending.session as session:
            with tally.clock("oracle"):
                pending.prefetcher.suspend()
            with tally.clock("worker"):
                session.import_model([library.path for library in build.libraries])
            session.time_limit_s = self.time_limit_s(most_calls(self.context.turns))
            call_s = max(self.call_s, SLOWER * self.about["call_s"])
            VerificationRun(
                self.context, pending.prefetcher, session, tally, call_s, pending.seeds
            ).run()
            return session.output()

    # -- batches, for measuring

    def batch(self, count: int, *, filled: bool = True) -> Batch:
        """Room for `count` secret input sets, `filled` by `refill`; close it with `discard`."""
        device = self.task.device.value
        inputs, output = self._layouts["inputs"], self._layouts["output"]
        batch = Batch(
            Arena.create(inputs, count, device),
            Arena.create(inputs, count, device),
            Arena.create(output, count, device),
            Arena.create(output, count, device),
        )
        if filled:
            self.refill(batch, range(count))
        return batch

    def refill(self, batch: Batch, slots: Iterable[int], kind: Inputs = Inputs.OWN) -> None:
        """Draw slots of a batch anew, from secret seeds."""
        for slot in slots:
            batch.seeds[slot] = Seeds().draw()
            self.oracle.draw(kind, batch.seeds[slot], batch.inputs, slot)
            # As in a verdict: what lies beside an input does not tell which it is.
            batch.inputs.mend_guards(slot, secrets.choice(POISONS))
            batch.lay_out(CANDIDATE, [slot])
            batch.outputs.poison(POISONS[0], slot)

    def check(
        self,
        batch: Batch,
        slot: int = 0,
        outputs: Sequence[Tensor] | None = None,
        kind: Inputs = Inputs.OWN,
    ) -> RuleResult:
        """The strict rule on `outputs` for one slot of `kind`, a trusted arm's where not given."""
        self.processes.load_timed_weights()
        seed, answers = batch.seeds[slot], self.context.answers
        if self._told is None or self._told[0] != seed:
            answered = self.oracle.answer(
                batch.inputs, slot, answers, seed, PerturbationBudget(LOGIC_SPREAD_S)
            )
            self._told = seed, answered
        if not self._told[1].is_decisive(kind):
            return RuleResult(True, 0.0, "the reference has no answer here")
        given = batch.outputs.tensors(slot) if outputs is None else outputs
        sensitivity = SensitivityQuery(self.oracle, batch.inputs, slot, answers, seed, FEW_PAIRS)
        finding = self.context.judged(given, self.context.expected(), kind, sensitivity)
        return RuleResult(finding.passed, finding.ratio, finding.note)

    def discard(self, batch: Batch) -> None:
        """Give the memory of a batch back. Sessions that were lent it must be closed before."""
        self.oracle.forget(batch.inputs)
        for arena in (batch.inputs, batch.lent, batch.outputs, batch.untrusted):
            arena.close()

    def _stamp(self) -> str:
        on_gpu = self.task.device is Device.CUDA
        return stamp(self.tier, Policy(gpu=on_gpu, memory_bytes=self.processes.memory_bytes))

    def close(self) -> None:
        """End every process and give all memory back."""
        self._closed = True
        self.processes.close()
        self.context.close()

    def __enter__(self) -> Referee:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tier(isolation: Isolation) -> Tier:
    if isolation == "none":
        return Tier.NONE
    if isolation == "landlock":
        return Tier.LANDLOCK
    return probe_forked()
