"""Timing of rungs, choice of the best admissible one, and the cache.

The reference sleeps, and the rungs hardly differ, so a busy machine cannot reverse a result.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cuagent.measure import ladder_cache
from cuagent.measure.ladder import (
    admitted,
    first_rungs,
    join_rungs,
    measure_ladder,
    opens_quickly,
    rungs_of,
    rungs_to_open,
    time_rungs,
)
from cuagent.measure.launches import graphs_may_gain
from cuagent.measure.roofline.model import OperatorWork
from cuagent.measure.rungs import Ladder, Rung, gain_of, with_earlier
from cuagent.measure.timing.ahead import Patience
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, Precision, load_task
from cuagent.timing import Arm, Effort, Ratio, Timing
from cuagent.verify import Referee
from cuagent.worker import ForkServer

pytestmark = pytest.mark.slow

TASK = """
import time, torch
class Model(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.002)
        return torch.tanh(x)
"""


@pytest.fixture(scope="module")
def referee(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Referee]:
    path = tmp_path_factory.mktemp("ladder") / "task.py"
    path.write_text(TASK)
    task = load_task(path, inputs="f32[8,16]", device="cpu")
    with Referee(task, fork_server=fork_server) as opened:
        yield opened


def rung(name: str, seconds: float, low: float, **about: bool) -> Rung:
    right, admissible = about.get("right", True), about.get("admitted", True)
    over = Ratio(4e-3 / seconds, low, 5e-3 / seconds)
    return Rung(name, seconds, over, 1e-7, right, 1.0, None, admissible)


def made(*rungs: Rung) -> Ladder:
    return Ladder("task", "match", "a device", {}, rungs, 1.0)


def test_rung_states_the_settings_that_it_needs_and_the_ladder_its_own(
    referee: Referee, tmp_path: Path
) -> None:
    found = time_rungs(referee, only=("eager", "eager+bf16", "eager+fp32"), cache=tmp_path)
    assert found.settings == "fp32 products, convolutions and RNNs"
    assert found.own_settings == referee.facts.settings
    assert [rung.settings for rung in found.rungs] == ["", "bf16 autocast", ""]
    assert Ladder.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert all(rung.error is not None for rung in found.rungs)


def test_time_rungs_checks_rungs_and_reads_its_cache(referee: Referee, tmp_path: Path) -> None:
    found = time_rungs(referee, only=("eager", "eager+channels_last"), cache=tmp_path)
    assert [r.name for r in found.rungs] == ["eager", "eager+channels_last"]
    for r in found.rungs:
        assert r.admissible
        assert 0.002 < r.seconds < 0.1
        assert r.error is not None
        assert r.error < 1e-5
    assert found.best is not None
    assert time_rungs(referee, only=("eager", "eager+channels_last"), cache=tmp_path) == found


def test_ladder_of_a_busy_machine_is_measured_again_later(referee: Referee, tmp_path: Path) -> None:
    names = ("eager", "eager+channels_last")
    time_rungs(referee, only=names, cache=tmp_path)
    (file,) = tmp_path.glob("ladder-*.json")

    decided, undecided = Ratio(1.0, 0.99, 1.01), Ratio(1.57, 0.58, 4.2)

    def when_asked_again(busy: float, age: float, over: Ratio = decided, failed: str = "") -> float:
        known = Ladder.from_json(json.loads(file.read_text()))
        rungs = (known.rungs[0], replace(known.rungs[1], over_eager=over, failed=failed))
        aged = replace(known, busy=busy, when=time.time() - age, rungs=rungs)
        file.write_text(json.dumps(aged.to_json()))
        return time.time() - time_rungs(referee, only=names, cache=tmp_path).when

    assert when_asked_again(busy=0.0, age=4000) > 3000
    assert when_asked_again(busy=0.8, age=100) > 90
    assert when_asked_again(busy=0.8, age=4000) < 3000
    assert when_asked_again(busy=0.0, age=100, over=undecided) > 90
    assert when_asked_again(busy=0.0, age=4000, over=undecided) < 3000, (
        "a cached ladder that is undecided expires"
    )
    lack = "raised: CUDA out of memory. Tried to allocate 2.01 GiB. GPU 0 has"
    assert when_asked_again(busy=0.0, age=100, failed=lack) < 100
    assert when_asked_again(busy=0.0, age=100, failed="raised: TypeError") > 90


def test_measure_ladder_defers_rungs_that_open_slowly(
    referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a mode that eager ignores stands for autotuning, which opens slowly
    names = ("eager", "eager+channels_last", "eager+max-autotune-no-cudagraphs", "eager+bf16")
    monkeypatch.setattr("cuagent.measure.ladder.rungs_of", lambda *_: names)
    with Timer(referee) as timer:
        first = measure_ladder(timer, whole=False, cache=tmp_path)
        assert [rung.name for rung in first.rungs] == list(names[:2])
        assert first.later == names[2:3], (
            "rungs that the precision does not admit are never the result"
        )
        assert set(timer.opened()) == set(names[:2]), "its processes serve the next timing"
        whole = measure_ladder(timer, whole=True, cache=tmp_path)
        assert [rung.name for rung in whole.rungs] == list(names[:3])
        assert whole.later == ()
        assert measure_ladder(timer, whole=False, cache=tmp_path) == whole, (
            "a measured ladder is not measured again"
        )
        timer.release(whole.baselines)
        assert set(timer.opened()) <= set(whole.baselines)


SLOW = "eager+max-autotune-no-cudagraphs"
"""Rung that counts as slow to open; eager ignores the mode."""
LONG_TASK = """
import os, time, torch
class Model(torch.nn.Module):
    calls = 0
    def forward(self, x):
        # As a compiler works in the first call, in the processes of baselines only.
        works = self.calls == 0 and "TORCHINDUCTOR_CACHE_DIR" in os.environ
        end = time.process_time() + (2.0 if works else 0.0)
        self.calls += 1
        while time.process_time() < end:
            pass
        return torch.tanh(x)
"""


def test_rung_joins_without_a_second_timing(
    referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuagent.measure.ladder.rungs_of", lambda *_: ("eager", SLOW))
    with Timer(referee) as timer:
        first = measure_ladder(timer, whole=False, cache=tmp_path)
        timer.open_ahead(first.later)
        assert timer.still_opening(first.later, Patience(60.0)) == ()
        joined = join_rungs(timer, first, first.later)
        new = joined.rung(SLOW)
        assert new is not None
        assert new.admissible
        assert math.isnan(new.seconds)
        assert joined.later == ()
        assert SLOW in joined.proposed
        assert SLOW not in joined.baselines
        process = timer.opened()[SLOW].session.pid
        arm = timer.compare(Effort.QUICK, joined.proposed).arm(SLOW)
        assert arm is not None
        assert arm.samples
        assert timer.opened()[SLOW].session.pid == process, "it was opened twice"


def test_rungs_of_a_large_task_join_although_their_processes_do_not_stay_open(
    referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuagent.measure.ladder.rungs_of", lambda *_: ("eager", SLOW, "compile"))
    monkeypatch.setattr(Referee, "large", True)
    with Timer(referee) as timer:
        first = measure_ladder(timer, whole=False, cache=tmp_path)
        joined = join_rungs(timer, first, (*first.later, "compile"))
    for name in (SLOW, "compile"):
        new = joined.rung(name)
        assert new is not None
        assert new.admissible
        assert new.error is not None


LOCKING = """
import fcntl, os, time, torch
class Model(torch.nn.Module):
    def forward(self, x):
        # As torch's compiler holds a lock of its cache, in the processes of baselines only.
        if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
            with open("LOCK", "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not os.path.exists("HELD"):
                    open("HELD", "w").close()
                    time.sleep(2.0)
        return torch.tanh(x)
def get_inputs(): return [torch.randn(4, 8)]
def get_init_inputs(): return []
"""


def test_baseline_that_waits_for_a_lock_of_a_stopped_one_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held"
    path = tmp_path / "locking.py"
    path.write_text(LOCKING.replace("LOCK", str(tmp_path / "lock"), 1).replace("HELD", str(held)))
    monkeypatch.setattr("cuagent.measure.timing.baselines.STALL_S", 0.5)
    with Referee(load_task(path)) as referee, Timer(referee) as timer:
        timer.open_ahead([SLOW])
        while not held.exists():
            time.sleep(0.01)
        arm = timer.compare(Effort.QUICK, ("eager", "eager+fp32")).arm("eager+fp32")
        assert arm is not None
        assert arm.samples, arm.failed


def test_rungs_that_open_too_slowly_are_left_for_later(
    referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("eager", SLOW)
    monkeypatch.setattr("cuagent.measure.ladder.rungs_of", lambda *_: names)
    with Timer(referee) as timer:
        timer.open_ahead((SLOW,))
        monkeypatch.setattr(timer, "still_opening", lambda names, patience: (SLOW,))
        found = measure_ladder(timer, whole=True, wait_s=0.0, cache=tmp_path)
    assert [rung.name for rung in found.rungs] == ["eager"]
    assert found.later == (SLOW,)


@pytest.fixture
def long_referee(tmp_path: Path, fork_server: ForkServer) -> Iterator[Referee]:
    path = tmp_path / "task.py"
    path.write_text(LONG_TASK)
    task = load_task(path, inputs="f32[8,16]", device="cpu")
    with Referee(task, fork_server=fork_server) as opened:
        yield opened


def test_background_stands_still_while_a_timing_runs(long_referee: Referee, tmp_path: Path) -> None:
    with Timer(long_referee, ("eager",)) as timer:
        timer.open_ahead((SLOW,))
        sessions = timer._baselines._ahead._sessions  # type: ignore[union-attr]
        while SLOW not in sessions:
            time.sleep(0.01)
        pid = sessions[SLOW].pid
        for paused in (timer.nothing_opens(), timer.opening_paused(("eager",))):
            with paused:
                await_stop(pid)
                before = cpu_ticks(pid)
                time.sleep(0.3)
                assert cpu_ticks(pid) == before
        with timer.opening_paused(("eager", SLOW)):
            assert timer.still_opening((SLOW,), Patience(60.0)) == (), "what is needed opens"
        with timer.nothing_opens():
            pass
        found = time_rungs(long_referee, only=("eager", SLOW), cache=tmp_path, timer=timer)
        assert timer.opened()[SLOW].session.pid == pid, "the opened process is timed"
    assert found.rungs[1].admissible


def test_close_ends_what_still_opens(long_referee: Referee) -> None:
    with Timer(long_referee, ("eager",)) as timer:
        timer.open_ahead((SLOW,))
        sessions = timer._baselines._ahead._sessions  # type: ignore[union-attr]
        while SLOW not in sessions:
            time.sleep(0.01)
        pid = sessions[SLOW].pid
    assert not Path(f"/proc/{pid}").exists()


def await_stop(pid: int) -> None:
    """Wait until a process that was sent a signal to stop has got a processor to do so."""
    deadline = time.monotonic() + 60
    while stat_of(pid)[0] != "T" and time.monotonic() < deadline:
        time.sleep(0.01)


def stat_of(pid: int) -> list[str]:
    """Return the fields of a process in proc(5) from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_ticks(pid: int) -> int:
    """Return the processor time of a process in clock ticks."""
    return sum(map(int, stat_of(pid)[11:13]))


def test_cached_ladder_states_its_age_and_fresh_measures_again(
    referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuagent.measure.ladder.rungs_of", lambda *_: ("eager",))
    with Timer(referee) as timer:
        assert rungs_to_open(referee, fresh=False, cache=tmp_path) == ("eager",)
        assert measure_ladder(timer, whole=False, cache=tmp_path).age() == ""
        assert rungs_to_open(referee, fresh=False, cache=tmp_path) == ()
        assert rungs_to_open(referee, fresh=True, cache=tmp_path) == ("eager",)
        (file,) = tmp_path.glob("ladder-*.json")
        known = Ladder.from_json(json.loads(file.read_text()))
        aged = replace(known, when=time.time() - 1800, busy=0.0)
        file.write_text(json.dumps(aged.to_json()))
        notes = measure_ladder(timer, whole=False, cache=tmp_path).notes
        assert notes[-1] == "measured 30 min ago; --fresh measures again"
        assert measure_ladder(timer, whole=False, fresh=True, cache=tmp_path).age() == ""


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": "fast"},
        {"seconds": -1.0},
        {"name": 3},
        {"over_eager": {"value": 1e400, "low": 1.0, "high": 2.0}},
        {"over_eager": {"value": "9", "low": 1.0, "high": 2.0}},
        None,
    ],
)
def test_cached_ladder_with_values_that_no_timing_gives_is_measured_again(
    tmp_path: Path, change: dict[str, object] | None
) -> None:
    file = tmp_path / "ladder.json"
    data = replace(made(rung("eager", 4e-3, 1.0)), when=time.time()).to_json()
    file.write_text(json.dumps(data))
    assert ladder_cache._read(file) is not None
    data = json.loads(json.dumps(data))
    data["rungs"][0] |= change or {}
    file.write_text(json.dumps(data) if change else "[" * 200_000)
    assert ladder_cache._read(file) is None


def test_proposed_includes_rungs_that_a_quick_timing_leaves_open() -> None:
    eager = rung("eager", 4e-3, 1.0)
    unsure = rung("reduce-overhead", 3e-3, 0.9)
    found = made(eager, rung("compile", 3.8e-3, 0.9), unsure)
    assert found.best == eager
    assert found.baselines == ("eager", "compile")
    assert found.proposed == ("eager", "compile", "reduce-overhead")
    assert found.undecided == unsure


def test_rung_without_room_in_a_later_ladder_keeps_its_earlier_timing() -> None:
    eager, tuned = rung("eager", 4e-3, 1.0), rung("max-autotune", 2e-3, 1.9)
    compiled = rung("compile", 1e-3, 3.9)
    first = made(eager, compiled)
    second = replace(first, rungs=(eager, tuned), later=("compile", "reduce-overhead"))
    whole = with_earlier(second, first)
    assert [rung.name for rung in whole.rungs] == ["eager", "max-autotune", "compile"]
    assert whole.later == ("reduce-overhead",)
    assert whole.best == compiled
    assert with_earlier(second, None) == second


def test_rung_that_does_not_run_has_a_reason_and_is_not_admissible(
    referee: Referee, tmp_path: Path
) -> None:
    found = time_rungs(referee, only=("eager", "no-such-mode"), cache=tmp_path)
    broken = found.rungs[1]
    assert broken.failed
    assert not broken.admissible
    assert found.best == found.rungs[0]


def test_best_rung_is_right_admitted_and_certainly_faster() -> None:
    eager = rung("eager", 4e-3, 1.0)
    assert made(eager, rung("compile", 2e-3, 1.8)).best == rung("compile", 2e-3, 1.8)
    assert made(eager, rung("compile", 2e-3, 1.8, right=False)).best == eager
    assert made(eager, rung("compile+tf32", 2e-3, 1.8, admitted=False)).best == eager
    assert made(eager, rung("compile", 3.9e-3, 0.9)).best == eager


def test_chosen_rung_is_about_as_fast_as_the_best_and_quicker_in_a_row() -> None:
    def in_a_row(name: str, seconds: float, row: float | None) -> Rung:
        return replace(rung(name, seconds, 1.8), in_a_row_s=row)

    eager = replace(rung("eager", 4e-3, 1.0), in_a_row_s=5e-3)
    torchs = in_a_row("reduce-overhead", 1e-3, 2.5e-3)
    own = in_a_row("compile+cuda_graph", 1.04e-3, 1.2e-3)
    assert made(eager, torchs, own).best == torchs, "a kernel is compared with the fastest"
    assert made(eager, torchs, own).chosen == own
    others = torchs, in_a_row("compile", 1.01e-3, 2e-3)
    assert own.name in made(eager, *others, own).proposed
    slower = replace(own, seconds=1.06e-3)
    assert made(eager, torchs, slower).chosen == torchs
    assert made(eager, torchs, replace(own, in_a_row_s=2.3e-3)).chosen == torchs
    assert made(eager, torchs, replace(own, in_a_row_s=None)).chosen == torchs
    assert made(eager, replace(torchs, in_a_row_s=None), own).chosen.name == "reduce-overhead"
    assert made(eager, replace(own, right=False)).chosen == eager


def test_precision_policies_admit_their_rungs(referee: Referee) -> None:
    match = replace(referee.task, device=Device.CUDA)
    tf32 = replace(match, precision=Precision.TF32)
    fp32 = replace(match, precision=Precision.FP32)
    for strict in (match, fp32):
        assert not any("tf32" in name for name in rungs_of(strict, convolves=True))
        assert not admitted(strict, "compile+tf32")
    assert {"compile", "compile+tf32"} <= set(rungs_of(tf32, convolves=False))
    assert admitted(tf32, "compile")
    assert "eager+channels_last" in rungs_of(match, convolves=True)
    assert "eager+bf16" not in rungs_of(tf32, convolves=False)


def test_rungs_on_a_gpu_include_captured_graphs_and_tuned_convolutions(referee: Referee) -> None:
    task = replace(referee.task, device=Device.CUDA, precision=Precision.MATCH)
    plain, convolves = rungs_of(task, convolves=False), rungs_of(task, convolves=True)
    graphs = {"max-autotune", "eager+cuda_graph", "compile+cuda_graph"}
    tuned = {"eager+cudnn_benchmark", "eager+channels_last+cudnn_benchmark"}
    assert graphs <= set(plain)
    assert not any("cudnn" in name for name in plain)
    assert graphs | tuned | {"compile+cudnn_benchmark"} <= set(convolves)
    without = rungs_of(task, convolves=True, graphs=False)
    assert set(convolves) - set(without) == graphs | {"reduce-overhead", "compile+cuda_graph"}
    on_cpu = rungs_of(replace(task, device=Device.CPU), convolves=True)
    assert not [name for name in on_cpu if "+cud" in name or name == "max-autotune"]
    slow = [name for name in convolves if not opens_quickly(name)]
    assert slow == [
        "max-autotune-no-cudagraphs",
        "max-autotune",
        "compile+channels_last",
        "compile+cudnn_benchmark",
    ]


@pytest.mark.parametrize(
    ("layer", "inputs", "named"),
    [
        ("Conv1d(4, 4, 3)", "f32[2,4,32]", False),
        ("Conv2d(4, 4, 3)", "f32[2,4,8,8]", True),
        ("Conv3d(4, 4, 3)", "f32[2,4,4,4,4]", True),
    ],
)
def test_channels_last_is_timed_only_where_it_changes_a_weight(
    layer: str, inputs: str, named: bool, tmp_path: Path, fork_server: ForkServer
) -> None:
    (tmp_path / "task.py").write_text(
        f"import torch\nclass Model(torch.nn.{layer.split('(')[0]}):\n"
        f"    def __init__(self):\n        super().__init__({layer.split('(')[1]}\n"
    )
    task = load_task(tmp_path / "task.py", inputs=inputs, device="cpu")
    with Referee(task, fork_server=fork_server) as opened:
        assert ("eager+channels_last" in first_rungs(opened)) is named
    on_gpu = replace(task, device=Device.CUDA)
    every = rungs_of(on_gpu, convolves=True, layouts=named)
    assert any("channels_last" in name for name in every) is named
    assert "eager+cudnn_benchmark" in every


def test_graphs_are_timed_only_where_launches_matter() -> None:
    def calls(number: int, name: str = "aten::mm") -> dict[str, OperatorWork]:
        return {name: OperatorWork(number, 0, 0)}

    assert graphs_may_gain(100e-6, calls(1)), "the host launches as long as the GPU computes"
    assert not graphs_may_gain(10e-3, calls(8))
    assert graphs_may_gain(10e-3, calls(300)), "300 pauses between kernels"
    assert graphs_may_gain(30e-3, calls(1, "aten::_cudnn_rnn")), "it launches a kernel a step"
    assert graphs_may_gain(10e-3, {}), "what it launches is not known"


def test_rung_that_cannot_be_captured_states_why(referee: Referee, tmp_path: Path) -> None:
    found = time_rungs(referee, only=("eager", "eager+cuda_graph"), cache=tmp_path)
    graph = found.rung("eager+cuda_graph")
    assert graph is not None
    assert "no CUDA graph: an argument is not on a GPU" in graph.failed
    assert not graph.admissible


def test_free_times_kernel_gain_is_end_to_end() -> None:
    found = made(rung("eager", 4e-3, 1.0), rung("reduce-overhead", 2e-3, 1.9))
    ratios = {
        "eager": Ratio(3.0, 2.9, 3.1),
        "compile": Ratio(2.5, 2.4, 2.6),
        "reduce-overhead": Ratio(1.5, 1.4, 1.6),
    }
    arms = (Arm("candidate", 1.33e-3, (1.33e-3,)),)
    taken = gain_of(Timing(arms, ratios, Effort.RECORD, "a device", 1.0), found)
    assert taken is not None
    assert taken.rung == "reduce-overhead"
    assert taken.free.value * taken.kernel.value == pytest.approx(taken.end_to_end.value)
    assert taken.over_compile == ratios["compile"]
    assert found.baselines == ("eager", "compile", "reduce-overhead")
    seen = found.best
    assert seen is not None
    assert seen.over_eager is not None
    assert taken.free.low == pytest.approx(seen.over_eager.low)


def test_free_gain_has_limits_of_the_same_run() -> None:
    found = made(rung("eager", 4e-3, 1.0), rung("compile", 2e-3, 1.9))
    ratios = {"eager": Ratio(3.0, 1.0, 9.0), "compile": Ratio(1.5, 0.5, 4.5)}
    arms = (Arm("candidate", 1.33e-3, (1.33e-3,)),)
    beside = {"compile": Ratio(2.1, 0.7, 6.3)}
    timing = Timing(arms, ratios, Effort.RECORD, "a device", 1.0, free=beside)
    taken = gain_of(timing, found)
    assert taken is not None
    assert taken.free == Ratio(2.0, 0.7, 6.3)


@pytest.mark.parametrize(
    ("forward", "later"),
    [("torch.tanh(x) * 2", ()), ("x @ x.T", ("max-autotune-no-cudagraphs",))],
)
def test_autotuning_is_a_rung_on_a_cpu_only_for_products(
    forward: str, later: tuple[str, ...], tmp_path: Path, fork_server: ForkServer
) -> None:
    path = tmp_path / "task.py"
    path.write_text(TASK.replace("torch.tanh(x)", forward))
    task = load_task(path, inputs="f32[8,16]", device="cpu")
    with Referee(task, fork_server=fork_server) as opened, Timer(opened) as timer:
        assert measure_ladder(timer, whole=False, cache=tmp_path).later == later


def test_check_accepts_right_outputs_and_refuses_wrong_ones(referee: Referee) -> None:
    batch = referee.batches.create(1)
    try:
        right = batch.inputs.tensors(0)[0].tanh()
        assert referee.batches.check(batch, 0, [right]).passed
        assert not referee.batches.check(batch, 0, [right * 1.001]).passed
        assert referee.batches.check(batch, 0, [right]).passed, "a refusal leaves no trace"
    finally:
        referee.batches.discard(batch)
