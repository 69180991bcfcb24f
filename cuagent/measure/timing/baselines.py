"""The baselines' processes, warm from one timing to the next, and the inputs that arms are lent.

Not covered: the candidate, whose process is a fresh one each time (`protocol.py`).

Invariant: a baseline whose process was lost twice, or does not open, is timed no more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from cuagent.events import Emit, Phase
from cuagent.measure.timing.repeats import clock
from cuagent.measure.timing.rounds import TWIN
from cuagent.measure.timing.surroundings import compiled_graphs, cores_of, free_memory, slots_for
from cuagent.measure.timing.timed_arm import TimedArm
from cuagent.task import Device
from cuagent.verify.batch import Batch
from cuagent.verify.referee import Referee
from cuagent.worker import Session, SessionEnded, Status
from cuagent.worker.arms import EAGER

CHEAP_S = {Device.CPU: 2.0, Device.CUDA: 0.5}
"""A baseline that opens within this gets a fresh process for every timing. On the CPU, where others
may make opening eager take three times as long, so much that it does so there too."""
COMPILE_S = 900.0


class Baselines:
    """Opened where they are needed; `close` ends them."""

    def __init__(self, referee: Referee, names: Sequence[str], emit: Emit) -> None:
        self.referee = referee
        self.names = tuple(names)
        self.device = referee.task.device
        self.cores = cores_of(referee)
        self.failed: dict[str, str] = {}
        """Why, of those that are timed no more."""
        self.draw_s = 0.0
        """What drawing one input set took."""
        self._emit = emit
        self._warm: dict[str, TimedArm] = {}
        self._lost: set[str] = set()
        """Those whose process ended while they were timed, once so far."""
        self._batch: Batch | None = None
        self.tried = False
        """Whether they were opened once: what takes long, and may fail, has been seen."""

    @property
    def warm(self) -> bool:
        """Whether any process is open."""
        return bool(self._warm)

    @property
    def batch(self) -> Batch:
        """What those that are warm were lent."""
        return self._batch or self.fresh_batch()

    def opened(self) -> dict[str, TimedArm]:
        """Those whose processes are warm."""
        return {name: timed_arm for name, timed_arm in self._warm.items() if name != TWIN}

    def turn_to(self, names: Sequence[str]) -> None:
        """Time these from now on; the processes of others end."""
        self.names = tuple(names)
        for name in self._warm.keys() - {*self.names, TWIN}:
            self._warm.pop(name).session.close()

    def fresh_batch(self) -> Batch:
        """The batch with inputs to warm up on, drawn now, after the attempt was frozen."""
        if self._batch is None:
            self._batch = self.referee.batch(1 + slots_for(self.referee), filled=False)
        begun = time.perf_counter()
        self.referee.refill(self._batch, [self._batch.inputs.count - 1])
        self.draw_s = time.perf_counter() - begun
        return self._batch

    def timed_arms(self, batch: Batch) -> dict[str, TimedArm]:
        """Their lanes with nothing clocked yet, opened where they are not."""
        timed_arms = {}
        names = self.names
        if self.device is Device.CPU and EAGER in names:
            names = (*names, TWIN)
        for name in names:
            if name in self.failed:
                continue
            if (timed_arm := self._ready(name, batch)) is not None:
                timed_arms[name] = timed_arm
        self.tried = True
        return timed_arms

    def bury(self, why: str) -> bool:
        """Drop those whose process has ended, for good the second time. Whether any had."""
        gone = [name for name, timed_arm in self._warm.items() if timed_arm.session.closed]
        for name in gone:
            del self._warm[name]
            if name in self._lost:
                self.failed[name] = why
            self._lost.add(name)
        return bool(gone)

    def renew(self, allowed_s: float) -> None:
        """End those whose opening takes less than so long: the next timing gets fresh processes.

        One eager process kept for twelve timings measured 1.52 times slower than each fresh
        candidate on one machine of 16 cores; the cause is not known
        (docs/concepts/timing.md). So eager is as young as the candidate each time.
        """
        for name, timed_arm in list(self._warm.items()):
            if timed_arm.opened_s < allowed_s:
                timed_arm.session.close()
                del self._warm[name]

    def end(self, name: str) -> None:
        """End one, if it is open: the next timing gets a fresh process."""
        if (timed_arm := self._warm.pop(name, None)) is not None:
            timed_arm.session.close()

    def close(self) -> None:
        """End the processes and give the memory back. Idempotent."""
        for timed_arm in self._warm.values():
            timed_arm.session.close()
        self._warm.clear()
        self.tried = False
        if self._batch is not None:
            self.referee.discard(self._batch)
            self._batch = None

    def _ready(self, name: str, batch: Batch) -> TimedArm | None:
        """One baseline, opened if need be, and once more where its process is gone or got lost."""
        for last in (False, True):
            try:
                if name not in self._warm:
                    self._warm[name] = self._open(name, batch)
                known = self._warm[name]
                return warmed(name, known.session, batch, opened_s=known.opened_s)
            except SessionEnded as ended:
                was_open = self._warm.pop(name, None) is not None
                if last or not (was_open or ended.status is Status.LOST):
                    self.failed[name] = str(ended)
                    break
        return None

    def _open(self, name: str, batch: Batch) -> TimedArm:
        if name != TWIN:
            self._emit(Phase(f"timing: opening {name}"))
        free = free_memory(self.device)
        begun = time.perf_counter()
        arm = EAGER if name == TWIN else name
        graphs = compiled_graphs()
        session = self.referee.processes.reference(arm, environment=graphs, cores=self.cores)
        timed_arm = warmed(name, session, batch, begun)
        timed_arm.memory = None if free is None else free - (free_memory(self.device) or 0)
        return timed_arm


def warmed(
    name: str,
    session: Session,
    batch: Batch,
    begun: float | None = None,
    opened_s: float = 0.0,
) -> TimedArm:
    """A lane whose model has run; three calls tell about how long one takes.

    `begun` is when its opening was, where its first call is still to come.
    """
    slot = batch.inputs.count - 1
    timed_arm = TimedArm(name, session, opened_s)
    if begun is not None:
        outputs = batch.outputs_of(name)
        session.block(batch.lent, outputs, [(slot, slot)], deadline_s=COMPILE_S)
        timed_arm.opened_s = time.perf_counter() - begun
    for _ in range(3):
        timed_arm.blocks.append(clock(timed_arm, batch, [slot]))
    return timed_arm
