"""Tests that resources outside the kernel's limits end a candidate's verdict, not the machine.

Each body takes a little more than the limit, in pieces that each limit allows. The limits are
lowered so that this takes a second or two.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest

from cuagent.sandbox import Tier
from cuagent.verify import Reason, Referee, Verdict

pytestmark = pytest.mark.slow

Judged = Callable[[str], Verdict]
holdings = import_module("cuagent.worker.holdings")
MIB = 1 << 20
FILL = """
        import mmap, os, pathlib, socket, subprocess, sys, time
        if not hasattr(self, "kept"):
            self.kept = []
            folder = os.environ["TMPDIR"]
            for number in range(24):
"""
THEN = """
            end = time.monotonic() + {seconds}
            while time.monotonic() < end:
                time.sleep(0.05)
                {meanwhile}
        return self.honest(x)
"""
WAYS = {
    "unlinked files": """
                file = os.open(f"{folder}/{number}", os.O_RDWR | os.O_CREAT)
                os.write(file, bytes(16 << 20))
                os.unlink(f"{folder}/{number}")
                self.kept.append(file)
    """,
    "unlinked files that are mapped and closed": """
                file = os.open(f"{folder}/{number}", os.O_RDWR | os.O_CREAT)
                os.write(file, bytes(16 << 20))
                os.unlink(f"{folder}/{number}")
                self.kept.append(mmap.mmap(file, 16 << 20))
                os.close(file)
    """,
    "empty files": """
                for other in range(100):
                    open(f"{folder}/{number}-{other}", "w").close()
    """,
}
MEMORY = """
                file = os.memfd_create("kept")
                for _ in range(4):
                    os.write(file, bytes(16 << 20))
                self.kept.append(file)
"""


UNCOUNTED = {
    "buffers of sockets": """
                ours, theirs = socket.socketpair()
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
                self.kept += [ours, theirs]
                number or self.kept.extend(socket.socketpair() for _ in range(90))
    """,
    "page tables": """
                import ctypes
                libc = ctypes.CDLL(None)
                libc.mmap.restype = ctypes.c_void_p
                libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [
                    ctypes.c_long]
                libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
                start = libc.mmap(None, 16 << 30, mmap.PROT_READ, 0x4022, -1, 0)
                libc.madvise(start, 16 << 30, 15)
                for at in range(start, start + (16 << 30), 2 << 20):
                    ctypes.c_char.from_address(at).value
    """,
}
"""Memory of the kernel that belongs to a process and is not in its resident size."""


@pytest.fixture
def lowered(referee: Referee, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limits that the bodies exceed and an honest candidate does not."""
    if referee.tier is Tier.NONE:
        pytest.skip("no sandbox here")
    monkeypatch.setattr(holdings, "DISK_BYTES", 256 * MIB)
    monkeypatch.setattr(holdings, "MAX_NAMES", 2000)
    before = referee.processes.memory_bytes, referee.call_s
    referee.processes.memory_bytes, referee.call_s = 1400 * MIB, 60.0
    yield
    referee.processes.memory_bytes, referee.call_s = before


@pytest.mark.parametrize("meanwhile", ["pass", "print('.', flush=True)"])
def test_unmapped_memory_is_counted(lowered: None, judged: Judged, meanwhile: str) -> None:
    """Also for a process that prints without pause, so that the referee never waits a whole
    second."""
    body = FILL + MEMORY + THEN.format(seconds=50, meanwhile=meanwhile)
    verdict = judged(body)
    assert verdict.reason is Reason.CRASHED, verdict
    assert "MiB of memory" in verdict.detail


@pytest.mark.parametrize("way", UNCOUNTED)
def test_memory_of_the_kernel_is_counted(
    lowered: None, judged: Judged, monkeypatch: pytest.MonkeyPatch, referee: Referee, way: str
) -> None:
    monkeypatch.setattr(holdings, "_largest_buffer", lambda: 4 * MIB)
    referee.processes.memory_bytes = 700 * MIB
    verdict = judged(FILL + UNCOUNTED[way] + THEN.format(seconds=50, meanwhile="pass"))
    assert verdict.reason is Reason.CRASHED, verdict
    assert "MiB of memory" in verdict.detail


@pytest.mark.parametrize("way", WAYS)
def test_deleted_files_and_empty_files_are_counted(lowered: None, judged: Judged, way: str) -> None:
    verdict = judged(FILL + WAYS[way] + THEN.format(seconds=50, meanwhile="pass"))
    assert verdict.reason is Reason.CRASHED, verdict
    assert "files" in verdict.detail


def test_holdings_are_checked_between_short_calls(lowered: None, judged: Judged) -> None:
    body = """
        import os, time
        folder, self.calls = os.environ["TMPDIR"], getattr(self, "calls", 0) + 1
        time.sleep(0.3)
        for other in range(500):
            open(f"{folder}/{self.calls}-{other}", "w").close()
        return self.honest(x)
    """
    verdict = judged(body)
    assert verdict.reason is Reason.CRASHED, verdict
    assert "files" in verdict.detail


def test_processes_outside_the_group_are_counted(lowered: None, judged: Judged) -> None:
    body = """
        import os, time
        if not hasattr(self, "started"):
            self.started = True
            for _ in range(3):  # each within its own limit
                if os.fork() == 0:
                    os.setsid()
                    held = bytearray(os.urandom(1 << 20)) * 500
                    time.sleep(60)
            time.sleep(50)
        return self.honest(x)
    """
    verdict = judged(body)
    assert "MiB of memory" in verdict.detail, verdict


def test_small_use_of_all_resources_is_accepted(lowered: None, judged: Judged) -> None:
    body = (FILL + WAYS["unlinked files"] + MEMORY).replace("range(24)", "range(3)")
    assert judged(body + THEN.format(seconds=1.5, meanwhile="pass")).accepted


def test_ended_processes_hold_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert holdings._deleted({gone.pid}, ()) == {}
