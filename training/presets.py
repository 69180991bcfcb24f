"""The settings of `cuagent train demo`, for two cores, and for a GPU with and without them.

Not covered: the settings of one's own training (`TrainConfig` in `stages.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cuagent.task import Device
from cuagent.training.chat import Pieces
from cuagent.training.config import SEEDS, at_least, between
from cuagent.training.filters import Filters
from cuagent.training.monitor import Action, Limits
from cuagent.training.optimize import AdamW
from cuagent.training.ppo import PpoConfig
from cuagent.training.rft import RftConfig
from cuagent.training.value import ValueConfig


@dataclass(frozen=True)
class GymConfig:
    chain: int = 3
    """Pointwise operators of a task, beside the product."""
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
        if self.width % (2 * self.heads):  # a head turns its numbers in pairs, by their position
            raise ValueError(f"width: {self.width} is no multiple of twice the {self.heads} heads")


@dataclass(frozen=True)
class DemoConfig:
    """The values for a CPU with two cores."""

    seed: int = 0
    minutes: float | None = None
    """Wall time to fit in: PPO makes fewer iterations where it must. None: as long as it takes."""
    kernels: Device = Device.CPU
    """Where the kernels run; a GPU can train a policy that writes kernels for the CPU."""
    timed: bool = False
    """Without timing the rewards are -1 and 1: verifying takes a fifth of a second, timing more."""
    gpus: tuple[int, ...] = (0,)
    """Devices that judge; seeds train on the others, or by turns on these if there are none."""
    beside: int = 1
    """Kernels verified at once on each of them; timing is one after the other, beside nothing."""
    cores: int = 0
    """Processors that judge kernels for the CPU, an owner each; 0 is one owner anywhere."""
    rehearsal: bool = False
    """A rule on the text in place of compiler, verifier and clock, to try settings in minutes."""
    judgements: str | None = None
    """File that remembers what was judged; seeds on one machine may share it, one after another."""
    gym: GymConfig = field(default_factory=GymConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    turns: int = 3
    reply: int = 60
    together: float = 1.0
    """Share of the live episodes that wait before the policy samples; less does not hold up all
    for the slowest verdict."""
    first_turns: int = 3000
    """First turns of the teacher on other chains, written down and never judged."""
    demonstrations: int = 96
    """Whole episodes of the teacher, judged."""
    shown: int = 0
    """Training tasks that it plays them on, 0 for all; others can be opened while the base trains.
    """
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
    more_rounds: int = 0
    """Rounds of further RFT from the same start, on as many episodes as value pretraining and PPO
    take together: the arm that PPO is compared with."""
    evaluation_episodes: int = 8
    """For each held-out task, after each stage."""
    audited: bool = True
    """With several seeds, judge PPO's last evaluation again, afresh."""

    def __post_init__(self) -> None:
        at_least(1, self, "turns", "reply", "rft_episodes", "value_episodes", "ppo_episodes")
        at_least(1, self, "demonstrations", "evaluation_episodes", "beside")
        at_least(0, self, "minutes", "cores", "first_turns", "shown", "more_rounds")
        between(0, 1, self, "together")
        between(*SEEDS, self, "seed")


def preset(device: str, kernels: Device, seed: int) -> DemoConfig:
    """The settings for what trains and what the kernels are for."""
    start = DemoConfig(seed=seed)
    if kernels is Device.CUDA:
        return for_cuda(start)
    return for_host(start) if device == "cuda" else start


def for_host(config: DemoConfig) -> DemoConfig:
    """A GPU trains 5 million parameters, the cores beside it judge and time C++ kernels.

    Many tasks, for few are learned by heart; a critic that knows how episodes end before PPO
    begins; and an actor whose first steps are short, since Adam's are as long as its rate. One step
    can still undo all: a policy that fell is taken back to where it was, at half the rate.
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
            # A critic that still knows nothing is no reason to take its learning away.
            limits=Limits(ev_last_quartile=-1.0),
            actor=AdamW(3e-4, warmup=8),
            critic=AdamW(5e-4),
        ),
        more_rounds=3,
        evaluation_episodes=8,
    )


def for_cuda(config: DemoConfig) -> DemoConfig:
    """The same decoder writes CUDA kernels, timed on the GPU that trains it, never at once.

    Verdicts take longer, for contexts are made one after the other, the slower the more there are:
    so there are fewer tasks.
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
    """As small as it can be and still go the whole way, in well under a minute."""
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
