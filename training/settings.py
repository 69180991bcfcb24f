"""Define the settings of all stages of `cuagent train`, and of the episodes that the stages play.

Not covered: reading settings from files (`config.py`); settings of the demonstration
(`demo/presets.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cuagent.training.algorithms.ppo_update import PpoConfig
from cuagent.training.algorithms.rft import RftConfig
from cuagent.training.algorithms.value import ValueConfig
from cuagent.training.config import SEEDS, ConfigError, above, at_least, below, between
from cuagent.training.data.filters import Filters
from cuagent.training.policy.lora import (
    Lora,
)
from cuagent.training.policy.placement import Dtype, Placement


class Export(StrEnum):
    CHAT = "chat"
    ATIF = "atif"
    PARQUET = "parquet"


class Sampler(StrEnum):
    AUTO = "auto"
    """Choose `cached` on a GPU and `local` on the CPU."""
    LOCAL = "local"
    """Engine that decodes batches one after the other in this process; the same seeds give the same
    episodes."""
    CACHED = "cached"
    """Engine with one batch that episodes join and leave at any token; keys and values of
    conversations stay in memory between turns."""
    CONTINUOUS = "continuous"
    """Engine based on transformers' continuous batching, which also caches keys and values of
    conversations."""


@dataclass(frozen=True)
class PlayConfig:
    """Settings of the episodes that a stage plays, with all tools and the full prompt of `cuagent
    optimize`."""

    turns: int = 40
    context: int = 32768
    reply: int = 4096
    temperature: float = 1.0
    seconds: float | None = None
    together: float = 1.0
    """Share of the unfinished episodes that must wait for tokens before the engine runs a batch.

    Use less than 1 only if no GPU both samples and times, and 0 for engines that form batches
    themselves (a server, `cached`, `continuous`).
    """
    timed: bool = True
    """True to time the kernels. False gives rewards -1 and 1 only."""
    gpus: tuple[int, ...] = (0,)
    """Indices of the GPUs on which kernels are judged."""
    at_once: int = 256
    """Number of episodes that run in parallel; fewer if they do not fit into the cache of the
    engine `cached`."""
    most_rows: int = 256
    """Largest number of conversations in one batch of the local engine."""
    cache_tokens: int | None = None
    """Largest number of tokens, over all conversations, whose keys and values are in memory. None:
    what fits into a share of the GPU's free memory."""
    beside: int = 1
    """Number of kernels verified in parallel on each judging GPU; timing is exclusive."""
    ray: int = 0
    """Number of GPUs that judge as Ray actors, on any machine of the cluster; 0: the judges use
    `gpus`."""
    engine: Sampler = Sampler.AUTO
    server: str | None = None
    """URL of a server that returns token ids: http://localhost:8000/v1 of vLLM, or SGLang's
    http://localhost:30000/generate. None: `engine` samples in this process."""

    def __post_init__(self) -> None:
        at_least(1, self, "turns", "context", "reply", "beside")
        at_least(1, self, "at_once", "most_rows", "cache_tokens")
        if self.ray and self.beside > 1:
            raise ConfigError("play.ray needs play.beside=1: a Ray actor has one judge")
        at_least(0, self, "temperature", "ray")
        if min(self.gpus, default=0) < 0:
            raise ConfigError(f"play.gpus: {list(self.gpus)} has an index below 0")
        above(0, self, "seconds")
        between(0, 1, self, "together")


@dataclass(frozen=True)
class TrainConfig:
    """Settings of all stages of `cuagent train`."""

    seed: int = 0
    dtype: Dtype = Dtype.FP32
    """Type of weights and optimizer states. In bfloat16 small updates are lost to rounding."""
    placement: Placement = field(default_factory=Placement)
    """Sharding, compute type, recomputation and packing of the trained models."""
    lora: Lora = field(default_factory=Lora)
    """Low-rank adapters, trained instead of all weights if the rank is not 0."""
    heldout: float = 0.1
    """Share of the tasks that are held out of training, for evaluations."""
    play: PlayConfig = field(default_factory=PlayConfig)
    filters: Filters = field(default_factory=Filters)
    rft: RftConfig = field(default_factory=RftConfig)
    value: ValueConfig = field(default_factory=ValueConfig)
    ppo: PpoConfig = field(default_factory=PpoConfig)
    ppo_episodes: int = 256
    heldout_episodes: int = 64
    """Number of episodes in each evaluation of PPO on the held-out tasks; 0: no evaluations."""
    single_turn: int = 0
    """Number of PPO iterations at the start in which an episode has one turn (the paper's warm-up).
    The one reply must contain all tool calls, including `submit`."""
    curriculum: bool = True

    def __post_init__(self) -> None:
        at_least(1, self, "ppo_episodes")
        at_least(0, self, "heldout", "heldout_episodes", "single_turn")
        below(1, self, "heldout")
        between(*SEEDS, self, "seed")
