"""An accepted verdict on large tensors stands once for a judgement at record effort."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent import judge as module
from cuagent.attempt import Attempt
from cuagent.device_lock import DeviceLock
from cuagent.task import Device
from cuagent.timing import Effort
from cuagent.verdict import FIRST_DRAWS, Reason, Verdict
from cuagent.verify.compute_sanitizer import Outcome
from cuagent.verify.sanitize import NOTE
from cuagent.verify.standing import LARGE_CALL_BYTES, StandingVerdicts

ATTEMPT = Attempt((("model_new.py", "class ModelNew: ..."),))


def accepted(attempt: str = ATTEMPT.digest) -> Verdict:
    return Verdict(True, Reason.ACCEPTED, "", "task", attempt)


def test_a_verdict_of_quick_effort_stands_once_at_record_effort() -> None:
    kept = StandingVerdicts(LARGE_CALL_BYTES)
    kept.keep(accepted(), Effort.QUICK)
    assert kept.take(ATTEMPT.digest, Effort.QUICK) is None
    assert kept.take("another", Effort.RECORD) is None
    found = kept.take(ATTEMPT.digest, Effort.RECORD)
    assert found is not None
    assert found.notes == (FIRST_DRAWS,)
    assert kept.take(ATTEMPT.digest, Effort.RECORD) is None


@pytest.mark.parametrize(
    ("size", "verdict", "effort"),
    [
        (LARGE_CALL_BYTES - 1, accepted(), Effort.QUICK),
        (LARGE_CALL_BYTES, accepted(), Effort.RECORD),
        (LARGE_CALL_BYTES, accepted(), Effort.GLANCE),
        (LARGE_CALL_BYTES, accepted(), None),
        (
            LARGE_CALL_BYTES,
            Verdict(False, Reason.WRONG_WHILE_TIMED, "", "task", ATTEMPT.digest),
            Effort.QUICK,
        ),
    ],
)
def test_other_verdicts_do_not_stand(size: int, verdict: Verdict, effort: Effort | None) -> None:
    kept = StandingVerdicts(size)
    kept.keep(verdict, effort)
    assert kept.take(ATTEMPT.digest, Effort.RECORD) is None


class Judge(module.LocalJudge):
    """A judge that notes which parts of a verdict it makes, and times nothing."""

    def __init__(self, bytes_per_call: int, *, builds: bool = True) -> None:
        self.log: list[str] = []
        self.task: Any = SimpleNamespace(device=Device.CUDA)
        self.device_lock = DeviceLock()
        self.durations = self.device_lock.durations
        self.referee: Any = SimpleNamespace(
            domain=None, giving_way=lambda _: nullcontext(), make_room=lambda: None
        )
        self.overlap: Any = SimpleNamespace(open_while_verifying=False, begin_while_building=True)
        self._ladder: Any = SimpleNamespace(
            open_later_rungs=lambda: None,
            compile_later_rungs=lambda: None,
            open_last_rungs=lambda: self.log.append("rungs open"),
            baselines=lambda _: (),
            found=None,
        )
        self._timer: Any = SimpleNamespace(opening_paused=self._paused)
        self.notes: tuple[str, ...] = ()
        self._verified_ahead = None
        self._standing = StandingVerdicts(bytes_per_call)
        self._builds = builds

    @contextmanager
    def _paused(self, *_: Any) -> Iterator[None]:
        self.log.append("rungs pause")
        yield

    def emit(self, *_: Any) -> None: ...

    def build(self, *_: Any) -> Any:
        return SimpleNamespace(ok=self._builds)

    def _verified(self, attempt: Attempt, effort: Effort | None, build: Any, *_: Any) -> Any:
        self.log.append("draws")
        return build or self.build(), accepted(attempt.digest)

    def _checked(self, _: Any, effort: Effort | None, build: Any, verdict: Verdict) -> Verdict:
        if effort is Effort.RECORD:
            self.log.append("sanitizer")
        return replace(verdict, notes=(*verdict.notes, *self.notes))

    def _timed(self, *given: Any) -> Any:
        self.log.append("timing")
        return None, given[2]


@pytest.fixture(autouse=True)
def no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "score_of", lambda *_: None)


DRAWS = ["rungs pause", "draws"]


def test_record_judgement_of_a_large_task_has_only_the_checks_that_are_new() -> None:
    judge = Judge(LARGE_CALL_BYTES)
    judge.judge(ATTEMPT)
    judged = judge.judge(ATTEMPT, Effort.RECORD)
    assert judge.log == [*DRAWS, "timing", "sanitizer", "timing"]
    assert judged.verdict.notes == (FIRST_DRAWS,)
    judge.judge(ATTEMPT, Effort.RECORD)
    assert judge.log[5:] == [*DRAWS, "sanitizer", "timing"], "it stands once"


def test_checks_without_draws_are_made_while_rungs_open() -> None:
    judge = Judge(LARGE_CALL_BYTES)
    judge.verify_ahead(ATTEMPT)
    assert judge.log == [], "draws and autotuning need the GPU"
    judge.judge(ATTEMPT)
    judge.verify_ahead(ATTEMPT)
    assert judge.log == [*DRAWS, "timing", "rungs open", "sanitizer"]
    judge.judge(ATTEMPT, Effort.RECORD)
    assert judge.log[5:] == ["timing"]


def test_a_tool_that_could_not_run_beside_rungs_runs_again() -> None:
    judge = Judge(LARGE_CALL_BYTES)
    judge.judge(ATTEMPT)
    judge.notes = (f"{NOTE}racecheck: {Outcome.UNKNOWN}: it took longer than 15 s",)
    judge.verify_ahead(ATTEMPT)
    judge.notes = (f"{NOTE}racecheck: {Outcome.CLEAN}",)
    judged = judge.judge(ATTEMPT, Effort.RECORD)
    assert judge.log[3:] == ["rungs open", "sanitizer", "sanitizer", "timing"]
    assert judged.verdict.notes == (FIRST_DRAWS, *judge.notes)


def test_draws_of_a_small_task_are_repeated() -> None:
    judge = Judge(LARGE_CALL_BYTES - 1)
    judge.judge(ATTEMPT)
    judge.judge(ATTEMPT, Effort.RECORD)
    assert judge.log == [*DRAWS, "timing", *DRAWS, "sanitizer", "timing"]


def test_verdict_does_not_stand_if_the_libraries_do_not_build_again() -> None:
    judge = Judge(LARGE_CALL_BYTES)
    judge.judge(ATTEMPT)
    judge._builds = False
    judge.judge(ATTEMPT, Effort.RECORD)
    assert judge.log[3:] == ["draws", "sanitizer", "timing"]
