"""Run the whole training method in one command: a small decoder learns to write kernels from
scratch.

    teacher ─▶ base ─▶ plays ─▶ filter ─▶ RFT ─▶ plays ─▶ value pretraining ─▶ PPO

It needs no download and no key: tokenizer and weights are created locally, tasks come from
`gym.py`, and every kernel is compiled and judged. Each stage writes a folder. A stage whose folder
exists is skipped, so an interrupted demonstration resumes. Held-out tasks are compositions that
neither the teacher nor the policy has seen; the policy plays them after each stage.
Not covered: comparisons over several seeds (`trial.py`).
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from cuagent.agent.tools import submit, verify, write
from cuagent.device_lock import DeviceLock
from cuagent.task import Task
from cuagent.training.algorithms.curriculum import Curriculum
from cuagent.training.algorithms.metrics import Metrics, episode_metrics, read_metrics
from cuagent.training.algorithms.ppo import ppo
from cuagent.training.algorithms.reward import max_reward
from cuagent.training.algorithms.rft import rft, steps_of
from cuagent.training.algorithms.value import pretrain_value
from cuagent.training.data.filters import filter_episodes
from cuagent.training.data.segments import Episode, RecordError, read_episodes
from cuagent.training.demo.budget import EVALUATION, Budget
from cuagent.training.demo.demonstrations import demonstrate
from cuagent.training.demo.devices import (
    lock_for,
    open_pool,
    training_devices,
)
from cuagent.training.demo.gym import make_chains, make_tasks, opening
from cuagent.training.demo.presets import DemoConfig
from cuagent.training.demo.teacher import initial_files
from cuagent.training.engines.engine import LocalEngine
from cuagent.training.files import atomic_folder, write_atomic
from cuagent.training.judging.pool import Pool
from cuagent.training.manifest import fixed_settings, open_manifest
from cuagent.training.policy.chat import Chat, load_chat
from cuagent.training.policy.model import (
    count_parameters,
    load_actor,
    load_critic,
    new_actor,
    new_critic,
    save_model,
    small_config,
)
from cuagent.training.rollout.collect import Collector
from cuagent.training.rollout.episode import Play

Say = Callable[[str], None]

TOOLS = (write.TOOL, verify.TOOL, submit.TOOL)

IMITATED_SHARE = 0.5
"""Expected share of its played episodes that further RFT imitates; the others are duplicates or
wrong. Used to predict times only."""

WHOLE_EPISODE_SHARE = 0.25
"""Share of whole episodes in the base policy's training data; the rest are first turns. Whole
episodes are repeated to reach this share."""


@dataclass
class Demo:
    """One run of the demonstration, in the folder `out`; `run` runs all its stages."""

    config: DemoConfig
    device: str
    """Device on which the policy is sampled and trained."""
    out: Path
    pool: Pool
    shared: Path
    """Folder of the tasks and demonstrations, which all seeds use."""
    say: Say = print
    end: float | None = None
    """Time (a time.time() value) at which the run must end: PPO makes fewer iterations to meet it.
    None: no limit."""
    device_lock: DeviceLock = field(default_factory=DeviceLock)
    """Lock of `device`, held while the policy trains or samples, so that no kernel is timed there
    then."""

    def __post_init__(self) -> None:
        self.budget = Budget(self.out, self.end)

    def run(self) -> dict[str, Metrics]:
        """Run all stages; return the metrics on held-out tasks by stage. Raises RecordError,
        ConfigError, PoolError."""
        c = self.config
        train, heldout = self.tasks()
        with self.budget.stage("teacher"):
            chat = self.run_teacher(train, heldout)
        results: dict[str, Metrics] = {}

        def evaluated(name: str, actor: Any) -> None:
            results[name] = self.evaluate(name, heldout, chat, actor)

        # Base: imitates everything that the teacher did, including its mistakes.
        with self.budget.stage("base"):
            actor = self.actor("base", chat, None, self.train_base)
        evaluated("base", actor)

        # RFT: imitates the best of the base policy's own episodes.
        with self.budget.stage("rft played"):
            rft_episodes = self.sample_episodes("rft", train, chat, actor, c.rft_episodes, 1)
        with self.budget.stage("rft"):
            actor = self.actor(
                "rft", chat, actor, lambda a, out: self.run_rft(a, rft_episodes, out)
            )
        evaluated("rft", actor)

        # Value pretraining: on all episodes of the policy after RFT.
        with self.budget.stage("value"):
            value_episodes = self.sample_episodes("value", train, chat, actor, c.value_episodes, 2)
            critic = self.critic(actor, value_episodes)

        with self.budget.stage("ppo"):
            actor = self.run_ppo_stage(train, chat, actor, critic)
        evaluated("ppo", actor)

        (self.out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        self.say(f"time by stage: {self.budget.summary()}")
        self.say(f"{self.pool.judged} kernels judged, {self.pool.cache_hits} from the cache")
        return results

    def run_ppo_stage(self, train: Sequence[Task], chat: Chat, actor: Any, critic: Any) -> Any:
        """Train the actor by PPO and return it. The episodes are sampled from the actor in training
        (on-policy)."""
        c, folder = self.config, self.out / "ppo"
        if not (folder / "model").exists():
            initial = load_actor(self.out / "rft" / "model") if c.ppo.kl_weight else None
            reference = initial.to(self.device).eval() if initial else None
            collect = self.collector(train, chat, actor, folder, c.ppo_episodes, 3)
            if c.curriculum:
                collect.curriculum = Curriculum(highest=max_reward(c.timed))

            def should_stop() -> bool:
                self.budget.write()
                return self.out_of_time()

            ppo(
                actor,
                critic,
                collect,
                c.ppo,
                folder,
                self.say,
                reference,
                should_stop,
                self.device_guard,
            )
            save_policy(actor, chat, folder / "model")
        return load_actor(folder / "model").to(self.device)

    def run_further_rft(self) -> Metrics:
        """Run the arm that PPO is compared with: more rounds of RFT, from the policy that PPO
        started from.

        Return the policy's metrics on held-out tasks. In each round the policy plays, then imitates
        the fastest good episodes of each task so far (`more_fastest`), with as many steps per
        episode as the first RFT. All rounds together judge as many episodes as value pretraining
        and PPO. A round is skipped if the time runs out; `trial.json` has the number of episodes.
        """
        c = self.config
        train, heldout = self.tasks()
        chat = self.run_teacher(train, heldout)
        iterations = len(read_metrics(self.out / "ppo" / "metrics.jsonl"))
        each = (c.value_episodes + iterations * c.ppo_episodes) // c.more_rounds
        funnel = json.loads((self.out / "rft" / "funnel.json").read_text(encoding="utf-8"))

        def work(actor: Any, out: Path) -> None:
            seen: list[Episode] = []
            for number in range(c.more_rounds):
                started, name = time.time(), f"more/{number}"
                seen += self.sample_episodes(name, train, chat, actor.eval(), each, 4 + number)
                self.run_rft(actor, seen, self.out / name, funnel["kept"], c.more_fastest)
                self.budget.write()
                rounds_left = c.more_rounds - number - 1
                if rounds_left and time.time() - started > self.budget.remaining():
                    self.say(f"time limit: further RFT ends after {number + 1} rounds")
                    break

        start = load_actor(self.out / "rft" / "model").to(self.device)
        with self.budget.stage("more"):
            actor = self.actor("more", chat, start, work)
        return self.evaluate("more", heldout, chat, actor)

    def out_of_time(self) -> bool:
        """Return True if one more PPO iteration and the stages after PPO would exceed the time
        limit."""
        c = self.config
        # Use the evaluation after RFT: the base policy's also includes the time to open the tasks.
        evaluated = json.loads((self.out / "rft" / "evaluation.json").read_text("utf-8"))
        iterations = read_metrics(self.out / "ppo" / "metrics.jsonl")
        more = (c.value_episodes + len(iterations) * c.ppo_episodes) / c.rft_episodes
        further_rft = IMITATED_SHARE * more * (c.more_rounds + 1) / 2 if c.more_rounds else 0.0
        another: float = iterations[-1]["seconds"]
        return self.budget.remaining() < another + self.budget.seconds_after_ppo(
            evaluated.get("seconds", 0.0), further_rft
        )

    def tasks(self) -> tuple[list[Task], list[Task]]:
        """Return (training tasks, held-out tasks)."""
        g = self.config.gym
        # Do not use the run's seed: seeds are compared on the same tasks.
        chains = make_chains(g.chain, g.train + g.heldout, seed=0)
        if len(chains) < g.train + g.heldout:
            raise RecordError(
                f"only {len(chains)} chains of {g.chain} operators exist; lower gym.train"
            )
        found = make_tasks(self.shared / "tasks", chains, self.config.kernels, g.rows)
        return found[: g.train], found[g.train :]

    # The stages.

    def run_teacher(self, train: Sequence[Task], heldout: Sequence[Task]) -> Chat:
        """Create the teacher's episodes and the tokenizer if they are missing; return the
        tokenizer."""
        folder = self.shared / "demonstrations"
        if not (folder / "tokenizer").exists():
            shutil.rmtree(folder, ignore_errors=True)  # remove partial files, which are appended to
            demonstrate(self.config, self.pool, self.play(), train, heldout, folder, self.say)
        return load_chat(folder / "tokenizer")

    def train_base(self, actor: Any, out: Path) -> None:
        folder = self.shared / "demonstrations"
        longest = self.config.decoder.context
        whole = [e for e in read_episodes(folder / "episodes.jsonl") if e.tokens <= longest]
        first = list(read_episodes(folder / "first.jsonl"))
        self.say(
            f"base: {count_parameters(actor):,} parameters, {len(whole)} demonstrations, "
            f"{len(first)} first turns"
        )
        again = max(
            1,
            round(
                WHOLE_EPISODE_SHARE / (1 - WHOLE_EPISODE_SHARE) * len(first) / max(1, len(whole))
            ),
        )
        shown = [*first, *whole * again]
        rft(actor, shown, [], self.with_seed(self.config.base), out, self.say, self.device_guard)

    def run_rft(
        self,
        actor: Any,
        episodes: Sequence[Episode],
        out: Path,
        of: int | None = None,
        fastest: int | None = None,
    ) -> None:
        """Filter `episodes` and train `actor` on the kept ones by RFT.

        `of`: number of episodes for which the configured number of steps is meant; the steps are
        scaled to the number of kept episodes. None: not scaled. `fastest`: replaces
        `filters.fastest`, unless None.
        """
        filters = self.config.filters
        if fastest is not None:
            filters = replace(filters, fastest=fastest)
        kept, funnel = filter_episodes(episodes, filters)
        for line in funnel.lines():
            self.say(f"  {line}")
        (out / "funnel.json").write_text(json.dumps(asdict(funnel)), encoding="utf-8")
        if not kept:
            raise RecordError("no episode passes the filters; increase base.steps")
        settings = self.with_seed(self.config.rft)
        asked = steps_of(settings, of or len(kept))
        steps = math.ceil(asked * len(kept) / of) if of else asked
        rft(actor, kept, [], replace(settings, steps=steps), out, self.say, self.device_guard)

    def critic(self, actor: Any, episodes: Sequence[Episode]) -> Any:
        folder = self.out / "value"
        if not (folder / "model").exists():
            critic = new_critic(actor)
            heldout = max(1, len(episodes) // 8)
            train, rest = episodes[heldout:], episodes[:heldout]
            settings = self.with_seed(self.config.value)
            pretrain_value(critic, train, rest, settings, folder, self.say, self.device_guard)
            with atomic_folder(folder / "model") as partial:
                save_model(critic, partial)
        return load_critic(folder / "model").to(self.device)

    def evaluate(self, name: str, heldout: Sequence[Task], chat: Chat, actor: Any) -> Metrics:
        """Play the held-out tasks with a policy and return the metrics."""
        path = self.out / name / "evaluation.json"
        if not path.exists():
            n = self.config.evaluation_episodes * len(heldout)
            collect = self.collector(heldout, chat, actor, path.parent / "evaluation", n, 9)
            started = time.time()
            with self.budget.stage(EVALUATION):
                found = episode_metrics(collect(0)) | {"seconds": time.time() - started}
                write_atomic(path, json.dumps(found))
        m: Metrics = json.loads(path.read_text(encoding="utf-8"))
        self.say(
            f"{name}, held out: reward {m['reward']:+.2f}, correct {m['correct']:.0%}, faster "
            f"than torch.compile {m['faster_than_compile']:.0%}"
        )
        return m

    # Methods that the stages share.

    @contextmanager
    def device_guard(self) -> Iterator[None]:
        """Hold the device lock (shared) inside this context; synchronize the device before the lock
        is released."""
        with self.device_lock.shared():
            try:
                yield
            finally:
                if self.device.startswith("cuda"):
                    torch.cuda.synchronize(self.device)

    def with_seed(self, config: Any) -> Any:
        """Return a stage's settings with the seed of this run."""
        return replace(config, seed=self.config.seed)

    def actor(self, name: str, chat: Chat, before: Any, work: Callable[[Any, Path], None]) -> Any:
        """Return the actor after stage `name`.

        A finished stage's actor is loaded. Otherwise `work` trains `before` (None: a model with
        random weights) in place, and the result is saved.
        """
        folder = self.out / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "model").exists():
            d = self.config.decoder
            shape = (len(chat.tokenizer), d.layers, d.width, d.heads, d.context)
            fresh = small_config(*shape, chat.end, chat.pad)
            actor = before or new_actor(fresh, self.config.seed).to(self.device)
            work(actor, folder)
            save_policy(actor, chat, folder / "model")
        return load_actor(folder / "model").to(self.device)

    def sample_episodes(
        self, name: str, tasks: Sequence[Task], chat: Chat, actor: Any, episodes: int, part: int
    ) -> list[Episode]:
        """Return `episodes` episodes of the actor for stage `name`; they are sampled at the first
        call and then read from disk."""
        folder = self.out / name / "sampled"
        path = folder / "episodes" / "00000.jsonl"
        if not path.exists():
            self.collector(tasks, chat, actor, folder, episodes, part)(0)
        found = list(read_episodes(path))
        m = episode_metrics(found)
        self.say(f"{name}: {len(found)} episodes of mean reward {m['reward']:+.2f}")
        return found

    def collector(
        self, tasks: Sequence[Task], chat: Chat, actor: Any, out: Path, episodes: int, part: int
    ) -> Collector:
        """Return a `Collector` of the actor's episodes on `tasks`. Each `part` number leads to
        other sampling seeds."""
        engine = LocalEngine(actor.eval(), chat.end, guard=self.device_guard)
        seed = self.config.seed * 100 + part
        return Collector(
            tasks, chat, engine, self.pool, self.play(), out, episodes, seed, say=self.say
        )

    def play(self) -> Play:
        c = self.config
        limits = (c.turns, c.decoder.context, c.reply)
        return Play(TOOLS, opening, *limits, initial_files=initial_files, together=c.together)


def run_demo(config: DemoConfig, device: str, out: Path, say: Say) -> dict[str, Metrics]:
    """Run the demonstration in `out`; skip finished stages.

    Raises ConfigError if the folder was made with other settings.
    """
    open_manifest(out, "demo", {}, fixed_settings(config))
    end = None if config.minutes is None else time.time() + 60 * config.minutes
    # A small decoder's operations are too short for several threads: on a busy machine threads
    # would wait for each other ten times as long as they compute.
    torch.set_num_threads(1)
    where = training_devices(config, device)[0]
    with open_pool(config, out) as pool:
        return Demo(config, where, out, pool, out, say, end, lock_for(config, pool, where)).run()


def save_policy(actor: Any, chat: Chat, folder: Path) -> None:
    """Save the actor and its tokenizer as a Hugging Face folder."""
    with atomic_folder(folder) as partial:
        save_model(actor, partial)
        chat.save(partial)
