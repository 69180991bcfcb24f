"""Compilers and shells work inside the sandbox, and cannot read other files."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuagent.sandbox import Policy, SandboxError, Tier, selftest, wrap


@pytest.fixture(scope="module", params=list(Tier))
def each_tier(request: pytest.FixtureRequest) -> Tier:
    try:
        selftest(request.param)
    except SandboxError as error:
        pytest.skip(str(error))
    return request.param


def run(
    argv: list[str], policy: Policy, tier: Tier, folder: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        wrap(argv, policy, tier),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_compiler_works(scratch: Path, each_tier: Tier) -> None:
    (scratch / "sum.cpp").write_text(
        '#include <vector>\nextern "C" int three() { return std::vector<int>(3).size(); }\n'
    )
    argv = ["g++", "-O2", "-fopenmp", "-shared", "-fPIC", "sum.cpp", "-o", "sum.so"]
    done = run(argv, Policy(write=(scratch,), interpreter=False), each_tier, scratch)
    assert (done.returncode, done.stderr) == (0, "")
    assert ctypes.CDLL(str(scratch / "sum.so")).three() == 3


def test_shell_works(scratch: Path, each_tier: Tier) -> None:
    script = "echo one > file; cat < <(cat file); ls | wc -l; exit 3"
    done = run(["bash", "-c", script], Policy(write=(scratch,)), each_tier, scratch)
    assert (done.returncode, done.stdout.split()) == (3, ["one", "1"])


def test_python_finds_its_packages(scratch: Path, each_tier: Tier) -> None:
    argv = [sys.executable, "-c", "import numpy; print(numpy.ones(3).sum())"]
    done = run(argv, Policy(write=(scratch,)), each_tier, scratch)
    assert done.stdout.strip() == "3.0", done.stderr


def test_policy_decides_if_child_processes_can_use_proc(scratch: Path, tier: Tier) -> None:
    """CUDA writes its threads' names to /proc; the environment of other processes stays hidden."""
    name = "import os; open(f'/proc/self/task/{os.getpid()}/comm', 'w').write('named'); print('ok')"
    script = f'{sys.executable} -I -S -c "{name}"; cat /proc/{os.getpid()}/environ'
    for children, output in ((True, "ok"), (False, "")):
        policy = Policy(write=(scratch,), children=children)
        done = run(["bash", "-c", script], policy, tier, scratch)
        assert done.stdout.strip() == output, done.stderr
        assert done.returncode != 0


def test_arguments_are_passed_unchanged(scratch: Path, each_tier: Tier) -> None:
    argv = ["printf", "%s|", "a b", "$HOME", "--", "'", "ü"]
    assert run(argv, Policy(), each_tier, scratch).stdout == "a b|$HOME|--|'|ü|"


def test_shell_cannot_read_other_files(scratch: Path, tier: Tier) -> None:
    secret, own = scratch / "secret", scratch / "own"
    secret.write_text("secret")
    own.mkdir()
    script = f"cat {secret}; cat {Path(__file__).resolve()}; ls {scratch}; echo done"
    done = run(["bash", "-c", script], Policy(write=(own,)), tier, own)
    assert done.stdout == "done\n"
    assert run(["bash", "-c", "cat < /dev/tcp/127.0.0.1/1"], Policy(), tier, own).returncode != 0


def test_missing_command_gives_one_line(scratch: Path, each_tier: Tier) -> None:
    done = run(["no-such-compiler"], Policy(write=(scratch,)), each_tier, scratch)
    assert done.returncode == 126
    assert done.stderr.strip().splitlines() == [
        "no-such-compiler: [Errno 2] No such file or directory"
    ]


def test_killing_the_process_group_ends_all_processes(scratch: Path, each_tier: Tier) -> None:
    script = "sleep 300 & sleep 300 & echo ready; wait"
    child = subprocess.Popen(
        wrap(["bash", "-c", script], Policy(write=(scratch,)), each_tier),
        cwd=scratch,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    # The pipe closes when the last process that has it open has ended.
    start = time.monotonic()
    assert child.stdout.read() == b""
    assert time.monotonic() - start < 100  # usually below 0.1 s


def test_exit_code_of_signal_is_kept(scratch: Path, tier: Tier) -> None:
    done = run(["bash", "-c", "kill -SEGV $$"], Policy(write=(scratch,)), tier, scratch)
    assert done.returncode in (-signal.SIGSEGV, 128 + signal.SIGSEGV)
