"""Processes that open for a timing give a shared device to another timing at once, and compute
nothing while it has the device."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cuagent.arms import EAGER
from cuagent.attempt import Attempt
from cuagent.device_lock import DeviceLock, Sharing
from cuagent.measure.profile.prewarmed import Profiles
from cuagent.measure.roofline import count
from cuagent.measure.timing import baselines
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, load_task
from cuagent.verify import Referee
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.weights import Weights
from cuagent.worker import ForkServer, Session, SessionEnded, suspend
from cuagent.worker.giving_way import DRAIN_S, give_way_beside, run_giving_way

OTHER = f"{EAGER}+tf32"
FEW, MANY, STEP_S = 150, 600, 0.01
"""Numbers of steps in which a slow model is constructed, and the seconds of each."""
TASK = f"""
import os, time
import torch
from pathlib import Path

HERE = Path(__file__).parent

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32, 16)
        if (HERE / "slow").exists():
            with (HERE / f"steps-{{os.getpid()}}").open("w") as log:
                for _ in range(int((HERE / "slow").read_text())):
                    print(time.monotonic(), file=log, flush=True)
                    time.sleep({STEP_S})

    def forward(self, x):
        return self.linear(x)

def get_init_inputs():
    return []

def get_inputs():
    return [torch.randn(64, 32)]
"""
pytestmark = pytest.mark.slow


def test_gpu_gets_time_to_finish_the_calls_that_stopped_processes_had_queued() -> None:
    cuda = Device.CUDA
    assert baselines.drain_s(Device.CPU, [OTHER], 1.0) == 0
    assert baselines.drain_s(cuda, ["eager", "compile"], 1e-3) == pytest.approx(0.11)
    assert baselines.drain_s(cuda, ["eager"], 1.0) == DRAIN_S
    for tuned in ("max-autotune-no-cudagraphs", "eager+cudnn_benchmark"):
        assert baselines.drain_s(cuda, ["eager", tuned], 1e-3) == DRAIN_S


@pytest.fixture
def referee(tmp_path: Path, fork_server: ForkServer) -> Iterator[Referee]:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    task = load_task(path, device="cpu")
    with Referee(task, fork_server=fork_server, lock=tmp_path / "gpu-0") as opened:
        yield opened


def steps(folder: Path) -> list[float]:
    """Return the times at which models were being constructed."""
    files = folder.glob("steps-*")
    return [float(line) for file in files for line in file.read_text().split()]


class Other(threading.Thread):
    """Another timing, which asks for the device once `processes` construct their models."""

    def __init__(self, lock: DeviceLock, folder: Path, processes: int, seconds: float) -> None:
        super().__init__()
        self.lock, self.folder, self.processes, self.seconds = lock, folder, processes, seconds
        self.begun = self.ended = 0.0
        self.start()

    def run(self) -> None:
        deadline = time.monotonic() + 120
        while len(list(self.folder.glob("steps-*"))) < self.processes:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with self.lock.exclusive():
            self.begun = time.monotonic()
            time.sleep(self.seconds)
            self.ended = time.monotonic()

    def check(self) -> None:
        """Assert that it was alone, and did not wait until the models were constructed."""
        self.join(120)
        found = steps(self.folder)
        assert not [step for step in found if self.begun <= step <= self.ended], "not alone"
        assert [step for step in found if step > self.ended], "it waited until all was done"


def test_processes_that_open_stop_while_another_timing_has_the_device(
    referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "TOGETHER", (Device.CPU,))
    ours, theirs = DeviceLock(tmp_path / "gpu-0"), DeviceLock(tmp_path / "gpu-0")
    with Timer(referee, (EAGER, OTHER), device_lock=ours) as timer:
        assert timer.batch is not None  # before the models are slow
        (tmp_path / "slow").write_text(str(MANY))
        other = Other(theirs, tmp_path, 2, 1.0)
        with timer.untimed((EAGER, OTHER)) as opened:
            other.check()
            assert {EAGER, OTHER} <= opened.keys()
    kept_s = ours.uses.to_json()["opening_arms"]["kept_longest_s"]
    assert kept_s < MANY * STEP_S / 2  # usually below 0.1 s


def test_baselines_that_open_one_after_the_other_stop_too(referee: Referee, tmp_path: Path) -> None:
    """So they do for a large task on a GPU, where torch.compile compiles when they open."""
    ours, theirs = DeviceLock(tmp_path / "gpu-0"), DeviceLock(tmp_path / "gpu-0")
    with Timer(referee, (EAGER, OTHER), device_lock=ours) as timer:
        assert timer.batch is not None  # before the models are slow
        (tmp_path / "slow").write_text(str(MANY))
        other = Other(theirs, tmp_path, 1, 1.0)
        with timer.untimed((EAGER, OTHER)) as opened:
            other.check()
            assert {EAGER, OTHER} <= opened.keys()
    assert ours.uses.to_json()["opening_arms"]["kept_longest_s"] < MANY * STEP_S / 2


def test_command_stops_while_another_timing_has_the_device_and_keeps_its_time_limit(
    referee: Referee, tmp_path: Path
) -> None:
    ours, theirs = DeviceLock(tmp_path / "gpu-0"), DeviceLock(tmp_path / "gpu-0")
    referee.processes.load_timed_weights()
    (tmp_path / "slow").write_text(str(FEW))
    with ours.shared() as sharing, referee.processes.begin_reference(EAGER) as session:
        begun, limit_s = time.monotonic(), 15.0
        other = Other(theirs, tmp_path, 1, limit_s)
        finish = partial(referee.processes.finish_reference, session, limit_s)
        run_giving_way(finish, session, sharing)
        assert time.monotonic() - begun > limit_s
        other.check()


def test_profiler_that_opens_stops_while_another_timing_has_the_device(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    ours, theirs = DeviceLock(tmp_path / "gpu-0"), DeviceLock(tmp_path / "gpu-0")
    (tmp_path / "slow").write_text(str(MANY))
    other = Other(theirs, tmp_path, 1, 1.0)
    with closing(Profiles(load_task(path, device="cpu"), fork_server, ours)) as profiles:
        profiles.profile(None, None, alone=ours.exclusive)
    other.check()


def test_oracle_constructs_models_on_the_cpu_while_another_timing_has_the_device(
    referee: Referee, tmp_path: Path
) -> None:
    ours, theirs = DeviceLock(tmp_path / "gpu-0"), DeviceLock(tmp_path / "gpu-0")
    (tmp_path / "slow").write_text(str(MANY))
    with ours.shared() as sharing, referee.giving_way(sharing):
        other = Other(theirs, tmp_path, 1, 0.5)
        referee.oracle.load_weights(Weights.OWN, 5, referee.context.weights)
    other.join(60)
    found = steps(tmp_path)
    assert len(found) == MANY
    assert [step for step in found if other.begun <= step <= other.ended], "it stopped"
    kept_s = ours.uses.to_json()["other"]["kept_longest_s"]
    assert kept_s < MANY * STEP_S / 2  # usually below 0.1 s


def test_requests_keep_their_order_when_timings_come_between_them(
    referee: Referee, tmp_path: Path
) -> None:
    """A break must not take a request that was sent ahead for the reply to it."""
    ours, theirs = DeviceLock(tmp_path / "gpu-0"), DeviceLock(tmp_path / "gpu-0")
    oracle, arena, seeds = referee.oracle, referee.context.inputs, range(40)
    oracle.lend(arena)
    done = threading.Event()

    def drawn(number: int) -> Any:
        oracle.wait(number)
        return arena.tensors(0)[0].clone()

    def time_elsewhere() -> None:
        while not done.is_set():
            with theirs.exclusive():
                time.sleep(0.01)

    def turns() -> float:
        return theirs.uses.to_json().get("other", {}).get("exclusive", 0)

    one_by_one = [drawn(oracle.post_draw(Inputs.OWN, seed, arena, 0)) for seed in seeds]
    other = threading.Thread(target=time_elsewhere)
    with ours.shared() as sharing, referee.giving_way(sharing):
        other.start()
        sent = [oracle.post_draw(Inputs.OWN, seed, arena, 0) for seed in seeds]
        for number in sent:
            oracle.wait(number)
        assert arena.tensors(0)[0].equal(one_by_one[-1])
        again = [drawn(oracle.post_draw(Inputs.OWN, seed, arena, 0)) for seed in seeds]
        deadline = time.monotonic() + 60
        while turns() <= 3 and time.monotonic() < deadline:
            drawn(oracle.post_draw(Inputs.OWN, 3, arena, 0))
        for seed in seeds:
            oracle.post_draw(Inputs.OWN, seed, arena, 0)
        assert oracle.drop(), "nothing was cancelled"
        assert drawn(oracle.post_draw(Inputs.OWN, 3, arena, 0)).equal(one_by_one[3])
    done.set()
    other.join(60)
    assert all(a.equal(b) for a, b in zip(one_by_one, again, strict=True))
    assert turns() > 3


def test_sensitivity_gives_way_between_two_runs_of_the_reference(
    referee: Referee, tmp_path: Path
) -> None:
    """Its requests took more than ten seconds for a recurrent network, with the GPU idle."""
    ours, theirs = DeviceLock(tmp_path / "gpu-0"), DeviceLock(tmp_path / "gpu-0")
    breaks, done = list[float](), threading.Event()

    def time_elsewhere() -> None:
        while not done.is_set():
            with theirs.exclusive():
                pass

    referee.ask(Weights.OWN, 1, Inputs.OWN, 2)
    other = threading.Thread(target=time_elsewhere)
    with ours.shared() as sharing:
        other.start()

        def counted() -> None:
            breaks.append(time.monotonic())
            sharing()

        with referee.giving_way(Sharing(counted, sharing.awaited)):
            while not ours.is_awaited:
                time.sleep(0.001)
            assert referee.sensitivity(2, pairs=20).moved
    done.set()
    other.join(60)
    assert len(breaks) > 3, "it gave way between two requests only"


def test_process_of_a_verdict_is_stopped_in_a_break_of_the_oracle(
    referee: Referee, tmp_path: Path
) -> None:
    """On a GPU the new process may still create its CUDA context."""
    ours, states = DeviceLock(tmp_path / "gpu-0"), list[str]()
    attempt = Attempt((("model_new.py", "class ModelNew: ...\n"),))
    pending = referee.begin(attempt)
    session = pending.session
    assert session is not None
    assert session.may_compute

    def time_elsewhere() -> None:
        with DeviceLock(ours.lock).exclusive():
            pass

    other = threading.Thread(target=time_elsewhere)
    # Without a limit there is a break in each of a hundred steps.
    sharing = Sharing(lambda: states.append(settled_state_of(session)), lambda: len(states) < 3)
    with ours.shared(), referee.giving_way(sharing):
        other.start()
        while not ours.is_awaited:
            time.sleep(0.01)
        referee.oracle.load_weights(Weights.OWN, 5, referee.context.prepared_weights)
    other.join(60)
    assert states
    assert set(states) == {"T"}
    assert state_of(session) != "T", "it was not continued"
    pending.close()


def test_process_between_two_commands_does_not_begin_the_next_in_a_break(referee: Referee) -> None:
    referee.processes.load_timed_weights()
    with referee.processes.begin_reference(EAGER) as session:
        referee.processes.finish_reference(session)
        assert not session.may_compute
        seen = list[object]()
        again = threading.Thread(target=referee.processes.finish_reference, args=(session,))

        def time_elsewhere() -> None:
            again.start()
            again.join(1)
            seen.append((state_of(session), again.is_alive()))

        give_way_beside((session,), time_elsewhere)
        again.join(60)
        assert seen == [("T", True)]


def test_attempt_that_cannot_be_stopped_continues_and_keeps_its_time_limit(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(referee.task.path)
    starts = "subprocess.Popen(['sleep', '300'], start_new_session=True)"
    text = f"import subprocess, time\n{path.read_text()}\n{starts}\ntime.sleep(300)\n"
    attempt = Attempt((("model_new.py", text.replace("class Model", "class ModelNew")),))
    monkeypatch.setattr(suspend, "MAX_SCANS", 1)  # too few for a process with a child
    monkeypatch.setattr(suspend, "PAUSE_S", 0.5)  # so most of the time is spent on vain attempts
    sharing = Sharing(lambda: None, lambda: True)
    with referee.processes.waiting(attempt) as session:
        session.time_limit_s = 4.0
        begun = time.monotonic()
        with pytest.raises(SessionEnded, match="no answer within 4 s"):
            run_giving_way(session.import_model, session, sharing)
        assert time.monotonic() - begun < 100  # usually below 10 s


def test_child_that_cannot_be_stopped_continues(
    fork_server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "task.py"
    forks = ("if not os.fork():", "    time.sleep(300)", "    os._exit(0)", "self.linear")
    path.write_text(TASK.replace("self.linear", "\n        ".join(forks), 1))
    monkeypatch.setattr(suspend, "MAX_SCANS", 1)  # too few for a process with a child
    sharing = Sharing(lambda: None, lambda: True)
    work, _ = count.count(load_task(path, device="cpu"), fork_server, sharing)
    assert work.matrix_flops


def settled_state_of(session: Session, limit_s: float = 1.0) -> str:
    """Return "T" as soon as the process is stopped, or its state after `limit_s` seconds.

    On a busy machine a single process takes the signal only when it is scheduled next.
    """
    end = time.monotonic() + limit_s
    while (state := state_of(session)) != "T" and time.monotonic() < end:
        time.sleep(0.001)
    return state


def state_of(session: Session) -> str:
    """Return the state of a session's process, as in proc(5)."""
    return Path(f"/proc/{session.pid}/stat").read_text().rpartition(")")[2].split()[0]
