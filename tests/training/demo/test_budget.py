"""Test the clock of a demonstration."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from cuagent.training.demo.budget import Budget


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the budget, which stands until a test advances it."""
    now = [1000.0]
    clock = SimpleNamespace(time=lambda: now[0])
    monkeypatch.setattr("cuagent.training.demo.budget.time", clock)
    return now


def test_stage_seconds_add_up_over_resumed_runs(tmp_path: Path, now: list[float]) -> None:
    for _ in range(2):
        budget = Budget(tmp_path)
        with budget.stage("ppo"):
            now[0] += 6.0
    assert Budget(tmp_path).elapsed("ppo") == 12.0
    assert budget.remaining() == float("inf")


def test_killed_stage_keeps_last_written_seconds(tmp_path: Path, now: list[float]) -> None:
    budget = Budget(tmp_path)
    with budget.stage("ppo"):
        now[0] += 0.06
        budget.write()
        assert Budget(tmp_path).spent == {"ppo": 0.1}  # rounded
    assert list(Budget(tmp_path).spent) == ["ppo"]


def test_seconds_after_ppo_follow_earlier_stages(tmp_path: Path, now: list[float]) -> None:
    budget = Budget(tmp_path, now[0] + 100)
    budget.spent |= {"evaluation": 90.0, "rft": 2.0, "ppo": 30.0}
    assert budget.seconds_after_ppo(10, 0) == 20  # the evaluation and the audit
    assert budget.seconds_after_ppo(10, 5) == pytest.approx(
        30 + 10 + 36
    )  # and further RFT, played and made
    assert budget.remaining() == 100
