"""Test the clock of a demonstration."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cuagent.training.demo.budget import Budget

if TYPE_CHECKING:
    pass


def test_stage_seconds_add_up_over_resumed_runs(tmp_path: Path) -> None:
    for _ in range(2):
        budget = Budget(tmp_path)
        with budget.stage("ppo"):
            time.sleep(0.06)
    assert 0.1 <= Budget(tmp_path).elapsed("ppo") < 1
    assert budget.remaining() == float("inf")


def test_killed_stage_keeps_last_written_seconds(tmp_path: Path) -> None:
    budget = Budget(tmp_path)
    with budget.stage("ppo"):
        time.sleep(0.06)
        budget.write()
        assert Budget(tmp_path).spent["ppo"] >= 0.1  # rounded
    assert list(Budget(tmp_path).spent) == ["ppo"]


def test_seconds_after_ppo_follow_earlier_stages(tmp_path: Path) -> None:
    budget = Budget(tmp_path, time.time() + 100)
    budget.spent |= {"evaluation": 90.0, "rft": 2.0, "ppo": 30.0}
    assert budget.seconds_after_ppo(10, 0) == 20  # the evaluation and the audit
    assert budget.seconds_after_ppo(10, 5) == pytest.approx(
        30 + 10 + 36
    )  # and further RFT, played and made
    assert 99 < budget.remaining() <= 100
