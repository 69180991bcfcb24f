"""Measure verdicts per second of judge pools with one and with several processes on a GPU.

    python benchmarks/train_judges.py --preset tiny                 # a dry run, C++ on a CPU
    python benchmarks/train_judges.py --preset gpu --out judges.json

The gym's teacher writes kernels, right and wrong ones; all are compiled in advance. For each number
of processes a pool opens all tasks, then judges every kernel in two passes without the cache.
Between two passes of one pool a kernel's speedup differs by chance only; between pools it should
differ no more. Not covered: compiling, sampling, a training loop on the same machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from slices import write

from cuagent.arms import COMPILE, EAGER
from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.judgement import Judgement
from cuagent.task import Device, Task
from cuagent.timing import Effort
from cuagent.training.demo.gym import make_chains, make_tasks
from cuagent.training.demo.teacher import initial_files, teacher_of
from cuagent.training.judging.pool import JudgePool

Work = Sequence[tuple[Task, Attempt]]
AT_ONCE = 32
"""Number of concurrent requests; each represents an episode that waits for a verdict."""


@dataclass(frozen=True)
class Size:
    device: Device
    tasks: int
    kernels: int
    """Number of kernels that are judged for each task."""
    rows: int
    owners: tuple[int, ...]


PRESETS = {
    "tiny": Size(Device.CPU, 1, 3, 1024, (1,)),
    "gpu": Size(Device.CUDA, 8, 6, 1 << 18, (1, 4, 8)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--owners", type=int, nargs="+", help="numbers of judging processes")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    size = PRESETS[options.preset]
    size = replace(size, owners=tuple(options.owners or size.owners))
    found: dict[str, Any] = {"size": asdict(size), "torch": torch.__version__}
    if size.device is Device.CUDA:
        found["device"] = torch.cuda.get_device_name()
    passes: dict[int, list[list[Judgement]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = kernels(size, Path(folder))
        for owners in size.owners:
            found[f"{owners} beside"], passes[owners] = arm(size, owners, work)
            found["agreement"] = agreement(passes)
            summary = {k: v for k, v in found[f"{owners} beside"].items() if k != "kernels"}
            print(owners, json.dumps(summary), flush=True)
            if options.out:
                write(options.out, found)
    print(json.dumps(found["agreement"], indent=1))


def kernels(size: Size, folder: Path) -> Work:
    """Return `size.kernels` distinct attempts per task, compiled in advance. Attempts that do not
    compile are included."""
    tasks = make_tasks(folder, make_chains(3, size.tasks, seed=0), size.device, size.rows)
    work: dict[tuple[str, str], tuple[Task, Attempt]] = {}
    for task in tasks:
        seed = 0
        while sum(key[0] == task.digest for key in work) < size.kernels:
            attempt = teacher_of(task, seed).attempt(initial_files(task))
            work[task.digest, attempt.digest] = task, attempt
            seed += 1
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda one: build(one[1], one[0].device), work.values()))
    return list(work.values())


def arm(size: Size, owners: int, work: Work) -> tuple[dict[str, Any], list[list[Judgement]]]:
    """Measure a pool with `owners` processes per GPU; return (its figures, the judgements of each
    pass)."""
    with (
        JudgePool(Effort.GLANCE, judges_per_gpu=owners) as pool,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        started = time.perf_counter()
        pool.open(list({task.digest: task for task, _ in work}.values()))
        seconds = [time.perf_counter() - started]
        passes = []
        for _ in range(2):
            started = time.perf_counter()
            passes.append(
                list(threads.map(lambda one: pool.judge_uncached(*one, Effort.GLANCE), work))
            )
            seconds.append(time.perf_counter() - started)
    right = [j for j in passes[1] if j.verdict.accepted]
    wrong = [j for j in passes[1] if not j.verdict.accepted]
    found = {
        "seconds to open": round(seconds[0], 2),
        "seconds of each pass": [round(s, 2) for s in seconds[1:]],
        "verdicts a second": round(len(work) / seconds[2], 3),
        "right": len(right),
        "of": len(work),
        "median seconds, right": medians([j.verdict.seconds for j in right]),
        "median seconds, wrong": medians([j.verdict.seconds for j in wrong]),
        "median seconds, timing": round(
            statistics.median([j.timing.seconds for j in right if j.timing] or [0.0]), 3
        ),
        "kernels": [list(map(verdict_row, both)) for both in zip(*passes, strict=True)],
    }
    return found, passes


def verdict_row(found: Judgement) -> dict[str, Any]:
    """Return a judgement as a JSON object: verdict, speedups with limits, microseconds and failures
    of each arm."""
    row: dict[str, Any] = {"right": found.verdict.accepted, "why": found.verdict.reason}
    if found.timing is not None:
        ratios = found.timing.ratios.items()
        row["speedups"] = {
            name: [round(x, 3) for x in (r.value, r.low, r.high)] for name, r in ratios
        }
        row["us"] = {arm.name: round(arm.median * 1e6, 2) for arm in found.timing.arms}
        row["failed"] = {arm.name: arm.failed for arm in found.timing.arms if arm.failed}
        row["refused"] = found.timing.refused
    return row


def medians(of: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median seconds of each part of a verdict. `of`: seconds by part, one mapping for
    each verdict."""
    parts = {name for seconds in of for name in seconds}
    return {
        part: round(statistics.median(seconds.get(part, 0.0) for seconds in of), 3)
        for part in sorted(parts)
    }


def agreement(passes: Mapping[int, list[list[Judgement]]]) -> dict[str, Any]:
    """Compare the passes of each pool with each other, and with those of the first pool; return the
    figures of `compared`.

    `passes`: the judgements of each pass, by number of processes.
    """
    one = next(iter(passes.values()))
    found: dict[str, Any] = {}
    for owners, (first, second) in passes.items():
        found[f"{owners}, its own passes"] = compared(first, second)
        if first is not one[0]:
            found[f"{owners} and {next(iter(passes))}"] = compared(one[1], second)
    return found


def compared(left: Sequence[Judgement], right: Sequence[Judgement]) -> dict[str, Any]:
    """Compare two passes over the same kernels: return the number of different verdicts and
    rewards, and the quotients of speedups over each baseline.

    `left`, `right`: the judgements of the passes.
    """
    pairs = list(zip(left, right, strict=True))
    return {
        "other verdicts": sum(a.verdict.accepted != b.verdict.accepted for a, b in pairs),
        "other rewards": sum(a.score.reward != b.score.reward for a, b in pairs),
        **{f"over {name}": spread(left, right, name) for name in (EAGER, COMPILE)},
    }


def spread(left: Sequence[Judgement], right: Sequence[Judgement], over: str) -> dict[str, Any]:
    """Return statistics of the quotients right / left of the speedups over a baseline: the median,
    the 5 and 95 % quantiles, and the number beyond a factor of 1.3.

    Kernels that either pass did not time are left out.
    """
    ratios = [
        now / before
        for before, now in zip(speedups(left, over), speedups(right, over), strict=True)
        if before and now
    ]
    cuts = statistics.quantiles(ratios, n=20) if len(ratios) > 1 else ratios * 2
    return {
        "speedups": len(ratios),
        "quotient": round(statistics.median(ratios), 4) if ratios else None,
        "5 to 95 %": [round(cuts[0], 4), round(cuts[-1], 4)] if ratios else None,
        "far off": sum(not 1 / 1.3 < q < 1.3 for q in ratios),
    }


def speedups(judged: Sequence[Judgement], over: str) -> list[float | None]:
    """Return each kernel's speedup over a baseline; None if the baseline or the kernel was not
    timed."""
    known = [j.timing.ratios.get(over) if j.timing is not None else None for j in judged]
    return [None if ratio is None else ratio.value for ratio in known]


if __name__ == "__main__":
    main()
