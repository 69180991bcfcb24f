"""Processes that examine several candidates one after another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from synth_tasks import order, task

from cuagent.synth.process import INTERRUPTED
from cuagent.synth.reasons import Reason
from cuagent.synth.workers import Workers

pytestmark = pytest.mark.slow

COUNTED = """import builtins
builtins.counted = getattr(builtins, 'counted', 0) + 1
"""


def counting(expected: int) -> str:
    """Return a task whose import fails unless its process has imported it `expected` times."""
    check = f"assert builtins.counted == {expected}, f'import {{builtins.counted}}'"
    return task("return torch.exp(x)", before=COUNTED + check)


@pytest.fixture
def reusing() -> Iterator[Workers]:
    with Workers("cpu", compile=False, reuse=3) as started:
        yield started


def test_process_is_replaced_after_its_number_of_candidates(reusing: Workers) -> None:
    for expected in (1, 2, 3, 1):
        answer = reusing.examine(order(counting(expected), "torch.exp"))
        assert "reason" not in answer, answer
    assert len(list(reusing.fork_server.folder.glob("synth-*"))) == 1


def test_process_is_replaced_after_an_unexpected_error_or_a_crash(reusing: Workers) -> None:
    for broken, reason in (
        (task("return torch.exp(x, 1, 2)"), Reason.FAILS),
        (task("return x", before="import os\nos.abort()"), Reason.CRASHED),
    ):
        assert "reason" not in reusing.examine(order(counting(1), "torch.exp"))
        assert reusing.examine(order(broken, "torch.exp"))["reason"] == reason.value
    assert "reason" not in reusing.examine(order(counting(1), "torch.exp"))


def test_random_numbers_of_a_candidate_do_not_depend_on_those_before(reusing: Workers) -> None:
    draws = "FIRST = torch.rand(()).item()\nassert False, f'drew {FIRST}'"
    answers = []
    for _ in range(2):
        assert "reason" not in reusing.examine(order(task("return torch.exp(x)"), "torch.exp"))
        detail = reusing.examine(order(task("return x", before=draws)))["detail"]
        answers.append(detail.partition("drew ")[2])
    assert answers[0] == answers[1]
    assert answers[0].startswith("0.")


def test_stop_ends_waiting_and_busy_processes_at_once(reusing: Workers) -> None:
    assert "reason" not in reusing.examine(order(task("return torch.exp(x)"), "torch.exp"))
    hangs = order(task("time.sleep(300)", before="import time"))
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(reusing.examine, hangs) for _ in range(2)]
        threading.Event().wait(1)
        started = time.monotonic()
        reusing.stop()
        assert all(future.result()[INTERRUPTED] for future in asked)
        assert time.monotonic() - started < 100  # usually below 0.3 s
    assert all(INTERRUPTED in reusing.examine(hangs) for _ in range(2))
