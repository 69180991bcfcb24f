"""Test the device lock: shared verification, exclusive timing, no starvation."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from task_text import task_text

from cuagent.device_lock import DeviceLock
from cuagent.durations import Stage
from cuagent.lock_uses import LockUses
from cuagent.task import Device, load_task
from cuagent.verify import Referee
from cuagent.verify.admission import admit
from cuagent.verify.standing import StandingVerdicts
from cuagent.worker import ForkServer

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
"""Seconds for which a request is observed to wait. On a busy machine it may not begin in this time,
so no other request may depend on its place in the queue (`_await`)."""
LATE = 60.0
"""Seconds within which a request must be granted once it does not have to wait."""


class Holder:
    """A thread that acquires the device lock and holds it until `end` is called."""

    def __init__(self, request: Callable[[], AbstractContextManager[None]]) -> None:
        self.holding, self.released = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.hold, args=(request,), daemon=True)
        self.thread.start()

    def hold(self, request: Callable[[], AbstractContextManager[None]]) -> None:
        with request():
            self.holding.set()
            self.released.wait(2 * LATE)

    def end(self) -> None:
        self.released.set()
        self.thread.join(LATE)


def test_exclusive_waits_for_shared_and_precedes_later_requests(tmp_path: Path) -> None:
    device_lock = DeviceLock(tmp_path / "gpu-0")
    first, second = Holder(device_lock.shared), Holder(device_lock.shared)
    assert first.holding.wait(LATE)
    assert second.holding.wait(LATE)
    timing = Holder(device_lock.exclusive)
    _await(lambda: device_lock.is_awaited)
    assert not timing.holding.is_set()
    later = Holder(device_lock.shared)
    first.end()
    assert not timing.holding.wait(SOON), "exclusive was granted while a shared holder was left"
    assert not later.holding.is_set(), "a later shared request overtook the exclusive one"
    second.end()
    assert timing.holding.wait(LATE)
    assert not later.holding.wait(SOON), "shared was granted together with exclusive"
    timing.end()
    assert later.holding.wait(LATE)
    later.end()


def test_timings_that_wait_follow_each_other_before_verifications(tmp_path: Path) -> None:
    """Several waiting timings run one after the other, so that the device idles only once until all
    verifications have ended."""
    device_lock = DeviceLock(tmp_path / "gpu-0")
    verifying = Holder(device_lock.shared)
    assert verifying.holding.wait(LATE)
    timings = [Holder(device_lock.exclusive)]
    _await(lambda: device_lock.is_awaited)
    later = Holder(device_lock.shared)
    timings.append(Holder(device_lock.exclusive))
    _await(lambda: waiting(device_lock, ".door") == 1)
    verifying.end()
    _await(lambda: any(timing.holding.is_set() for timing in timings))
    first, second = sorted(timings, key=lambda timing: not timing.holding.is_set())
    assert not later.holding.wait(SOON)
    first.end()
    assert second.holding.wait(LATE)
    assert not later.holding.wait(SOON), "a verification came between two timings that waited"
    second.end()
    assert later.holding.wait(LATE)
    later.end()


def waiting(device_lock: DeviceLock, suffix: str) -> int:
    """Return how many requests wait for one of the lock's files to become free."""
    assert device_lock.lock is not None
    inode = device_lock.lock.with_suffix(suffix).stat().st_ino
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum("->" in line and line[-3].endswith(f":{inode}") for line in lines)


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LATE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_devices_are_locked_independently(tmp_path: Path) -> None:
    with DeviceLock(tmp_path / "gpu-0").exclusive(), DeviceLock().exclusive():
        for other in (DeviceLock(tmp_path / "gpu-1"), DeviceLock()):
            holder = Holder(other.exclusive)
            assert holder.holding.wait(LATE)
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
    assert waiting.holding.wait(LATE)
    waiting.end()


def test_judges_verify_together_and_hold_no_lock_when_the_timer_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuagent import judge as module
    from cuagent.measure.task_ladder import TaskLadder
    from cuagent.verdict import Reason

    log: list[str] = []
    both_verify = threading.Barrier(2, timeout=LATE)

    class Timer:
        def __init__(self, device_lock: DeviceLock) -> None:
            self.device_lock = device_lock
            self.referee = SimpleNamespace(task=None)

        def time(self, *_: Any) -> Any:
            with self.device_lock.exclusive():  # waits forever if the judge still holds the device
                log.append("timing")
                time.sleep(0.1)
                log.append("timed")

        def release(self, *_: Any) -> None:
            log.append("released")

        def open_ahead(self, *_: Any) -> None: ...

    class Judge(module.LocalJudge):
        def __init__(self, device_lock: DeviceLock) -> None:
            self.device_lock, self._verified_ahead = device_lock, None
            self._standing = StandingVerdicts(0)
            self._profiles: Any = SimpleNamespace(await_opened=lambda: None)
            self.task: Any = SimpleNamespace(device=Device.CPU)
            self._timer: Any = Timer(device_lock)
            self._ladder = TaskLadder(
                self._timer,
                SimpleNamespace(begin=lambda _: None),  # type: ignore[arg-type]
                baselines=(),
                fresh=False,
                before_timing=lambda: None,
            )
            self.durations = device_lock.durations
            self.referee: Any = SimpleNamespace(domain=None, giving_way=lambda _: nullcontext())
            self.overlap: Any = SimpleNamespace(
                open_while_verifying=True, begin_while_building=False
            )

        def build(self, *_: Any) -> Any: ...

        def emit(self, *_: Any) -> None: ...

        def _verified(self, *_: Any) -> Any:
            both_verify.wait()
            log.append("verified")
            return None, Accepted()

    class Accepted:
        accepted, reason = True, Reason.ACCEPTED

    monkeypatch.setattr(module, "_after_timing", lambda verdict, timing: verdict)
    monkeypatch.setattr(module, "score_of", lambda verdict, timing: None)
    attempt: Any = type("A", (), {"digest": "d"})()
    judges = [Judge(DeviceLock(tmp_path / "gpu-0")) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(judge.judge, attempt) for judge in judges]:
            done.result()
    assert sorted(log[:2]) == ["verified"] * 2
    assert log.count("released") == 2
    timed = [entry for entry in log[2:] if entry != "released"]
    assert timed == ["timing", "timed"] * 2


@pytest.mark.parametrize("large", [False, True])
def test_judge_opens_shared_and_profiles_exclusively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    from cuagent import judge as module
    from cuagent.measure.profile import prewarmed

    device_lock, modes = DeviceLock(tmp_path / "gpu-0"), dict[str, str]()

    class Referee:
        fork_server = None
        processes = SimpleNamespace(compiled=None)

        def __init__(self, *_: Any, **__: Any) -> None:
            self.large, self.bytes_per_call = large, 1
            self.processes = SimpleNamespace(compiled=None)
            modes["opening"] = mode_of(device_lock)

    class ProfileSession:
        def __init__(self, *_: Any, **__: Any) -> None:
            modes["opening a profile"] = mode_of(device_lock)

        def await_opened(self, **_: Any) -> None: ...

        def finish(self, *_: Any, alone: Any, **__: Any) -> None:
            modes["preparing a profile"] = mode_of(device_lock)
            with alone():
                modes["profiling"] = mode_of(device_lock)

        def close(self) -> None: ...

    monkeypatch.setattr(module, "Referee", Referee)
    monkeypatch.setattr(prewarmed, "ProfileSession", ProfileSession)

    class Timer:
        def __init__(self, *_: Any, device_lock: DeviceLock) -> None:
            self.device_lock = device_lock
            self.referee = SimpleNamespace(task=None)

        @contextmanager
        def opening(self) -> Iterator[None]:
            with self.device_lock.shared():
                yield

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
    opened = ("opening", "opening baselines", "opening a profile")
    alone = {"preparing a profile": "free", "profiling": "exclusive"}
    assert modes == dict.fromkeys(opened, "shared") | alone


def test_a_shared_holder_gives_way_to_a_timing_that_waits(tmp_path: Path) -> None:
    ours, theirs = DeviceLock(tmp_path / "gpu-0"), DeviceLock(tmp_path / "gpu-0")
    with ours.shared() as give_way:
        give_way()
        assert mode_of(ours) == "shared", "the device was given up though nobody waited"
        timing = Holder(theirs.exclusive)
        _await(lambda: ours.is_awaited)
        threading.Timer(SOON, timing.end).start()
        give_way()  # returns when the timing has ended
        assert timing.holding.is_set()
        assert mode_of(ours) == "shared"
    assert mode_of(ours) == "free"


@pytest.mark.slow
def test_a_task_that_is_opened_and_certified_gives_way_to_a_timing(tmp_path: Path) -> None:
    from cuagent.bench.certificates import certify
    from cuagent.judge import LocalJudge

    path = tmp_path / "task.py"
    path.write_text(task_text("return x * 2", "torch.randn(8, 8)"))
    task, device_lock = load_task(path, device="cpu"), DeviceLock(tmp_path / "gpu-0")
    with ForkServer() as fork_server:
        for work in ("opening", "admission", "certifying"):
            judge = None
            if work == "admission":
                judge = LocalJudge(task, fork_server=fork_server, device_lock=device_lock)
            with device_lock.shared() as give_way:
                timing = Holder(DeviceLock(device_lock.lock).exclusive)
                _await(lambda: device_lock.is_awaited)
                timing.released.set()  # it ends as soon as it has the device
                match work:
                    case "opening":
                        Referee(
                            task, fork_server=fork_server, lock=device_lock.lock, give_way=give_way
                        ).close()
                    case "admission":
                        assert judge is not None
                        assert admit(judge.referee, give_way).certifiable
                    case "certifying":
                        certify(task, fork_server, lock=device_lock.lock, give_way=give_way)
                assert timing.holding.is_set(), f"{work} kept the device"
            timing.end()
            if judge is not None:
                judge.close()


def test_waiting_process_is_noticed_and_waiting_is_counted(tmp_path: Path) -> None:
    device_lock = DeviceLock(tmp_path / "gpu-0")
    other = DeviceLock(tmp_path / "gpu-0")
    with device_lock.exclusive():
        assert not device_lock.is_awaited
        verifying = Holder(other.shared)
        time.sleep(SOON)
        assert not device_lock.is_awaited, "a timing is not cut by a verification"
        waiting = Holder(other.exclusive)
        _await(lambda: device_lock.is_awaited)
        time.sleep(SOON)
    assert waiting.holding.wait(LATE)
    waiting.end()
    assert verifying.holding.wait(LATE)
    verifying.end()
    assert other.durations.seconds(Stage.WAITING) > SOON
    assert device_lock.durations.seconds(Stage.WAITING) < other.durations.seconds(Stage.WAITING)
    assert not DeviceLock().is_awaited


def test_uses_name_the_stage_that_others_waited_for(tmp_path: Path) -> None:
    """One process certifies without a break; one waits for it, and one waits behind that one."""
    certifier, first, second = (DeviceLock(tmp_path / "gpu-0") for _ in range(3))
    waits: list[float] = []

    def timed(device_lock: DeviceLock, seconds: float) -> threading.Thread:
        def time_elsewhere() -> None:
            begun = time.monotonic()
            with device_lock.durations.of(Stage.LADDER), device_lock.exclusive():
                waits.append(time.monotonic() - begun)
                time.sleep(seconds)

        thread = threading.Thread(target=time_elsewhere)
        thread.start()
        return thread

    with certifier.durations.of(Stage.CERTIFYING), certifier.shared() as give_way:
        time.sleep(0.1)
        give_way()
        threads = [timed(first, 0.3)]
        _await(lambda: certifier.is_awaited)
        threads.append(timed(second, 0.0))
        _await(lambda: waiting(certifier, ".door") == 1)
        time.sleep(SOON)
    for thread in threads:
        thread.join(LATE)
    kept = certifier.uses.to_json()["certifying"]
    assert kept["shared"] == 1
    assert SOON <= kept["kept_longest_s"] == kept["kept_s"] < kept["shared_s"]
    assert SOON <= kept["longest_s"] <= kept["shared_s"] - 0.09, "it offered to give way once"
    drained, queued = (found.uses.to_json()["ladder"] for found in (first, second))
    assert kept["kept_s"] - 0.01 <= drained["drain_s"] <= waits[0] + 0.01
    assert drained["exclusive_s"] >= 0.3
    assert queued["queue_s"] >= 0.3
    assert queued.get("drain_s", 0.0) < queued["queue_s"]
    assert certifier.uses.shared_s == pytest.approx(kept["shared_s"], abs=1e-3)


def test_a_shared_holder_that_gives_way_at_once_keeps_nobody_waiting(tmp_path: Path) -> None:
    ours, theirs = DeviceLock(tmp_path / "gpu-0"), DeviceLock(tmp_path / "gpu-0")
    with ours.shared() as give_way:
        timing = Holder(theirs.exclusive)
        _await(lambda: ours.is_awaited)
        threading.Timer(2.0, timing.end).start()
        give_way()
    found = ours.uses.to_json()["other"]
    assert found["kept_s"] < 1.0  # usually below 20 ms
    assert found["shared_s"] < 2.0, "the time for which another process had the device"


def test_uses_of_a_child_are_added_by_stage() -> None:
    ours, child = LockUses(), LockUses(Stage.AUTOTUNING)
    for seconds in (1.0, 3.0, 2.0):
        child.add(None, exclusive=1, exclusive_s=1.5, drain_s=seconds, drain_longest_s=seconds)
    ours.add_child(child.taken())
    child.add(None, exclusive=1)
    ours.add_child(child.taken())
    found = ours.to_json()
    assert found == {
        "autotuning": {
            "exclusive": 4,
            "exclusive_s": 4.5,
            "drain_s": 6.0,
            "drain_longest_s": 3.0,
        }
    }
    assert ours.exclusive_s == 0.0, "it is not time of this process"


def mode_of(device_lock: DeviceLock) -> str:
    """Return the mode in which the device lock is held: "free", "shared" or "exclusive"."""
    assert device_lock.lock is not None
    with device_lock.lock.open("a") as device:
        for operation, mode in (fcntl.LOCK_EX, "free"), (fcntl.LOCK_SH, "shared"):
            with suppress(BlockingIOError):
                fcntl.flock(device, operation | fcntl.LOCK_NB)
                return mode
    return "exclusive"


def test_processes_that_look_at_the_same_time_do_not_see_each_other(tmp_path: Path) -> None:
    lock = DeviceLock(tmp_path / "gpu-0")

    def looks() -> int:
        return sum(lock.is_awaited for _ in range(5000))

    with ThreadPoolExecutor(4) as threads:
        assert sum(one.result() for one in [threads.submit(looks) for _ in range(4)]) == 0


def test_rungs_of_the_record_compile_while_attempts_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuagent.measure import rung_compiler as module

    asked, done = list[tuple[str, ...]](), threading.Event()

    def precompile(task: Any, names: tuple[str, ...], *_: Any) -> list[str]:
        asked.append(names)
        done.wait(LATE)
        return [name for name in names if name != "slow"]

    def compiler(device_lock: DeviceLock) -> module.RungCompiler:
        nothing: Any = None
        return module.RungCompiler(nothing, nothing, device_lock, large=False)

    monkeypatch.setattr(module, "precompile", precompile)
    shared = compiler(DeviceLock(tmp_path / "gpu-0"))
    shared.begin(("tuned", "slow"))
    shared.begin(("tuned", "slow"))
    assert not done.is_set(), "judging waited for the compilers"
    threading.Timer(SOON, done.set).start()
    assert shared.compiled(("tuned", "slow")) == ("tuned",)
    assert asked == [("tuned", "slow")], "compiled once"
    compiler(DeviceLock()).begin(("tuned",))
    assert len(asked) == 1, "on a device with one judge they open in the background"
