"""Create the engine, the pool of judges and the collector from the settings and the device.

Not covered: playing an episode (`episode.py`), collecting many (`collect.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cuagent.agent.prompt import opening
from cuagent.agent.tools import TOOLS
from cuagent.task import Task
from cuagent.timing import Effort
from cuagent.training import parallel
from cuagent.training.config import ConfigError
from cuagent.training.engines.cached import CachedEngine
from cuagent.training.engines.continuous import ContinuousEngine
from cuagent.training.engines.engine import Engine, LocalEngine
from cuagent.training.engines.server import ServerEngine
from cuagent.training.judging.pool import JudgePool, Pool
from cuagent.training.judging.ray_pool import RayPool
from cuagent.training.policy.chat import Chat
from cuagent.training.policy.head import use_fp32_heads
from cuagent.training.policy.model import (
    load_actor,
    positions_of,
)
from cuagent.training.policy.placement import Dtype, Placement, is_sharded, place
from cuagent.training.rollout.collect import Collector
from cuagent.training.rollout.episode import Play
from cuagent.training.settings import Sampler, TrainConfig

Say = Callable[[str], None]


def with_context(config: TrainConfig, actor: Any, say: Say) -> TrainConfig:
    """Return settings in which `play.context` is at most the policy's context length; report a
    change through `say`."""
    positions, asked = positions_of(actor), config.play.context
    if positions is None or asked <= positions:
        return config
    say(f"play.context={asked} is over the policy's {positions} positions; {positions} is used")
    return replace(config, play=replace(config.play, context=positions))


def with_sampler(config: TrainConfig, device: str) -> TrainConfig:
    """Return settings in which `play.engine=auto` is replaced by the default engine for the
    device."""
    if config.play.engine is not Sampler.AUTO:
        return config
    engine = Sampler.CACHED if device.startswith("cuda") else Sampler.LOCAL
    return replace(config, play=replace(config.play, engine=engine))


def samples_from_pages(config: TrainConfig) -> bool:
    """Return True if the settings select `ContinuousEngine`, which stores keys and values in pages.

    The pages have the type of the weights.
    """
    return config.play.engine is Sampler.CONTINUOUS and config.play.server is None


def sampling_actor(actor: Any, policy: Path, config: TrainConfig, device: str) -> Any:
    """Return the model to sample from: the trained actor, or a full copy of it on every process.

    A copy is needed for a sharded actor. It is also needed for paged sampling (`ContinuousEngine`)
    if the compute type differs from the type of the weights. Raises ConfigError for an adapted
    actor that would need a copy.
    """
    compute = config.placement.compute
    apart = is_sharded(actor) or (samples_from_pages(config) and compute is not config.dtype)
    if config.play.server is not None or not apart:
        return actor
    if config.lora.rank:
        raise ConfigError(
            "play.engine=continuous with lora.rank needs placement.compute equal to dtype"
        )
    copy = load_actor(policy, compute.torch)
    if samples_from_pages(config):
        return copy.to(device)
    return place(copy, Placement(compute=compute, packed=False), device)


def make_collector(
    tasks: Sequence[Task],
    chat: Chat,
    actor: Any,
    pool: Pool,
    out: Path,
    episodes: int,
    config: TrainConfig,
    say: Say,
) -> Collector:
    p = config.play
    engine = make_engine(actor.eval(), chat, min(episodes, p.at_once), config)
    limits = (p.turns, p.context, p.reply, p.temperature, p.seconds)
    play = Play(TOOLS, opening, *limits, ladder=p.timed, together=p.together)
    return Collector(
        tasks,
        chat,
        engine,
        pool,
        play,
        out,
        episodes,
        config.seed,
        max_in_flight=p.at_once,
        say=say,
    )


def make_engine(actor: Any, chat: Chat, max_in_flight: int, config: TrainConfig) -> Engine:
    """Return the engine that the settings select, for sampling `actor` in up to `max_in_flight`
    conversations."""
    p = config.play
    if p.server is not None:
        return ServerEngine(p.server, actor.name_or_path, chat.end)
    if samples_from_pages(config):
        # On the CPU the cache would take all free memory, so it is bounded.
        fits = actor.device.type == "cuda"
        tokens = p.cache_tokens or (None if fits else max_in_flight * p.context)
        use_fp32_heads(actor)
        return ContinuousEngine(actor, chat.end, tokens, p.temperature)
    if p.engine is Sampler.CACHED:
        half = Dtype.BF16 in (config.placement.compute, config.dtype)
        kept = torch.bfloat16 if half else torch.float32
        return CachedEngine(actor, chat.end, p.context, p.cache_tokens, max_in_flight, kept)
    return LocalEngine(actor, chat.end, p.most_rows, tokens=p.cache_tokens)


def make_pool(config: TrainConfig, device: str, tasks: Sequence[Task] = ()) -> JudgePool | RayPool:
    """Return the pool of judges: Ray actors if `play.ray` is set, else processes of this machine.

    Under torchrun each process judges on the GPU that it trains on, or all share the Ray actors.
    """
    effort = Effort.QUICK if config.play.timed else None
    if config.play.ray:
        shared = "judge" if parallel.size() > 1 else None
        return RayPool(config.play.ray, effort, device.startswith("cuda"), name=shared, tasks=tasks)
    own = (int(os.environ.get("LOCAL_RANK", "0")),)
    gpus = config.play.gpus if parallel.size() == 1 else own
    return JudgePool(effort, gpus=gpus, judges_per_gpu=config.play.beside)
