"""Test checkpoints after kills and of other models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_game import FAST, play, silent, small_actor

from cuagent.training.algorithms.ppo import ppo
from cuagent.training.algorithms.rft import RftConfig, rft
from cuagent.training.data.segments import RecordError
from cuagent.training.policy.checkpoint import (
    STATE,
    latest_checkpoint,
    load_checkpoint,
    rewind,
    save_checkpoint,
)
from cuagent.training.policy.model import new_critic
from cuagent.training.policy.optimize import make_optimizer


def test_kill_during_deletion_leaves_no_partial_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = small_actor()
    models = {"actor": actor}
    optimizers = {"actor": make_optimizer(actor, FAST.actor)}
    for step in range(2):
        save_checkpoint(tmp_path, step, models, optimizers, {})

    def killed(folder: Path, **_: Any) -> None:
        if folder.exists():
            (folder / STATE).unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        rewind(tmp_path, 0, models, optimizers)
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    assert load_checkpoint(newest, models, optimizers) == (0, {})


def test_checkpoint_of_other_model_is_refused_in_one_line(tmp_path: Path) -> None:
    rft(small_actor(), play(small_actor(), 4, 0), [], RftConfig(steps=1), tmp_path, silent)
    actor = small_actor()
    with pytest.raises(RecordError, match="start in another folder") as refused:
        ppo(actor, new_critic(actor), lambda i: [], FAST, tmp_path, silent)
    assert "Traceback" not in str(refused.value)
