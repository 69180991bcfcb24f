"""Real processes timed: speed is found, equal arms are not called, and a false clock is caught.

The models sleep instead of computing, so that a busy machine cannot turn a result round.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cuagent.attempt import Attempt
from cuagent.build import Build, build
from cuagent.measure import protocol
from cuagent.measure.protocol import Timer, time_arms
from cuagent.measure.timing import Effort, Standing, Timing
from cuagent.task import Device, load_task
from cuagent.verify import Referee

TASK = """
import time, torch
class {name}(torch.nn.Module):
    def forward(self, x):
        time.sleep({seconds})
        return x * 2
"""
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
def referee(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    path = tmp_path_factory.mktemp("protocol") / "task.py"
    path.write_text(TASK.format(name="Model", seconds=0.01))
    with Referee(load_task(path, inputs="f32[64,32]", device="cpu")) as opened:
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


def test_a_candidate_that_takes_half_the_time_is_faster_by_a_factor_of_two(timer: Timer) -> None:
    timing = timed(timer, HONEST.format(seconds=0.005))
    assert not timing.contradiction
    ratio = timing.ratios["eager"]
    assert ratio.standing is Standing.FASTER
    assert 1.7 < ratio.value < 2.2
    eager = timing.arm("eager")
    assert eager is not None
    assert 0.010 < eager.median < 0.014


def test_equal_arms_are_inconclusive_and_a_slower_one_is_slower(timer: Timer) -> None:
    assert timed(timer, HONEST.format(seconds=0.01)).ratios["eager"].low < 1.01
    slower = timed(timer, HONEST.format(seconds=0.015)).ratios["eager"]
    assert slower.standing is Standing.SLOWER


def test_a_false_clock_is_contradicted_by_the_wall_clock_or_gains_nothing(timer: Timer) -> None:
    timing = timed(timer, FALSE_CLOCK)
    # On a busy machine nobody is accused, and what the wall clock leaves is counted.
    if timing.contradiction:
        assert "wall clock" in timing.contradiction
        assert not timing.ratios
    else:
        assert timing.ratios["eager"].value < 1.3


def test_answers_remembered_by_address_are_wrong_answers(timer: Timer) -> None:
    timing = timed(timer, BY_ADDRESS)
    assert "wrong" in timing.contradiction


def test_answers_remembered_by_content_bring_nothing_where_inputs_are_drawn_anew(
    timer: Timer,
) -> None:
    timing = timed(timer, BY_CONTENT)
    assert timing.contradiction or timing.ratios["eager"].value < 1.2


def test_answers_remembered_by_content_show_where_inputs_return(
    timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for a task whose inputs take too long to draw for each repeat.
    monkeypatch.setattr(protocol, "REDRAW_SHARE", 0.0)
    monkeypatch.setitem(protocol.BLOCK_S, Device.CPU, 0.05)
    assert "inputs it has seen" in timed(timer, BY_CONTENT).contradiction


def test_a_candidate_that_crashes_while_timed_has_no_ratio_and_the_timer_lives_on(
    timer: Timer,
) -> None:
    timing = timed(timer, CRASHES_LATER)
    candidate = timing.arm("candidate")
    assert candidate is not None
    assert "SIGABRT" in candidate.failed
    assert not timing.ratios
    assert timed(timer, HONEST.format(seconds=0.005)).ratios


def test_a_record_takes_fresh_processes_and_at_least_three_rounds(referee: Referee) -> None:
    timing = time_arms(
        referee, *attempt(HONEST.format(seconds=0.005)), baselines=("eager",), effort=Effort.RECORD
    )
    assert timing.effort is Effort.RECORD
    assert timing.ratios["eager"].standing is Standing.FASTER
    candidate = timing.arm("candidate")
    assert candidate is not None
    assert len(candidate.samples) >= 3 * protocol.REPEATS[Device.CPU][0]


@pytest.mark.gpu
def test_equal_kernels_are_not_called_and_less_work_is_a_wrong_answer_on_the_gpu(
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
        assert not timing.contradiction
        assert timing.ratios["eager"].standing is Standing.INCONCLUSIVE
        assert "wrong" in timer.time(*made("torch.add(x, x)")).contradiction
