"""Rungs that were compiled ahead are found in the cache when a process opens them."""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from task_text import task_text

from cuagent.device_lock import DeviceLock
from cuagent.measure import rung_compiler, tuning_lock
from cuagent.measure.precompile import compile_only, precompile
from cuagent.measure.rung_compiler import EarlyCompilation, RungCompiler
from cuagent.measure.timing.surroundings import compiled_graphs
from cuagent.measure.tuning_lock import TuningLock
from cuagent.task import load_task
from cuagent.worker import ForkServer

pytestmark = pytest.mark.slow

LOOK = """
import sys, torch
from torch._dynamo.utils import counters
from cuagent.task import load_task, open_reference
task = load_task(sys.argv[1], device="cpu")
reference = open_reference(task)
model, inputs = reference.model(7), reference.inputs(7)
model.compile()
with torch.no_grad():
    model(*inputs)
hits = [n for group in counters.values() for key, n in group.items() if key.endswith("cache_hit")]
print(sum(hits))
"""


def write_task(path: Path, forward: str, **more: str) -> Path:
    path.write_text(task_text(forward, "torch.randn(64, 32)", **more))
    return path


def test_a_rung_compiled_ahead_is_in_the_cache(
    tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    init = "self.a = nn.Linear(32, 16)"
    path = write_task(tmp_path / "task.py", "return F.gelu(self.a(x)) * 3", init=init)
    task = load_task(path, device="cpu")
    lock = DeviceLock(tmp_path / "device.lock")
    assert precompile(task, ("eager", "compile"), fork_server, lock) == ["eager", "compile"]
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(path)],
        env=os.environ | compiled_graphs(),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert int(done.stdout.splitlines()[-1]) >= 1


def test_a_rung_that_fails_is_left_to_its_opening_which_reports_it(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    path = write_task(tmp_path / "task.py", "return x @ x")
    task = load_task(path, device="cpu")
    assert precompile(task, ("eager", "compile"), fork_server, DeviceLock()) == ["eager", "compile"]
    assert precompile(task, ("eager",), fork_server, DeviceLock()) == ["eager"]


def test_a_rung_that_is_not_done_in_time_is_left_out(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    path = write_task(tmp_path / "task.py", "return F.gelu(x) * 3 - x")
    task, names = load_task(path, device="cpu"), ("compile", "eager+channels_last")
    found = precompile(task, names, fork_server, DeviceLock(), limit_s=0.0)
    assert found == ["eager+channels_last"]


def test_a_rung_in_channels_last_leaves_the_layouts_of_the_next_rung() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3))
    weight = model[0].weight
    before = weight.data_ptr(), weight.stride()
    assert compile_only(model, [torch.randn(2, 4, 6, 6)], "compile+channels_last")
    assert (weight.data_ptr(), weight.stride()) == before


TUNE = """
import sys, fcntl, time
from pathlib import Path
import torch
import torch._inductor.compile_fx
from torch._inductor.runtime.benchmarking import benchmarker
from cuagent.device_lock import DeviceLock
from cuagent.measure.tuning_lock import tune_exclusively

lock = DeviceLock(Path(sys.argv[1]))
ran, compiled = [], []
original = benchmarker.benchmark

def is_free():
    with lock.lock.open("a") as device:
        try:
            fcntl.flock(device, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

def benchmark(*args, **named):
    ran.append(is_free())
    return original(*args, **named)

benchmarker.benchmark = benchmark
lowered = torch._inductor.compile_fx.compile_fx_inner

def compile_inner(*args, **named):
    compiled.append(is_free())
    return lowered(*args, **named)

torch._inductor.compile_fx.compile_fx_inner = compile_inner
print(bool(tune_exclusively(lock)))
model = torch.nn.Linear(64, 128)
with torch.no_grad():
    torch.compile(model, mode="max-autotune-no-cudagraphs")(torch.randn(32, 64))
end = time.monotonic() + 60
while not is_free() and time.monotonic() < end:
    time.sleep(0.05)
print(compiled, ran, is_free())
"""


def test_autotuning_holds_the_device_only_while_it_runs_its_choices(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TUNE, str(tmp_path / "device.lock")],
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FREEZING": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    separate, seen = done.stdout.splitlines()[-2:]
    assert separate == "True", "this torch runs its choices in a method that we do not know"
    compiled, _, rest = seen.partition("] [")
    assert "False" not in compiled, "the compiler held the device"
    assert rest, "nothing was tuned"
    assert not rest.startswith("]"), "nothing was tuned"
    ran, _, free = rest.partition("] ")
    assert "True" not in ran, "choices ran while others could use the device"
    assert free == "True"


def test_tuning_is_not_separate_if_torch_has_no_such_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning_lock, "BENCHMARKER", "torch._inductor.gone")
    assert not tuning_lock.tune_exclusively(DeviceLock())


def test_tuning_keeps_the_device_between_close_measurements_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, idle, got = [0.0], threading.Event(), threading.Event()
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: idle.wait(60))
    monkeypatch.setattr(tuning_lock, "time", clock)
    lock = DeviceLock(tmp_path / "lock")
    tuning = TuningLock(lock)

    def other() -> None:
        with DeviceLock(lock.lock).exclusive():
            got.set()

    with tuning.use():
        waiting = threading.Thread(target=other)
        waiting.start()
        while not lock.is_awaited:
            time.sleep(0.01)
    while now[0] < tuning_lock.LONGEST_S:
        with tuning.use(), tuning.use():
            now[0] += 1.0
        assert not got.is_set()
    with tuning.use():
        now[0] += 1.0
    waiting.join(60)
    assert got.is_set(), "the device was kept although another process waited"
    with tuning.use():
        pass
    now[0] += 2 * tuning_lock.IDLE_S
    idle.set()
    with DeviceLock(lock.lock).exclusive():  # the idle device was released
        pass


def test_those_that_share_the_device_get_a_turn_after_a_long_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an attempt of the same problem gets the device for a moment only."""
    monkeypatch.setattr(tuning_lock, "LONGEST_S", 0.0)
    monkeypatch.setattr(tuning_lock, "TURN_S", 600.0)
    lock, gave_way, done = DeviceLock(tmp_path / "lock"), threading.Event(), threading.Event()

    def work() -> None:
        with DeviceLock(lock.lock).shared() as give_way:
            begun = time.monotonic()
            while time.monotonic() - begun < 1.0:
                if lock.is_awaited:
                    gave_way.set()
                    give_way()
                time.sleep(0.01)
            done.set()

    tuning = TuningLock(lock)
    with tuning.use():
        sharing = threading.Thread(target=work)
        sharing.start()
        while not lock.is_shared:
            time.sleep(0.01)
        assert not done.is_set()
    with tuning.use():
        assert done.is_set(), "it took the device back at once"
    sharing.join(60)
    assert not gave_way.is_set()


def test_tuning_keeps_the_device_while_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_lock, "LONGEST_S", 0.0)
    monkeypatch.setattr(tuning_lock, "IDLE_S", 600.0)
    lock = DeviceLock(tmp_path / "lock")
    tuning = TuningLock(lock)
    for _ in range(3):
        with tuning.use():
            pass
    assert lock.uses.to_json()["other"]["exclusive"] == 1
    tuning.release()


def test_a_kernel_is_compiled_before_the_device_is_held_to_measure_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel of a depthwise convolution compiled for 7 s while all others waited (H200)."""
    lock = DeviceLock(tmp_path / "lock")
    seen = list[tuple[str, bool]]()

    def held() -> bool:
        with (tmp_path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    class Autotuner:
        def __init__(self) -> None:
            self.launchers: list[str] = []

        def precompile(self) -> None:
            seen.append(("compiled", held()))
            self.launchers.append("launcher")

        def run(self, *_: object) -> None:
            seen.append(("ran", held()))

    def benchmark(run: Callable[[], object]) -> float:
        run()
        return 0.0

    torch_module = SimpleNamespace(benchmarker=SimpleNamespace(benchmark=benchmark))
    monkeypatch.setitem(sys.modules, "torch_that_tunes", torch_module)
    monkeypatch.setattr(tuning_lock, "BENCHMARKER", "torch_that_tunes")
    tuning = tuning_lock.tune_exclusively(lock)
    assert tuning is not None
    kernel = Autotuner()
    for _ in range(2):
        torch_module.benchmarker.benchmark(functools.partial(kernel.run, 1))
    tuning.release()
    assert seen == [("compiled", False), ("ran", True), ("ran", True)]


def test_rungs_that_compile_slowly_get_a_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, asked = threading.Barrier(2, timeout=60), list[tuple[str, ...]]()
    seen: list[str] = []

    def compiles(_: object, names: Sequence[str], *more: Any) -> list[str]:
        asked.append(tuple(names))
        at_once.wait()  # both processes compile at the same time
        goes_on = more[-1]
        rungs = [name for name in names if name != "eager"]
        count = next((n for n, name in enumerate(rungs, 1) if not goes_on(name)), len(rungs))
        seen.extend(rungs[:count])
        return ["eager", *rungs[:count]]

    monkeypatch.setattr(rung_compiler, "precompile", compiles)
    monkeypatch.setattr(rung_compiler, "SPLIT_AFTER_S", 0.05)
    nothing: Any = None
    names = ("eager", "compile", "reduce-overhead", "compile+tf32")
    found = rung_compiler.compile_rungs(nothing, names, nothing, DeviceLock())
    assert asked == [names, ("reduce-overhead", "compile+tf32")]
    assert found == names
    assert sorted(seen) == sorted(names[1:]), "each rung is compiled once"


def test_rungs_that_are_compiled_are_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[str, ...]]()

    def compiles(_: object, names: Sequence[str], *__: object) -> list[str]:
        asked.append(tuple(names))
        return list(names)

    monkeypatch.setattr(rung_compiler, "precompile", compiles)
    nothing: Any = None
    compiler = RungCompiler(nothing, nothing, DeviceLock(tmp_path / "gpu-0"), large=False)
    names = ("eager", "compile", "reduce-overhead", "compile+cuda_graph", "compile+tf32")
    found = compiler.compile(names, ("compile", "reduce-overhead"))
    assert sorted(found) == sorted(names)
    assert asked == [("eager", "compile+tf32")]


def test_early_compilation_fills_the_cache_in_the_background(
    tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rung_compiler, "COMPILED_AHEAD_S", 600.0)  # the machine may be busy
    path = write_task(tmp_path / "task.py", "return F.gelu(x) * 3 - x")
    lock = DeviceLock(tmp_path / "gpu-0")
    with EarlyCompilation(load_task(path, device="cpu"), fork_server, lock) as compilation:
        assert compilation.done() == ("compile",)
    assert lock.durations.to_json().keys() == {"compiling_ahead_s"}
    assert lock.uses.to_json()["opening_arms"]["shared"] == 1


def test_early_compilation_ends_with_its_block(tmp_path: Path, fork_server: ForkServer) -> None:
    """A task that cannot be certified must not keep its slot until its model is compiled."""
    marks = f"import time, pathlib; pathlib.Path({str(tmp_path / 'begun')!r}).touch()"
    path = write_task(tmp_path / "task.py", "return x", init=f"{marks}; time.sleep(600)")
    task, begun = load_task(path, device="cpu"), time.monotonic()
    with EarlyCompilation(task, fork_server, DeviceLock(tmp_path / "gpu-0")) as compilation:
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < begun + 120
            time.sleep(0.05)
    assert compilation.done() == ()
    assert time.monotonic() - begun < 300, "it waited for the model"


def test_judge_alone_on_its_device_compiles_nothing_early(tmp_path: Path) -> None:
    path = write_task(tmp_path / "task.py", "return x")
    nothing: Any = None
    with EarlyCompilation(load_task(path, device="cpu"), nothing, DeviceLock()) as compilation:
        assert compilation.done() == ()
