"""Threads of a process that share their cores with other processes sleep while they wait."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap

import pytest
import torch

SPINNING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
SCRIPT = """
    import sys, time
    import torch
    from cuagent.worker.sleeping_threads import let_threads_sleep

    threads = torch.get_num_threads()
    if sys.argv[1] == "sleep":
        let_threads_sleep()
    assert torch.get_num_threads() == threads
    x = torch.ones(1 << 16)
    x.add_(1)
    begun = time.process_time()
    for _ in range(40):
        x.add_(1)
        time.sleep(0.002)  # the threads of the pool wait for work
    print(time.process_time() - begun)
"""
OPENMP = ctypes.CDLL(None)


def seconds_of_processor(mode: str) -> float:
    spins = {name: value for name, value in os.environ.items() if name not in SPINNING}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), mode]
    run = subprocess.run(command, env=spins, capture_output=True, text=True, check=True)
    return float(run.stdout)


@pytest.mark.skipif(
    not hasattr(OPENMP, "GOMP_parallel"), reason="torch uses another OpenMP library"
)
@pytest.mark.slow
@pytest.mark.skipif(torch.get_num_threads() == 1, reason="one thread waits for no other")
def test_waiting_threads_take_no_processor_time() -> None:
    assert seconds_of_processor("sleep") < 0.5 * seconds_of_processor("spin")
