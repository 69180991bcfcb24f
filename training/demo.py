"""The whole way in one command: a small decoder learns to write kernels from nothing.

    teacher plays ─▶ base ─▶ plays ─▶ filter ─▶ RFT ─▶ plays ─▶ value pretraining ─▶ PPO

No download, no key: tokenizer and weights are made on the spot, tasks come from `gym.py`, every
kernel is compiled and judged for real. Each stage leaves a folder and is skipped when it is done,
so an interrupted demonstration goes on where it was. Held-out tasks are compositions that neither
the teacher nor the policy was shown; they are played after each stage.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from cuagent.agent.loop import run_agent
from cuagent.agent.tools import submit, verify, write
from cuagent.measure.timing import Effort
from cuagent.record import list_runs, message_of, read_records
from cuagent.task import Device, Task
from cuagent.training.chat import Chat, load_chat, plain, train_tokenizer
from cuagent.training.collect import Collector
from cuagent.training.curriculum import Curriculum
from cuagent.training.data import load_runs
from cuagent.training.engine import LocalEngine
from cuagent.training.filters import Filters, keep
from cuagent.training.gym import Teacher, given, make_chains, make_tasks, opening
from cuagent.training.metrics import Metrics, episode_metrics
from cuagent.training.model import (
    load_actor,
    load_critic,
    new_actor,
    new_critic,
    parameters,
    save_model,
    small_config,
)
from cuagent.training.optimize import AdamW
from cuagent.training.pool import JudgePool
from cuagent.training.ppo import PpoConfig, ppo
from cuagent.training.rft import RftConfig, rft
from cuagent.training.rollout import Play, start_episode
from cuagent.training.segments import Episode, RecordError, read_episodes, write_episodes
from cuagent.training.value import ValueConfig, pretrain_value

Say = Callable[[str], None]
TOOLS = (write.TOOL, verify.TOOL, submit.TOOL)


@dataclass(frozen=True)
class GymConfig:
    chain: int = 2
    """Operators of a task."""
    train: int = 12
    heldout: int = 4
    rows: int = 64
    columns: int = 64


@dataclass(frozen=True)
class DecoderConfig:
    layers: int = 2
    width: int = 128
    heads: int = 4
    vocabulary: int = 512
    context: int = 1024


@dataclass(frozen=True)
class DemoConfig:
    """The values for a CPU with two cores; `for_cuda` has those for a GPU."""

    seed: int = 0
    timed: bool = False
    """Without timing the rewards are -1 and 1: verifying takes a fifth of a second, timing more."""
    gpus: tuple[int, ...] = (0,)
    """Devices that judge, one owner process each."""
    judgements: str | None = None
    """File that remembers what was judged; seeds on one machine may share it, one after another."""
    gym: GymConfig = field(default_factory=GymConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    turns: int = 4
    reply: int = 200
    together: float = 1.0
    """Less than 1 only where `gpus` are others than the one that samples."""
    demonstrations: int = 400
    base: RftConfig = field(
        default_factory=lambda: RftConfig(600, 16, AdamW(lr=2e-3, warmup=20), evaluate_every=100)
    )
    rft_episodes: int = 256
    filters: Filters = field(default_factory=Filters)
    rft: RftConfig = field(
        default_factory=lambda: RftConfig(60, 32, AdamW(lr=3e-4, warmup=10), evaluate_every=30)
    )
    value_episodes: int = 256
    value: ValueConfig = field(
        default_factory=lambda: ValueConfig(80, 32, AdamW(lr=1e-3, warmup=10), evaluate_every=40)
    )
    ppo_episodes: int = 64
    curriculum: bool = True
    ppo: PpoConfig = field(
        default_factory=lambda: PpoConfig(
            iterations=20,
            minibatches=2,
            actor=AdamW(lr=2e-4),
            critic=AdamW(lr=4e-4),
            lam_actor=None,
            lam_critic=1.0,
        )
    )
    evaluation_episodes: int = 8
    """For each held-out task, after each stage."""


def for_cuda(config: DemoConfig) -> DemoConfig:
    """A decoder of 11 million parameters, tensors whose kernels take some microseconds, timing."""
    return replace(
        config,
        timed=True,
        gym=GymConfig(chain=2, train=20, heldout=6, rows=256, columns=1024),
        decoder=DecoderConfig(6, 384, 6, 768, 1024),
        reply=420,
        demonstrations=800,
        base=replace(config.base, steps=600, episodes_per_batch=64, optimizer=AdamW(1e-3, 40)),
        rft_episodes=512,
        rft=replace(config.rft, steps=100, episodes_per_batch=64, optimizer=AdamW(2e-4, 10)),
        value_episodes=512,
        value=replace(config.value, steps=120, episodes_per_batch=64, optimizer=AdamW(3e-4, 10)),
        ppo_episodes=96,
        ppo=replace(config.ppo, iterations=40, minibatches=4, tokens_per_microbatch=131072),
    )


def for_test(config: DemoConfig) -> DemoConfig:
    """As small as it can be and still go the whole way, in well under a minute."""
    return replace(
        config,
        gym=GymConfig(chain=1, train=1, heldout=1, rows=4, columns=8),
        decoder=DecoderConfig(1, 32, 2, 400, 768),
        turns=2,
        reply=24,
        demonstrations=6,
        base=replace(config.base, steps=6, episodes_per_batch=6),
        rft_episodes=6,
        filters=Filters(-2.0, submitted=False, cut_turns=99, repeats=99, bad_calls=99),
        rft=replace(config.rft, steps=2),
        value_episodes=6,
        value=replace(config.value, steps=2),
        ppo_episodes=6,
        ppo=replace(config.ppo, iterations=2, save_every=1),
        evaluation_episodes=2,
    )


@dataclass
class Demo:
    """One demonstration in its folder; `run` goes through the stages."""

    config: DemoConfig
    device: Device
    out: Path
    pool: JudgePool
    say: Say = print

    def run(self) -> dict[str, Metrics]:
        """Evaluations on held-out tasks by stage. Raises RecordError, ConfigError, PoolError."""
        c = self.config
        train, heldout = self.tasks()
        chat = self.stage("demonstrations", lambda out: self.demonstrate(train, out))
        results: dict[str, Metrics] = {}

        def evaluated(name: str, actor: Any) -> None:
            path = self.out / name / "evaluation.json"
            if not path.exists():
                n = c.evaluation_episodes * len(heldout)
                played = self.collector(heldout, chat, actor, path.parent / "evaluation", n, 9)
                path.write_text(json.dumps(episode_metrics(played(0))), encoding="utf-8")
            results[name] = json.loads(path.read_text(encoding="utf-8"))
            m = results[name]
            self.say(
                f"{name}, held out: reward {m['reward']:+.2f}, correct {m['correct']:.0%}, faster "
                f"than torch.compile {m['faster_than_compile']:.0%}"
            )

        # Base: imitates everything that the teacher did, its mistakes too.
        actor = self.actor("base", chat, None, lambda a, out: self.imitate(a, out))
        evaluated("base", actor)

        # RFT: imitates the best of what the base did itself.
        mine = self.played("rft", train, chat, actor, c.rft_episodes, 1)
        actor = self.actor("rft", chat, actor, lambda a, out: self.refine(a, mine, out))
        evaluated("rft", actor)

        # Value pretraining: on everything that the refined policy does.
        theirs = self.played("value", train, chat, actor, c.value_episodes, 2)
        critic = self.critic(actor, theirs)

        # PPO. The collector sees the actor as it is trained, so each iteration is on policy.
        folder = self.out / "ppo"
        if not (folder / "model").exists():
            collect = self.collector(train, chat, actor, folder, c.ppo_episodes, 3)
            collect.curriculum = Curriculum() if c.curriculum else None
            ppo(actor, critic, collect, c.ppo, folder, self.say)
            save(actor, chat, folder / "model")
        actor = load_actor(folder / "model").to(actor.device)
        evaluated("ppo", actor)
        (self.out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        self.say(f"{self.pool.judged} kernels judged, {self.pool.remembered} remembered")
        return results

    # The stages.

    def tasks(self) -> tuple[list[Task], list[Task]]:
        g = self.config.gym
        # The seed of the run must not choose the tasks: seeds are compared on the same ones.
        chains = make_chains(g.chain, g.train + g.heldout, seed=0)
        if len(chains) < g.train + g.heldout:
            raise RecordError(f"only {len(chains)} chains of {g.chain} operators; ask for fewer")
        found = make_tasks(self.out / "tasks", chains, self.device, (g.rows, g.columns))
        return found[: g.train], found[g.train :]

    def demonstrate(self, tasks: Sequence[Task], out: Path) -> None:
        """The teacher plays; what it wrote makes the tokenizer and the demonstrations."""
        runs, play = out / "runs", self.play()

        def one(n: int) -> None:
            task = tasks[n % len(tasks)]
            run = start_episode(task, self.pool.judge_for(task), "teacher", play, runs)
            try:
                run_agent(run, Teacher(task, self.config.seed * 1_000_003 + n), play.tools)
            finally:
                run.log.close()

        self.say(f"the teacher plays {self.config.demonstrations} episodes")
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(one, range(self.config.demonstrations)))
        chat = train_tokenizer(conversations(runs), self.config.decoder.vocabulary)
        loaded = load_runs(runs, chat)
        write_episodes(out / "episodes.jsonl", loaded.episodes)
        chat.save(out / "tokenizer")  # last: its presence says that the stage is done
        m = episode_metrics(loaded.episodes)
        self.say(
            f"teacher: reward {m['reward']:+.2f}, correct {m['correct']:.0%}, "
            f"{m['action_tokens']:.0f} tokens sampled of {m['tokens']:.0f} an episode"
        )

    def imitate(self, actor: Any, out: Path) -> None:
        episodes = list(read_episodes(self.out / "demonstrations" / "episodes.jsonl"))
        longest = self.config.decoder.context
        fitting = [e for e in episodes if e.tokens <= longest]
        self.say(f"base: {parameters(actor):,} parameters, {len(fitting)} demonstrations")
        rft(actor, fitting, [], self.config.base, out, self.say)

    def refine(self, actor: Any, episodes: Sequence[Episode], out: Path) -> None:
        kept, funnel = keep(episodes, self.config.filters)
        for line in funnel.lines():
            self.say(f"  {line}")
        (out / "funnel.json").write_text(json.dumps(asdict(funnel)), encoding="utf-8")
        if not kept:
            raise RecordError("no episode is worth imitating; train the base policy for longer")
        rft(actor, kept, [], self.config.rft, out, self.say)

    def critic(self, actor: Any, episodes: Sequence[Episode]) -> Any:
        folder = self.out / "value"
        if not (folder / "model").exists():
            critic = new_critic(actor)
            heldout = max(1, len(episodes) // 8)
            train, rest = episodes[heldout:], episodes[:heldout]
            pretrain_value(critic, train, rest, self.config.value, folder, self.say)
            save_model(critic, folder / "model")
        return load_critic(folder / "model").to(actor.device)

    # What the stages share.

    def stage(self, name: str, work: Callable[[Path], None]) -> Chat:
        folder = self.out / name
        if not (folder / "tokenizer").exists():
            shutil.rmtree(folder, ignore_errors=True)  # an interrupted one would count twice
            work(folder)
        return load_chat(folder / "tokenizer")

    def actor(self, name: str, chat: Chat, before: Any, work: Callable[[Any, Path], None]) -> Any:
        """The actor after a stage: trained on from `before` (None: from random weights)."""
        folder = self.out / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "model").exists():
            d = self.config.decoder
            shape = (len(chat.tokenizer), d.layers, d.width, d.heads, d.context)
            fresh = small_config(*shape, chat.end, chat.pad)
            actor = before or new_actor(fresh, self.config.seed).to(torch_device(self.device))
            work(actor, folder)
            save(actor, chat, folder / "model")
        return load_actor(folder / "model").to(torch_device(self.device))

    def played(
        self, name: str, tasks: Sequence[Task], chat: Chat, actor: Any, episodes: int, part: int
    ) -> list[Episode]:
        """Episodes of the actor for a stage, sampled once and then read from disk."""
        folder = self.out / name / "sampled"
        path = folder / "episodes" / "00000.jsonl"
        if not path.exists():
            self.collector(tasks, chat, actor, folder, episodes, part)(0)
        found = list(read_episodes(path))
        m = episode_metrics(found)
        self.say(f"{name}: {len(found)} episodes of reward {m['reward']:+.2f} to learn from")
        return found

    def collector(
        self, tasks: Sequence[Task], chat: Chat, actor: Any, out: Path, episodes: int, part: int
    ) -> Collector:
        """`part` keeps the seeds of different sets apart."""
        engine = LocalEngine(actor.eval(), chat.end)
        seed = self.config.seed * 10 + part
        return Collector(
            tasks, chat, engine, self.pool, self.play(), out, episodes, seed, say=self.say
        )

    def play(self) -> Play:
        c = self.config
        limits = (c.turns, c.decoder.context, c.reply)
        return Play(TOOLS, opening, *limits, given=given, together=c.together)


def run_demo(config: DemoConfig, device: Device, out: Path, say: Say) -> dict[str, Metrics]:
    """The demonstration in `out`; what is there already is not done again."""
    out.mkdir(parents=True, exist_ok=True)
    memory = config.judgements or out / "judgements.pickle"
    effort = Effort.QUICK if config.timed else None
    with JudgePool(effort, gpus=config.gpus, memory=Path(memory)) as pool:
        return Demo(config, device, out, pool, say).run()


def save(actor: Any, chat: Chat, folder: Path) -> None:
    """A Hugging Face folder with the tokenizer, whole or absent."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    save_model(actor, partial)
    chat.save(partial)
    partial.rename(folder)


def conversations(runs: Path) -> list[str]:
    """Rendered conversations of all runs, for the tokenizer to learn from."""
    stand_in = train_tokenizer([], 300)
    return [
        # Special tokens cut text anyway; the words between them are what is to be learned.
        re.sub(r"</?tool_call>|<\|im_\w+\|>", "\n", text)
        for folder in list_runs(runs)
        for text in [
            stand_in.render(
                [plain(message_of(r)) for r in read_records(folder) if r["type"] == "message"]
            )
        ]
    ]


def torch_device(device: Device) -> torch.device:
    return torch.device("cuda" if device == Device.CUDA else "cpu")
