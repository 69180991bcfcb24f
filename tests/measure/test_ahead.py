"""Baselines that start in the background: none of their processes outlives a failure."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.arms import same_code
from cuagent.measure.timing.ahead import OpenedAhead, Patience
from cuagent.worker import SessionEnded, Status
from cuagent.worker.priority import NICE
from cuagent.worker.suspend import descendants


@pytest.mark.parametrize("fails_in", ["first call", "callback"])
def test_session_is_closed_if_anything_fails_while_it_opens(fails_in: str) -> None:
    closed: list[bool] = []
    session: Any = SimpleNamespace(
        pid=-1, close=lambda: closed.append(True), pause=lambda: True, unpause=lambda: None
    )

    def first_call(name: str, opened: object) -> None:
        if fails_in == "first call":
            raise RuntimeError(fails_in)

    def opened(name: str, seconds: float) -> None:
        if fails_in == "callback":
            raise RuntimeError(fails_in)

    ahead = OpenedAhead(lambda name: session, first_call, 1, opened)
    ahead.start(["compile"])
    with pytest.raises(RuntimeError, match=fails_in):
        ahead.take("compile")
    assert closed == [True]
    ahead.end()


def test_discarded_baseline_ends_at_once_and_others_go_on() -> None:
    processes = {name: subprocess.Popen(["sleep", "600"], process_group=0) for name in ("a", "b")}
    begun: list[str] = []

    def begin(name: str) -> Any:
        begun.append(name)
        process = processes[name]
        return SimpleNamespace(
            pid=process.pid, close=process.kill, pause=lambda: True, unpause=lambda: None
        )

    def first_call(name: str, session: Any) -> None:
        if processes[name].wait():
            raise SessionEnded(Status.LOST, name, "")

    ahead = OpenedAhead(begin, first_call, 1)
    ahead.start(["a", "b", "never"])
    assert ahead.unfinished(["a"], 0.5) == ("a",)
    ahead.discard(["a", "never"])
    assert ahead.unfinished(["a", "never"], 60) == ()
    assert ahead.unfinished(["b"], 0.5) == ("b",)
    ahead.end()
    assert begun == ["a", "b"]
    assert all(process.wait() != 0 for process in processes.values())


def test_a_baseline_waits_for_the_one_that_leaves_its_code_in_the_cache() -> None:
    begun: list[str] = []
    compiled = threading.Event()

    def begin(name: str) -> Any:
        begun.append(name)
        no_process = 10**9
        return SimpleNamespace(pid=no_process, close=lambda: None, unpause=lambda: None)

    def first_call(name: str, _: Any) -> None:
        if name == "compile":
            compiled.wait(60)
            raise SessionEnded(Status.LOST, name, "")

    ahead = OpenedAhead(begin, first_call, 4)
    ahead.start(["compile"])
    ahead.start(["compile+cuda_graph", "reduce-overhead", "max-autotune"])
    assert ahead.unfinished(["reduce-overhead", "max-autotune"], 60) == ()
    assert "compile+cuda_graph" not in begun
    compiled.set()
    ahead.take("compile+cuda_graph")
    assert begun[-1] == "compile+cuda_graph"
    ahead.end()


def test_arms_with_the_same_compiled_code_are_known() -> None:
    assert same_code("compile+tf32+cuda_graph") == "compile+tf32"
    assert same_code("max-autotune+tf32") == "max-autotune-no-cudagraphs+tf32"
    others = ("eager+cuda_graph", "compile", "reduce-overhead", "max-autotune-no-cudagraphs")
    assert not any(map(same_code, others))


def test_compilers_in_the_background_have_a_lower_priority_than_the_process_that_is_timed() -> None:
    starts_one = "import subprocess; subprocess.run(['sleep', '600'])"
    process = subprocess.Popen([sys.executable, "-c", starts_one], process_group=0)
    session: Any = SimpleNamespace(
        pid=process.pid, close=process.kill, pause=lambda: True, unpause=lambda: None
    )

    def first_call(name: str, session: Any) -> None:
        process.wait()

    ahead = OpenedAhead(lambda name: session, first_call, 1, yields=True)
    ahead.start(["compile"])
    own, until = os.getpriority(os.PRIO_PROCESS, 0), time.monotonic() + 60
    while time.monotonic() < until:
        found = [os.getpriority(os.PRIO_PROCESS, pid) for pid in descendants(process.pid)]
        if found and min(found) > own:
            break
        time.sleep(0.05)
    assert found == [max(NICE, own)]
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == own
    ahead.end()


def test_a_baseline_that_opened_for_long_before_is_not_waited_for_as_long_as_a_new_one() -> None:
    """MobileNet, VGG (H200): autotuning ran for 40 s in the background, and the end of the run
    waited 15 s more for it, in vain."""
    ended, no_process = threading.Event(), 10**9

    def begin(name: str) -> Any:
        return SimpleNamespace(
            pid=no_process, close=lambda: None, pause=lambda: True, unpause=lambda: None
        )

    def first_call(name: str, _: Any) -> None:
        ended.wait(60)
        raise SessionEnded(Status.LOST, name, "")

    ahead = OpenedAhead(begin, first_call, 2)
    ahead.start(["old"])
    time.sleep(0.5)
    waits = {}

    def wait(names: list[str], patience: Patience) -> None:
        begun = time.monotonic()
        assert ahead.late(names, patience) == tuple(names)
        waits[patience] = time.monotonic() - begun

    patience = Patience(30.0, opening_s=0.4, least_s=0.2)
    wait(["old"], patience)
    assert 0.2 <= waits[patience] < 10
    with ahead.paused():
        time.sleep(0.5)
    ahead.start(["new", "waits for its turn"])
    patience = Patience(30.0, opening_s=1.0)
    wait(["old", "new"], patience)
    assert 0.9 <= waits[patience] < 20, "the new one may take a second"
    queued = Patience(2.0, opening_s=1.0)
    wait(["old", "new", "waits for its turn"], queued)
    assert waits[queued] >= 2.0, "one that has not begun has not been waited for"
    wait(["new"], Patience(0.3))
    assert waits[Patience(0.3)] < 10
    ended.set()
    assert ahead.late(["old", "new"], Patience(30.0)) == ()
    ahead.end()
