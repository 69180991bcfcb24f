"""Parts of an iteration of `train_scaling.py`: an engine with the teacher's text, and a trainer."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from train_throughput import PRESETS as DECODERS
from train_throughput import RATES, decoder

from cuagent.message import Message, ToolCall
from cuagent.task import Task
from cuagent.training import parallel
from cuagent.training.algorithms.metrics import episode_metrics
from cuagent.training.algorithms.ppo_update import PpoConfig, update
from cuagent.training.algorithms.reward import with_reward
from cuagent.training.data.segments import require_logprobs
from cuagent.training.demo.demo import TOOLS
from cuagent.training.demo.demonstrations import first_turns, rendered
from cuagent.training.demo.gym import opening
from cuagent.training.demo.presets import DemoConfig
from cuagent.training.demo.teacher import initial_files, teacher_of
from cuagent.training.engines.engine import LocalEngine, Request, Sampled
from cuagent.training.judging.pool import JudgePool
from cuagent.training.policy.chat import Chat, Pieces, train_tokenizer
from cuagent.training.policy.model import new_critic
from cuagent.training.policy.optimize import make_optimizer
from cuagent.training.policy.placement import Dtype, Placement, place
from cuagent.training.rollout.collect import Collector
from cuagent.training.rollout.episode import Play

Row = dict[str, Any]
TURN = "<|im_start|>"
NEVER = -1
"""End-of-turn id that no token has, so that decoding always reaches the requested length."""
SPOKEN = 300
"""Number of the teacher's turns in the tokenizer's training text."""


@dataclass(frozen=True)
class Size:
    decoder: str
    """Name of the decoder: a preset of `train_throughput.py`."""
    tasks: int
    owners: int
    """Number of cores in a process's share that judge; compilers and the trainer use the others."""
    episodes: int
    """Number of episodes that each process plays in an iteration."""
    iterations: int
    """Number of measured iterations, after one for warm-up."""
    tokens_per_microbatch: int


class TeacherEngine:
    """An `Engine` that decodes as many tokens with the actor as the teacher's turn has, and then
    returns the teacher's tokens.

    The log-probabilities are those of the tokens that the actor decoded.
    """

    needs_batches = True

    def conversations(self) -> None:
        return None

    def __init__(self, actor: Any, chat: Chat, tasks: Sequence[Task]) -> None:
        self.local = LocalEngine(actor, NEVER)
        self.chat = chat
        self.tasks = {opening(task)[0].content: task for task in tasks}
        self.seconds = 0.0
        self.decoded = 0
        """Number of tokens decoded so far."""
        self.ended = 0.0
        """Time (by time.perf_counter()) when the last batch ended."""

    def open(self) -> AbstractContextManager[None]:
        return self.local.open()

    def sample(self, requests: Sequence[Request]) -> list[Sampled]:
        started = time.perf_counter()
        said = [self.says(request) for request in requests]
        asked = [replace(r, max_tokens=len(ids)) for r, ids in zip(requests, said, strict=True)]
        decoded = self.local.sample(asked)
        self.ended = time.perf_counter()
        self.seconds += self.ended - started
        self.decoded += sum(len(ids) for ids in said)
        return [
            Sampled(ids, own.logprobs, cut=ids[-1] != self.chat.end)
            for ids, own in zip(said, decoded, strict=True)
        ]

    def says(self, request: Request) -> tuple[int, ...]:
        """Return the token ids of the teacher's next turn, which depend on the prompt and the seed
        alone.

        The teacher does not see if the verdict was good, so it always submits after a verdict. An
        episode therefore has one long turn.
        """
        text = self.chat.tokenizer.decode(list(request.prompt))
        task = self.tasks[text.partition(f"{TURN}user\n")[2].partition(self.chat.end_text)[0]]
        last_message = Message("tool", "") if f"{TURN}tool\n" in text else opening(task)[0]
        turn = (
            teacher_of(task, request.seed)
            .query([last_message], (), lambda text, kind: None)
            .message
        )
        calls = tuple(with_number(call, request.seed) for call in turn.tool_calls)
        return self.chat.assistant_ids(replace(turn, tool_calls=calls))[: request.max_tokens]


def with_number(call: ToolCall, number: int) -> ToolCall:
    """Return the call with `number` added as a comment to the text that it writes; other calls
    unchanged."""
    arguments = json.loads(call.arguments)
    if "text" not in arguments:
        return call
    arguments["text"] = f"// {number}\n{arguments['text']}"
    return replace(call, arguments=json.dumps(arguments))


def tokenizer(vocabulary: int) -> Chat:
    """Train a tokenizer on the teacher's first turns, like `training/demo/demonstrations.py`."""
    turns = first_turns(DemoConfig(first_turns=SPOKEN), set())
    most = min(vocabulary, DemoConfig().decoder.vocabulary)
    return train_tokenizer(rendered(list(turns)), most, Pieces.WORDS)


class Trainer:
    """Actor and critic that play and learn from episodes, iteration by iteration."""

    def __init__(self, size: Size, tasks: Sequence[Task], pool: JudgePool, out: Path, device: str):
        model, processes = DECODERS[size.decoder], parallel.size()
        chat = tokenizer(model.vocabulary)
        start = decoder(model)
        critic = new_critic(start)
        placement = Placement(compute=Dtype.BF16)
        self.critic, self.actor = (place(m, placement, device) for m in (critic, start))
        budget = size.tokens_per_microbatch
        self.config = PpoConfig(actor=RATES, critic=RATES, tokens_per_microbatch=budget)
        self.optimizers = {
            "actor": make_optimizer(self.actor, RATES),
            "critic": make_optimizer(self.critic, RATES),
        }
        self.pool = pool
        self.engine = TeacherEngine(self.actor, chat, tasks)
        play = Play(TOOLS, opening, turns=4, context=2048, reply=512, initial_files=initial_files)
        self.collect = Collector(
            tasks, chat, self.engine, pool, play, out, size.episodes * processes, 0, say=say
        )

    def iteration(self, number: int) -> Row:
        """Run one iteration of PPO; return its times as a row, which is the same on every
        process."""
        engine, judged = self.engine, self.pool.judged
        engine.seconds, engine.decoded = 0.0, 0
        started = synchronized_time()
        self.actor.eval()
        episodes = self.collect(number)
        require_logprobs(episodes)
        metrics = episode_metrics(episodes)
        played = time.perf_counter()
        rewarded = with_reward(episodes, self.config.reward)
        metrics |= update(self.actor, self.critic, self.optimizers, rewarded, self.config, number)
        ended = synchronized_time()
        own = {
            "decoding": round(engine.seconds, 4),
            "decoded": engine.decoded,
            "last turn": round(engine.ended - started, 4),
            "judged": self.pool.judged - judged,
            "lost so far": sum(self.collect.lost.values()),
            "peak GiB": round(peak(), 2),
        }
        return {
            "seconds": round(ended - started, 4),
            "rollouts": round(played - started, 4),
            "updates": round(ended - played, 4),
            "episodes": len(episodes),
            "tokens": sum(e.tokens for e in episodes),
            "action tokens": sum(e.action_tokens for e in episodes),
            "correct": metrics["correct"],
            "finite": math.isfinite(metrics["actor_loss"] + metrics["critic_loss"]),
            "of each process": parallel.gather_interleaved([own]),
        }

    def equal(self) -> bool:
        """Return True if all processes have the same weights, as replicas must."""
        models = (self.actor, self.critic)
        own = [float(p.detach().double().sum()) for m in models for p in m.parameters()]
        return all(theirs == own for theirs in parallel.gather_interleaved([own]))


def synchronized_time() -> float:
    """Wait until all processes and their GPUs have finished their work; return the time."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    parallel.barrier()
    return time.perf_counter()


def peak() -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0


def say(text: str) -> None:
    print(f"[{parallel.rank()}] {text}", flush=True)
