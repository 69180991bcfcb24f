"""Load of other processes, without our own processes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

from cuagent.measure import system_load
from cuagent.measure.machine import examine

BURN = "import time\nwhile time.process_time() < 1.0: pass"


def test_cpu_times_count_a_child_as_ours() -> None:
    before = system_load.cpu_times()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    after = system_load.cpu_times()
    assert before is not None
    assert after is not None
    ours = after.ours_since(before)
    assert ours > 0.9
    # processes that other tests left are counted in whole ticks each
    assert after.all - before.all >= ours - 0.2
    assert 0 <= system_load.others_share(before, after) <= 1


def test_ours_since_ignores_a_process_missed_before() -> None:
    now = system_load.cpu_times()
    assert now is not None
    missed = dataclasses.replace(now, ours={})
    assert now.ours_since(missed) == 0


def test_cores_for_returns_one_processor_for_each_thread() -> None:
    free = os.sched_getaffinity(0)
    assert system_load.cores_for(len(free)) == set()
    if len(free) > 1:
        held = system_load.cores_for(1)
        assert len(held) == 1
        assert held <= free


def test_examine_has_advice_for_everything_missing() -> None:
    found = {finding.name: finding for finding in examine()}
    assert found["Python"].good
    assert found["torch"].good
    assert {"g++", "nvcc", "ninja", "GPU", "isolation"} <= set(found)
    assert all(finding.good or finding.advice for finding in found.values())
