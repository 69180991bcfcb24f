"""Judge candidates of the corpora with cuagent's own judge and check the expected outcome.

One judge serves all candidates of a task, and one fork server serves all judges.
Each process has one compute thread, so that a measured speedup does not depend on the load of the
machine. Candidates that ask for more threads get a fork server that allows them.
Invariant: a candidate marked as harmful runs only in a sandbox.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from corpus import (
    ACCEPTED,
    HERE,
    NO_GAIN,
    REFUSED,
    Candidate,
    everything,
    honest,
    moved_to_cuda,
    task_path,
    with_default_cuda,
)

from cuagent.arms import EAGER
from cuagent.device_lock import DeviceLock
from cuagent.judge import LocalJudge
from cuagent.judgement import Judgement
from cuagent.measure.timing.timer import BASELINES
from cuagent.sandbox import Tier, probe
from cuagent.task import TaskError, load_task
from cuagent.timing import Effort
from cuagent.verify import Reason
from cuagent.worker import ForkServer

GAIN = 1.1
"""Speedup over eager that the lower limit must exceed for a cheat of timing to count as a gain."""
CORPUS_CALL_S = 5.0
"""Seconds that one call may take."""
NOT_RUN = "not run"
OTHER_DEVICE = "on the same device"
"""Part of torch's message when a call mixes tensors of the CPU and of the GPU."""


@dataclass(frozen=True)
class Outcome:
    """Result of one candidate."""

    word: str
    """Name of the reason, NO_GAIN or NOT_RUN."""
    detail: str
    right: bool
    """True if the corpus demands this result."""
    seconds: float
    speedup: float | None = None
    """Speedup over eager; None if the candidate was not timed."""


class CorpusJudges:
    """One open judge at a time, for the task of the present candidate; all share a fork server.

    `device_lock` keeps timings exclusive if several processes judge at the same time.
    """

    def __init__(
        self, baselines: Sequence[str] = BASELINES, device_lock: DeviceLock | None = None
    ) -> None:
        self.device_lock = device_lock or DeviceLock()
        self._baselines = baselines
        self._fork_server = ForkServer()
        self._threads = 1
        self._task: tuple[str, str, str, int] | None = None
        self._judge: LocalJudge | None = None
        self._failed: dict[tuple[str, str, str, int], TaskError] = {}

    def for_candidate(self, candidate: Candidate) -> LocalJudge:
        """Return the judge of the candidate's task. Raises TaskError if the task does not run."""
        task = candidate.task, candidate.device, candidate.precision, candidate.threads
        if task in self._failed:
            raise self._failed[task]
        if self._judge is None or self._task != task:
            self.release()
            try:
                self._task, self._judge = task, self._open(*task)
            except TaskError as error:
                self._failed[task] = error
                raise
        return self._judge

    def release(self) -> None:
        """Close the present judge, for example after a fault; the next call opens a fresh one."""
        if self._judge is not None:
            self._judge.close()
            self._judge = None

    def close(self) -> None:
        self.release()
        self._fork_server.close()

    def _open(self, name: str, device: str, precision: str, threads: int) -> LocalJudge:
        task = load_task(task_path(name), device=device, precision=precision)
        if not self._fork_server.alive or threads != self._threads:
            self._fork_server.close()
            # The fork server reads the number here and passes it to its children.
            os.environ["OMP_NUM_THREADS"] = str(threads)
            self._fork_server, self._threads = ForkServer(), threads
        judge = LocalJudge(
            task,
            fork_server=self._fork_server,
            device_lock=self.device_lock,
            baselines=self._baselines,
        )
        judge.referee.call_s = CORPUS_CALL_S
        return judge


@contextmanager
def open_judges(
    baselines: Sequence[str] = BASELINES, device_lock: DeviceLock | None = None
) -> Iterator[CorpusJudges]:
    """Provide judges that time against these baselines; an outcome depends on eager alone."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    opened = CorpusJudges(baselines, device_lock)
    try:
        yield opened
    finally:
        opened.close()
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def is_safe(candidate: Candidate) -> bool:
    """True if the candidate is harmless, or this machine has a sandbox for it."""
    return not candidate.harm or probe() is not Tier.NONE


def outcome_of(
    opened: CorpusJudges, candidate: Candidate, python: Sequence[str] = (sys.executable,)
) -> Outcome:
    """Judge a candidate: in a subprocess if it asks for one, not at all if it cannot run here."""
    if not is_safe(candidate):
        return not_run(f"no sandbox: {candidate.harm}")
    if candidate.apart:
        return judge_in_subprocess(candidate, python, opened.device_lock)
    try:
        judge = opened.for_candidate(candidate)
    except TaskError as error:
        if not candidate.moved:
            raise
        return not_run(f"its task does not run on CUDA: {error}")
    outcome = judge_candidate(judge, candidate)
    if candidate.moved and OTHER_DEVICE in outcome.detail:
        outcome = judge_candidate(judge, with_default_cuda(candidate))
    if candidate.moved and OTHER_DEVICE in outcome.detail:
        return not_run(f"it makes tensors on the CPU: {outcome.detail}")
    return outcome


def not_run(why: str) -> Outcome:
    return Outcome(NOT_RUN, why, True, 0.0)


def judge_candidate(judge: LocalJudge, candidate: Candidate) -> Outcome:
    """Judge one candidate, with a quick timing if the candidate asks for one.

    A record timing checks an unexpected gain, because quick timings are not exact enough.
    """
    start = time.perf_counter()
    judgement = judge.judge(candidate.attempt, Effort.QUICK if candidate.timed else None)
    if candidate.timed and _word(judgement) == ACCEPTED and ACCEPTED not in candidate.expect:
        judgement = judge.judge(candidate.attempt, Effort.RECORD)
    word, detail = _word(judgement), judgement.verdict.detail
    right = word in candidate.expect
    if REFUSED in candidate.expect:
        right |= not judgement.verdict.accepted and word != "infrastructure"
    if right and candidate.then:
        after = next(other for other in honest() if other.name == candidate.then)
        following = judge.judge(after.attempt, Effort.QUICK if candidate.timed else None)
        if not following.verdict.accepted:
            right = False
            detail = f"then {after.name}: {following.verdict.reason}: {following.verdict.detail}"
    return Outcome(word, detail, right, time.perf_counter() - start, judgement.score.over_eager)


def judge_in_subprocess(
    candidate: Candidate,
    python: Sequence[str] = (sys.executable,),
    device_lock: DeviceLock | None = None,
) -> Outcome:
    """Judge one candidate in a separate process; the end of that process is an outcome too."""
    start = time.perf_counter()
    program = f"import sys; sys.path.insert(0, {str(HERE)!r}); import judging; judging.serve()"
    lock = str(device_lock.lock) if device_lock and device_lock.lock else ""
    ran = subprocess.run(
        [*python, "-c", program, lock], input=request(candidate), capture_output=True, text=True
    )
    seconds = time.perf_counter() - start
    if ran.returncode:
        return judge_ended(ran.returncode, seconds)
    return Outcome(**json.loads(ran.stdout.splitlines()[-1]) | {"seconds": seconds})


def judge_ended(status: int, seconds: float) -> Outcome:
    """Return the outcome of a candidate whose judge ended with this exit status."""
    return Outcome("judge ended", f"exit status {status}", False, seconds)


def request(candidate: Candidate) -> str:
    """Return the line that asks `serve` for a candidate's outcome."""
    asked = [candidate.kind, candidate.name, candidate.moved, candidate.precision]
    return json.dumps(asked) + "\n"


def serve() -> None:
    """Judge the candidates that stdin names, and print each outcome as a line of JSON.

    The only argument is the file of the device lock, or empty. No process that is started here
    has the two channels: they are moved away from stdin and stdout.
    """
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    candidates = {(c.kind, c.name): c for c in everything()}
    lock = Path(sys.argv[1]) if sys.argv[1] else None
    with open_judges(device_lock=DeviceLock(lock)) as opened:
        for line in requests:
            kind, name, moved, precision = json.loads(line)
            candidate = replace(candidates[kind, name], precision=precision)
            if moved:
                candidate = moved_to_cuda(candidate)
            outcome = outcome_of(opened, replace(candidate, apart=False))
            print(json.dumps(asdict(outcome)), file=answers, flush=True)


def _word(judgement: Judgement) -> str:
    verdict, timing = judgement.verdict, judgement.timing
    if verdict.reason is Reason.ACCEPTED and timing is not None:
        ratio = timing.ratios.get(EAGER)
        return NO_GAIN if ratio is None or ratio.low <= GAIN else ACCEPTED
    return verdict.reason.name.lower().replace("_", " ")
