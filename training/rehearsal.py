"""A judge that compiles and runs nothing: a rule on the text of the gym's kernels.

For: trying settings, and the whole way, in minutes and beside any load (`rehearsal=true`). What
wins by the rule is what was seen to win by the clock: one pass over the rows, nothing `volatile`,
no `schedule(dynamic)`. A kernel is right if it is the chain, line by line, in one of the teacher's
forms. Not covered: CUDA; anything that a real verdict would say. No figure of it is a result.
Invariant: it answers as `JudgePool` does, in the same words, and the same for the same text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.device_lock import DeviceLock
from cuagent.judge import Judgement
from cuagent.score import milestone
from cuagent.task import Device, Task
from cuagent.timing import Arm, Effort, Ratio, Timing
from cuagent.training.gym import chain_of
from cuagent.training.judge_process import PoolError
from cuagent.training.pool import PooledJudge
from cuagent.training.teacher import CPU_ROWS, LOOPS, PRAGMAS, TYPES
from cuagent.verdict import Reason, Verdict

if TYPE_CHECKING:
    from cuagent.judge import Judge
    from cuagent.measure.profile.profile import Profile

EAGER, COMPILE = 1.2e-5, 1e-5
"""Seconds of the baselines, as if."""


class Rehearsal:
    """A pool by shape."""

    cores: tuple[int, ...] = (0,)
    gpus: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.cache_hits = 0
        self._judgements: dict[tuple[str, str], Judgement] = {}

    @property
    def judged(self) -> int:
        """Different kernels so far."""
        return len(self._judgements)

    def device_lock(self, gpu: int) -> DeviceLock:
        """Nothing is timed."""
        return DeviceLock()

    def open(self, tasks: Sequence[Task], should_stop: Callable[[], bool] = lambda: False) -> None:
        """There is nothing to open."""

    def judge_for(self, task: Task) -> Judge:
        """What an episode's run takes for its judge."""
        return cast("Judge", PooledJudge(self, task))

    def judge(self, task: Task, attempt: Attempt, timed: bool = True) -> Judgement:
        """By the rule, whatever effort is asked for. Raises PoolError."""
        if task.device is not Device.CPU:
            raise PoolError("rehearsal=true knows C++ kernels only; add --kernels cpu")
        key = task.digest, attempt.digest
        self.cache_hits += key in self._judgements
        if key not in self._judgements:
            self._judgements[key] = judge_by_rule(task, attempt)
        return self._judgements[key]

    def judge_uncached(self, task: Task, attempt: Attempt, effort: Effort | None) -> Judgement:
        """The same again."""
        return judge_by_rule(task, attempt)

    def profile(self, task: Task, attempt: Attempt | None) -> Profile:
        """Raises PoolError."""
        raise PoolError("nothing runs in a rehearsal")

    def describe_cost(self) -> str:
        """For a person."""
        return "rehearsal: a rule on the text judges, no kernel is run"


def judge_by_rule(task: Task, attempt: Attempt) -> Judgement:
    """The judgement by the rule."""
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
    """(right, fast): whether it is the chain in a form of the teacher's, and nothing in it slow."""
    lines = "".join(f"    {op.c}\n" for op in chain_of(task))
    for loop, _ in LOOPS:
        for kind, _ in TYPES:
            for pragma, _ in PRAGMAS:
                if text == loop.format(lines=lines, bound="n", pragma=pragma, type=kind):
                    slow = "volatile" in kind or "dynamic" in pragma
                    return True, loop is CPU_ROWS and not slow
    return False, False
