"""How an attempt is timed: arms interleaved in random order, under two clocks, on unseen inputs.

Each repeat gives every arm (the candidate and the baselines, each in a process of its own) one
block of calls on the same input sets, in an order drawn anew; a pair is two blocks of one repeat,
so drift hits both (`repeats.py`). The worker's own clock gives the fine number, and the referee's
wall clock around the block says how little may be counted (`lane.py`). The baselines' processes
stay warm from one timing to the next (`baselines.py`). docs/concepts/timing.md has the formulas
and the error model.

Invariant: nothing that the candidate reports can make it faster than the wall clock allows, and no
honest candidate is refused because the machine is busy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.events import Emit, Phase, ignore
from cuagent.measure import system_load
from cuagent.measure.roofline.ceilings import ceilings, describe
from cuagent.measure.roofline.count import count
from cuagent.measure.roofline.model import Roofline, Work
from cuagent.measure.timing.baselines import CHEAP_S, Baselines, warmed
from cuagent.measure.timing.parts import is_last, parts, together
from cuagent.measure.timing.repeats import Repeats
from cuagent.measure.timing.rounds import LOOKS, TWIN, Round, Rounds, arm_of, enough, ratio, twins
from cuagent.measure.timing.surroundings import MOST_SLOTS, one_thread, versions
from cuagent.measure.timing.timed_arm import TimedArm, counted, hidden
from cuagent.task import Device, TaskError
from cuagent.timing import Arm, Effort, Floor, Ratio, Timing
from cuagent.verify.batch import Batch
from cuagent.verify.oracle.client import OracleLost
from cuagent.verify.referee import Referee
from cuagent.worker import ForkServerError, Session, SessionEnded
from cuagent.worker.arms import CANDIDATE, COMPILE, EAGER

BASELINES = (EAGER, COMPILE)
BUDGET_S = {Effort.GLANCE: 0.3, Effort.QUICK: 1.5, Effort.RECORD: 30.0}
"""For the repeats of a quick timing, for all rounds of one of record; the fewest come anyway."""
MOST_CALLS = 60 * MOST_SLOTS
"""Of a candidate in one round."""

Subject = tuple[Attempt, Build]
"""What is timed against the baselines; without one they are timed by themselves."""


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


class Timer:
    """Times attempts against baselines that stay open from one to the next. A context manager."""

    def __init__(
        self, referee: Referee, baselines: Sequence[str] = BASELINES, emit: Emit = ignore
    ) -> None:
        self.referee = referee
        self.emit = emit
        self.device = referee.task.device
        self._baselines = Baselines(referee, baselines, emit)
        self._prepared = False
        self._waiting: tuple[Attempt, Session] | None = None
        """A process of an attempt that may be timed, and has not begun."""
        self._apart: list[float] = []
        """How far twins lay apart in each timing so far."""
        self._work: Work | None = None
        self._unit = ""
        self._known: dict[str, list[float]] = {}
        """Seconds that each baseline took in each round so far."""
        self._uncountable = False
        self._roofline: Roofline | None = None
        self._doubted = False

    def time(self, attempt: Attempt, build: Build, effort: Effort = Effort.QUICK) -> Timing:
        """Time one attempt that was accepted. A candidate's fault is told in its `Arm.failed`.

        Raises TooLarge.
        """
        return self._in_parts((attempt, build), effort)

    def compare(self, effort: Effort = Effort.QUICK) -> Timing:
        """Time the baselines alone, in one interleaved run; ratios are eager's time over theirs."""
        return self._in_parts(None, effort)

    @property
    def baselines(self) -> tuple[str, ...]:
        """What an attempt is timed against."""
        return self._baselines.names

    def turn_to(self, baselines: Sequence[str]) -> None:
        """Time against these from now on; the processes of others end."""
        self._baselines.turn_to(baselines)

    def open(self) -> None:
        """Open the baselines that stay open, those that torch.compile prepares; nothing is timed.

        Eager is as young as the candidate in every timing, so it is left out here. Nothing happens
        for a large task. Raises OracleLost, ForkServerError.
        """
        if self.referee.large:
            return
        whole = self.baselines
        self.turn_to([name for name in whole if name != EAGER])
        try:
            self._baselines.timed_arms(self._baselines.fresh_batch())
        finally:
            self.turn_to(whole)

    def draw(self) -> None:
        """Draw what `prepare` warms up on."""
        if self._baselines.tried:
            with suppress(OracleLost):
                self._baselines.fresh_batch()

    def prepare(self, attempt: Attempt) -> None:
        """Open anew what each timing opens anew, while something else takes its time.

        The compiler, that is. Nothing happens before the first timing, in which torch.compile may
        take long and a compiler's error would have to wait for it. What fails here fails again
        where it is used, and is told there.
        """
        baselines = self._baselines
        if not baselines.tried or self.referee.large:
            return
        self.dismiss()
        with suppress(ForkServerError, OracleLost):
            self._waiting = attempt, self.referee.processes.waiting(attempt, cores=baselines.cores)
            if not self._prepared:
                baselines.renew(_cheap_s(self.device, Effort.QUICK, 0.0))
                baselines.timed_arms(baselines.batch)
                self._prepared = True

    def await_prepared(self) -> None:
        """Until the process that `prepare` began has its device: what it opens is opened then."""
        if self._waiting is not None:
            try:
                self._waiting[1].await_ready()
            except SessionEnded:
                self.dismiss()  # a new one is told of where it fails too

    def count(self) -> Work | None:
        """The task's work, counted once; None where that failed, which others who use the device
        may be the reason for. In a process of its own, some seconds: the first timing does it where
        nobody has."""
        if self._work is None:
            with suppress(TaskError):
                self._work, self._unit = count(self.referee.task, self.referee.fork_server)
        return self._work

    def release(self) -> None:
        """End what the next timing opens anew, and keep what torch.compile has prepared: every
        context that is held on a GPU makes the next ones slower, in whatever process."""
        self.dismiss()
        self._baselines.end(EAGER)
        self._prepared = False

    @property
    def tried(self) -> bool:
        """Whether the baselines were opened once, with what success ever."""
        return self._baselines.tried

    def opened(self) -> dict[str, TimedArm]:
        """The baselines whose processes are warm."""
        return self._baselines.opened()

    def _in_parts(self, subject: Subject | None, effort: Effort) -> Timing:
        """In one, unless the device has no room for all arms at once (`parts.py`)."""
        self.referee.make_room()
        whole, taken = self.baselines, list[Timing]()
        try:
            for part in parts(self.referee, whole, subject is not None):
                self.turn_to(part)
                taken.append(self._time(subject, effort))
                if is_last(taken[-1]):
                    break
        finally:
            self.turn_to(whole)
        return together(taken)

    def _time(self, subject: Subject | None, effort: Effort) -> Timing:
        begun = time.perf_counter()
        self._assure_room(subject)
        rounds = Rounds(self.device, self._known)
        failed, done = "", False
        try:
            while not done:
                self._renew(effort, time.perf_counter() - begun)
                taken = self._round(subject, effort, len(rounds.held))
                if taken is not None and rounds.take(taken):
                    self._apart += twins(taken, self.device)
                    spent = time.perf_counter() - begun
                    done = rounds.refused or self._enough(rounds.held, subject, effort, spent)
                if rounds.stale:
                    self._baselines.end(rounds.stale)
        except SessionEnded as ended:
            failed = str(ended)
        return self._timing(rounds, subject, effort, failed, time.perf_counter() - begun)

    def _assure_room(self, subject: Subject | None) -> None:
        """Raises TooLarge where the memory that is free does not hold all arms at once."""
        if not self._baselines.warm:
            room, models = self.referee.room, len(self.baselines) + (subject is not None)
            room.assure(self.referee.task, f"a timing of {models} models", room.timing(models))

    def _renew(self, effort: Effort, spent: float) -> None:
        """Fresh processes for baselines that open quickly, unless `prepare` has seen to it."""
        if not self._prepared:
            self._baselines.renew(_cheap_s(self.device, effort, spent))
        self._prepared = False

    def _timing(
        self, rounds: Rounds, subject: Subject | None, effort: Effort, failed: str, seconds: float
    ) -> Timing:
        """What the rounds come to; `failed` is why the candidate did not get through them."""
        names = self.baselines if subject is None else (CANDIDATE, *self.baselines)
        why = self._baselines.failed | {CANDIDATE: failed}
        arms = tuple(arm_of(name, rounds.held, why.get(name, ""), self.device) for name in names)
        held = [] if failed or rounds.refused else rounds.held
        return Timing(
            arms=arms,
            ratios=self._ratios(held, subject, effort),
            effort=effort,
            device=describe(self.referee.task.device),
            seconds=seconds,
            contradiction=rounds.contradiction,
            wrong=rounds.wrong,
            versions=versions(),
            busy=rounds.busy,
            floor=self._floor(arms),
            notes=rounds.notes,
            free=self._ratios(held, None, effort) if subject is not None else {},
            apart=tuple(self._apart),
        )

    def _floor(self, arms: Sequence[Arm]) -> Floor | None:
        """The task's; its ceilings are measured again where an arm undercuts it."""
        if self._roofline is None and not self._uncountable:
            if (work := self.count()) is None:
                self._uncountable = True
            else:
                self._roofline = Roofline(work, ceilings(self.device), self._unit)
        if self._roofline is None:
            return None
        quickest = min((arm.median for arm in arms if arm.samples), default=float("inf"))
        beaten = self._roofline.beaten(quickest) and not self._doubted
        # Nobody is suspected on the word of a moment in which the memory was slow.
        if beaten or self._roofline.suspect(quickest):
            self._doubted = True
            again = ceilings(self.device, doubted=True)
            self._roofline = replace(self._roofline, ceilings=again)
        return self._roofline.least

    @property
    def batch(self) -> Batch:
        """What the arms that are warm were lent."""
        return self._baselines.batch

    def make_room(self) -> None:
        """Of a large task, have neither processes nor memory until the next timing."""
        if self.referee.large:
            self.close()

    def close(self) -> None:
        """End the baselines' processes and give the memory back. Idempotent."""
        self.dismiss()
        self._prepared = False
        self._baselines.close()

    def __enter__(self) -> Timer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one round: a fresh process for the candidate, and the repeats

    def _round(self, subject: Subject | None, effort: Effort, before_it: int) -> Round | None:
        """None where a trusted process was lost: then the round is taken again."""
        batch = self._baselines.fresh_batch()
        timed_arms = self._baselines.timed_arms(batch)
        if subject is not None:
            self.emit(Phase("timing: opening the attempt", passing=True))
        session = None if subject is None else self._candidate(*subject)
        before = system_load.cpu_times()
        try:
            if session is not None:
                session.time_limit_s = self.referee.time_limit_s(MOST_CALLS)
                timed_arm = warmed(CANDIDATE, session, batch, time.perf_counter())
                timed_arms = {CANDIDATE: timed_arm, **timed_arms}
            self.emit(
                Phase(_timing(effort, before_it, len(timed_arms.keys() - {TWIN})), passing=True)
            )
            with one_thread(self.device):
                wrong, slowed = self._repeats(timed_arms, batch, effort) if timed_arms else ("", 0)
            left = session is not None and system_load.astray(session.pid, self._baselines.cores)
            astray = "it left the processors that all arms are timed on" if left else ""
            busy = system_load.others_share(before, system_load.cpu_times())
        except SessionEnded as ended:
            if (session is not None and session.closed) or not self._baselines.bury(str(ended)):
                raise
            return None
        finally:
            if session is not None:
                session.close()
        said = hidden(timed_arms, self.device)
        return Round(
            timed_arms, counted(timed_arms, self.device), wrong, astray, said, busy, slowed
        )

    def _candidate(self, attempt: Attempt, build: Build) -> Session:
        """In a process of its own: the one that waits for this attempt, once, else a new one."""
        waiting = None
        if self._waiting is not None and self._waiting[0] == attempt:
            (_, waiting), self._waiting = self._waiting, None
        return self.referee.processes.candidate(attempt, build, self._baselines.cores, waiting)

    def dismiss(self) -> None:
        """End the process that waits for an attempt, if one does: it will not be timed."""
        if self._waiting is not None:
            self._waiting[1].close()
            self._waiting = None

    def _enough(
        self,
        rounds: Sequence[Round],
        subject: Subject | None,
        effort: Effort,
        spent: float,
    ) -> bool:
        if effort is not Effort.RECORD or len(rounds) < LOOKS.rounds[0]:
            return effort is not Effort.RECORD
        ratios = self._ratios(rounds, subject, effort).values()
        return enough(len(rounds), ratios) or spent > BUDGET_S[effort]

    def _ratios(
        self, rounds: Sequence[Round], subject: Subject | None, effort: Effort
    ) -> dict[str, Ratio]:
        """Of the candidate against each baseline; without one, of each baseline against eager."""
        held = [
            name
            for name in self.baselines
            if rounds and all(taken.counted.get(name) for taken in rounds)
        ]
        if subject is not None:
            return {n: ratio(rounds, n, CANDIDATE, effort, self.device, self._apart) for n in held}
        return {
            n: ratio(rounds, EAGER, n, effort, self.device, self._apart)
            for n in held
            if EAGER in held and n != EAGER
        }

    def _repeats(
        self, timed_arms: Mapping[str, TimedArm], batch: Batch, effort: Effort
    ) -> tuple[str, int]:
        """Time the arms until the budget is spent.

        What was wrong with the candidate's answers, and how many repeats of a throttled GPU count.
        """
        # The last slot was for warming up; where there is no room for another it is drawn anew.
        slots = range(max(1, batch.inputs.count - 1))
        budget = BUDGET_S[effort] / (10 if effort is Effort.RECORD else 1)
        draw_s, glance = self._baselines.draw_s, effort is Effort.GLANCE
        repeats = Repeats(self.referee, batch, timed_arms, slots, draw_s, glance)
        return repeats.run(budget), repeats.slowed


def _timing(effort: Effort, before_it: int, models: int) -> str:
    """What a person who waits is told of one round."""
    text = f"timing {models} models by turns"
    last = LOOKS.rounds[-1]
    return f"{text}: round {before_it + 1} of at most {last}" if effort is Effort.RECORD else text


def _cheap_s(device: Device, effort: Effort, spent: float) -> float:
    """What opening a baseline may take that gets a fresh process, `spent` seconds into a timing."""
    if effort is Effort.RECORD and spent < BUDGET_S[effort] / 2:
        return BUDGET_S[effort] / 6
    return CHEAP_S[device]
