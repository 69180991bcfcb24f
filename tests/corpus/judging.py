"""How a candidate of the corpora fares with cuagent's own judge.

One judge serves all candidates of a task, and one warm process all judges.
Compute threads are one for each process, so that a speed-up seen here owes nothing to what else the
machine does. Candidates that ask for more threads get a warm process that allows them.
Invariant: a candidate marked as harmful is only ever run in a sandbox.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from corpus import ACCEPTED, HERE, NO_GAIN, REFUSED, Candidate, everything, honest, task_path

from cuagent.judge import Judge, Judgement
from cuagent.measure.timing.timer import BASELINES
from cuagent.sandbox import Tier, probe
from cuagent.task import load_task
from cuagent.timing import Effort
from cuagent.verify import Reason
from cuagent.worker import ForkServer
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
    """The judge of one task at a time, asked for task by task; all share one warm process."""

    def __init__(self, baselines: Sequence[str]) -> None:
        self._baselines = baselines
        self._fork_server = ForkServer()
        self._threads = 1
        self._present: tuple[str, str, str, int] | None = None
        self._judge: Judge | None = None

    def of(self, candidate: Candidate) -> Judge:
        task = candidate.task, candidate.device, candidate.precision, candidate.threads
        if self._judge is None or self._present != task:
            self.leave()
            self._present, self._judge = task, self._open(*task)
        return self._judge

    def leave(self) -> None:
        """Give up the present judge, as after a fault of its own; the next one is a fresh one."""
        if self._judge is not None:
            self._judge.close()
            self._judge = None

    def close(self) -> None:
        self.leave()
        self._fork_server.close()

    def _open(self, name: str, device: str, precision: str, threads: int) -> Judge:
        task = load_task(task_path(name), device=device, precision=precision)
        if not self._fork_server.alive or threads != self._threads:
            self._fork_server.close()
            # The warm process takes the number from here, and hands it on to its children.
            os.environ["OMP_NUM_THREADS"] = str(threads)
            self._fork_server, self._threads = ForkServer(), threads
        judge = Judge(task, fork_server=self._fork_server)
        judge.referee.call_s = CALL_S
        judge._timer.set_baselines(self._baselines)
        return judge


@contextmanager
def judges(baselines: Sequence[str] = BASELINES) -> Iterator[Judges]:
    """What times does so against these; an outcome hangs on eager alone."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    opened = Judges(baselines)
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
    """Judge it, with quick timing where the candidate asks for it.

    A gain in a quick look is no claim: what counts is the timing of record.
    """
    begun = time.perf_counter()
    judgement = judge.judge(candidate.attempt, Effort.QUICK if candidate.timed else None)
    if candidate.timed and _word(judgement) == ACCEPTED and ACCEPTED not in candidate.expect:
        judgement = judge.judge(candidate.attempt, Effort.RECORD)
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


def judged_apart(candidate: Candidate, python: Sequence[str] = (sys.executable,)) -> Outcome:
    """Judge it in a process of its own, whose end is an outcome too."""
    begun = time.perf_counter()
    program = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import judging; "
        f"judging.tell({candidate.kind!r}, {candidate.name!r})"
    )
    ran = subprocess.run([*python, "-c", program], capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    if ran.returncode:
        return Outcome("judge ended", f"exit status {ran.returncode}", False, seconds)
    return Outcome(**json.loads(ran.stdout.splitlines()[-1]) | {"seconds": seconds})


def tell(kind: str, name: str) -> None:
    """Print the outcome of one candidate as JSON."""
    chosen = [c for c in everything() if (c.kind, c.name) == (kind, name)]
    with judges() as opened:
        print(json.dumps(asdict(judged(opened.of(chosen[0]), chosen[0]))))


def _word(judgement: Judgement) -> str:
    verdict, timing = judgement.verdict, judgement.timing
    if verdict.reason is Reason.ACCEPTED and timing is not None:
        ratio = timing.ratios.get(EAGER)
        return NO_GAIN if ratio is None or ratio.low <= GAIN else ACCEPTED
    return verdict.reason.name.lower().replace("_", " ")
