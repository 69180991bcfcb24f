"""Test value pretraining."""

from __future__ import annotations

import shutil
from pathlib import Path

from toy_game import play, silent, small_actor

from cuagent.training.algorithms.metrics import read_metrics
from cuagent.training.algorithms.value import ValueConfig, pretrain_value
from cuagent.training.policy.model import new_critic


def test_restarted_value_pretraining_logs_each_step_once(tmp_path: Path) -> None:
    """Check a restart before the first checkpoint: step 0 was already logged."""
    episodes = play(small_actor(), 8, 0)
    for _ in range(2):
        pretrain_value(new_critic(small_actor()), episodes, [], ValueConfig(2, 8), tmp_path, silent)
        shutil.rmtree(tmp_path / "step-00000002")
    assert [m["step"] for m in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2]
