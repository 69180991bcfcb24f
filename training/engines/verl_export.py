"""Write a folder from which verl trains (`cuagent train export-verl`), for models beyond one node.

    actor/ critic/           Hugging Face folders (the critic from `cuagent train value`)
    tasks/ train.parquet heldout.parquet
    agent_loop.yaml          names the loop (`verl_loop.py`) and the settings of episodes
    cuagent_plugin.py        replaces verl's GAE by ours (`verl_gae.py`)
    run.sh                   starts verl with all settings; more can be appended

verl needs its own environment (it pins an older transformers), with cuagent installed there too, on
every node. All nodes must see the folder.
Not covered: installing verl; starting a Ray cluster of several nodes; the curriculum (verl plays
all tasks equally often); the link between the context windows of an episode (verl makes each a row
with the episode's whole reward).
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cuagent.training.algorithms.ppo_update import PpoConfig
from cuagent.training.config import ConfigError
from cuagent.training.data.segments import RecordError

if TYPE_CHECKING:
    from cuagent.training.settings import TrainConfig

UNBOUNDED = 1e9
"""Bound that never takes effect: the value of verl's clip settings that cannot be disabled
otherwise."""
PLUGIN = '''\
"""Loaded by verl in each of its processes (VERL_USE_EXTERNAL_MODULES)."""

from cuagent.training.engines.verl_gae import install

install()
'''
SCRIPT = """\
#!/usr/bin/env bash
# Written by `cuagent train export-verl`. Append more settings of verl: run.sh NAME=VALUE
set -euo pipefail
export PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}}
export VERL_USE_EXTERNAL_MODULES=cuagent_plugin
export CUAGENT_LAM_ACTOR={lam_actor}
exec python3 -m verl.trainer.main_ppo \\
{overrides} \\
    "$@"
"""


@dataclass(frozen=True)
class Cluster:
    """Numbers of GPUs of verl's cluster. The judges' GPUs are additional to those for training: Ray
    reserves a whole GPU for each judge."""

    nodes: int = 1
    gpus: int = 6
    """Number of GPUs per node for training and sampling."""
    judges: int = 2
    """Number of GPUs in the whole cluster that only time kernels."""


def export_verl(
    actor: Path,
    critic: Path,
    tasks: Path,
    out: Path,
    config: TrainConfig,
    cluster: Cluster,
    device: str = "cuda",
) -> int:
    """Write the folder `out` from which verl trains; return the number of tasks.

    `actor`, `critic`: Hugging Face folders. Raises RecordError, TaskError, ConfigError.
    """
    from cuagent.training.policy.folder import policy_errors
    from cuagent.training.policy.model import check_critic

    for folder in (actor, critic):
        if not (folder / "config.json").is_file():
            raise RecordError(f"{folder}: not a Hugging Face folder (no config.json)")
    with policy_errors(critic):
        check_critic(critic)
    check_supported(config)
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    shutil.copytree(actor, out / "actor", dirs_exist_ok=True)
    shutil.copytree(critic, out / "critic", dirs_exist_ok=True)
    count = write_tasks(tasks, out, config.heldout, device)
    (out / "agent_loop.yaml").write_text(loop_settings(config, cluster, device), encoding="utf-8")
    (out / "cuagent_plugin.py").write_text(PLUGIN, encoding="utf-8")
    lam = "adaptive" if config.ppo.lam_actor is None else config.ppo.lam_actor
    lines = [f"    {shlex.quote(line)}" for line in overrides(out, config, cluster, lam)]
    script = SCRIPT.format(
        folder=shlex.quote(str(out)), lam_actor=lam, overrides=" \\\n".join(lines)
    )
    (out / "run.sh").write_text(script, encoding="utf-8")
    (out / "run.sh").chmod(0o755)
    return count


def check_supported(config: TrainConfig) -> None:
    """Raise ConfigError if a setting that verl does not support differs from its default."""
    p, plain = config.ppo, PpoConfig()
    lacking = {
        "single_turn": config.single_turn == 0,
        "ppo.reward": p.reward is plain.reward,
        "ppo.naive_gae": not p.naive_gae,
        "ppo.alpha": p.alpha == plain.alpha,
        "ppo.actor.last": p.actor.last == 0,
        "ppo.critic.last": p.critic.last == 0,
        "lora.rank": config.lora.rank == 0,
    }
    for name, fits in lacking.items():
        if not fits:
            raise ConfigError(f"verl has no {name}: leave it at its default")


def write_tasks(tasks: Path, out: Path, heldout: float, device: str) -> int:
    """Copy the task files to `out`, and write two parquet files that list them (training, held
    out); return the number of tasks."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RecordError("verl reads parquet; pip install pyarrow") from error
    from cuagent.training.data.tasks import is_heldout, load_tasks, source_digest
    from cuagent.training.engines.verl_rows import task_row

    found = load_tasks(tasks, device)
    (out / "tasks").mkdir(exist_ok=True)
    parts: dict[bool, list[dict[str, object]]] = {False: [], True: []}
    for number, task in enumerate(found):
        copy = out / "tasks" / task.path.name
        copy.write_text(task.source, encoding="utf-8")
        held = is_heldout(source_digest(task.source, task.entry), heldout)
        parts[held].append(task_row(number, task, copy))
    if not parts[False]:
        raise RecordError(f"{tasks}: every task is held out; add tasks, or set heldout lower")
    for name, rows in (("train", parts[False]), ("heldout", parts[True] or parts[False])):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out / f"{name}.parquet")
    return len(found)


def loop_settings(config: TrainConfig, cluster: Cluster, device: str) -> str:
    """Return the text of agent_loop.yaml: the arguments of `CuagentLoop`."""
    play = config.play
    return (
        "- name: cuagent\n"
        "  _target_: cuagent.training.engines.verl_loop.CuagentLoop\n"
        f"  device: {device}\n"
        f"  turns: {play.turns}\n"
        f"  context: {play.context}\n"
        f"  reply: {play.reply}\n"
        f"  actors: {cluster.judges}\n"
        f"  timed: {str(play.timed).lower()}\n"
    )


def overrides(
    out: Path, config: TrainConfig, cluster: Cluster, lam_actor: object = "adaptive"
) -> Sequence[str]:
    """Return verl's settings (`name=value`) that correspond to `config`.

    A test checks the names against verl's own settings.
    """
    p, context = config.ppo, config.play.context
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    env = "+ray_kwargs.ray_init.runtime_env.env_vars"
    return [
        "algorithm.adv_estimator=gae",
        "algorithm.gamma=1.0",
        f"algorithm.lam={p.lam_critic}",
        "algorithm.use_kl_in_reward=False",
        f"algorithm.rollout_correction.rollout_is={'token' if p.importance_cap else 'null'}",
        f"algorithm.rollout_correction.rollout_is_threshold={p.importance_cap or 2.0}",
        f"data.train_files={out / 'train.parquet'}",
        f"data.val_files={out / 'heldout.parquet'}",
        f"data.train_batch_size={config.ppo_episodes}",
        f"data.max_prompt_length={context}",
        f"data.max_response_length={context}",
        f"actor_rollout_ref.model.path={out / 'actor'}",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        f"{actor}.strategy=fsdp2",
        f"{actor}.optim.lr={p.actor.lr}",
        f"{actor}.optim.betas=[{p.actor.beta1},{p.actor.beta2}]",
        f"{actor}.optim.weight_decay={p.actor.decay}",
        f"{actor}.optim.lr_warmup_steps={p.actor.warmup}",
        f"{actor}.optim.clip_grad={p.actor.clip_norm}",
        f"{actor}.grad_clip={p.actor.clip_norm}",
        f"{actor}.ppo_mini_batch_size={max(1, config.ppo_episodes // p.minibatches)}",
        f"{actor}.ppo_epochs={p.epochs}",
        f"{actor}.clip_ratio_low={p.clip.low}",
        f"{actor}.clip_ratio_high={p.clip.high}",
        f"{actor}.clip_ratio_c={p.clip.dual or UNBOUNDED}",
        f"{actor}.loss_agg_mode=token-mean",
        f"{actor}.use_kl_loss={p.kl_weight > 0}",
        f"{actor}.kl_loss_coef={p.kl_weight}",
        f"{actor}.use_dynamic_bsz=True",
        f"{actor}.ppo_max_token_len_per_gpu={max(context, p.tokens_per_microbatch)}",
        f"{rollout}.name=vllm",
        f"{rollout}.mode=async",
        f"{rollout}.max_model_len={context}",
        f"{rollout}.temperature=1.0",
        f"{rollout}.calculate_log_probs=True",
        f"{rollout}.agent.default_agent_loop=cuagent",
        f"{rollout}.agent.agent_loop_config_path={out / 'agent_loop.yaml'}",
        f"critic.model.path={out / 'critic'}",
        "critic.strategy=fsdp2",
        f"critic.optim.lr={p.critic.lr}",
        f"critic.optim.betas=[{p.critic.beta1},{p.critic.beta2}]",
        f"critic.optim.weight_decay={p.critic.decay}",
        f"critic.optim.lr_warmup_steps={p.critic.warmup}",
        f"critic.optim.clip_grad={p.critic.clip_norm}",
        f"critic.grad_clip={p.critic.clip_norm}",
        f"critic.cliprange_value={p.value_clip or UNBOUNDED}",
        f"trainer.critic_warmup={p.critic_only}",
        f"trainer.total_training_steps={p.iterations}",
        f"trainer.save_freq={p.save_every}",
        f"trainer.default_local_dir={out / 'checkpoints'}",
        f"trainer.nnodes={cluster.nodes}",
        f"trainer.n_gpus_per_node={cluster.gpus}",
        f"{env}.VERL_USE_EXTERNAL_MODULES=cuagent_plugin",
        f"{env}.PYTHONPATH={out}",
        f"{env}.CUAGENT_LAM_ACTOR='{lam_actor}'",
    ]
