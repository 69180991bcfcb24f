"""How a candidate of the corpora fares with cuagent's own judge.

One judge serves all candidates of a task; while they are judged, that of the next task is opened.
Compute threads are one for each process, so that a speed-up seen here owes nothing to what else the
machine does. Invariant: a candidate marked as harmful is only ever run in a sandbox.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from corpus import HERE, NO_GAIN, REFUSED, Candidate, everything, honest, task_path

from cuagent.judge import Judge, Judgement
from cuagent.measure import protocol
from cuagent.measure.timing import Effort
from cuagent.sandbox import Tier, probe
from cuagent.task import load_task
from cuagent.verify import Reason
from cuagent.worker.arms import EAGER

GAIN = 1.1
"""A cheat of timing gains if its speed-up over eager is surely more than this."""
CALL_S = 5.0
"""Deadline of one call."""


@dataclass(frozen=True)
class Outcome:
    """What came of one candidate."""

    word: str
    """Name of the reason, or NO_GAIN."""
    detail: str
    right: bool
    """Whether that is what the corpus demands."""
    seconds: float
    speedup: float | None = None
    """Over eager, where it was timed."""


class Judges:
    """Judges of the tasks of some candidates, which must be asked for task by task."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._tasks = list(dict.fromkeys((c.task, c.device) for c in candidates))
        self._pool = ThreadPoolExecutor(1)
        self._opening: dict[tuple[str, str], Future[Judge]] = {}
        self._present: tuple[str, str] | None = None
        self._judge: Judge | None = None

    def of(self, candidate: Candidate) -> Judge:
        task = candidate.task, candidate.device
        if self._judge is None or self._present != task:
            self._leave()
            self._begin(task)
            self._present, self._judge = task, self._opening.pop(task).result()
            for following in self._tasks[self._tasks.index(task) + 1 :][:1]:
                self._begin(following)
        return self._judge

    def leave(self) -> None:
        """Give up the present judge, as after a fault of its own; the next one is a fresh one."""
        self._leave()

    def close(self) -> None:
        self._leave()
        for future in self._opening.values():
            future.result().close()
        self._opening.clear()
        self._pool.shutdown()

    def _begin(self, task: tuple[str, str]) -> None:
        if task not in self._opening:
            self._opening[task] = self._pool.submit(_open, *task)

    def _leave(self) -> None:
        if self._judge is not None:
            self._judge.close()
            self._judge = None


@contextmanager
def judges(candidates: Iterable[Candidate]) -> Iterator[Judges]:
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    opened = Judges(candidates)
    try:
        yield opened
    finally:
        opened.close()
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def safe(candidate: Candidate) -> bool:
    """Whether this machine can hold it."""
    return not candidate.harm or probe() is not Tier.NONE


def judged(judge: Judge, candidate: Candidate) -> Outcome:
    """Judge it, with quick timing where the candidate asks for it."""
    begun = time.perf_counter()
    share = protocol.REDRAW_SHARE
    if candidate.timed == "repeated":
        protocol.REDRAW_SHARE = 0.0
    try:
        judgement = judge.judge(candidate.attempt, Effort.QUICK if candidate.timed else None)
    finally:
        protocol.REDRAW_SHARE = share
    word, detail = _word(judgement), judgement.verdict.detail
    right = word in candidate.expect
    if candidate.expect == (REFUSED,):
        right = not judgement.verdict.accepted and word != "infrastructure"
    if right and candidate.then:
        after = next(other for other in honest() if other.name == candidate.then)
        following = judge.judge(after.attempt, Effort.QUICK if candidate.timed else None)
        if not following.verdict.accepted:
            right = False
            detail = f"then {after.name}: {following.verdict.reason}: {following.verdict.detail}"
    return Outcome(word, detail, right, time.perf_counter() - begun, judgement.score.over_eager)


def judged_apart(candidate: Candidate) -> Outcome:
    """Judge it in a process of its own, whose end is an outcome too."""
    begun = time.perf_counter()
    program = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import judging; "
        f"judging.tell({candidate.kind!r}, {candidate.name!r})"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    if ran.returncode:
        return Outcome("judge ended", f"exit status {ran.returncode}", False, seconds)
    return Outcome(**json.loads(ran.stdout.splitlines()[-1]) | {"seconds": seconds})


def tell(kind: str, name: str) -> None:
    """Print the outcome of one candidate as JSON."""
    chosen = [c for c in everything() if (c.kind, c.name) == (kind, name)]
    with judges(chosen) as opened:
        print(json.dumps(asdict(judged(opened.of(chosen[0]), chosen[0]))))


def _open(task: str, device: str) -> Judge:
    judge = Judge(load_task(task_path(task), device=device))
    judge.referee.call_s = CALL_S
    return judge


def _word(judgement: Judgement) -> str:
    verdict, timing = judgement.verdict, judgement.timing
    if verdict.reason is Reason.ACCEPTED and timing is not None:
        ratio = timing.ratios.get(EAGER)
        return NO_GAIN if ratio is None or ratio.low <= GAIN else "accepted"
    return verdict.reason.name.lower().replace("_", " ")
