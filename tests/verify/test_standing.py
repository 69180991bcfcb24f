"""An accepted verdict on large tensors stands once for a judgement at record effort."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent import judge as module
from cuagent.attempt import Attempt
from cuagent.device_lock import DeviceLock
from cuagent.task import Device
from cuagent.timing import Effort
from cuagent.verdict import FIRST_DRAWS, Reason, Verdict
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
        self.referee: Any = SimpleNamespace(domain=None, giving_way=lambda _: nullcontext())
        self.overlap: Any = SimpleNamespace(open_while_verifying=True, begin_while_building=True)
        nothing = SimpleNamespace(
            open_later_rungs=lambda: None, compile_later_rungs=lambda: None, found=None
        )
        self._ladder: Any = nothing
        self._verified_ahead = None
        self._standing = StandingVerdicts(bytes_per_call)
        self._builds = builds

    def emit(self, *_: Any) -> None: ...

    def build(self, *_: Any) -> Any:
        return SimpleNamespace(ok=self._builds)

    def _verified(self, attempt: Attempt, effort: Effort | None, build: Any, *_: Any) -> Any:
        self.log.append("draws")
        return build or self.build(), accepted(attempt.digest)

    def _checked(self, _: Any, effort: Effort | None, build: Any, verdict: Verdict) -> Verdict:
        if effort is Effort.RECORD:
            self.log.append("sanitizer")
        return verdict

    def _timed(self, *given: Any) -> Any:
        self.log.append("timing")
        return None, given[2]


@pytest.fixture(autouse=True)
def no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "score_of", lambda *_: None)


def test_record_judgement_of_a_large_task_has_only_the_checks_that_are_new() -> None:
    judge = Judge(LARGE_CALL_BYTES)
    judge.judge(ATTEMPT)
    judged = judge.judge(ATTEMPT, Effort.RECORD)
    assert judge.log == ["draws", "timing", "sanitizer", "timing"]
    assert judged.verdict.notes == (FIRST_DRAWS,)
    judge.judge(ATTEMPT, Effort.RECORD)
    assert judge.log[4:] == ["draws", "sanitizer", "timing"], "it stands once"


def test_verdict_made_ahead_of_the_record_may_stand_too() -> None:
    judge = Judge(LARGE_CALL_BYTES)
    judge.judge(ATTEMPT)
    judge.verify_ahead(ATTEMPT)
    judge.judge(ATTEMPT, Effort.RECORD)
    assert judge.log == ["draws", "timing", "sanitizer", "timing"]


def test_draws_of_a_small_task_are_repeated() -> None:
    judge = Judge(LARGE_CALL_BYTES - 1)
    judge.judge(ATTEMPT)
    judge.judge(ATTEMPT, Effort.RECORD)
    assert judge.log == ["draws", "timing", "draws", "sanitizer", "timing"]


def test_verdict_does_not_stand_if_the_libraries_do_not_build_again() -> None:
    judge = Judge(LARGE_CALL_BYTES)
    judge.judge(ATTEMPT)
    judge._builds = False
    judge.judge(ATTEMPT, Effort.RECORD)
    assert judge.log[2:] == ["draws", "sanitizer", "timing"]
