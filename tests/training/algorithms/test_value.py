"""Test value pretraining."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import transformers
from toy_game import play, silent, small_actor

from cuagent.training.algorithms.metrics import read_metrics
from cuagent.training.algorithms.value import ValueConfig, pretrain_value
from cuagent.training.data.segments import RecordError
from cuagent.training.policy.model import new_critic


def test_restarted_value_pretraining_logs_each_step_once(tmp_path: Path) -> None:
    """Check a restart before the first checkpoint: step 0 was already logged."""
    episodes = play(small_actor(), 8, 0)
    for _ in range(2):
        pretrain_value(new_critic(small_actor()), episodes, [], ValueConfig(2, 8), tmp_path, silent)
        shutil.rmtree(tmp_path / "step-00000002")
    assert [m["step"] for m in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2]


def test_family_without_a_critic_is_named() -> None:
    config = transformers.MambaConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4, bos_token_id=0,
        eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    actor = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(RecordError, match="no token classification for mamba"):
        new_critic(actor)
