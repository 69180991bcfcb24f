"""Run the training stages for the commands: load policies, tasks and episodes, and save results.

The policy may be any Hugging Face causal model with a chat template; the tasks are the user's.
Not covered: the training loops (`rft.py`, `value.py`, `ppo.py`), communication between processes
(`parallel.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cuagent.task import Task
from cuagent.training import manifest, parallel
from cuagent.training.algorithms.curriculum import Curriculum
from cuagent.training.algorithms.metrics import Metrics, episode_metrics
from cuagent.training.algorithms.ppo import Collect, ppo
from cuagent.training.algorithms.reward import max_reward
from cuagent.training.algorithms.rft import rft
from cuagent.training.algorithms.rft import steps_of as rft_steps_of
from cuagent.training.algorithms.value import pretrain_value, value_steps_of
from cuagent.training.config import ConfigError
from cuagent.training.data.filters import filter_episodes
from cuagent.training.data.segments import Episode, RecordError, read_episodes
from cuagent.training.data.sources import digest_of_episodes, digest_of_tasks, episodes_of
from cuagent.training.data.tasks import (
    Part,
    load_tasks,
    part_of,
    split,
    split_tasks,
    task_difficulties,
)
from cuagent.training.engines.server import ServerEngine, can_reload
from cuagent.training.files import write_atomic
from cuagent.training.policy.chat import Chat
from cuagent.training.policy.checkpoint import latest_checkpoint
from cuagent.training.policy.folder import (
    check_ids,
    check_lengths,
    digest_of_model,
    digest_of_policy,
    load_policy,
    policy_errors,
    prepare_model,
    save_final,
    save_served,
)
from cuagent.training.policy.lora import (
    adapt,
    adapter_folder,
    load_adapter,
    own_backbone,
    share_backbone,
)
from cuagent.training.policy.model import (
    load_critic,
    new_critic,
    positions_of,
)
from cuagent.training.policy.placement import Placement, copy_weights, place
from cuagent.training.rollout.collect import Collector
from cuagent.training.rollout.setup import (
    make_collector,
    make_pool,
    samples_from_pages,
    sampling_actor,
    with_context,
    with_sampler,
)
from cuagent.training.rollout.store import HELDOUT, episodes_file
from cuagent.training.settings import TrainConfig

Say = Callable[[str], None]

RESULT = "evaluation.json"


def collect(
    policy: Path,
    tasks: Path,
    out: Path,
    episodes: int,
    config: TrainConfig,
    device: str,
    say: Say,
    part: Part = Part.TRAIN,
) -> Metrics:
    """Play `episodes` episodes with a policy and write them to `out/episodes/00000.jsonl`; return
    the metrics.

    An interrupted collection resumes; a finished one is not played again. Under torchrun every
    process plays its share. `part`: part of the tasks to play.
    """
    chat, actor = load_policy(policy, config)
    task_list, path = part_of(load_tasks(tasks, device), config.heldout, part), out / RESULT
    whole = episodes_file(out, 0)
    of = {"policy": digest_of_policy(actor, chat), "tasks": digest_of_tasks(task_list)}
    settings_used = settings_in(config, "seed", "dtype", "placement", "play") | {
        "episodes": episodes
    }
    before = manifest.open_manifest(out, "collect", of, settings_used, parallel.rank() == 0)
    if before is None and whole.exists():
        raise ConfigError(f"{whole} has no manifest.json with its settings; use another --out")
    if before is not None and path.exists():
        say(f"{out} is already finished; use another --out to start again")
        return report(json.loads(path.read_text(encoding="utf-8")), say)
    config = with_context(with_sampler(config, device), actor, say)
    if config.play.server is not None:
        pass  # the server samples, so the actor stays on the CPU
    elif samples_from_pages(config):
        actor = actor.to(device, config.placement.compute.torch)
    else:
        actor = place(actor, Placement(compute=config.placement.compute), device)
    with make_pool(config, device, task_list) as pool:
        plays = make_collector(task_list, chat, actor, pool, out, episodes, config, say)
        plays.inputs = {**of, **settings_used}
        found = list(read_episodes(whole)) if whole.exists() else plays(0)
    metrics = episode_metrics(found)
    if parallel.rank() == 0:
        write_atomic(path, json.dumps(metrics, indent=1))
    parallel.barrier()
    return report(metrics, say)


def report(metrics: Metrics, say: Say) -> Metrics:
    """Print the mean reward and the share of correct kernels; return `metrics` unchanged."""
    say(f"reward {metrics['reward']:+.3f}, correct {metrics['correct']:.0%}")
    return metrics


def run_rft(
    policy: Path, sources: Sequence[Path], out: Path, config: TrainConfig, device: str, say: Say
) -> None:
    """Train a policy by RFT on `sources` (folders of runs, or JSONL files of episodes); save it in
    `out/model`."""
    chat, actor = load_policy(policy, config)
    train, heldout = split(episodes_of(sources, chat, say), config.heldout)
    check_ids([*train, *heldout], actor)
    positions = positions_of(actor)
    kept, funnel = filter_episodes(train, config.filters, positions)
    of = {
        "policy": digest_of_policy(actor, chat),
        "episodes": digest_of_episodes([*train, *heldout]),
    }
    settings_used = settings_in(config, "dtype", "placement", "lora", "heldout", "filters", "rft")
    steps = rft_steps_of(config.rft, len(kept))
    reached = resume_step(out, say, "rft", of, settings_used, steps)
    if reached is None:
        return
    for line in funnel.lines():
        say(line)
    if parallel.rank() == 0 and not reached:  # a resumed run has this file already
        write_atomic(out / "funnel.json", json.dumps(asdict(funnel)))
    if not kept:
        raise RecordError(
            "no episode passes the filters; see the counts above. Relax filters.*; for episodes "
            "over the positions use a policy that has more"
        )
    actor = prepare_model(actor, config, device)
    judged = filter_episodes(heldout, config.filters, positions)[0]
    rft(actor, kept, judged, config.rft, out, say)
    save_final(actor, out / "model", chat)
    finish(out, steps)


def run_value(
    policy: Path, sources: Sequence[Path], out: Path, config: TrainConfig, device: str, say: Say
) -> None:
    """Pretrain a critic for the policy on `sources` (folders of runs, or JSONL files of episodes);
    save it in `out/model`."""
    chat, actor = load_policy(policy, config)
    train, heldout = split(episodes_of(sources, chat, say), config.heldout)
    check_ids([*train, *heldout], actor)
    check_lengths([*train, *heldout], positions_of(actor))
    of = {
        "policy": digest_of_policy(actor, chat),
        "episodes": digest_of_episodes([*train, *heldout]),
    }
    settings_used = settings_in(config, "dtype", "placement", "lora", "heldout", "value")
    steps = value_steps_of(config.value, len(train))
    if resume_step(out, say, "value", of, settings_used, steps) is None:
        return
    critic = prepare_model(new_critic(actor), config, device)
    pretrain_value(critic, train, heldout, config.value, out, say)
    save_final(critic, out / "model")
    finish(out, steps)


def run_ppo(
    policy: Path,
    critic: Path | None,
    tasks: Path,
    out: Path,
    config: TrainConfig,
    device: str,
    say: Say,
) -> None:
    """Train a policy by PPO; save the policy in `out/model` and the critic in `out/critic`.

    `critic`: folder of a pretrained critic; None: a new one that predicts 0.
    """
    check_sampling(config)
    chat, actor = load_policy(policy, config)
    values = critic_for_ppo(actor, chat, critic, config)
    config = with_context(with_sampler(config, device), actor, say)
    task_list = load_tasks(tasks, device)
    of = {
        "policy": digest_of_policy(actor, chat),
        "critic": digest_of_model(values),
        "tasks": digest_of_tasks(task_list),
    }
    settings_used = settings_in(
        config, "seed", "dtype", "placement", "lora", "play", "ppo", "ppo_episodes"
    )
    settings_used |= settings_in(config, "single_turn", "curriculum", "heldout", "heldout_episodes")
    if resume_step(out, say, "ppo", of, settings_used, config.ppo.iterations) is None:
        return
    if config.lora.shared:
        values, actor = adapt(values, config.lora), adapt(actor, config.lora)
        saved = share_backbone(values, actor)
        say(f"actor and critic share {saved / 1e9:.2f} GB of frozen weights")
    values, actor = prepare_model(values, config, device), prepare_model(actor, config, device)
    sampler = sampling_actor(actor, policy, config, device)
    reference = None
    if config.ppo.kl_weight:
        reference = place(load_policy(policy, config)[1], config.placement, device)
    with make_pool(config, device, task_list) as pool:
        train, heldout = split_tasks(task_list, config.heldout)
        plays = make_collector(train, chat, sampler, pool, out, config.ppo_episodes, config, say)
        plays.inputs, plays.keeps = {**of, **settings_used}, True
        if config.curriculum:
            plays.curriculum = Curriculum(highest=max_reward(config.play.timed))
            plays.difficulties = task_difficulties(tasks, task_list)
        if config.heldout_episodes and not heldout:
            say(f"none of {len(task_list)} tasks is held out: the last weights are kept")
        collect, evaluate = players(plays, heldout, actor, sampler, config)
        ppo(actor, values, collect, config.ppo, out, say, reference, evaluate=evaluate)
    if config.lora.shared:
        own_backbone(values, actor)
    save_final(actor, out / "model", chat)
    save_final(values, out / "critic")
    finish(out, step_of(latest_checkpoint(out)))


def check_sampling(config: TrainConfig) -> None:
    """Raise RecordError if PPO cannot use episodes that are sampled with these settings."""
    server = config.play.server
    if server is not None and not can_reload(server):
        raise RecordError(
            f"play.server={server}: PPO needs a server that can load new weights while it runs: "
            "SGLang (http://HOST:PORT/generate); unset play.server to sample in this process"
        )
    if config.play.temperature != 1.0:
        raise RecordError("PPO needs play.temperature=1; other temperatures bias its ratios")


def players(
    plays: Collector, heldout: Sequence[Task], actor: Any, sampler: Any, config: TrainConfig
) -> tuple[Collect, Collect | None]:
    """Return (collect, evaluate): functions that play episodes on training tasks and on held-out
    tasks.

    Both functions expect the number of an iteration, and sample with the actor's current weights.
    `evaluate` is None if there are no held-out tasks or no evaluations.
    """

    def renew_sampler() -> None:
        if sampler is not actor:
            copy_weights(actor, into=sampler)
        if isinstance(plays.engine, ServerEngine):
            served = plays.out / "served"
            save_served(actor, served, plays.chat)
            if parallel.rank() == 0:
                plays.engine.load(served.resolve())
            parallel.barrier()

    def collect(iteration: int) -> list[Episode]:
        renew_sampler()
        turns = 1 if iteration < config.single_turn else config.play.turns
        plays.play = replace(plays.play, turns=turns)
        return plays(iteration)

    if not heldout or not config.heldout_episodes:
        return collect, None
    judged = replace(
        plays,
        tasks=heldout,
        out=plays.out / HELDOUT,
        episodes=config.heldout_episodes,
        curriculum=None,
        play=replace(plays.play, turns=config.play.turns),
    )

    def evaluate(iterations: int) -> list[Episode]:
        renew_sampler()
        return judged(iterations)

    return collect, evaluate


def critic_for_ppo(actor: Any, chat: Chat, critic: Path | None, config: TrainConfig) -> Any:
    """Return the critic of the folder `critic`, or a new critic if `critic` is None.

    With `lora.shared` the critic is the policy's backbone with the adapter of value pretraining.
    Raises ConfigError if this adapter was trained on another policy.
    """
    if critic is None:
        return new_critic(actor)
    if not config.lora.shared:
        with policy_errors(critic):
            return load_critic(critic, config.dtype.torch)
    trained_on = manifest.input_of(critic.parent, "policy")
    if trained_on != digest_of_policy(actor, chat):
        raise ConfigError(
            f"{critic.parent}: lora.shared needs a critic of this policy; run cuagent train value "
            "with the same --policy and settings"
        )
    values = adapt(new_critic(actor), config.lora)
    load_adapter(values, adapter_folder(critic))
    return values


def resume_step(
    out: Path, say: Say, command: str, of: manifest.Names, settings_used: manifest.Names, steps: int
) -> int | None:
    """Return the step at which a stage must resume (0: a new stage); None if the stage is finished.

    `of`: fingerprints of the stage's inputs. `steps`: number of steps of the complete stage. Raises
    ConfigError if `out` was made with other inputs or settings, or is beyond `steps`.
    """
    reached = step_of(newest := latest_checkpoint(out))
    before = manifest.open_manifest(out, command, of, settings_used, parallel.rank() == 0)
    if reached > steps:
        raise ConfigError(f"{out} is at step {reached}, beyond {steps}; use another --out")
    finished = before is not None and before.get("finished") == steps
    if finished and (out / "model").exists():
        say(f"{out} is already finished; use another --out to start again")
        return None
    if newest is not None:
        say(f"resuming from {newest}; use another --out to start again")
    return reached


def finish(out: Path, steps: int) -> None:
    """Record in the manifest that the stage is complete; `steps` is its number of steps.

    Every process calls it after the model is saved.
    """
    if parallel.rank() == 0:
        manifest.finish(out, steps)


def step_of(checkpoint: Path | None) -> int:
    return 0 if checkpoint is None else int(checkpoint.name.removeprefix("step-"))


def settings_in(config: TrainConfig, *names: str) -> dict[str, Any]:
    """Return the settings of the tables `names` by full name, such as `ppo.clip.low`.

    Settings that only set the number of steps are left out: a finished stage may be continued with
    more steps.
    """
    known = manifest.fixed_settings(
        config, *("rft.steps", "rft.epochs", "value.steps", "value.epochs", "ppo.iterations")
    )
    return {name: value for name, value in known.items() if name.partition(".")[0] in names}
