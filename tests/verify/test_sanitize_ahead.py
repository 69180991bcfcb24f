"""compute-sanitizer in the background: other work goes on meanwhile, and only a complete check
counts. A program stands in for the tool, as in test_sanitize.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bodies import candidate

from cuagent.attempt import Attempt
from cuagent.build import Build, build
from cuagent.device_lock import DeviceLock
from cuagent.verify import Referee, compute_sanitizer, sanitize, tool_runs
from cuagent.verify.compute_sanitizer import Outcome
from cuagent.verify.sanitize_ahead import SanitizeAhead

pytestmark = pytest.mark.slow

CLEAN = 'echo "========= ERROR SUMMARY: 0 errors"'
RACE = 'echo "========= Invalid __global__ read"; exit 99'
Begin = Callable[[str], tuple[SanitizeAhead, Attempt, Build]]


@pytest.fixture
def begin(
    referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Return a function that starts a check in the background, given the tool's shell script."""
    opened: list[SanitizeAhead] = []

    def started(script: str, lock: DeviceLock | None = None) -> Any:
        tool = tmp_path / "compute-sanitizer"
        tool.write_text(f"#!/bin/sh\ntest $1 = --help && exit\n{script}\n")
        tool.chmod(0o755)
        found = tool, frozenset({"relu_kernel"}), ("memcheck",)
        monkeypatch.setattr(sanitize, "applicable", lambda *_: found)
        monkeypatch.setattr(tool_runs, "sandboxed", lambda *_: [str(tool)])
        ahead = SanitizeAhead(referee, lock or DeviceLock())
        opened.append(ahead)
        attempt = candidate("return self.honest(x)")
        built = build(attempt, referee.task.device)
        ahead.begin(attempt, built)
        return ahead, attempt, built

    yield started
    for ahead in opened:
        ahead.end()


def test_other_work_goes_on_while_the_tool_runs(begin: Callable[..., Any], tmp_path: Path) -> None:
    go = tmp_path / "go"
    ahead, attempt, built = begin(f"while [ ! -e {go} ]; do sleep 0.05; done\n{CLEAN}")
    go.touch()  # `begin` returned although the tool waits for this
    check = ahead.take(attempt, built)
    assert check is not None
    assert [report.outcome for report in check.reports] == [Outcome.CLEAN]
    assert "covered relu_kernel" in check.coverage
    assert ahead.take(attempt, built) is None, "a check is used once"


def test_fault_found_in_the_background_is_a_fault(begin: Callable[..., Any]) -> None:
    ahead, attempt, built = begin(RACE)
    check = ahead.take(attempt, built)
    assert [report.outcome for report in check.reports] == [Outcome.FAULTY]


@pytest.mark.parametrize("script", ["exit 1", "echo out of memory; exit 7"])
def test_tool_that_could_not_run_beside_other_work_runs_again(
    begin: Callable[..., Any], script: str
) -> None:
    ahead, attempt, built = begin(script)
    assert ahead.take(attempt, built) is None


def test_check_of_an_attempt_says_nothing_of_another(begin: Callable[..., Any]) -> None:
    ahead, attempt, built = begin(CLEAN)
    other = candidate("return self.honest(x) * 1")
    assert ahead.take(other, build(other, "cpu")) is None  # type: ignore[arg-type]
    assert ahead.take(attempt, built) is not None


def test_tool_has_its_time_limit_only_while_a_caller_waits(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sanitize, "BUDGET_S", 0.2)
    ahead, attempt, built = begin(f"sleep 1.5\n{CLEAN}")
    time.sleep(4.0)  # nothing waits for it, so it may take longer
    check = ahead.take(attempt, built)
    assert [report.outcome for report in check.reports] == [Outcome.CLEAN]
    ahead, attempt, built = begin(f"sleep 300\n{CLEAN}")
    begun = time.monotonic()
    check = ahead.take(attempt, built)
    assert [report.text for report in check.reports] == [compute_sanitizer.EXCEEDED]
    assert time.monotonic() - begun < 60  # usually below one second


def test_end_kills_the_tool_and_gives_the_device_back(
    begin: Callable[..., Any], tmp_path: Path
) -> None:
    lock, sign = DeviceLock(tmp_path / "gpu-0"), tmp_path / "sign"
    ahead, attempt, built = begin(f"touch {sign}; sleep 300", lock)
    while not sign.exists():
        time.sleep(0.01)
    ahead.end()
    with lock.exclusive():
        assert ahead.take(attempt, built) is None


def test_own_timings_of_a_judge_alone_stop_the_tool(
    begin: Callable[..., Any], tmp_path: Path
) -> None:
    lock, sign = DeviceLock(background=tmp_path / "background"), tmp_path / "sign"
    loop = f"for i in 1 2 3 4 5 6 7 8; do date +%s.%N > {sign}; sleep 0.2; done\n{CLEAN}"
    ahead, attempt, built = begin(loop, lock.beside)
    while not sign.exists():
        time.sleep(0.01)
    with lock.exclusive():
        last = sign.read_text()
        time.sleep(0.7)
        assert sign.read_text() == last
    assert ahead.take(attempt, built) is not None
