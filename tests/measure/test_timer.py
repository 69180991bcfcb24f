"""Timing of real processes: speedups, equal arms and false clocks.

The models sleep instead of computing, so a busy machine cannot reverse a result.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuagent.arms import CANDIDATE, COMPILE, EAGER
from cuagent.attempt import Attempt
from cuagent.audit.recount import contradictions
from cuagent.build import Build, build
from cuagent.events import Event, Phase
from cuagent.measure.roofline import count as count_module
from cuagent.measure.roofline.ceilings import Ceilings
from cuagent.measure.timing import repeats, task_floor
from cuagent.measure.timing import timer as timer_module
from cuagent.measure.timing.round_runner import RoundRunner
from cuagent.measure.timing.rounds import Round
from cuagent.measure.timing.timed_arm import BlockTime, TimedArm
from cuagent.measure.timing.timer import Timer, time_arms
from cuagent.task import Device, Task, TaskError, load_task
from cuagent.timing import Arm, Effort, Ratio, Standing, Timing
from cuagent.verify import Referee
from cuagent.verify.batch import Batch
from cuagent.worker import ForkServer
from cuagent.worker.session import Block

pytestmark = pytest.mark.slow

TASK = """
import time, torch
class {name}(torch.nn.Module):
    def forward(self, x):
        time.sleep({seconds})
        return x * 2
"""
UNUSED: Any = None
"""Placeholder for a session; nothing runs in these tests."""
HONEST = TASK.format(name="ModelNew", seconds="{seconds}")
FALSE_CLOCK = """
import time
real = time.perf_counter_ns
calls = 0
def false():
    global calls
    calls += 1
    return real() - (8_000_000 if calls % 2 == 0 else 0)
time.perf_counter_ns = false
""" + HONEST.format(seconds=0.01)
BY_ADDRESS = """
import time, torch
class ModelNew(torch.nn.Module):
    known = {}
    def forward(self, x):
        if x.data_ptr() not in self.known:
            time.sleep(0.01)
            self.known[x.data_ptr()] = x * 2
        return self.known[x.data_ptr()]
"""
BY_CONTENT = """
import time, torch
class ModelNew(torch.nn.Module):
    known = {}
    def forward(self, x):
        key = x.numpy().tobytes()
        if key not in self.known:
            time.sleep(0.01)
            self.known[key] = x * 2
        return self.known[key]
"""
TOGETHER = """
import sys, time, torch
class ModelNew(torch.nn.Module):
    block = None
    def forward(self, x):
        frame = sys._getframe()
        while "message" not in frame.f_locals:
            frame = frame.f_back
        if frame.f_locals["message"] is not self.block:
            self.block = frame.f_locals["message"]
            time.sleep(0.01)
        return x * 2
"""
CRASHES_LATER = """
import os, torch
class ModelNew(torch.nn.Module):
    calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls > 5:
            os.abort()
        return x * 2
"""


@pytest.fixture(scope="module")
def referee(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Referee]:
    path = tmp_path_factory.mktemp("protocol") / "task.py"
    path.write_text(TASK.format(name="Model", seconds=0.01))
    task = load_task(path, inputs="f32[64,32]", device="cpu")
    with Referee(task, fork_server=fork_server) as opened:
        yield opened


@pytest.fixture(scope="module")
def timer(referee: Referee) -> Iterator[Timer]:
    with Timer(referee, baselines=("eager",)) as opened:
        yield opened


def attempt(source: str) -> tuple[Attempt, Build]:
    made = Attempt((("model_new.py", source),))
    return made, build(made, Device.CPU)


def timed(timer: Timer, source: str, effort: Effort = Effort.QUICK) -> Timing:
    return timer.time(*attempt(source), effort)


def decided(timer: Timer, source: str) -> Timing:
    """Repeat the timing while the interval includes 1, as it may on a busy machine."""
    for _ in range(6):
        timing = timed(timer, source)
        if timing.refused or timing.ratios["eager"].standing is not Standing.INCONCLUSIVE:
            break
    return timing


def test_half_the_time_is_faster_by_a_factor_of_two(timer: Timer) -> None:
    timing = decided(timer, HONEST.format(seconds=0.005))
    assert not timing.refused
    ratio = timing.ratios["eager"]
    assert ratio.standing is Standing.FASTER
    assert ratio.low < 2.2
    assert ratio.high > 1.7
    eager = timing.arm("eager")
    assert eager is not None
    assert eager.median > 0.010


def test_equal_arms_are_inconclusive_and_a_slow_one_is_slower(timer: Timer) -> None:
    assert timed(timer, HONEST.format(seconds=0.01)).ratios["eager"].low < 1.05
    slower = decided(timer, HONEST.format(seconds=0.02)).ratios["eager"]
    assert slower.standing is Standing.SLOWER


def test_false_clock_is_contradicted_or_gains_nothing(timer: Timer) -> None:
    timing = timed(timer, FALSE_CLOCK)
    # A busy machine hides the contradiction; then the excess of the wall clock is counted.
    if timing.contradiction:
        assert "wall clock" in timing.contradiction
        assert not timing.ratios
    else:
        assert timing.ratios["eager"].low < 1.3


def test_outputs_cached_by_address_are_wrong(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(repeats.BLOCK_S, Device.CPU, 0.2)  # enough calls that addresses repeat
    assert "wrong" in timed(timer, BY_ADDRESS).wrong


def test_outputs_cached_by_content_gain_nothing(
    timer: Timer,
) -> None:
    assert timed(timer, BY_CONTENT).ratios["eager"].low < 1.2


def test_each_block_follows_a_call_on_other_inputs_that_is_not_timed(
    timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's timing does so where the host's work may show. Results that are kept from that call
    gain nothing."""
    made = list[tuple[str, list[int]]]()
    block = repeats._block

    def recorded(timed_arm: TimedArm, batch: Batch, slots: Sequence[int], *, lean: bool) -> Block:
        made.append((timed_arm.name, list(slots)))
        return block(timed_arm, batch, slots, lean=lean)

    monkeypatch.setattr(repeats, "_block", recorded)
    monkeypatch.setattr(RoundRunner, "wakes", True)
    monkeypatch.setattr(repeats, "CHECK_EVERY", 1 << 30)
    monkeypatch.setitem(repeats.BLOCK_S, Device.CPU, 0.1)
    assert timed(timer, BY_CONTENT).ratios["eager"].low < 1.2
    warming = made[0][1]
    first = next(n for n, (_, slots) in enumerate(made) if len(slots) > 1)
    calls = made[first - 1 :]
    for wake, timed_block, single in zip(calls[::3], calls[1::3], calls[2::3], strict=False):
        assert wake[1] == warming
        assert len(timed_block[1]) > 1
        assert len(single[1]) == 1
        assert not {*wake[1]} & {*timed_block[1], *single[1]}
        assert wake[0] == timed_block[0] == single[0]


@pytest.mark.parametrize(
    ("factor", "said", "check_every"),
    [
        ("1.0001", "call 1 of", 1 << 30),  # no check on other kinds, which might find it first
        ("(1.1 if x.abs().max() > 6 else 1)", "a call on .*inputs", repeats.CHECK_EVERY),
    ],
)
def test_wrong_output_while_timed_is_refused(
    timer: Timer, monkeypatch: pytest.MonkeyPatch, factor: str, said: str, check_every: int
) -> None:
    monkeypatch.setitem(repeats.BLOCK_S, Device.CPU, 0.2)  # enough calls for all kinds
    monkeypatch.setattr(repeats, "CHECK_EVERY", check_every)
    timing = timed(timer, HONEST.format(seconds=0.005).replace("x * 2", f"x * 2 * {factor}"))
    assert re.search(said, timing.wrong)


def test_changed_inputs_while_timed_are_refused(timer: Timer) -> None:
    timing = timed(timer, HONEST.format(seconds=0.005).replace("x * 2", "x.mul_(2).clone()"))
    assert "it wrote to its inputs" in timing.wrong


def test_work_of_a_block_done_in_one_call_gains_nothing(
    timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(repeats.BLOCK_S, Device.CPU, 0.1)
    timing = timed(timer, TOGETHER)
    assert timing.ratios["eager"].low < 1.2


def test_crash_while_timed_gives_no_ratio_and_keeps_the_timer(
    timer: Timer,
) -> None:
    timing = timed(timer, CRASHES_LATER)
    candidate = timing.arm("candidate")
    assert candidate is not None
    assert "SIGABRT" in candidate.failed
    assert not timing.ratios
    assert timed(timer, HONEST.format(seconds=0.005), Effort.GLANCE).ratios


def test_killed_baseline_is_opened_once_more(timer: Timer) -> None:
    candidate = attempt(HONEST.format(seconds=0.005))
    timer.time(*candidate, Effort.GLANCE)
    os.kill(timer.opened()["eager"].session.pid, signal.SIGKILL)
    timing = timer.time(*candidate)
    assert timing.ratios["eager"].high > 1.7


def test_baseline_dying_while_timed_does_not_fail_the_candidate(
    referee: Referee,
) -> None:
    def kill() -> None:
        while not timer.opened():
            time.sleep(0.01)
        pid = timer.opened()["eager"].session.pid
        time.sleep(0.3)
        os.kill(pid, signal.SIGKILL)

    with Timer(referee, baselines=("eager",)) as timer:
        killer = threading.Thread(target=kill)
        killer.start()
        timing = timer.time(*attempt(HONEST.format(seconds=0.005)))
        killer.join()
    candidate = timing.arm("candidate")
    assert candidate is not None
    assert not candidate.failed
    assert timing.ratios["eager"].high > 1.7


def test_charge_on_a_gpu_counts_after_confirmation_in_fresh_processes(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(charge: float) -> Round:
        timed_arms = {
            name: TimedArm(name, UNUSED, 0.0, [BlockTime(1e-3, 1e-3)] * 5)
            for name in (CANDIDATE, EAGER)
        }
        counted = {CANDIDATE: [1e-3 + charge] * 5, EAGER: [1e-3] * 5}
        return Round(timed_arms, counted, "", "", "", 0.0)

    def ratio_of(*charges: float) -> float:
        left = [taken(charge) for charge in charges]
        with Timer(referee, (EAGER,)) as timer:
            timer.device = Device.CUDA
            monkeypatch.setattr(RoundRunner, "run", lambda *_: left.pop(0))
            monkeypatch.setattr(timer._floor, "of", lambda _: None)
            timing = timer.time(*attempt(HONEST.format(seconds=0.01)))
        assert not left
        return timing.ratios[EAGER].value

    assert ratio_of(0.0) == pytest.approx(1.0)
    assert ratio_of(3e-4, 0.0) == pytest.approx(1.0)
    assert ratio_of(3e-4, 3e-4, 0.0) == pytest.approx(1.0)
    assert ratio_of(3e-4, 3e-4, 3e-4) == pytest.approx(1 / 1.3)
    assert ratio_of(5e-6) == pytest.approx(1 / 1.005)  # too little to change the standing


def test_delayed_baseline_is_recognised_from_earlier_timings(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(compiled: float) -> Round:
        us = {CANDIDATE: 110.0, EAGER: 33.0, COMPILE: compiled}
        blocks = {name: [BlockTime(t * 1e-6, t * 1e-6)] * 5 for name, t in us.items()}
        timed_arms = {name: TimedArm(name, UNUSED, 0.0, each) for name, each in blocks.items()}
        return Round(
            timed_arms, {n: [b.claim for b in bs] for n, bs in blocks.items()}, *[""] * 3, 0.0
        )

    ended: list[str] = []
    # Times seen on an H200; the third round belongs to the next timing.
    left = [taken(26.0), taken(229.0), taken(26.2), *[taken(180.0)] * 3]
    with Timer(referee, (EAGER, COMPILE)) as timer:
        timer.device = Device.CUDA
        monkeypatch.setattr(RoundRunner, "run", lambda *_: left.pop(0))
        monkeypatch.setattr(timer._floor, "of", lambda _: None)
        monkeypatch.setattr(timer._baselines, "end", ended.append)
        timings = [timer.time(*attempt(HONEST.format(seconds=0.01))) for _ in range(3)]
    assert not left
    assert [t.ratios[COMPILE].value for t in timings] == pytest.approx(
        [26 / 110, 26.2 / 110, 180 / 110]
    )
    assert [t.notes for t in timings[:2]] == [(), ()]
    assert timings[2].remarks == (
        "compile was delayed: it took 6.9 times its usual time, "
        "so the speedup over it is too large",
    )
    assert ended == [COMPILE]


def test_ceilings_are_measured_again_before_a_candidate_is_suspect(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    remeasured: list[bool] = []

    def measured(_: Device, *, remeasure: bool = False, **__: Any) -> Ceilings:
        remeasured.append(remeasure)
        return Ceilings("here", 1.0 if len(remeasured) < 3 else 1e12, 1e12, 0.0, 0.0)

    monkeypatch.setattr(task_floor, "ceilings", measured)
    arm = Arm(EAGER, 1e-3, (1e-3,))
    with Timer(referee, (EAGER,)) as timer:
        floors = [timer._floor.of([arm]) for _ in range(3)]
    assert [floor is not None and floor.memory > arm.median for floor in floors] == [
        True,
        False,
        False,
    ]
    assert remeasured == [False, True, True]


def test_task_that_does_not_fit_is_timed_in_parts(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{EAGER}+tf32"
    monkeypatch.setattr(timer_module, "parts_of", lambda *_: [(EAGER,), (other,)])
    with Timer(referee, (EAGER, other)) as timer:
        timing = timed(timer, HONEST.format(seconds=0.005))
        assert timer.baselines == (EAGER, other)
    assert timing.ratios.keys() == {EAGER, other}
    assert all(ratio.high > 1.7 for ratio in timing.ratios.values())


@pytest.mark.parametrize(("failures", "known"), [(1, True), (2, False)])
def test_failed_count_is_repeated_by_the_first_timing(
    referee: Referee, monkeypatch: pytest.MonkeyPatch, failures: int, known: bool
) -> None:
    asked: list[str] = []

    def count(task: Task, fork_server: ForkServer, *_: Any) -> Any:
        asked.append(task.name)
        if len(asked) <= failures:
            raise TaskError("out of memory")
        return count_module.count(task, fork_server)

    monkeypatch.setattr(task_floor, "count", count)
    with Timer(referee, (EAGER,)) as timer:
        assert timer._floor.count() is None
        for _ in range(2):
            timing = timed(timer, HONEST.format(seconds=0.005))
            assert (timing.floor is not None) == known
    assert len(asked) == 2, "later timings do not count again"


def test_prewarming_without_an_attempt_leaves_out_eager(
    referee: Referee,
) -> None:
    other = f"{EAGER}+tf32"
    with Timer(referee, (EAGER, other)) as timer:
        timer.prewarm()()
        assert timer.opened().keys() == {other}
        assert timer.baselines == (EAGER, other)
        timing = timed(timer, HONEST.format(seconds=0.005))
    assert timing.ratios.keys() == {EAGER, other}


def test_throttled_repeats_are_discarded_first_and_noted_if_they_count(
    timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "REPEATS", {Device.CPU: (15, 20)})
    monkeypatch.setattr(repeats.Repeats, "_device_is_fit", lambda _: False)
    timing = timed(timer, HONEST.format(seconds=0.005))
    eager = timing.arm("eager")
    assert eager is not None
    assert f"the GPU throttled in {len(eager.samples)} repeats that count" in timing.notes
    calm = iter([False] * 20)
    monkeypatch.setattr(repeats.Repeats, "_device_is_fit", lambda _: next(calm, True))
    timing = timed(timer, HONEST.format(seconds=0.005))
    assert not any("throttled" in note for note in timing.notes)


def test_prewarmed_processes_are_used_once(timer: Timer) -> None:
    candidate = attempt(HONEST.format(seconds=0.005))
    timer.time(*candidate, Effort.GLANCE)
    before = timer.opened()["eager"].session.pid
    living = len(timer.referee.fork_server.living)
    timer.prewarm(candidate[0])()
    fresh = timer.opened()["eager"].session.pid
    timer.prewarm(candidate[0])()
    assert len(timer.referee.fork_server.living) == living + 1  # the attempt's prewarmed process
    assert before != fresh == timer.opened()["eager"].session.pid
    timer.time(*candidate, Effort.GLANCE)
    assert timer.opened()["eager"].session.pid == fresh
    assert len(timer.referee.fork_server.living) == living
    timer.time(*candidate, Effort.GLANCE)
    assert timer.opened()["eager"].session.pid != fresh


def test_free_ratios_have_limits_of_the_same_rounds(referee: Referee) -> None:
    again = "eager+channels_last"
    timing = time_arms(referee, *attempt(HONEST.format(seconds=0.005)), ("eager", again))
    assert timing.free.keys() == {again}
    assert timing.free[again].low < 1.05
    assert timing.free[again].high > 0.95
    assert contradictions(timing, Device.CPU) == []
    forged = replace(timing, free={again: replace(timing.free[again], low=1.5)})
    (line,) = contradictions(forged, Device.CPU)
    assert line.startswith(f"timing: the ratio of eager to {again} is recorded as")
    (line,) = contradictions(replace(timing, free={"compile": Ratio(2, 1, 3)}), Device.CPU)
    assert line == "timing: a ratio of eager to compile is recorded, but no samples for it"


def test_record_takes_fresh_processes_and_at_least_three_rounds(referee: Referee) -> None:
    said: list[Event] = []
    candidate = attempt(HONEST.format(seconds=0.005))
    timing = time_arms(referee, *candidate, ("eager",), Effort.RECORD, said.append)
    phases = [event.text for event in said if isinstance(event, Phase)]
    assert phases[:3] == [
        "timing: opening eager",
        "timing: opening the attempt",
        "timing 2 interleaved models: round 1 of at most 6",
    ]
    assert "timing 2 interleaved models: round 3 of at most 6" in phases
    assert timing.effort is Effort.RECORD
    assert timing.ratios["eager"].high > 1.7
    arm = timing.arm("candidate")
    assert arm is not None
    assert len(arm.samples) >= 3 * repeats.REPEATS[Device.CPU][0]


@pytest.mark.gpu
def test_equal_kernels_are_inconclusive_and_less_work_is_wrong_on_the_gpu(
    tmp_path: Path,
) -> None:
    body = """
import torch
class {name}(torch.nn.Module):
    def forward(self, x):
        return {forward}
"""

    def made(forward: str) -> tuple[Attempt, Build]:
        source = body.format(name="ModelNew", forward=forward)
        frozen = Attempt((("model_new.py", source),))
        return frozen, build(frozen, Device.CUDA)

    path = tmp_path / "task.py"
    path.write_text(body.format(name="Model", forward="torch.relu(x * 2 + 1)"))
    task = load_task(path, inputs="f32[4096,4096]", device="cuda")
    with Referee(task) as referee, Timer(referee, ("eager",)) as timer:
        timing = timer.time(*made("torch.relu(x * 2 + 1)"))
        assert not timing.refused
        assert timing.ratios["eager"].standing is Standing.INCONCLUSIVE
        assert "wrong" in timer.time(*made("torch.add(x, x)")).wrong
