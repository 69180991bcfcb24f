"""The device lock: shared verification, exclusive timing, no starvation."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.device_lock import DeviceLock
from cuagent.task import Device

HOLDS = """
import sys, time
from pathlib import Path
from cuagent.device_lock import DeviceLock
from cuagent.task import Device

with getattr(DeviceLock(Path(sys.argv[1])), sys.argv[2])():
    print("held", flush=True)
    time.sleep(60)
"""
SOON = 0.2
"""Seconds within which a request that need not wait is granted."""


class Holder:
    """A thread that requests the device and holds it until `end`."""

    def __init__(self, request: Callable[[], AbstractContextManager[None]]) -> None:
        self.holding, self.released = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.hold, args=(request,), daemon=True)
        self.thread.start()

    def hold(self, request: Callable[[], AbstractContextManager[None]]) -> None:
        with request():
            self.holding.set()
            self.released.wait(20)

    def end(self) -> None:
        self.released.set()
        self.thread.join(20)


def test_exclusive_waits_for_shared_and_precedes_later_requests(tmp_path: Path) -> None:
    device_lock = DeviceLock(tmp_path / "gpu-0")
    first, second = Holder(device_lock.shared), Holder(device_lock.shared)
    assert first.holding.wait(5)
    assert second.holding.wait(5)
    timing = Holder(device_lock.exclusive)
    assert not timing.holding.wait(SOON)
    later = Holder(device_lock.shared)
    first.end()
    assert not timing.holding.wait(SOON), "exclusive was granted while a shared holder was left"
    assert not later.holding.is_set(), "a later shared request overtook the exclusive one"
    second.end()
    assert timing.holding.wait(5)
    assert not later.holding.wait(SOON), "shared was granted together with exclusive"
    timing.end()
    assert later.holding.wait(5)
    later.end()


def test_devices_are_locked_independently(tmp_path: Path) -> None:
    with DeviceLock(tmp_path / "gpu-0").exclusive(), DeviceLock().exclusive():
        for other in (DeviceLock(tmp_path / "gpu-1"), DeviceLock()):
            holder = Holder(other.exclusive)
            assert holder.holding.wait(5)
            holder.end()


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_lock_of_a_killed_process_is_free(tmp_path: Path, mode: str) -> None:
    lock = tmp_path / "gpu-0"
    command = [sys.executable, "-c", HOLDS, str(lock), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waiting = Holder(DeviceLock(lock).exclusive)
        assert not waiting.holding.wait(SOON)
        holder.kill()
    assert waiting.holding.wait(5)
    waiting.end()


def test_judges_verify_together_and_time_exclusively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuagent import judge as module
    from cuagent.verdict import Reason

    log: list[str] = []
    both_verify = threading.Barrier(2, timeout=10)

    class Timer:
        def time(self, *_: Any) -> Any:
            log.append("timing")
            time.sleep(0.1)
            log.append("timed")

        def release(self, *_: Any) -> None:
            log.append("released")

        def open_ahead(self, *_: Any) -> None: ...

    class Judge(module.LocalJudge):
        def __init__(self, device_lock: DeviceLock) -> None:
            self.device_lock, self.ladder, self._next_profile = device_lock, None, None
            self._reference_profile, self._default_baselines, self._unopened = None, (), ()
            self._timer: Any = Timer()
            self.referee: Any = SimpleNamespace(domain=None)
            self.overlap: Any = SimpleNamespace(open_while_verifying=True)

        def _verified(self, *_: Any) -> Any:
            both_verify.wait()
            log.append("verified")
            return None, Accepted()

    class Accepted:
        accepted, reason = True, Reason.ACCEPTED

    monkeypatch.setattr(module, "_after_timing", lambda verdict, timing: verdict)
    monkeypatch.setattr(module, "_score", lambda verdict, timing: None)
    attempt: Any = type("A", (), {"digest": "d"})()
    judges = [Judge(DeviceLock(tmp_path / "gpu-0")) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(judge.judge, attempt) for judge in judges]:
            done.result()
    assert sorted(log[:2]) == ["verified"] * 2
    assert log[2:] == ["timing", "timed", "released"] * 2


@pytest.mark.parametrize("large", [False, True])
def test_judge_opens_shared_and_profiles_exclusively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    from cuagent import judge as module

    device_lock, modes = DeviceLock(tmp_path / "gpu-0"), dict[str, str]()

    class Referee:
        fork_server = None

        def __init__(self, *_: Any, **__: Any) -> None:
            self.large, self.bytes_per_call = large, 1
            modes["opening"] = mode_of(device_lock)

    class ProfileSession:
        def __init__(self, *_: Any, **__: Any) -> None:
            modes["profiling"] = mode_of(device_lock)

        def finish(self, *_: Any, **__: Any) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(module, "Referee", Referee)
    monkeypatch.setattr(module, "ProfileSession", ProfileSession)

    class Timer:
        def __init__(self, *_: Any, shared_device: bool) -> None:
            assert shared_device, "otherwise the first timing counts under the exclusive lock"

        def prewarm(self, *_: Any) -> Any:
            return lambda: modes.update({"opening baselines": mode_of(device_lock)})

        def open_ahead(self, *_: Any) -> None: ...

        def nothing_opens(self) -> AbstractContextManager[None]:
            return nullcontext()

    monkeypatch.setattr(module, "Timer", Timer)
    monkeypatch.setattr(module.LocalJudge, "build", lambda *_: None)
    task: Any = SimpleNamespace(device=Device.CPU)
    attempt: Any = object()
    judge = module.LocalJudge(task, device_lock=device_lock)
    judge.open()
    judge.profile(attempt)
    shared = dict.fromkeys(("opening", "opening baselines"), "shared")
    assert modes == {**shared, "profiling": "exclusive"}, (
        "a profile was prewarmed on a shared device"
    )


def mode_of(device_lock: DeviceLock) -> str:
    """Return the mode in which the device is held."""
    assert device_lock.lock is not None
    with device_lock.lock.open("a") as device:
        for operation, mode in (fcntl.LOCK_EX, "free"), (fcntl.LOCK_SH, "shared"):
            with suppress(BlockingIOError):
                fcntl.flock(device, operation | fcntl.LOCK_NB)
                return mode
    return "exclusive"
