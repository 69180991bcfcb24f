"""The referee: it owns the seeds, the memory and the clock, and decides the verdict.

It opens a task once (fork server, oracle, arenas) and then judges attempts, each in separate
processes (`processes.py`). It runs neither the candidate's code nor the user's. Seeds come from
os.urandom after the attempt is frozen. Outputs are in the referee's own memory, which is poisoned
before a call and copied immediately after it. A worker only reports that a call is done and the
time by its own clock.

Not thread-safe: use it from one thread at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.device_lock import ALONE, Sharing
from cuagent.sandbox import Policy, Tier, harden, probe_forked, stamp
from cuagent.task import Device, Precision, Task, TaskError
from cuagent.task.settings import baseline_settings
from cuagent.verdict import Reason, Verdict
from cuagent.verify import surroundings
from cuagent.verify.compile_ahead import compile_ahead
from cuagent.verify.compiled_code import compiles_when_called
from cuagent.verify.context import VerifyContext
from cuagent.verify.domain import Domain, domain_of
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.memory_plan import MemoryPlan
from cuagent.verify.oracle.client import Oracle, PerturbationBudget, SensitivityQuery
from cuagent.verify.oracle.process import OracleLost
from cuagent.verify.pending import PendingVerdict
from cuagent.verify.plan import plan
from cuagent.verify.prefetch import OraclePrefetcher
from cuagent.verify.processes import Processes
from cuagent.verify.report import FORESEEN, build_failure, explain
from cuagent.verify.rules.types import Expected, Finding
from cuagent.verify.run import VerificationRun
from cuagent.verify.tally import Tally, call_count
from cuagent.verify.timed_batches import FEW_PAIRS, TimedBatches
from cuagent.verify.versions import versions
from cuagent.worker import ForkServer, ForkServerError, Session
from cuagent.worker.giving_way import give_way_beside, run_giving_way
from cuagent.worker.memory.arena import synchronize
from cuagent.worker.memory.heap import give_back, give_back_surplus

if TYPE_CHECKING:
    from torch import Tensor

Isolation = Literal["auto", "landlock", "none"]

VERIFIED_CALL_S = 30.0
"""Least time limit of one call in seconds; for a slow reference it is SLOWER times its time."""
REPEATED = 1.5
"""Time limit of a repeated first call, divided by the seconds of the earlier one."""
VERDICT_S = 60.0
"""Seconds that a candidate's calls and loads may take in one verdict.

SLOWER times the reference's time is added. This time covers compilation at the first call and a
slow first draft.
"""
SLOWER = 10.0
"""Ratio of a candidate's time to the reference's time that is allowed in a verdict."""


class Referee:
    """Verifies attempts at `task`. A context manager.

    `isolation`: "auto" is the strongest tier that this machine supports. A given `fork_server` may
    be used by several referees and is not closed; by default one is started. `budget` limits the
    bytes of the device's memory that the task may take. With `compiler` a started fork server
    imports torch.compile, which only timing needs. `lock` and `give_way` are as in `Processes`.
    Raises TaskError (TooLarge if the device has too little memory for a verdict), ForkServerError,
    OracleLost.
    """

    def __init__(
        self,
        task: Task,
        isolation: Isolation = "auto",
        *,
        call_s: float = VERIFIED_CALL_S,
        fork_server: ForkServer | None = None,
        budget: int | None = None,
        kernels_only: bool = False,
        compiler: bool = False,
        lock: Path | None = None,
        give_way: Callable[[], None] = lambda: None,
    ):
        self.task = task
        self.budget = budget
        self.call_s = call_s
        self._closed = False
        self._begun: tuple[Session, ...] = ()
        """The process of a verdict that has begun."""
        self.processes = Processes(
            task,
            partial(_isolate, task, isolation),
            *(fork_server, budget, kernels_only, compiler, lock, give_way),
        )
        self.tier = self.processes.tier
        try:
            self._open()
        except BaseException:
            self.processes.close()
            raise

    def _open(self) -> None:
        self.facts = self.processes.facts
        self.room = MemoryPlan.of(self.facts, self.task.device, self.budget)
        self.room.assure(self.task, "a verdict", self.room.verdict)
        self.context = VerifyContext.open(self.task, self.facts, self.room)
        self.batches = TimedBatches(self.processes, self.context)
        """Input sets and outputs of timed calls."""
        self.processes.room = self.room
        self.processes.load_timed_weights()

    @property
    def domain(self) -> Domain:
        """Form of the calls that the verdicts cover."""
        return domain_of(self.task, self.facts)

    @property
    def bytes_per_call(self) -> int:
        """Bytes of one call's tensors in a batch: two input sets and two sets of outputs."""
        return self.facts.layouts.bytes_per_call

    def time_limit_s(self, calls: int) -> float:
        """Return the seconds that a candidate may take for `calls` calls before it is killed."""
        return VERDICT_S + SLOWER * calls * self.facts.call_s

    def call_limit_s(self, attempt: Attempt) -> float:
        """Return the time limit of one call of a candidate in seconds.

        An attempt that compiles when it is called may use the whole time of a verdict, because on a
        busy machine torch.compile takes longer than a call. If its first call took longer, its
        compiled files may have been too many to store, so it may compile them again.
        """
        least = VERDICT_S if compiles_when_called(attempt) else self.call_s
        return max(least, self.call_s, SLOWER * self.facts.call_s, self._compiling_s(attempt))

    def _compiling_s(self, attempt: Attempt) -> float:
        """Return the seconds that the attempt may take to repeat its first compilation."""
        return REPEATED * self.processes.compiled.first_call_s(attempt)

    @property
    def folder(self) -> Path:
        """Folder that contains the files of all attempts while they are judged."""
        return self.fork_server.folder

    @property
    def oracle(self) -> Oracle:
        """The oracle; a new one if the old one died."""
        return self.processes.oracle

    @property
    def fork_server(self) -> ForkServer:
        """Fork server, from which trusted processes for measurements may be forked."""
        return self.processes.fork_server

    # -- verdicts

    def compile_ahead(self, attempt: Attempt, build: Build, sharing: Sharing = ALONE) -> None:
        """Make the first call of an attempt and store the compiled files for its later processes.

        Called before a verdict that a timing follows. Does nothing if the attempt seems to compile
        nothing, for a large task, and the second time. `sharing` as in `compile_ahead`.
        """
        if not self.large:
            compile_ahead(self.processes, self.context, self.batches, attempt, build, sharing)

    def verify(
        self,
        attempt: Attempt,
        build: Build,
        *,
        again: Verdict | None = None,
        sharing: Sharing = ALONE,
    ) -> Verdict:
        """Judge a frozen attempt; return the verdict.

        A candidate's fault raises no error, and the method never hangs. `again` is an earlier
        verdict to repeat with its seeds; by default seeds are drawn from os.urandom. `sharing` is
        called between two groups of draws, while no work of this verdict runs on a GPU, and while
        the attempt's process is stopped.
        """
        return self.complete(self.begin(attempt, again=again), build, sharing)

    def begin(self, attempt: Attempt, *, again: Verdict | None = None) -> PendingVerdict:
        """Begin a verdict while a compiler builds the libraries; `complete` finishes it.

        The attempt is frozen, so its seeds may be drawn. None of its code runs before `complete`,
        and the compiler runs in a sandbox. Raises ForkServerError if the referee was closed; the
        verdict reports any other fault.
        """
        if self._closed:
            raise ForkServerError("the referee was closed")
        self.batches.forget_answer()
        pending = PendingVerdict(attempt, Seeds(again.seeds if again else ()), again)
        pending.seed = pending.seeds.draw()
        try:
            self.processes.mend()
            planned = plan(
                pending.seeds,
                self.facts.kinds,
                self.facts.sweep_counts,
                weights=self.facts.state,
                grown=self.facts.grown,
                large=self.facts.large,
            )
            # A repeated verdict sets the number of perturbations. Without a sandbox the compiled
            # code could read the answers.
            eager = again is None and self.tier is not Tier.NONE
            pending.prefetcher = OraclePrefetcher(
                self.context, self.oracle, pending.seed, planned, eager=eager
            )
            pending.session = self.processes.waiting(attempt, pending.seed)
            self._begun = (pending.session,)
        except FORESEEN as failure:
            pending.failure = failure
        return pending

    def refuse(self, attempt: Attempt, build: Build) -> Verdict:
        """Return the rejection of an attempt whose build failed; no process is needed."""
        assert not build.ok, "the build succeeded; verify it instead"
        return self.complete(PendingVerdict(attempt, Seeds()), build)

    def complete(self, pending: PendingVerdict, build: Build, sharing: Sharing = ALONE) -> Verdict:
        """Finish a verdict with the attempt's libraries and return it.

        Raises ValueError if the build is of another attempt than `pending`.
        """
        attempt, again, seeds = pending.attempt, pending.again, pending.seeds
        if build.attempt != attempt.digest:
            pending.close()
            raise ValueError("the build is of another attempt than the pending verdict")
        since = time.perf_counter()
        tally = Tally(again.perturbations if again else ())
        output = ""
        try:
            if not build.ok:
                raise build_failure(build)
            output = self._judge(pending, build, tally, sharing)
            reason, detail = tally.conclusion()
        except FORESEEN as failure:
            reason, detail, output = explain(failure)
        finally:
            pending.close()
            self._begun = ()
            self.batches.forget_answer()
            self.make_room()
        tally.add_seconds("total", time.perf_counter() - since)
        return Verdict(
            accepted=reason is Reason.ACCEPTED,
            reason=reason,
            detail=attempt.with_display_name(detail),
            task=self.task.digest,
            attempt=attempt.digest,
            lax=tally.lax_rule(),
            strict=tally.strict_rule(),
            precision=self._label(tally.precision()),
            draws=tuple(tally.draws),
            tier=self.stamp(),
            seconds=dict(tally.seconds),
            notes=(*tally.notes(), *filter(None, [surroundings.note(attempt, self.task.source)])),
            seeds=tuple(seeds.drawn),
            perturbations=tuple(tally.perturbations),
            output=attempt.with_display_name(output),
            versions=versions(self.task.device),
            settings=self.settings_line,
            errors=tally.errors,
        )

    @property
    def settings_line(self) -> str:
        """torch's settings of the reference and the baselines, as one line."""
        used = baseline_settings(self.facts.settings, self.task.precision)
        return used.line(self.task.device)

    def _label(self, found: Precision | None) -> Precision | None:
        """Return the verdict's precision for the arithmetic `found` in the candidate's errors.

        It is FP32 instead of MATCH if the task demands fp32.
        """
        fp32 = found is Precision.MATCH and self.task.precision is Precision.FP32
        return Precision.FP32 if fp32 else found

    def examine(self, give_way: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Let the oracle examine the reference (`cuagent.verify.fitness`); return the findings."""
        self.processes.mend()
        return self.oracle.examine(give_way)

    @contextmanager
    def giving_way(self, sharing: Sharing) -> Iterator[None]:
        """Context in which the device is given away in the oracle's breaks, if a timing waits.

        The process of a verdict that has begun is stopped meanwhile: it may still start CUDA.
        """
        device = self.task.device.value

        def in_break() -> None:
            if sharing.awaited():
                synchronize(device)
                give_way_beside(self._begun, sharing)

        with self.oracle.giving_way(in_break):
            yield

    def drawn(self, weights: Weights, seed: int, kind: Inputs, draw: int) -> list[Tensor]:
        """Return the inputs of one draw, for which the weights are loaded too; they are valid until
        the next draw.

        `seed` is the seed of the weights, `draw` that of the inputs. Raises TaskError, OracleLost.
        """
        self.batches.forget_answer()
        self.oracle.load_weights(weights, seed, self.context.weights)
        self.oracle.draw(kind, draw, self.context.inputs)
        return self.context.inputs.tensors()

    def ask(
        self, weights: Weights, seed: int, kind: Inputs, draw: int, *, spread: bool = True
    ) -> tuple[Expected, list[Tensor]]:
        """Return (right answer, inputs) for one draw, as `drawn` does.

        The answer takes several calls of the reference in fp64, without its `spread` one.
        """
        context = self.context
        inputs = self.drawn(weights, seed, kind, draw)
        budget = PerturbationBudget(0.0 if spread else None)
        self.oracle.answer(context.inputs, 0, context.answers, draw, budget)
        return context.expected(), inputs

    def sensitivity(self, draw: int, pairs: int = FEW_PAIRS) -> SensitivityQuery:
        """Return the sensitivity query for the draw of the last `ask`.

        It has `pairs` perturbation pairs, and is sent when an error first needs it.
        """
        context = self.context
        return SensitivityQuery(self.oracle, context.inputs, 0, context.answers, draw, pairs)

    def judged(
        self,
        outputs: Sequence[Tensor],
        expected: Expected,
        kind: Inputs,
        sensitivity: SensitivityQuery,
    ) -> Finding:
        """Judge `outputs` for the draw of the last `ask` by the strict rule.

        Several outputs of one draw are judged with one `sensitivity`, which is then measured once.
        The wrong elements are not described.
        """
        return self.context.judged(outputs, expected, kind, sensitivity, explain=False)

    @property
    def large(self) -> bool:
        """True for a large task, whose unused memory must be released."""
        return self.facts.large

    def make_room(self) -> None:
        """Release the memory of a large task until the next verdict; of another task torch's unused
        GPU memory."""
        if not self.large:
            if self.task.device is Device.CUDA:
                give_back_surplus()
            return
        self.batches.forget_answer()
        for arena in self.context.arenas:
            if self.oracle.alive:
                with suppress(OracleLost, TaskError):  # the next request raises it again
                    self.oracle.forget(arena)
            arena.give_back()
        give_back(self.task.device.value)

    def _judge(self, pending: PendingVerdict, build: Build, tally: Tally, sharing: Sharing) -> str:
        """Run all rounds of a verdict; return the text that the candidate printed.

        Raises Rejected, SessionEnded.
        """
        if pending.failure is not None:
            raise pending.failure
        assert pending.session is not None
        assert pending.prefetcher is not None
        with pending.session as session:
            with tally.clock("oracle"):
                pending.prefetcher.suspend()
            with tally.clock("worker"):
                libraries = [library.path for library in build.libraries]
                run_giving_way(partial(session.import_model, libraries), session, sharing)
            call_s = self.call_limit_s(pending.attempt)
            session.time_limit_s = self.time_limit_s(call_count(self.facts.sweep_counts))
            session.time_limit_s += self._compiling_s(pending.attempt)
            VerificationRun(
                self.context, pending.prefetcher, session, tally, call_s, pending.seeds, sharing
            ).run()
            return session.output()

    def stamp(self) -> str:
        """Return the text that names the isolation of a candidate's process in a verdict."""
        on_gpu = self.task.device is Device.CUDA
        return stamp(self.tier, Policy(gpu=on_gpu, memory_bytes=self.processes.memory_bytes))

    def close(self) -> None:
        """End all processes and release all memory. Idempotent."""
        self._closed = True
        self.processes.close()
        self.context.close()

    def __enter__(self) -> Referee:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _isolate(task: Task, isolation: Isolation) -> Tier:
    """Return the tier in which candidates run, and protect this process from them."""
    tier = _tier(isolation)
    if tier is not Tier.NONE and os.geteuid() != 0 and task.device is Device.CPU:
        harden()  # a worker under the same user id must not read the seeds from /proc
    return tier


def _tier(isolation: Isolation) -> Tier:
    if isolation == "none":
        return Tier.NONE
    if isolation == "landlock":
        return Tier.LANDLOCK
    return probe_forked()
