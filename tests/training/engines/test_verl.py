"""Test the export to verl: files, our GAE with its signature, the interface of an
installed verl."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from dictated import SOURCE
from toy_game import play, small_actor

from cuagent.training.algorithms.advantage import advantages_and_returns, whiten
from cuagent.training.algorithms.ppo_update import PpoConfig
from cuagent.training.algorithms.reward import Reward
from cuagent.training.config import ConfigError
from cuagent.training.data.segments import Episode, Kind, Segment
from cuagent.training.engines.verl_export import Cluster, export_verl, overrides
from cuagent.training.engines.verl_gae import ARGUMENTS, LAM_ACTOR, gae
from cuagent.training.engines.verl_rows import rows_of
from cuagent.training.policy.chat import Chat
from cuagent.training.policy.lora import Lora
from cuagent.training.policy.model import new_critic, save_model
from cuagent.training.policy.optimize import AdamW
from cuagent.training.settings import TrainConfig

needs_verl = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")


@pytest.fixture
def batch() -> dict[str, Any]:
    """Two rows that end in an observation, in verl's layout, and one row of padding."""
    mask = torch.tensor([[1, 1, 0, 0, 1, 0, 0, 0], [1, 0, 1, 1, 1, 1, 0, 0], [0] * 8])
    rewards = torch.zeros(3, 8)
    rewards[0, 6] = 3.0  # verl's position: the last token of the response
    rewards[1, 5] = -1.0
    values = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    return {"token_level_rewards": rewards, "values": values, "response_mask": mask}


@pytest.mark.parametrize("lam_actor", ["", "0.8", "adaptive"])
def test_gae_with_verl_signature_matches_ours(
    batch: dict[str, Any], lam_actor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LAM_ACTOR, lam_actor)
    advantages, returns = gae(**batch, gamma=1.0, lam=0.95)
    mask = batch["response_mask"].bool()
    lam = None if lam_actor == "adaptive" else float(lam_actor or 0.95)
    raw, wanted = advantages_and_returns(
        batch["values"][:2], mask[:2], torch.arange(2), torch.tensor([3.0, -1.0]), lam, 0.95
    )
    assert torch.equal(returns[:2], wanted)
    torch.testing.assert_close(advantages[:2], whiten(raw, mask[:2]))
    assert not advantages[2].any()
    moved = batch["token_level_rewards"].roll(1, 1)  # a later position must give the same result
    again, _ = gae(moved, batch["values"], batch["response_mask"], 1.0, 0.95)
    assert torch.equal(again, advantages)


def test_gae_refuses_discount_and_reward_within_episode(batch: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs algorithm"):
        gae(**batch, gamma=0.99, lam=1.0)
    batch["token_level_rewards"][0, 0] = -0.1  # a KL penalty
    with pytest.raises(ValueError, match="use_kl_in_reward"):
        gae(**batch, gamma=1.0, lam=1.0)


def test_rows_end_with_action_and_last_window_has_reward() -> None:
    segments = (
        Segment(Kind.PROMPT, (1, 2)),
        Segment(Kind.ACTION, (3,), (-0.5,)),
        Segment(Kind.OBSERVATION, (4, 5)),
        Segment(Kind.ACTION, (6, 7), (-0.25, -1.0)),
        Segment(Kind.OBSERVATION, (8,)),
        Segment(Kind.PROMPT, (1, 9), context=1),
        Segment(Kind.ACTION, (3,), (-2.0,), 1),
    )
    first, second = rows_of(Episode("e", "t", "t", segments, 2.0, "submitted"))
    assert first["prompt_ids"] == [1, 2]
    assert first["response_ids"] == [3, 4, 5, 6, 7]
    assert first["response_mask"] == [1, 0, 0, 1, 1]
    assert first["response_logprobs"] == [-0.5, 0.0, 0.0, -0.25, -1.0]
    assert (first["reward_score"], second["reward_score"]) == (None, 2.0)
    assert (second["prompt_ids"], second["response_ids"]) == ([1, 9], [3])
    for episode in play(small_actor(), 3, 0):  # their last segment is an observation
        assert all(row["response_mask"][-1] == 1 for row in rows_of(episode))


@pytest.fixture
def exported(chat: Chat, tmp_path: Path) -> Path:
    actor = small_actor()
    save_model(actor, tmp_path / "actor")
    chat.save(tmp_path / "actor")
    save_model(new_critic(actor), tmp_path / "critic")
    (tmp_path / "tasks").mkdir()
    for n in range(3):
        (tmp_path / "tasks" / f"t{n}.py").write_text(SOURCE.replace("* 2", f"* {n + 2}"))
    models, out = (tmp_path / "actor", tmp_path / "critic"), tmp_path / "out"
    pytest.importorskip("pyarrow")
    assert export_verl(*models, tmp_path / "tasks", out, TrainConfig(), Cluster(), "cpu") == 3
    return out


def test_exported_folder_is_complete(exported: Path) -> None:
    import pyarrow.parquet as parquet
    from transformers import AutoModelForTokenClassification

    names = {p.name for p in exported.iterdir()}
    assert names == {"actor", "critic", "tasks", "train.parquet", "heldout.parquet",
                     "agent_loop.yaml", "cuagent_plugin.py", "run.sh"}  # fmt: skip
    row = parquet.read_table(exported / "train.parquet").to_pylist()[0]
    assert row["agent_name"] == "cuagent"
    assert [m["role"] for m in row["prompt"]] == ["system", "user"]
    assert Path(row["extra_info"]["task"]).read_text().startswith("import torch")
    critic = AutoModelForTokenClassification.from_pretrained(exported / "critic")
    assert critic.config.num_labels == 1
    script = exported / "run.sh"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    assert f"critic.model.path={exported / 'critic'}" in script.read_text()


@needs_verl
def test_verl_accepts_every_exported_setting() -> None:
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        wanted = list(overrides(Path("/x"), TrainConfig(), Cluster()))
        settings = compose("ppo_trainer", overrides=wanted)
    assert settings.actor_rollout_ref.actor.clip_ratio_high == 0.28
    assert settings.algorithm.adv_estimator == "gae"
    ours, theirs = TrainConfig().ppo, settings.actor_rollout_ref.actor
    assert list(theirs.optim.betas) == [ours.actor.beta1, ours.actor.beta2]
    assert theirs.optim.weight_decay == ours.actor.decay == settings.critic.optim.weight_decay
    assert min(theirs.clip_ratio_c, settings.critic.cliprange_value) >= 1e9, "ours has no such clip"


def test_exported_settings_hold_what_verl_would_choose_otherwise() -> None:
    values = dict(s.split("=", 1) for s in overrides(Path("/x"), TrainConfig(), Cluster()))
    actor = "actor_rollout_ref.actor"
    assert values[f"{actor}.optim.betas"] == values["critic.optim.betas"] == "[0.9,0.95]"
    assert values[f"{actor}.optim.weight_decay"] == values["critic.optim.weight_decay"] == "0.0"
    assert float(values[f"{actor}.clip_ratio_c"]) >= 1e9
    assert float(values["critic.cliprange_value"]) >= 1e9


def test_changed_settings_reach_verl() -> None:
    ppo = PpoConfig(
        importance_cap=None,
        actor=AdamW(lr=1e-6, warmup=7, clip_norm=0.5),
        critic=AdamW(lr=1e-6, warmup=3, clip_norm=0.25),
    )
    wanted = overrides(Path("/x"), TrainConfig(ppo=ppo), Cluster())
    values = dict(s.split("=", 1) for s in wanted)
    actor = "actor_rollout_ref.actor"
    assert values["algorithm.rollout_correction.rollout_is"] == "null"
    assert values[f"{actor}.optim.lr_warmup_steps"] == "7"
    assert values[f"{actor}.grad_clip"] == values[f"{actor}.optim.clip_grad"] == "0.5"
    assert values["critic.optim.lr_warmup_steps"] == "3"
    assert values["critic.grad_clip"] == values["critic.optim.clip_grad"] == "0.25"


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        (TrainConfig(single_turn=3), "single_turn"),
        (TrainConfig(ppo=PpoConfig(reward=Reward.RATIO)), "ppo.reward"),
        (TrainConfig(ppo=PpoConfig(naive_gae=True)), "ppo.naive_gae"),
        (TrainConfig(ppo=PpoConfig(alpha=0.1)), "ppo.alpha"),
        (TrainConfig(ppo=PpoConfig(actor=AdamW(lr=1e-6, last=9))), "ppo.actor.last"),
        (TrainConfig(ppo=PpoConfig(critic=AdamW(lr=1e-6, last=9))), "ppo.critic.last"),
        (TrainConfig(lora=Lora(rank=4)), "lora.rank"),
    ],
)
def test_export_refuses_settings_that_verl_lacks(
    setting: TrainConfig, name: str, exported: Path, tmp_path: Path
) -> None:
    models = (tmp_path / "actor", tmp_path / "critic", tmp_path / "tasks", tmp_path / "again")
    with pytest.raises(ConfigError, match=f"verl has no {name}"):
        export_verl(*models, setting, Cluster(), "cpu")


@needs_verl
def test_verl_calls_installed_plugin(exported: Path) -> None:
    seen = subprocess.run(
        [sys.executable, "-W", "ignore", "-c",
         "import verl, inspect; from verl.trainer.ppo import core_algos, ray_trainer; "
         "assert 'core_algos.compute_gae_advantage_return(' in inspect.getsource("
         "ray_trainer.compute_advantage); "
         "print(core_algos.compute_gae_advantage_return.__module__)"],
        env={**os.environ, "VERL_USE_EXTERNAL_MODULES": "cuagent_plugin",
             "PYTHONPATH": os.pathsep.join([str(exported), *sys.path])},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert seen.stdout.split()[-1:] == ["cuagent.training.engines.verl_gae"], seen.stderr[-2000:]


@needs_verl
def test_agent_loop_matches_verl_interface() -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
    from verl.trainer.ppo import core_algos
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

    from cuagent.training.engines.verl_loop import CuagentLoop

    theirs = inspect.signature(core_algos.compute_gae_advantage_return).parameters
    assert list(theirs) == ARGUMENTS
    assert issubclass(CuagentLoop, AgentLoopBase)
    made = set(inspect.signature(AgentLoopBase.__init__).parameters)
    assert {"trainer_config", "server_manager", "tokenizer", "kwargs"} <= made
    asked = set(inspect.signature(LLMServerClient.generate).parameters)
    assert {"request_id", "prompt_ids", "sampling_params"} <= asked
    assert {"token_ids", "log_probs"} <= set(TokenOutput.model_fields)
    row = rows_of(play(small_actor(), 1, 0)[0])[0]
    assert set(row) <= set(AgentLoopOutput.model_fields)
    output = AgentLoopOutput(**row, metrics={}, extra_fields={})
    assert json.loads(output.model_dump_json())["response_mask"] == row["response_mask"]


@needs_verl
@pytest.mark.parametrize("timed", [True, False])
def test_episodes_of_verl_begin_with_the_ladder_if_kernels_are_timed(
    timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase

    from cuagent.training.engines import verl_loop

    monkeypatch.setattr(AgentLoopBase, "__init__", lambda self, *args, **kwargs: None)
    monkeypatch.setattr(verl_loop, "shared_pool", lambda *_: None)
    loop = verl_loop.CuagentLoop(device="cpu", turns=3, context=64, reply=9, actors=1, timed=timed)
    assert loop.play.ladder is timed
    assert (loop.play.turns, loop.play.context, loop.play.reply) == (3, 64, 9)
