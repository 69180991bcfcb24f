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
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from slices import write
from train_scaling_compare import compared, medians
from train_scaling_parts import (
    Row,
    Size,
    Trainer,
    say,
    synchronized_time,
)

from cuagent.task import Device, Task
from cuagent.training import parallel
from cuagent.training.demo.gym import make_chains, make_tasks
from cuagent.training.demo.presets import GymConfig
from cuagent.training.demo.teacher import initial_files, teacher_of
from cuagent.training.judging.pool import JudgePool
from cuagent.training.policy.model import count_parameters

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


if __name__ == "__main__":
    main()
