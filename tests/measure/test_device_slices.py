"""A timing holds its device in slices, and nothing opens in the background within one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from cuagent.device_lock import DeviceLock
from cuagent.durations import Durations, Stage
from cuagent.measure.timing import slices as module
from cuagent.measure.timing.slices import Slices


def test_device_is_given_up_between_slices_if_another_process_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE_S", 0.05)
    ours, theirs = DeviceLock(tmp_path / "gpu"), DeviceLock(tmp_path / "gpu")
    log: list[str] = []

    @contextmanager
    def paused() -> Iterator[None]:
        log.append("paused")
        yield
        log.append("continued")

    def time_elsewhere() -> None:
        with theirs.exclusive():
            log.append("other timing")

    slices = Slices(ours, paused)
    with slices.held(Stage.QUICK_TIMING):
        other = threading.Thread(target=time_elsewhere)
        other.start()
        deadline = time.monotonic() + 60
        while slices.count == 1 and time.monotonic() < deadline:
            time.sleep(0.01)
            slices.give_way()
        other.join(60)
        assert slices.count == 2
    assert log == ["paused", "continued", "other timing", "paused", "continued"]


def test_device_is_kept_while_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_S", 0.0)
    lock = DeviceLock(tmp_path / "gpu")
    slices = Slices(lock, lambda: DeviceLock().shared())
    with slices.held(Stage.QUICK_TIMING):
        time.sleep(0.02)
        slices.give_way()
        assert slices.count == 1
    assert lock.durations.seconds(Stage.QUICK_TIMING) >= 0.02


def test_seconds_count_once_for_the_innermost_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.0, 17.0, 18.0])
    monkeypatch.setattr("cuagent.durations.time", SimpleNamespace(monotonic=times.__next__))
    durations = Durations()
    with durations.of(Stage.VERIFYING), durations.of(Stage.SANITIZING):
        pass
    assert list(durations.to_json().items()) == [("verifying_s", 3.0), ("sanitizing_s", 5.0)]


def test_stages_of_another_thread_do_not_interrupt_ours() -> None:
    durations = Durations()

    def work() -> None:
        with durations.of(Stage.BUILDING):
            time.sleep(0.05)

    with durations.of(Stage.VERIFYING):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    found = durations.to_json()
    assert found["verifying_s"] >= 0.05
    assert found["building_s"] >= 0.05
