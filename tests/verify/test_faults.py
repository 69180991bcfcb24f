"""Tests that each fault has its own reason and that the next attempt is judged normally."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from inject import FAULTS, HONEST, suffer
from shares import slow_except

from cuagent.task import Task
from cuagent.verify import Reason, Referee, Verdict

Judged = Callable[[str], Verdict]


QUICK = (
    "hangs",
    "kills itself",
    "reads at nothing",
    "garbage record",
    "fork bomb",
    "oracle killed",
)
"""Faults of all tests. Those of the slow suite are seen as a hang, a kill or a broken channel, or
fill a limit of the operating system."""


@pytest.mark.parametrize("name", slow_except(FAULTS, *QUICK))
def test_fault_has_its_reason_and_the_next_attempt_is_accepted(
    referee: Referee, judged: Judged, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    with monkeypatch.context() as during:
        if Reason.TIMED_OUT in fault.reasons:
            # a worker may be stopped before its first call: while it opens, or loads its weights
            for place in ("open_timeout", "session"):
                during.setattr(f"cuagent.worker.{place}.OPEN_S", 8.0)
            during.setattr("cuagent.verify.referee.VERDICT_S", 8.0)
            during.setattr(referee, "call_s", 2.0)
        verdict = suffer(referee, judged, fault, random.Random())
    assert verdict.reason in fault.reasons, (verdict.detail, verdict.output[-500:])
    after = judged(HONEST)
    assert after.reason is Reason.ACCEPTED, (after.detail, after.output[-500:])


def test_full_disk_is_infrastructure(task: Task, referee: Referee, judged: Judged) -> None:
    folder = str(referee.folder)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs to mount a small file system")
    try:
        (referee.folder / "ballast").write_bytes(bytes(48 << 10))
        verdict = judged(HONEST + "\n# " + "x" * (32 << 10))
        assert verdict.reason is Reason.INFRASTRUCTURE, verdict
        assert "No space left" in verdict.detail
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
    assert judged(HONEST).accepted


def test_killed_referee_leaves_no_folder(task: Task, tmp_path: Path) -> None:
    program = (
        "import sys, time; from cuagent.worker import ForkServer\n"
        "n = ForkServer(); n._await_ready(); print('ready', flush=True); time.sleep(600)\n"
    )
    referee = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert referee.stdout is not None
    assert referee.stdout.readline() == b"ready\n"
    (fork_server,) = tmp_path.glob("cuagent-*")
    children = Path(f"/proc/{referee.pid}/task/{referee.pid}/children").read_text().split()
    ends = [os.pidfd_open(int(pid)) for pid in children]
    referee.kill()
    referee.wait()
    referee.stdout.close()
    for end in ends:
        select.select([end], [], [], 100)
        os.close(end)
    assert not fork_server.exists()
