"""Measure how rollouts and PPO updates scale from one GPU to several of a machine (weak scaling).

    torchrun --nproc-per-node 1 benchmarks/train_scaling.py --preset h200 --out n1.json
    torchrun --nproc-per-node 4 benchmarks/train_scaling.py --preset h200 --out n4.json
    python benchmarks/train_scaling.py --compare n1.json n4.json --out scaling.json

An iteration is one of `training/algorithms/ppo.py`, without checkpoints: a `Collector` plays gym
tasks through the agent's loop and tools, a pool on the process's own cores compiles and verifies
the kernels (C++, untimed), then actor and critic score and learn from all episodes, in replicas.
Each process plays the same number of episodes. The efficiency is the episodes per second of N
processes over N times those of one process.

A policy with random weights writes no kernel that can be judged. So the actor decodes, token by
token, the number of tokens that the gym's teacher would write; then the teacher's text replaces the
actor's. Decoding, tools, compilers, verdicts, the exchange of episodes, scores and updates are
real. The text is not the actor's, so the benchmark says nothing about learning.
Not covered: several machines, shards, timed verdicts, GPU kernels, episodes of many turns.

Invariant: a process has the same work and the same resources in every arm:

- one of `--shares` equal parts of the cores, in whole physical cores, for any number of processes;
- a number of tasks that is coprime to the number of processes, so each plays all tasks equally;
- its own compiler cache, empty at the start;
- a unique number in every kernel's text, so neither compiler nor judge reuses earlier results.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from slices import write
from train_throughput import PRESETS as DECODERS
from train_throughput import RATES, decoder

from cuagent.message import Message, ToolCall
from cuagent.task import Device, Task
from cuagent.training import parallel
from cuagent.training.algorithms.metrics import episode_metrics
from cuagent.training.algorithms.ppo_update import PpoConfig, update
from cuagent.training.algorithms.reward import with_reward
from cuagent.training.data.segments import require_logprobs
from cuagent.training.demo.demo import TOOLS
from cuagent.training.demo.demonstrations import first_turns, rendered
from cuagent.training.demo.gym import make_chains, make_tasks, opening
from cuagent.training.demo.presets import DemoConfig, GymConfig
from cuagent.training.demo.teacher import initial_files, teacher_of
from cuagent.training.engines.engine import LocalEngine, Request, Sampled
from cuagent.training.judging.pool import JudgePool
from cuagent.training.policy.chat import Chat, Pieces, train_tokenizer
from cuagent.training.policy.model import count_parameters, new_critic
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
PARTS = ("seconds", "rollouts", "updates")
SAME = ("torch", "device", "size", "processors", "judging")
"""Fields of the result that must be equal for two runs to be compared."""


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


PRESETS = {
    "tiny": Size("tiny", 1, 1, 4, 2, 1024),
    "h200": Size("h200", 9, 9, 48, 4, 4096),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--episodes", type=int, help="episodes of each process per iteration")
    parser.add_argument("--iterations", type=int, help="number of measured iterations")
    parser.add_argument("--shares", type=int, default=4, help="number of equal parts of the cores")
    parser.add_argument(
        "--processors", type=int, default=16, help="largest number of cores of a share"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no iteration after this time"
    )
    parser.add_argument("--compare", type=Path, nargs=2, help="two files written by --out")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    if options.compare:
        found = compared(*(json.loads(path.read_text("utf-8")) for path in options.compare))
        print(json.dumps(found, indent=1))
        if options.out:
            write(options.out, found)
        return
    asked = {"episodes": options.episodes, "iterations": options.iterations}
    size = replace(PRESETS[options.preset], **{k: v for k, v in asked.items() if v})
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if math.gcd(size.tasks, processes) > 1 or processes > options.shares:
        parser.error(f"{size.tasks} tasks and {options.shares} shares for {processes} processes")
    free = share(
        sorted(os.sched_getaffinity(0), key=physical_core),
        options.shares,
        int(os.environ.get("LOCAL_RANK", "0")),
        options.processors,
    )
    measure(size, free, 60 * options.minutes, options.out)


def physical_core(processor: int) -> tuple[int, int]:
    """Return a sort key of a logical CPU that groups the hardware threads of one physical core."""
    run_facts = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    with suppress(OSError, ValueError):
        return int(re.split("[,-]", run_facts.read_text())[0]), processor
    return processor, processor


def share(processors: Sequence[int], shares: int, number: int, most: int) -> list[int]:
    """Return part `number` (from 0) of `shares` equal parts of the CPUs, at most `most` CPUs.

    If there are fewer CPUs than parts, each part is one CPU, which several parts may share.
    """
    each = min(most, len(processors) // shares)
    if each == 0:
        return [processors[number % len(processors)]]
    return list(processors[number * each : (number + 1) * each])


# -- the parts of an iteration


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


# -- the run of one arm


def measure(size: Size, free: Sequence[int], seconds: float, out: Path | None) -> None:
    """Run the benchmark on the CPU cores `free` for about `seconds`; write the results to `out`
    after each iteration."""
    started_at = time.monotonic()
    judging = list(free[: max(1, min(size.owners, len(free) - 1))])
    os.sched_setaffinity(0, set(free) - set(judging) or set(free))
    # torchrun sets one thread per process for several processes only; use one in every arm.
    torch.set_num_threads(1)
    device = parallel.start("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory(prefix="cuagent-scaling-") as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        chains = make_chains(GymConfig.chain, size.tasks, seed=0)
        tasks = make_tasks(folder / "tasks", chains, Device.CPU, GymConfig.rows)
        with JudgePool(None, cores=judging) as pool, ThreadPoolExecutor(size.tasks) as threads:
            opened = [threads.submit(first_verdict, pool, task) for task in tasks]
            trainer = Trainer(size, tasks, pool, folder / "played", device)
            for verdict in opened:
                verdict.result()
            found = run_facts(size, trainer, free, judging, device)
            found["seconds to open"] = round(time.monotonic() - started_at, 1)
            if parallel.rank() == 0:
                say(f"opened in {found['seconds to open']:.0f} s")
            run(trainer, found, size.iterations, started_at + seconds, out)
    del trainer
    parallel.stop()


def first_verdict(pool: JudgePool, task: Task) -> None:
    """Judge one attempt at a task, so that the task is open in its judging process."""
    pool.judge(task, teacher_of(task, 0).attempt(initial_files(task)))


def run_facts(
    size: Size, trainer: Trainer, free: Sequence[int], judging: Sequence[int], device: str
) -> Row:
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "processes": parallel.size(),
        "size": asdict(size),
        "weights": count_parameters(trainer.actor),
        "processors": len(free),
        "judging": len(judging),
        "iterations": [],
    }


def run(trainer: Trainer, found: Row, iterations: int, end: float, out: Path | None) -> None:
    """Run a warm-up iteration and up to `iterations` measured ones (at least one); add their rows
    to `found`.

    No iteration starts after the time `end` (a time.monotonic() value).
    """
    for number in range(iterations + 1):
        row = trainer.iteration(number)
        if number == 0:
            found["warm-up"] = row
        else:
            found["iterations"].append(row)
            found["median"] = medians(found)
        stop = parallel.sum_number(float(time.monotonic() > end)) > 0  # the same on all processes
        found["replicas are equal"] = trainer.equal()
        if parallel.rank() == 0:
            say(describe(number, row))
            if out:
                write(out, found)
        if stop and number:
            break
    found["seconds of adding gradients"] = time_gradient_sums(trainer)
    if parallel.rank() == 0:
        say(f"adding the gradients of both models: {found['seconds of adding gradients']} s")
        if out:
            write(out, found)


def time_gradient_sums(trainer: Trainer, times: int = 3) -> list[float]:
    """Return the seconds of summing the gradients of both models over all processes, measured
    `times` times."""
    found = []
    for _ in range(times):
        started = synchronized_time()
        for model in (trainer.actor, trainer.critic):
            parallel.add_gradients(model)
        found.append(round(synchronized_time() - started, 4))
    return found


def describe(number: int, row: Mapping[str, Any]) -> str:
    """Return the row of one iteration as one line of text."""
    each = row["of each process"]
    decoding = max(own["decoding"] for own in each)
    return (
        f"{number or 'warm-up'}: {row['seconds']:.1f} s, rollouts {row['rollouts']:.1f} (decoding "
        f"{decoding:.1f}), updates {row['updates']:.1f}; {row['episodes']} episodes of "
        f"{row['tokens'] / row['episodes']:.0f} tokens, correct {row['correct']:.0%}, judged "
        f"{[own['judged'] for own in each]}, peak GiB {max(own['peak GiB'] for own in each):.1f}"
    )


# -- comparison of runs


def rates(found: Mapping[str, Any], part: str) -> list[float]:
    """Return episodes per second for each measured iteration: its episodes over the seconds of
    `part`."""
    return [row["episodes"] / row[part] for row in found["iterations"]]


def medians(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the median seconds of each part of an iteration, and the median episodes per
    second."""
    rows = found["iterations"]
    seconds = {part: round(statistics.median(row[part] for row in rows), 4) for part in PARTS}
    return seconds | {"episodes a second": round(statistics.median(rates(found, "seconds")), 4)}


def compared(few: Mapping[str, Any], many: Mapping[str, Any]) -> Row:
    """Return the efficiency of a run with `many` processes relative to one with `few`, overall and
    by part.

    An efficiency is the median over iterations, with the smallest and the largest value that any
    two iterations of the two runs give. Raises SystemExit if the runs differ in setup or have no
    iterations.
    """
    differ = [name for name in SAME if few[name] != many[name]]
    if differ:
        raise SystemExit(f"the runs cannot be compared; they differ in: {', '.join(differ)}")
    if not few["iterations"] or not many["iterations"]:
        raise SystemExit("a run has only warmed up; repeat it with more --iterations")
    more = many["processes"] / few["processes"]
    found: Row = {name: few[name] for name in SAME}
    found["processes"] = [run["processes"] for run in (few, many)]
    found["iterations"] = [len(run["iterations"]) for run in (few, many)]
    found["median"] = [medians(run) for run in (few, many)]
    found["peak GiB of each process"] = [peaks(run) for run in (few, many)]
    found["replicas are equal"] = many["replicas are equal"]
    found["seconds of adding gradients"] = many.get("seconds of adding gradients")
    for part, name in zip(PARTS, ("whole", "rollouts", "updates"), strict=True):
        a, b = rates(few, part), rates(many, part)
        found[f"efficiency, {name}"] = {
            "median": round(statistics.median(b) / statistics.median(a) / more, 4),
            "least": round(min(b) / max(a) / more, 4),
            "most": round(max(b) / min(a) / more, 4),
        }
    return found


def peaks(found: Mapping[str, Any]) -> list[float]:
    """Return the peak GPU memory of each process over all measured iterations, in GiB."""
    each = zip(*(row["of each process"] for row in found["iterations"]), strict=True)
    return [max(own["peak GiB"] for own in rows) for rows in each]


if __name__ == "__main__":
    main()
