"""Problems wait for GPU memory: small ones pass a large one, but not forever."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from cuagent.bench.memory_queue import MOST_PASSES, Claim, claimed, may_start

USABLE = 100
HOLD = """
import sys
from pathlib import Path
from cuagent.bench.memory_queue import claimed
with claimed(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])):
    print("claimed", flush=True)
    sys.stdin.read()
"""
SLOW = pytest.mark.slow


def started(ticket: int, size: int) -> Claim:
    return Claim(ticket, size, started=True)


def test_memory_of_started_problems_is_taken_and_that_of_waiting_ones_is_not() -> None:
    assert may_start(Claim(2, 60), [started(1, 40)], USABLE)
    assert not may_start(Claim(2, 61), [started(1, 40)], USABLE)
    assert may_start(Claim(3, 20), [started(1, 40), Claim(2, 90)], USABLE)


def test_problem_larger_than_the_memory_starts_alone() -> None:
    assert may_start(Claim(1, USABLE + 1), [], USABLE)
    assert may_start(Claim(1, USABLE + 1), [Claim(2, 1)], USABLE)
    assert not may_start(Claim(2, USABLE + 1), [started(1, 1)], USABLE)


def test_problem_that_was_passed_often_is_not_passed_again() -> None:
    large, running = Claim(2, 90), started(1, 40)
    passed = replace(large, passes=MOST_PASSES)
    assert may_start(Claim(3, 1), [running, replace(large, passes=MOST_PASSES - 1)], USABLE)
    assert not may_start(Claim(3, 1), [running, passed], USABLE)
    assert may_start(passed, [Claim(3, 1)], USABLE)
    # It no longer waits, or it asked later.
    assert may_start(Claim(3, 1), [replace(passed, started=True)], USABLE)
    assert may_start(Claim(1, 1), [running, passed], USABLE)


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[Holders]:
    opened = Holders(tmp_path / "gpu-0.memory")
    yield opened
    for process in opened.processes:
        process.kill()
        process.wait()


class Holders:
    """Processes that claim memory and keep it until they are ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, size: int) -> subprocess.Popen[str]:
        """Start a process that claims `size`, and wait until it has asked or started."""
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(self.folder), str(size), str(USABLE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        claim = self.folder / f"{process.pid}.claim"
        await_true(lambda: claim.exists() and claim.stat().st_size > 0)
        return process

    def starts(self, size: int) -> subprocess.Popen[str]:
        """Start a process that gets its memory without waiting."""
        process = self.start(size)
        await_claimed(process)
        return process

    def passes_of(self, process: subprocess.Popen[str]) -> int:
        text = (self.folder / f"{process.pid}.claim").read_text()
        return int(text.split('"passes": ')[1].split("}")[0])


def await_true(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def await_claimed(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("")


def has_claimed(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    try:
        return bool(process.stdout.readline())
    finally:
        os.set_blocking(process.stdout.fileno(), True)


@SLOW
def test_small_problems_pass_a_large_one_but_not_forever(holders: Holders) -> None:
    first = holders.starts(40)
    large = holders.start(90)
    for count in range(MOST_PASSES):
        assert holders.passes_of(large) == count
        end(holders.starts(20))
    late = holders.start(20)
    end(first)
    await_claimed(large)  # although the late one would have fitted all the time
    assert not has_claimed(late)
    end(large)
    await_claimed(late)
    end(late)
    with claimed(holders.folder, USABLE, USABLE):
        assert len(list(holders.folder.glob("*.claim"))) == 1
    assert not list(holders.folder.glob("*.claim"))


@SLOW
def test_memory_of_a_killed_process_is_free(holders: Holders) -> None:
    running, waiting = holders.starts(80), holders.start(30)
    behind = holders.start(40)
    for process in (running, waiting):  # one with memory, one that others might wait for
        process.send_signal(signal.SIGKILL)
        process.wait()
    await_claimed(behind)
    assert len(list(holders.folder.glob("*.claim"))) == 1


def test_claim_is_created_while_no_other_process_reads_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is locked, a claim looks like that of a dead process, which others delete."""
    lock, seen = fcntl.flock, list[str]()

    def noted(file: IO[str], operation: int) -> None:
        if file.name.endswith(".claim"):
            seen.append(file.name)
            with (tmp_path / "queue").open("a") as queue, pytest.raises(BlockingIOError):
                lock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", noted)
    with claimed(tmp_path, 30, USABLE):
        assert seen
        with (tmp_path / "queue").open("a") as queue:
            lock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
