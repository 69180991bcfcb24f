"""Choose the tasks to play next: those that the policy sometimes solves.

A task that always succeeds or always fails gives every episode the same reward and so no advantage.
Its share shrinks, and grows again when its outcomes vary. The mix becomes harder as the policy
solves tasks and easier as it fails.
Invariant: the choice for an iteration depends only on the seed and the outcomes of earlier
iterations, which are in a file; a resumed run chooses like an uninterrupted one.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuagent.training import parallel
from cuagent.training.files import read_lines, write_atomic
from cuagent.training.segments import Episode


@dataclass(frozen=True)
class Curriculum:
    memory: int = 32
    """Number of newest outcomes of a task that count."""
    floor: float = 0.05
    """Smallest weight of a task; the largest is 0.25 plus this."""
    lowest: float = -1.0
    highest: float = 3.0
    """Bounds of the reward scale; `highest` is 1 without timing."""


def task_weights(
    tasks: Sequence[str], outcomes: Iterable[tuple[str, float]], settings: Curriculum
) -> dict[str, float]:
    """Return p (1 - p) + floor of each task.

    p is the mean reward as a share of the scale, 1/2 for a task without outcomes.
    """
    seen: dict[str, list[float]] = defaultdict(list)
    for task, reward in outcomes:
        seen[task].append(reward)
    out = {}
    for task in tasks:
        recent = seen[task][-settings.memory :]
        mean = sum(recent) / len(recent) if recent else (settings.lowest + settings.highest) / 2
        p = (mean - settings.lowest) / (settings.highest - settings.lowest)
        out[task] = p * (1 - p) + settings.floor
    return out


def sample_tasks(shares: Mapping[str, float], count: int, seed: int) -> list[str]:
    """Return `count` tasks; each appears its expected number of times, rounded at random."""
    rng = random.Random(seed)
    total = sum(shares.values())
    chosen: list[str] = []
    at, offset = 0.0, rng.random()
    for task, share in shares.items():  # systematic sampling: one offset, `count` equal strides
        at += share / total * count
        while len(chosen) + offset < at and len(chosen) < count:
            chosen.append(task)
    while len(chosen) < count:  # the last stride can be lost to rounding
        chosen.append(list(shares)[-1])
    return chosen


def append_outcomes(path: Path, iteration: int, episodes: Sequence[Episode]) -> None:
    """Append the outcomes of an iteration."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as out:
        for e in episodes:
            out.write(json.dumps([iteration, e.task, e.reward]) + "\n")


def read_outcomes(path: Path, before: int) -> list[tuple[str, float]]:
    """Return the outcomes of the iterations before `before`.

    Later lines, left by a run that resumes from an earlier checkpoint, are deleted.
    """
    if not path.exists():
        return []
    rows = [row for row in read_lines(path) if row[0] < before]
    parallel.barrier()  # all processes have read before one writes
    if parallel.rank() == 0:
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
    return [(task, reward) for _, task, reward in rows]
