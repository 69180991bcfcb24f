"""The whole way in one command: a small decoder learns to write kernels from nothing.

    teacher ─▶ base ─▶ plays ─▶ filter ─▶ RFT ─▶ plays ─▶ value pretraining ─▶ PPO

No download, no key: tokenizer and weights are made on the spot, tasks come from `gym.py`, every
kernel is compiled and judged for real. Each stage leaves a folder and is skipped when it is done,
so an interrupted demonstration goes on where it was. Held-out tasks are compositions that neither
the teacher nor the policy was shown; they are played after each stage.
Not covered: what holds over several seeds (`trial.py`).
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cuagent.agent.loop import run_agent
from cuagent.agent.tools import submit, verify, write
from cuagent.measure.others import cores_for
from cuagent.measure.timing import Effort
from cuagent.message import Message
from cuagent.record import list_runs, message_of, read_records
from cuagent.task import Task
from cuagent.training.chat import Chat, load_chat, plain, train_tokenizer
from cuagent.training.collect import Collector
from cuagent.training.curriculum import Curriculum
from cuagent.training.data import load_runs
from cuagent.training.engine import LocalEngine
from cuagent.training.filters import keep
from cuagent.training.gym import (
    Chain,
    chain_of,
    draw_chain,
    make_chains,
    make_tasks,
    opening,
    opening_of,
)
from cuagent.training.metrics import Metrics, episode_metrics, read_metrics
from cuagent.training.model import (
    load_actor,
    load_critic,
    new_actor,
    new_critic,
    parameters,
    save_model,
    small_config,
)
from cuagent.training.pool import JudgePool, Pool
from cuagent.training.ppo import ppo
from cuagent.training.presets import DemoConfig
from cuagent.training.rft import rft
from cuagent.training.rollout import Play, start_episode
from cuagent.training.segments import Episode, RecordError, read_episodes, write_episodes
from cuagent.training.teacher import Teacher, given, teacher_of
from cuagent.training.value import pretrain_value

Say = Callable[[str], None]
TOOLS = (write.TOOL, verify.TOOL, submit.TOOL)
SPOKEN = 1000
"""Conversations that the tokenizer learns from."""
ALONE = 0.85
"""Of the minutes, after which PPO ends; the last evaluation takes the rest."""
PLAYED_SHARE = 0.25
"""Of what the base policy is shown: whole episodes, which are few, are shown again and again."""


@dataclass
class Demo:
    """One demonstration in its folder; `run` goes through the stages."""

    config: DemoConfig
    device: str
    """Where the policy is sampled and trained."""
    out: Path
    pool: Pool
    shared: Path
    """Where tasks and demonstrations lie; other seeds use the same."""
    say: Say = print
    until: float | None = None
    """When PPO is to end, by time.time(), whatever iterations are left; None: it makes them all."""

    def run(self) -> dict[str, Metrics]:
        """Evaluations on held-out tasks by stage. Raises RecordError, ConfigError, PoolError."""
        c = self.config
        train, heldout = self.tasks()
        chat = self.taught(train, heldout)
        results: dict[str, Metrics] = {}

        def evaluated(name: str, actor: Any) -> None:
            results[name] = self.evaluation(name, heldout, chat, actor)

        # Base: imitates everything that the teacher did, its mistakes too.
        actor = self.actor("base", chat, None, self.imitate)
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
            ppo(actor, critic, collect, c.ppo, folder, self.say, enough=self.late)
            save(actor, chat, folder / "model")
        evaluated("ppo", load_actor(folder / "model").to(self.device))

        (self.out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        self.say(f"{self.pool.judged} kernels judged, {self.pool.remembered} remembered")
        return results

    def further(self) -> Metrics:
        """The arm that PPO is compared with: RFT on and on, from where PPO started.

        In each round the policy plays, and imitates all that went well so far; all rounds together
        judge as many episodes as value pretraining and PPO did.
        """
        c = self.config
        train, heldout = self.tasks()
        chat = self.taught(train, heldout)
        iterations = len(read_metrics(self.out / "ppo" / "metrics.jsonl"))
        each = (c.value_episodes + iterations * c.ppo_episodes) // c.more_rounds

        def work(actor: Any, out: Path) -> None:
            seen: list[Episode] = []
            for number in range(c.more_rounds):
                name = f"more/{number}"
                seen += self.played(name, train, chat, actor.eval(), each, 4 + number)
                self.refine(actor, seen, self.out / name)

        start = load_actor(self.out / "rft" / "model").to(self.device)
        actor = self.actor("more", chat, start, work)
        return self.evaluation("more", heldout, chat, actor)

    def late(self) -> bool:
        """Whether PPO's time is up."""
        return self.until is not None and time.time() >= self.until

    def tasks(self) -> tuple[list[Task], list[Task]]:
        """For training, held out."""
        g = self.config.gym
        # The seed of the run must not choose the tasks: seeds are compared on the same ones.
        chains = make_chains(g.chain, g.train + g.heldout, seed=0)
        if len(chains) < g.train + g.heldout:
            raise RecordError(f"only {len(chains)} chains of {g.chain} operators; ask for fewer")
        found = make_tasks(self.shared / "tasks", chains, self.config.kernels, g.rows)
        return found[: g.train], found[g.train :]

    # The stages.

    def taught(self, train: Sequence[Task], heldout: Sequence[Task]) -> Chat:
        """The teacher's part, done once; the tokenizer that its texts made."""
        folder = self.shared / "demonstrations"
        if not (folder / "tokenizer").exists():
            shutil.rmtree(folder, ignore_errors=True)  # an interrupted one would count twice
            self.demonstrate(train, heldout, folder)
        return load_chat(folder / "tokenizer")

    def demonstrate(self, train: Sequence[Task], heldout: Sequence[Task], out: Path) -> None:
        """Whole episodes on the training tasks, judged, and first turns on chains at random."""
        runs, play = out / "runs", self.play()

        def one(n: int) -> None:
            task = train[n % len(train)]
            run = start_episode(task, self.pool.judge_for(task), "teacher", play, runs)
            try:
                run_agent(run, teacher_of(task, n), play.tools)
            finally:
                run.log.close()

        self.say(f"the teacher plays {self.config.demonstrations} episodes")
        with ThreadPoolExecutor(32) as threads:
            list(threads.map(one, range(self.config.demonstrations)))
        first = list(self.first_turns({chain_of(task) for task in heldout}))
        spoken = [*conversations(runs), *first[:SPOKEN]]
        d = self.config.decoder
        chat = train_tokenizer(rendered(spoken), d.vocabulary, d.pieces)
        loaded = load_runs(runs, chat)
        write_episodes(out / "episodes.jsonl", loaded.episodes)
        write_episodes(out / "first.jsonl", [as_episode(n, m, chat) for n, m in enumerate(first)])
        chat.save(out / "tokenizer")  # last: its presence says that the stage is done
        m = episode_metrics(loaded.episodes)
        self.say(
            f"teacher: reward {m['reward']:+.2f}, correct {m['correct']:.0%}, "
            f"{m['action_tokens']:.0f} tokens sampled of {m['tokens']:.0f} an episode"
        )

    def first_turns(self, heldout: set[Chain]) -> Iterator[list[Message]]:
        """What the teacher does first on chains at random, none of them held out."""
        luck, kernels = random.Random(0), self.config.kernels
        n = 0
        while n < self.config.first_turns:
            chain = draw_chain(self.config.gym.chain, luck)
            if chain not in heldout or self.config.gym.chain == 1:
                yield Teacher(kernels, chain, 1_000_000 + n).first_turn(opening_of(kernels, chain))
                n += 1

    def imitate(self, actor: Any, out: Path) -> None:
        folder = self.shared / "demonstrations"
        longest = self.config.decoder.context
        whole = [e for e in read_episodes(folder / "episodes.jsonl") if e.tokens <= longest]
        first = list(read_episodes(folder / "first.jsonl"))
        self.say(
            f"base: {parameters(actor):,} parameters, {len(whole)} demonstrations, "
            f"{len(first)} first turns"
        )
        again = max(1, round(PLAYED_SHARE / (1 - PLAYED_SHARE) * len(first) / max(1, len(whole))))
        rft(actor, [*first, *whole * again], [], self.seeded(self.config.base), out, self.say)

    def refine(self, actor: Any, episodes: Sequence[Episode], out: Path) -> None:
        kept, funnel = keep(episodes, self.config.filters)
        for line in funnel.lines():
            self.say(f"  {line}")
        (out / "funnel.json").write_text(json.dumps(asdict(funnel)), encoding="utf-8")
        if not kept:
            raise RecordError("no episode is worth imitating; train the base policy for longer")
        rft(actor, kept, [], self.seeded(self.config.rft), out, self.say)

    def critic(self, actor: Any, episodes: Sequence[Episode]) -> Any:
        folder = self.out / "value"
        if not (folder / "model").exists():
            critic = new_critic(actor)
            heldout = max(1, len(episodes) // 8)
            train, rest = episodes[heldout:], episodes[:heldout]
            pretrain_value(critic, train, rest, self.seeded(self.config.value), folder, self.say)
            save_model(critic, folder / "model")
        return load_critic(folder / "model").to(self.device)

    def evaluation(self, name: str, heldout: Sequence[Task], chat: Chat, actor: Any) -> Metrics:
        """What a policy does on held-out tasks."""
        path = self.out / name / "evaluation.json"
        if not path.exists():
            n = self.config.evaluation_episodes * len(heldout)
            played = self.collector(heldout, chat, actor, path.parent / "evaluation", n, 9)
            write_whole(path, json.dumps(episode_metrics(played(0))))
        m: Metrics = json.loads(path.read_text(encoding="utf-8"))
        self.say(
            f"{name}, held out: reward {m['reward']:+.2f}, correct {m['correct']:.0%}, faster "
            f"than torch.compile {m['faster_than_compile']:.0%}"
        )
        return m

    # What the stages share.

    def seeded(self, config: Any) -> Any:
        """The settings of a stage with the seed of this run."""
        return replace(config, seed=self.config.seed)

    def actor(self, name: str, chat: Chat, before: Any, work: Callable[[Any, Path], None]) -> Any:
        """The actor after a stage: trained on from `before` (None: from random weights)."""
        folder = self.out / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "model").exists():
            d = self.config.decoder
            shape = (len(chat.tokenizer), d.layers, d.width, d.heads, d.context)
            fresh = small_config(*shape, chat.end, chat.pad)
            actor = before or new_actor(fresh, self.config.seed).to(self.device)
            work(actor, folder)
            save(actor, chat, folder / "model")
        return load_actor(folder / "model").to(self.device)

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
        seed = self.config.seed * 100 + part
        return Collector(
            tasks, chat, engine, self.pool, self.play(), out, episodes, seed, say=self.say
        )

    def play(self) -> Play:
        c = self.config
        limits = (c.turns, c.decoder.context, c.reply)
        return Play(TOOLS, opening, *limits, given=given, together=c.together)


def run_demo(config: DemoConfig, device: str, out: Path, say: Say) -> dict[str, Metrics]:
    """The demonstration in `out`; what is there already is not done again."""
    until = deadline(config.minutes, ALONE)
    # What a small decoder computes is too short to share: threads would wait for each other, and
    # on a busy machine ten times as long as they work.
    torch.set_num_threads(1)
    with judges(config, out) as pool:
        return Demo(config, device, out, pool, out, say, until).run()


def deadline(minutes: float | None, share: float) -> float | None:
    """By time.time(), when a share of the minutes will have passed; None where there is no end."""
    return None if minutes is None else time.time() + 60 * minutes * share


@contextmanager
def judges(config: DemoConfig, out: Path) -> Iterator[JudgePool]:
    """The pool that a configuration asks for; it remembers what it judged in `out`.

    Meanwhile this process, and what it starts, keeps off the processors that judge, if others are
    left: what trains and what compiles would disturb them.
    """
    out.mkdir(parents=True, exist_ok=True)
    memory = Path(config.judgements or out / "judgements.pickle")
    effort = Effort.GLANCE if config.timed else None
    cores, before = cores_of(config), os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - set(cores) or before)
    try:
        with JudgePool(effort, gpus=config.gpus, memory=memory, cores=cores) as pool:
            yield pool
    finally:
        os.sched_setaffinity(0, before)


def cores_of(config: DemoConfig) -> list[int]:
    """The processors that judge: of different physical cores where there are enough."""
    if not config.cores:
        return []
    return sorted(cores_for(config.cores) or os.sched_getaffinity(0))[: config.cores]


def save(actor: Any, chat: Chat, folder: Path) -> None:
    """A Hugging Face folder with the tokenizer, whole or absent."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    save_model(actor, partial)
    chat.save(partial)
    partial.rename(folder)


def write_whole(path: Path, text: str) -> None:
    """A file that another process finds whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def conversations(runs: Path) -> list[list[Message]]:
    """What was said in each run."""
    return [
        [message_of(r) for r in read_records(folder) if r["type"] == "message"]
        for folder in list_runs(runs)
    ]


def rendered(spoken: Sequence[Sequence[Message]]) -> Iterator[str]:
    """Conversations as the tokenizer will see them, to learn from."""
    stand_in = train_tokenizer([], 300)
    for messages in spoken:
        text = stand_in.render([plain(m) for m in messages])
        # Special tokens cut text anyway; the words between them are what is to be learned.
        yield re.sub(r"</?tool_call>|<\|im_\w+\|>", "\n", text)


def as_episode(number: int, messages: Sequence[Message], chat: Chat) -> Episode:
    """Text of the teacher to imitate. It was never judged: the reward means nothing."""
    segments = chat.segments(messages, [tool.spec for tool in TOOLS])
    return Episode(
        f"first-{number}", "", "", segments, 0.0, "not played", tokenizer=chat.fingerprint
    )
