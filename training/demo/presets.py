"""Define the settings of `cuagent train demo`: for two CPU cores, and for a GPU with C++ or CUDA
kernels.

Not covered: the settings of the other commands (`TrainConfig` in `settings.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cuagent.task import Device
from cuagent.training.algorithms.monitor import Action, Limits
from cuagent.training.algorithms.ppo_update import PpoConfig
from cuagent.training.algorithms.rft import RftConfig
from cuagent.training.algorithms.value import ValueConfig
from cuagent.training.config import SEEDS, at_least, between
from cuagent.training.data.filters import Filters
from cuagent.training.policy.chat import Pieces
from cuagent.training.policy.optimize import AdamW


@dataclass(frozen=True)
class GymConfig:
    chain: int = 3
    """Number of pointwise operators in a task, in addition to the matrix product."""
    train: int = 12
    heldout: int = 8
    rows: int = 1024

    def __post_init__(self) -> None:
        at_least(1, self, "chain", "train", "heldout", "rows")


@dataclass(frozen=True)
class DecoderConfig:
    pieces: Pieces = Pieces.LINES
    layers: int = 2
    width: int = 64
    heads: int = 4
    vocabulary: int = 2048
    context: int = 1024

    def __post_init__(self) -> None:
        at_least(1, self, "layers", "width", "heads", "vocabulary", "context")
        if self.width % (2 * self.heads):  # RoPE rotates pairs
            raise ValueError(f"width: {self.width} is no multiple of twice the {self.heads} heads")


@dataclass(frozen=True)
class DemoConfig:
    """Settings of the demonstration; the defaults are for a CPU with two cores."""

    seed: int = 0
    minutes: float | None = None
    """Limit of the wall time in minutes; PPO makes fewer iterations to meet it. None: no limit."""
    kernels: Device = Device.CPU
    """Device for which the policy writes kernels; it may be the CPU although a GPU trains the
    policy."""
    timed: bool = False
    """True to time the kernels, which takes much longer than verifying. False gives rewards -1 and
    1 only."""
    gpus: tuple[int, ...] = (0,)
    """Indices of the GPUs that judge. Seeds train on the other GPUs; if there are no others, on the
    judging GPUs under a lock."""
    beside: int = 1
    """Number of kernels verified in parallel on each judging GPU; timing is exclusive."""
    cores: int = 0
    """Number of cores that judge CPU kernels, one process each; 0: one process that is not
    pinned."""
    rehearsal: bool = False
    """True to judge kernels by a rule on their text, without compiler, verifier and clock, to try
    settings in minutes."""
    judgements: str | None = None
    """Path of the judgement cache; None: in the output folder. Runs on one machine may share it,
    one after another."""
    gym: GymConfig = field(default_factory=GymConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    turns: int = 3
    reply: int = 60
    together: float = 1.0
    """Share of the unfinished episodes that must ask for tokens before the policy samples a batch.
    Below 1 the slowest verdict does not delay all."""
    first_turns: int = 3000
    """Number of first turns that the teacher writes for other chains; they are never judged."""
    demonstrations: int = 96
    """Number of complete episodes that the teacher plays; each is judged."""
    shown: int = 0
    """Number of training tasks for which the teacher plays episodes; 0: all. The judges can open
    the other tasks while the base policy trains."""
    base: RftConfig = field(
        default_factory=lambda: RftConfig(
            1500, 16, AdamW(lr=4e-3, warmup=30, last=1500), evaluate_every=300, save_every=500
        )
    )
    rft_episodes: int = 192
    filters: Filters = field(default_factory=Filters)
    rft: RftConfig = field(
        default_factory=lambda: RftConfig(40, 32, AdamW(lr=5e-4, warmup=5), evaluate_every=20)
    )
    value_episodes: int = 128
    value: ValueConfig = field(
        default_factory=lambda: ValueConfig(40, 64, AdamW(lr=1e-3, warmup=5), evaluate_every=20)
    )
    ppo_episodes: int = 64
    curriculum: bool = False
    ppo: PpoConfig = field(
        default_factory=lambda: PpoConfig(
            iterations=12,
            minibatches=4,
            actor=AdamW(lr=3e-4),
            critic=AdamW(lr=1e-3),
            lam_critic=1.0,
        )
    )
    more_fastest: int | None = 4
    """Number of episodes of each task that further RFT imitates, those with the largest speedup.
    None: `filters.fastest`."""
    more_rounds: int = 0
    """Number of rounds of further RFT, the arm that PPO is compared with; 0: no such arm. The arm
    starts from the same policy as PPO and plays as many episodes as value pretraining and PPO
    together."""
    evaluation_episodes: int = 8
    """Number of episodes played on each held-out task after each stage."""
    audited: bool = True
    """True to judge the kernels of PPO's evaluation again, without the cache; used with several
    seeds only."""

    def __post_init__(self) -> None:
        at_least(1, self, "turns", "reply", "rft_episodes", "value_episodes", "ppo_episodes")
        at_least(1, self, "demonstrations", "evaluation_episodes", "beside")
        at_least(0, self, "minutes", "cores", "first_turns", "shown", "more_rounds")
        between(0, 1, self, "together")
        between(*SEEDS, self, "seed")


def preset(device: str, kernels: Device, seed: int) -> DemoConfig:
    """Return the settings for training on `device` (`cpu`, `cuda`) with kernels for `kernels`."""
    start = DemoConfig(seed=seed)
    if kernels is Device.CUDA:
        return for_cuda(start)
    return for_host(start) if device == "cuda" else start


def for_host(config: DemoConfig) -> DemoConfig:
    """Return settings for a GPU that trains 5 million parameters while CPU cores time C++ kernels.

    There are many tasks, because a policy memorizes few. The critic is pretrained before PPO
    starts. The actor's learning rate warms up, because Adam's first steps have the full length of
    the rate. A single step can still ruin the policy, so a collapsed run rewinds and halves the
    rate.
    """
    return replace(
        config,
        timed=True,
        cores=12,
        gym=GymConfig(train=36, heldout=16, rows=32768),
        decoder=DecoderConfig(layers=4, width=320, heads=5),
        together=0.5,
        first_turns=8000,
        demonstrations=36,
        shown=12,
        base=replace(
            config.base,
            steps=1600,
            episodes_per_batch=32,
            optimizer=AdamW(1e-3, warmup=40, last=1600),
            evaluate_every=200,
            save_every=1600,
        ),
        rft_episodes=108,
        rft=replace(config.rft, steps=12, optimizer=AdamW(1e-4, warmup=3)),
        value_episodes=144,
        value=ValueConfig(60, 36, AdamW(5e-4, warmup=5), evaluate_every=20),
        ppo_episodes=72,
        ppo=replace(
            config.ppo,
            iterations=30,
            save_every=2,
            on_alarm=Action.ROLLBACK,
            # A poor critic alone must not rewind the run, which would undo the critic's training.
            limits=Limits(ev_last_quartile=-1.0),
            actor=AdamW(3e-4, warmup=8),
            critic=AdamW(5e-4),
        ),
        more_rounds=3,
        evaluation_episodes=8,
    )


def for_cuda(config: DemoConfig) -> DemoConfig:
    """Return settings for CUDA kernels on one GPU that both trains the decoder and times the
    kernels, never at the same time.

    The decoder is that of `for_host`. There are fewer tasks, because verdicts take longer: CUDA
    contexts are created one after the other, more slowly the more exist.
    """
    host = for_host(config)
    return replace(
        host,
        kernels=Device.CUDA,
        beside=3,
        cores=0,
        gym=GymConfig(train=10, heldout=6, rows=1 << 18),
        shown=0,
        rft_episodes=100,
        rft=replace(host.rft, steps=16),
        value_episodes=80,
        more_rounds=2,
        reply=120,
    )


def for_test(config: DemoConfig) -> DemoConfig:
    """Return the smallest settings that run all stages, in less than a minute."""
    return replace(
        config,
        gym=GymConfig(chain=1, train=1, heldout=1, rows=8),
        decoder=DecoderConfig(Pieces.WORDS, 1, 32, 2, 400, 768),
        turns=2,
        reply=24,
        first_turns=6,
        demonstrations=6,
        base=replace(config.base, steps=6, episodes_per_batch=6),
        rft_episodes=6,
        filters=Filters(-2.0, submitted=False, cut_turns=99, repeats=99, bad_calls=99),
        rft=replace(config.rft, steps=2),
        value_episodes=6,
        value=replace(config.value, steps=2),
        ppo_episodes=6,
        ppo=replace(config.ppo, iterations=2, save_every=1),
        more_rounds=2,
        evaluation_episodes=2,
    )
