"""Rungs that were compiled ahead are found in the cache when a process opens them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from make_tasks import write_task

from cuagent.bench.precompile import precompile
from cuagent.device_lock import DeviceLock
from cuagent.measure.timing.surroundings import compiled_graphs
from cuagent.task import load_task
from cuagent.worker import ForkServer

pytestmark = pytest.mark.slow

LOOK = """
import sys, torch
from torch._dynamo.utils import counters
from cuagent.task import load_task, open_reference
task = load_task(sys.argv[1], device="cpu")
reference = open_reference(task)
model, inputs = reference.model(7), reference.inputs(7)
model.compile()
with torch.no_grad():
    model(*inputs)
hits = [n for group in counters.values() for key, n in group.items() if key.endswith("cache_hit")]
print(sum(hits))
"""


def test_a_rung_compiled_ahead_is_in_the_cache(
    tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    init = "self.a = nn.Linear(32, 16)"
    path = write_task(tmp_path / "task.py", "return F.gelu(self.a(x)) * 3", init=init)
    task = load_task(path, device="cpu")
    lock = DeviceLock(tmp_path / "device.lock")
    assert precompile(task, ("eager", "compile"), fork_server, lock) == ["compile"]
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(path)],
        env=os.environ | compiled_graphs(),
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert int(done.stdout.splitlines()[-1]) >= 1


def test_a_reference_that_fails_compiles_nothing(tmp_path: Path, fork_server: ForkServer) -> None:
    path = write_task(tmp_path / "task.py", "return x @ x")
    task = load_task(path, device="cpu")
    assert precompile(task, ("eager", "compile"), fork_server, DeviceLock()) == []
    assert precompile(task, ("eager",), fork_server, DeviceLock()) == []
