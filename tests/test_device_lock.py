"""Who verifies does so beside others, who times is alone, and nobody waits for ever."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

from cuagent.device_lock import DeviceLock

HOLDS = """
import sys, time
from pathlib import Path
from cuagent.device_lock import DeviceLock

with getattr(DeviceLock(Path(sys.argv[1])), sys.argv[2])():
    print("held", flush=True)
    time.sleep(60)
"""
SOON = 0.2
"""Seconds in which what need not wait has come."""


class Visit:
    """Somebody who asks for the device in a thread, and keeps it until told."""

    def __init__(self, ask: Callable[[], AbstractContextManager[None]]) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.stay, args=(ask,), daemon=True)
        self.thread.start()

    def stay(self, ask: Callable[[], AbstractContextManager[None]]) -> None:
        with ask():
            self.inside.set()
            self.leave.wait(20)

    def end(self) -> None:
        self.leave.set()
        self.thread.join(20)


def test_one_who_times_is_alone_and_comes_before_those_who_ask_later(tmp_path: Path) -> None:
    device_lock = DeviceLock(tmp_path / "gpu-0")
    first, second = Visit(device_lock.shared), Visit(device_lock.shared)
    assert first.inside.wait(5)
    assert second.inside.wait(5)
    timing = Visit(device_lock.exclusive)
    assert not timing.inside.wait(SOON)
    later = Visit(device_lock.shared)
    first.end()
    assert not timing.inside.wait(SOON), "it times beside one who verifies"
    assert not later.inside.is_set(), "who came later has overtaken it"
    second.end()
    assert timing.inside.wait(5)
    assert not later.inside.wait(SOON), "it verifies beside one who times"
    timing.end()
    assert later.inside.wait(5)
    later.end()


def test_devices_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with DeviceLock(tmp_path / "gpu-0").exclusive(), DeviceLock().exclusive():
        for other in (DeviceLock(tmp_path / "gpu-1"), DeviceLock()):
            visit = Visit(other.exclusive)
            assert visit.inside.wait(5)
            visit.end()


@pytest.mark.parametrize("how", ["shared", "exclusive"])
def test_what_a_killed_process_held_is_free(tmp_path: Path, how: str) -> None:
    lock = tmp_path / "gpu-0"
    command = [sys.executable, "-c", HOLDS, str(lock), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waiting = Visit(DeviceLock(lock).exclusive)
        assert not waiting.inside.wait(SOON)
        holder.kill()
    assert waiting.inside.wait(5)
    waiting.end()


def test_judges_of_one_device_verify_beside_each_other_and_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuagent import judge as module

    went_on: list[str] = []
    both_verify = threading.Barrier(2, timeout=10)

    class Timer:
        def time(self, *_: Any) -> Any:
            went_on.append("timing")
            time.sleep(0.1)
            went_on.append("timed")

        def release(self) -> None:
            went_on.append("released")

    class Judge(module.Judge):
        def __init__(self, device_lock: DeviceLock) -> None:
            self.device_lock, self.ladder, self._next_profile = device_lock, None, None
            self._timer: Any = Timer()

        def _verified(self, *_: Any) -> Any:
            both_verify.wait()
            went_on.append("verified")
            return None, Accepted()

    class Accepted:
        accepted = True

    monkeypatch.setattr(module, "_after_timing", lambda verdict, timing: verdict)
    monkeypatch.setattr(module, "_score", lambda verdict, timing: None)
    attempt: Any = type("A", (), {"digest": "d"})()
    judges = [Judge(DeviceLock(tmp_path / "gpu-0")) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(judge.judge, attempt) for judge in judges]:
            done.result()
    assert sorted(went_on[:2]) == ["verified"] * 2
    assert went_on[2:] == ["timing", "timed", "released"] * 2


@pytest.mark.parametrize("large", [False, True])
def test_a_judge_opens_and_profiles_in_turns_too_and_leaves_nothing_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    from cuagent import judge as module

    device_lock, turns = DeviceLock(tmp_path / "gpu-0"), dict[str, str]()

    class Referee:
        fork_server = None

        def __init__(self, *_: Any, **__: Any) -> None:
            self.large = large
            turns["opening"] = turn_of(device_lock)

    class ProfileSession:
        def __init__(self, *_: Any, **__: Any) -> None:
            turns["profiling"] = turn_of(device_lock)

        def finish(self, *_: Any, **__: Any) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(module, "Referee", Referee)
    monkeypatch.setattr(module, "ProfileSession", ProfileSession)

    class Timer:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def open(self, *, count_work: bool) -> None:
            assert count_work, "otherwise the first timing counts under the exclusive lock"
            turns["opening baselines"] = turn_of(device_lock)

    monkeypatch.setattr(module, "Timer", Timer)
    monkeypatch.setattr(module.Judge, "build", lambda *_: None)
    task: Any = None
    attempt: Any = object()
    judge = module.Judge(task, device_lock=device_lock)
    judge.open()
    judge.profile(attempt)
    shared = dict.fromkeys(("opening", "opening baselines"), "shared")
    assert turns == {**shared, "profiling": "exclusive"}, "the next profile opens unasked"


def turn_of(device_lock: DeviceLock) -> str:
    """In which somebody has the device."""
    assert device_lock.lock is not None
    with device_lock.lock.open("a") as device:
        for how, turn in (fcntl.LOCK_EX, "free"), (fcntl.LOCK_SH, "shared"):
            with suppress(BlockingIOError):
                fcntl.flock(device, how | fcntl.LOCK_NB)
                return turn
    return "exclusive"
