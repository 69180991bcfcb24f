"""Who else uses the machine is seen, and our own processes are not taken for others."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

from cuagent.measure import system_load
from cuagent.measure.machine import examine

BURN = "import time\nend = time.time() + 1.0\nwhile time.time() < end: pass"


def test_a_child_of_ours_is_ours() -> None:
    before = system_load.cpu_times()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    after = system_load.cpu_times()
    assert before is not None
    assert after is not None
    # on a busy machine a second of burning takes less than a second of processor
    ours = after.ours_since(before)
    assert ours > 0.05
    assert after.all - before.all >= ours - 0.05
    assert 0 <= system_load.others_share(before, after) <= 1


def test_a_process_missed_at_first_is_not_taken_for_work_done_in_between() -> None:
    now = system_load.cpu_times()
    assert now is not None
    missed = dataclasses.replace(now, ours={})
    assert now.ours_since(missed) == 0


def test_threads_get_all_processors_or_as_many_as_they_are() -> None:
    free = os.sched_getaffinity(0)
    assert system_load.cores_for(len(free)) == set()
    if len(free) > 1:
        held = system_load.cores_for(1)
        assert len(held) == 1
        assert held <= free


def test_the_machine_is_described_with_advice_for_every_lack() -> None:
    found = {finding.name: finding for finding in examine()}
    assert found["Python"].good
    assert found["torch"].good
    assert {"g++", "nvcc", "ninja", "GPU", "isolation"} <= set(found)
    assert all(finding.good or finding.advice for finding in found.values())
