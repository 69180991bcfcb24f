"""A forked child that has imported torch enters the sandbox: only honest work succeeds."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sandboxed_child import in_child

from cuagent.sandbox import Policy, SandboxError, Tier, enter, resident
from cuagent.sandbox.enter import free_uid


@pytest.fixture(scope="module", autouse=True)
def torch_imported() -> None:
    import torch

    assert torch.__version__


COMPUTES = """
import os, sys, torch
from pathlib import Path
from cuagent.sandbox import Policy, Tier, enter
if os.fork() == 0:
    enter(Policy(write=(Path(sys.argv[1]),)), Tier(sys.argv[2]))
    x = torch.full((512, 512), 2.0)
    print(float((x @ x).exp().isinf().sum()), flush=True)
    os._exit(0)
os.wait()
"""


def test_torch_computes_in_sandboxed_fork(scratch: Path, tier: Tier) -> None:
    """Use a fresh process: a fork loses the OpenMP threads of an earlier computation."""
    done = subprocess.run(
        [sys.executable, "-c", COMPUTES, str(scratch), tier.value],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout.strip() == f"{512.0 * 512.0}", done.stderr


def test_sandboxed_fork_can_import_modules(scratch: Path, tier: Tier) -> None:
    def work() -> str:
        import wave

        import torch.utils.benchmark

        return wave.__name__ + torch.utils.benchmark.__name__

    assert in_child(Policy(write=(scratch,)), tier, work) == "wavetorch.utils.benchmark"


def test_attempt_is_read_only_and_scratch_is_writable(scratch: Path, tier: Tier) -> None:
    attempt, private = scratch / "attempt", scratch / "private"
    attempt.mkdir()
    private.mkdir()
    (attempt / "model_new.py").write_text("x = 1\n")

    def work() -> list[object]:
        found: list[object] = [(attempt / "model_new.py").read_text()]
        (private / "out").write_text("mine")
        for denied in (attempt / "model_new.py", attempt / "new", scratch / "other"):
            try:
                denied.write_text("changed")
            except OSError as error:
                found.append(error.errno)
        return found

    policy = Policy(read=(attempt,), write=(private,))
    text, *errors = in_child(policy, tier, work)
    assert text == "x = 1\n"
    assert len(errors) == 3
    assert set(errors) <= {errno.EACCES, errno.EROFS}
    assert (private / "out").read_text() == "mine"


def test_home_and_temporary_folder_are_private(scratch: Path, tier: Tier) -> None:
    def work() -> tuple[str, str, set[str]]:
        import tempfile

        return str(Path.home()), tempfile.mkdtemp(), set(os.environ)

    os.environ["CUAGENT_TEST_API_KEY"] = "secret"
    try:
        home, temporary, names = in_child(Policy(write=(scratch,)), tier, work)
    finally:
        del os.environ["CUAGENT_TEST_API_KEY"]
    assert home == str(scratch)
    assert temporary.startswith(str(scratch))
    assert "CUAGENT_TEST_API_KEY" not in names


def test_only_named_descriptors_stay_open(scratch: Path, tier: Tier) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, (scratch / "secret").open("w") as secret:
        descriptors = theirs.fileno(), secret.fileno()

        def work() -> int:
            os.write(descriptors[0], b"ready")
            try:
                os.write(descriptors[1], b"gone")
            except OSError as error:
                return error.errno or 0
            return 0

        policy = Policy(write=(scratch,), fds=(0, 1, 2, theirs.fileno()))
        assert in_child(policy, tier, work) == errno.EBADF
        assert ours.recv(5) == b"ready"


def test_source_of_project_is_not_readable(scratch: Path, tier: Tier) -> None:
    """The source is readable only if it is installed as a package."""
    here = Path(__file__).resolve()
    result = in_child(Policy(write=(scratch,)), tier, here.read_text)
    assert isinstance(result, PermissionError | FileNotFoundError)


def test_memory_limit_allows_large_address_space(scratch: Path, tier: Tier) -> None:
    def work() -> str:
        import mmap

        mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        try:
            bytearray(3 << 30)
        except MemoryError:
            return "denied"
        return "allowed"

    assert in_child(Policy(write=(scratch,), memory_bytes=2 << 30), tier, work) == "denied"


def test_enter_rejects_process_with_threads(tier: Tier) -> None:
    """Landlock would restrict only one thread."""
    pid = os.fork()
    if pid == 0:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        try:
            enter(Policy(), tier)
        except SandboxError:
            os._exit(42)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42


def test_enter_takes_little_time(scratch: Path, tier: Tier) -> None:
    def cpu_seconds() -> float:
        """Return processor time, which does not depend on other processes."""
        pid = os.fork()
        if pid == 0:
            enter(Policy(write=(scratch,)), tier)
            os._exit(0)
        _, _, used = os.wait4(pid, 0)
        return used.ru_utime + used.ru_stime

    assert min(cpu_seconds() for _ in range(5)) < 0.1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can set user ids")
def test_sandboxed_processes_have_different_user_ids() -> None:
    """They differ even if a namespace has so few uids that two pids map to the same one."""
    own = free_uid(65_536)
    with subprocess.Popen(["sleep", "60"], user=own) as other:
        try:
            assert free_uid(65_536) != own
        finally:
            other.kill()
    assert free_uid(4_294_967_295) == 1_000_000_000 + os.getpid()


def test_resident_measures_process_group() -> None:
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        held = bytearray(os.urandom(1 << 20) * 64)
        time.sleep(300)
        os._exit(len(held) % 2)
    try:
        deadline = time.monotonic() + 60
        while resident(pid) < 64 << 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert resident(pid) >= 64 << 20
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


@pytest.mark.gpu
def test_cuda_works_in_sandbox_and_opens_shared_memory(scratch: Path, tier: Tier) -> None:
    """Use a fresh process: this one may have a CUDA context, which does not survive a fork."""
    script = Path(__file__).with_name("cuda_in_sandbox.py")
    done = subprocess.run(
        [sys.executable, str(script), str(scratch), tier.value],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout.split() == ["7", "2000.0", "9"], done.stderr


@pytest.mark.parametrize("gpu", [True, False])
def test_sockets_are_blocked_except_pairs(scratch: Path, tier: Tier, gpu: bool) -> None:
    """CUDA binds a stream socket at its start; a datagram would need no connection."""

    def work() -> dict[str, object]:
        def error_of(family: int, kind: int, *, pair: bool = False) -> int:
            try:
                made = socket.socketpair(family, kind) if pair else [socket.socket(family, kind)]
            except OSError as error:
                return error.errno or -1
            if pair:
                made[0].send(b".")
                assert made[1].recv(1) == b"."
            for one in made:
                one.close()
            return 0

        unix = socket.AF_UNIX
        return {
            "stream": error_of(unix, socket.SOCK_STREAM),
            "packets": error_of(unix, socket.SOCK_SEQPACKET),
            "datagrams": error_of(unix, socket.SOCK_DGRAM),
            "raw datagrams": error_of(unix, socket.SOCK_RAW),
            "internet": error_of(socket.AF_INET, socket.SOCK_STREAM),
            "pair": error_of(unix, socket.SOCK_STREAM, pair=True),
            "pair of packets": error_of(unix, socket.SOCK_SEQPACKET, pair=True),
            "pair of datagrams": error_of(unix, socket.SOCK_DGRAM, pair=True),
            "pair of raw datagrams": error_of(unix, socket.SOCK_RAW, pair=True),
        }

    denied = errno.EACCES
    assert in_child(Policy(write=(scratch,), gpu=gpu), tier, work) == {
        "stream": 0 if gpu else denied,
        "packets": 0 if gpu else denied,
        "datagrams": denied,
        "raw datagrams": denied,
        "internet": denied,
        "pair": 0,
        "pair of packets": 0,
        "pair of datagrams": denied,
        "pair of raw datagrams": denied,
    }
