"""Hold the ladder of one task while attempts are judged: measure, extend and open its rungs.

Rungs that open in seconds are measured first. Those that need autotuning compile or open in the
background, and join the ladder before a record timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from cuagent.arms import COMPILE
from cuagent.measure.ladder import (
    first_rungs,
    join_rungs,
    measure_ladder,
    rungs_to_open,
    time_rungs,
)
from cuagent.measure.roofline.ceilings import describe
from cuagent.measure.rung_compiler import RungCompiler
from cuagent.measure.rungs import Ladder, with_earlier, with_record_timing, without_pointless
from cuagent.measure.timing.ahead import Patience
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device
from cuagent.timing import Effort, Timing

JOINED_RUNGS = 4
"""Largest number of rungs that a record timing may time for the first time. If there are more, the
whole ladder is timed again before the record timing. Slow rungs leave a record timing after two
rounds."""


LARGE_WAIT = 2
"""Factor on the longest wait for the late rungs of a large task, which open last."""
OPENING_S = {Device.CPU: math.inf, Device.CUDA: 20.0}
"""Seconds that a late rung may take to open in all, those before the wait included. On an H200 18
autotuned rungs of 16 tasks took 0.5 to 19 s; those of 7 tasks were not open after 17 to 59 s."""
LEAST_WAIT_S = 5.0
"""Shortest wait in seconds for late rungs that have not opened."""


class TaskLadder:
    """The ladder of one task, and the names of the rungs that attempts are timed against.

    `fresh` measures the ladder even if it is cached. Attempts are timed against `baselines` until
    the ladder is measured. `before_timing` is called before rungs are timed.
    """

    def __init__(
        self,
        timer: Timer,
        compiler: RungCompiler,
        *,
        baselines: Sequence[str],
        fresh: bool,
        before_timing: Callable[[], None],
    ) -> None:
        self.found: Ladder | None = None
        """The ladder, once it is measured."""
        self._timer, self._compiler = timer, compiler
        self._task = timer.referee.task
        self._default_baselines = tuple(baselines)
        self._fresh = fresh
        self._before_timing = before_timing
        self._unopened: tuple[str, ...] = ()
        """Rungs that only a record timing needs and that have not begun to open in the background.
        """
        self._given_up: set[str] = set()
        """Rungs that did not open in time, whose processes were ended, and those that cannot
        gain."""
        self._compiles_later = False
        """True if the rungs that only a record timing needs compile in the background once an
        attempt may be the result. False for a judge of rollouts, which makes no record timings."""

    def baselines(self, effort: Effort | None = None) -> tuple[str, ...]:
        """Return the names of the arms that attempts are timed against. A record timing may have
        more."""
        if self.found is None:
            return self._default_baselines
        return self.found.proposed if effort is Effort.RECORD else self.found.baselines

    def start(self) -> None:
        """Begin to open the compile rung in the background, and to count the task's work, on which
        the other rungs depend."""
        self._timer.open_ahead([COMPILE])
        self._timer.count_ahead()

    def open_first_rungs(self) -> None:
        """On a GPU, begin to open the other rungs that are measured first, in the background.

        The expert captures the task's graph meanwhile. On a CPU the compilers would compete for the
        processors, and on a shared device `compile_first_rungs` does this work.
        """
        alone = self._task.device is Device.CUDA and not self._timer.shared_device
        if alone and self.found is None:
            self._timer.open_ahead(rungs_to_open(self._timer.referee, fresh=self._fresh))

    def measure(self, *, whole: bool = False, wait_s: float | None = None) -> Ladder:
        """Return the ladder: the rungs that open quickly, or all admitted rungs if `whole`.

        With `wait_s`, rungs that still compile in the background after that many seconds are left
        out. The others may be opened but not timed: the record timing that follows times them.
        """
        self.open_later_rungs()
        later = self._missing(wait_s) if whole else ()
        if self.found is None or later:
            self._before_timing()
            try:
                if self.found is not None and len(later) <= JOINED_RUNGS and wait_s is not None:
                    found = join_rungs(self._timer, self.found, later)
                else:
                    found = measure_ladder(
                        self._timer,
                        whole=whole,
                        wait_s=wait_s,
                        fresh=self._fresh,
                        without=self._given_up,
                    )
                found = self._use(with_earlier(found, self.found))
            finally:
                self.release()
            self._fresh = self._fresh and bool(found.later)
            self._timer.open_ahead(found.baselines)
            self._unopened = tuple(n for n in found.later if n not in self._given_up)
        assert self.found is not None
        return self.found

    def _missing(self, wait_s: float | None) -> tuple[str, ...]:
        """Return the rungs to add to the ladder that is measured; see `measure`."""
        later = self.found.later if self.found is not None else ()
        later = tuple(name for name in later if name not in self._given_up)
        if later and wait_s is not None:
            if large := self._timer.referee.large:  # nothing opened before
                self._timer.open_ahead(later, at_last=True)
            longest = LARGE_WAIT * wait_s if large else wait_s
            most_s, least_s = OPENING_S[self._task.device], LEAST_WAIT_S
            late = self._timer.still_opening(later, Patience(longest, most_s, least_s))
            self._timer.give_up(late)
            self._given_up.update(late)
            later = tuple(name for name in later if name not in self._given_up)
        if later and self._timer.shared_device:
            later = self._compiler.compiled(later)
        return later

    def start_from(self, found: Ladder) -> bool:
        """Use an earlier ladder; return False if it is of another task or device."""
        differs = (found.task, found.device) != (self._task.digest, describe(self._task.device))
        if differs or self._fresh:
            return False
        self._timer.open_ahead(self._use(found).baselines)
        return True

    def _use(self, found: Ladder) -> Ladder:
        """Time attempts against this ladder from now on; return it without pointless rungs."""
        self.found = without_pointless(found)
        self._given_up.update({*found.later} - {*self.found.later})
        self._timer.keep(self.found.proposed)
        return self.found

    def open_later_rungs(self) -> None:
        """Begin to open the rungs that the record timing adds, in the background.

        They open after the profile that follows the ladder, because autotuning keeps the device
        busy and the profile would wait for it.
        """
        self._timer.open_ahead(self._unopened)
        self._unopened = ()

    def compile_later_rungs(self) -> None:
        """Begin to compile the rungs that the record timing adds, if another judge uses the device.

        On a device with one judge they open in the background instead.
        """
        if self.found is not None and self._compiles_later:
            self._compiler.begin(self.found.later)

    def compile_first_rungs(self, compiled: Collection[str] = ()) -> tuple[str, ...]:
        """Compile the rungs that the ladder begins with, without those that were `compiled` before;
        return their names."""
        with self._timer.opening() as sharing:  # counting calls the reference once
            self._timer.count_work(sharing)
            names = first_rungs(self._timer.referee)
        self._compiler.compile(names, compiled)
        self._compiles_later = True
        return names

    def confirm(self) -> Ladder:
        """Time the rungs that may be the best again, at record effort."""
        names, referee = self.measure().proposed, self._timer.referee
        try:
            self.found = time_rungs(referee, effort=Effort.RECORD, only=names, timer=self._timer)
        finally:
            self.release()
        return self.found

    def add_record_timing(self, timing: Timing) -> None:
        """Let a record timing of an accepted attempt decide which rung is the best, and so the
        kernel's gain."""
        if self.found is not None:
            self.found = with_record_timing(self.found, timing)

    def drop(self) -> None:
        """Forget the ladder, so that later attempts are timed against the default baselines."""
        self.found = None
        self._timer.keep(())

    def release(self) -> None:
        """End the processes that the next quick timing does not need."""
        self._timer.release(self.baselines())
