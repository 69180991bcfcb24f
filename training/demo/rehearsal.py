"""Judge the gym's kernels by a rule on their text, without compiling or running them.

With the setting `rehearsal=true` all stages can be tried in minutes on a busy machine. A kernel is
right if its text is the chain, line by line, in one of the teacher's forms. A right kernel counts
as fast if it has one pass over the rows, no `volatile` and no `schedule(dynamic)`; measured kernels
of this form were the fastest. The timings are invented, so the figures are not results.
Not covered: CUDA kernels.
Invariant: the judge returns the types of `JudgePool`, and the same judgement for the same text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.device_lock import DeviceLock
from cuagent.judgement import Judgement
from cuagent.score import milestone
from cuagent.task import Device, Task
from cuagent.timing import Arm, Effort, Ratio, Timing
from cuagent.training.demo.gym import chain_of
from cuagent.training.demo.teacher import CPU_ROWS, LOOPS, PRAGMAS, TYPES
from cuagent.training.judging.judge_process import PoolError
from cuagent.training.judging.pool import PooledJudge
from cuagent.verdict import Reason, Verdict

if TYPE_CHECKING:
    from cuagent.judge_protocol import Judge
    from cuagent.measure.profile.profile import Profile
    from cuagent.measure.rungs import Ladder

EAGER, COMPILE = 1.2e-5, 1e-5
"""Invented times of the baselines eager and torch.compile, in seconds."""


class Rehearsal:
    """A `Pool` that judges kernels by the rule on their text, without running them."""

    cores: tuple[int, ...] = (0,)
    gpus: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.cache_hits = 0
        self._judgements: dict[tuple[str, str], Judgement] = {}

    @property
    def judged(self) -> int:
        """Number of distinct kernels judged so far."""
        return len(self._judgements)

    def device_lock(self, gpu: int) -> DeviceLock:
        """Return a lock that no other process uses, because no kernel is timed."""
        return DeviceLock()

    def open(self, tasks: Sequence[Task], should_stop: Callable[[], bool] = lambda: False) -> None:
        """Do nothing, because the rule needs no open tasks."""

    def judge_for(self, task: Task) -> Judge:
        """Return a judge of attempts at `task`, for the run of one episode."""
        return PooledJudge(self, task)

    def judge(self, task: Task, attempt: Attempt, timed: bool = True) -> Judgement:
        """Judge an attempt by the rule on its text; `timed` is ignored. Raises PoolError for a CUDA
        task."""
        if task.device is not Device.CPU:
            raise PoolError("rehearsal=true judges C++ kernels only; add --kernels cpu")
        key = task.digest, attempt.digest
        self.cache_hits += key in self._judgements
        if key not in self._judgements:
            self._judgements[key] = judge_by_rule(task, attempt)
        return self._judgements[key]

    def judge_uncached(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """Judge by the rule, without the cache; `effort` is ignored."""
        return judge_by_rule(task, attempt)

    def profile(self, task: Task, attempt: Attempt | None, counters: bool = False) -> Profile:
        """Raise PoolError: no kernel runs, so there is no profile."""
        raise PoolError("rehearsal=true runs no kernels, so there is no profile")

    def measure_ladder(self, task: Task, whole: bool = False) -> Ladder:
        """Raise PoolError: no baseline runs, so there is no ladder."""
        raise PoolError("rehearsal=true runs no kernels, so there is no ladder")

    def describe_cost(self) -> str:
        """Return a line of text that describes this judge."""
        return "rehearsal: kernels are judged by a rule on their text and never run"


def judge_by_rule(task: Task, attempt: Attempt) -> Judgement:
    """Return the judgement of an attempt by the rule on its text, with invented timings."""
    right, fast = rule(task, dict(attempt.files).get("kernels/f.cpp", ""))
    build = Build(attempt.digest, (), (), True, 0.0)
    reason = Reason.ACCEPTED if right else Reason.WRONG_VALUES
    verdict = Verdict(right, reason, "", task.digest, attempt.digest)
    if not right:
        return Judgement(attempt.digest, build, verdict, None, milestone(False))
    rng = random.Random(task.digest + attempt.digest)
    over = rng.uniform(2.2, 3.0) if fast else rng.uniform(0.05, 0.6)
    arms = tuple(
        Arm(name, seconds, ())
        for name, seconds in (("candidate", COMPILE / over), ("eager", EAGER), ("compile", COMPILE))
    )
    ratios = {
        name: Ratio(r, 0.9 * r, 1.1 * r)
        for name, r in (("eager", over * EAGER / COMPILE), ("compile", over))
    }
    timing = Timing(arms, ratios, Effort.GLANCE, "a rule on the text", 0.0)
    score = milestone(True, ratios["eager"].low, ratios["compile"].low)
    return Judgement(attempt.digest, build, verdict, timing, score)


def rule(task: Task, text: str) -> tuple[bool, bool]:
    """Return (right, fast) for the text of a kernel; the module's docstring describes the rule."""
    lines = "".join(f"    {op.c}\n" for op in chain_of(task))
    for loop, _ in LOOPS:
        for kind, _ in TYPES:
            for pragma, _ in PRAGMAS:
                if text == loop.format(lines=lines, bound="n", pragma=pragma, type=kind):
                    slow = "volatile" in kind or "dynamic" in pragma
                    return True, loop is CPU_ROWS and not slow
    return False, False
