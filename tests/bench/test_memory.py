"""Problems share a GPU's memory: the size of a call, the claim of a problem, and the queue."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from make_tasks import write_task

from cuagent.bench.memory import (
    CALLS_HELD,
    CONTEXTS,
    LEAN_CALLS_HELD,
    RUNS_HELD,
    USABLE,
    Size,
    claimed,
    size_of,
)
from cuagent.task import Device, load_task
from cuagent.task.plain import task_to_json
from cuagent.worker import ForkServer

pytestmark = pytest.mark.slow

TOTAL = 140 << 30
HOLD = """
import sys, time
from pathlib import Path
from cuagent.bench.memory import Size, claimed
with claimed(Path(sys.argv[1]), Size(int(sys.argv[2]), int(sys.argv[3]))):
    print("claimed", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path, call: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(call), str(TOTAL)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def has_claimed(process: subprocess.Popen[str], wait_s: float) -> bool:
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        if process.stdout.readline():
            return True
        time.sleep(0.05)
    return False


def await_queue(folder: Path) -> None:
    """Wait until a process waits for memory, so that those that ask later come after it."""
    deadline = time.monotonic() + 120
    with (folder / "queue").open("a") as queue:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            fcntl.flock(queue, fcntl.LOCK_UN)
            time.sleep(0.05)
    raise AssertionError("no process waits")


def test_size_of_a_call_needs_no_memory(tmp_path: Path, fork_server: ForkServer) -> None:
    path = write_task(
        tmp_path / "task.py",
        "return self.a(x)",
        "torch.randn(1 << 20, 1 << 16)",
        init="self.a = nn.Linear(1 << 16, 1 << 10).half().float()",
    )
    floats = (1 << 36) + (1 << 26) + (1 << 10) + (1 << 30)
    assert size_of(load_task(path, device="cpu"), fork_server).call == 4 * floats


def test_size_on_a_gpu_includes_outputs_and_intermediate_results(tmp_path: Path) -> None:
    path = write_task(
        tmp_path / "task.py",
        "return F.relu(self.a(x))",
        "torch.randn(10, 1000)",
        init="self.a = nn.Linear(1000, 4000)",
    )
    task = replace(load_task(path, device="cpu"), device=Device.CUDA)
    code = (
        "import json, sys; from cuagent.bench.memory import bytes_of_call; "
        "from cuagent.task.plain import task_from_json; "
        "print(json.dumps(bytes_of_call(task_from_json(json.load(sys.stdin)))))"
    )
    given = json.dumps(task_to_json(task))
    found = subprocess.run(
        [sys.executable, "-c", code], input=given, capture_output=True, text=True, check=True
    )
    # The result of the layer exists while that of relu is computed.
    assert json.loads(found.stdout) == [4 * (10_000 + 4_000_000 + 4_000 + 40_000), 160_000]


def test_reference_that_reads_values_has_no_outputs_but_a_size(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    path = write_task(tmp_path / "task.py", "return x[: int(x.max())]", "torch.randn(1000)")
    assert size_of(load_task(path, device="cpu"), fork_server).call == 2 * 4000
    path = write_task(tmp_path / "broken.py", "return x", "torch.randn(1000)", init="1 / 0")
    assert size_of(load_task(path, device="cpu"), fork_server).call is None


def test_claim_follows_the_size() -> None:
    assert Size(1 << 20, TOTAL).claim == CONTEXTS + CALLS_HELD * (1 << 20)
    assert Size(17 << 30, TOTAL).claim == int(USABLE * TOTAL)
    assert Size(2 << 30, TOTAL).claim < int(USABLE * TOTAL)
    assert Size(3 << 30, TOTAL).claim == CONTEXTS + LEAN_CALLS_HELD * (3 << 30)
    assert not Size(3 << 30, TOTAL).takes_most
    assert Size(1 << 20, TOTAL, 1 << 30).claim == Size(1 << 20, TOTAL).claim + RUNS_HELD * (1 << 30)
    assert Size(17 << 30, TOTAL).takes_most
    assert not Size(None, TOTAL).takes_most
    assert Size(None, TOTAL).claim == int(TOTAL / 3)


def test_problems_wait_until_the_memory_is_free(tmp_path: Path) -> None:
    folder = tmp_path / "gpu-0.memory"
    small, large = 1 << 30, 17 << 30
    first = holder(folder, small)
    assert has_claimed(first, 120)
    second = holder(folder, small)
    assert has_claimed(second, 120)
    whole = holder(folder, large)
    await_queue(folder)
    assert not has_claimed(whole, 1)
    after = holder(folder, small)  # waits behind the large one, although it would fit
    assert not has_claimed(after, 3)
    first.send_signal(signal.SIGKILL)  # leaves its file behind
    first.wait()
    second.communicate("")
    assert has_claimed(whole, 120)
    assert not has_claimed(after, 1)
    whole.communicate("")
    assert has_claimed(after, 120)
    after.communicate("")
    with claimed(folder, Size(large, TOTAL)):
        assert len(list(folder.glob("*.claim"))) == 1


def test_a_claim_is_created_by_the_head_of_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is locked, a claim looks like that of a dead process, which the head of the queue
    deletes."""
    lock, seen = fcntl.flock, list[str]()

    def noted(file: IO[str], operation: int) -> None:
        if file.name.endswith(".claim"):
            seen.append(file.name)
            with (tmp_path / "queue").open("a") as queue, pytest.raises(BlockingIOError):
                lock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", noted)
    with claimed(tmp_path, Size(1 << 30, TOTAL)):
        assert seen
        with (tmp_path / "queue").open("a") as queue:
            lock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
