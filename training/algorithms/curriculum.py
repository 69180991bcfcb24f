"""Choose the tasks to play next: those that the policy solves sometimes, but not always.

A task that always succeeds or always fails gives every episode the same reward and so no advantage.
Its sampling weight falls, and rises again when its outcomes vary. So the mix becomes harder as the
policy improves. The success rate of a task that was not played yet is predicted from its measured
difficulty (`cuagent synth`) and the policy's ability by Rasch's model: the odds of a success are
exp(ability - difficulty).
Invariant: the choice for an iteration depends only on the seed and the outcomes of earlier
iterations, which are in a file; a resumed run chooses like an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuagent.training import parallel
from cuagent.training.data.segments import Episode
from cuagent.training.files import read_lines, write_atomic


@dataclass(frozen=True)
class Curriculum:
    memory: int = 32
    """Number of newest outcomes of a task from which its success rate is estimated."""
    floor: float = 0.05
    """Smallest weight of a task; the largest weight is `floor` + 0.25."""
    spread: float = 6.0
    """Difference in log odds of success between difficulty 0 (easiest) and 1 (hardest)."""
    known: float = 4.0
    """Weight of the success rate that a task's difficulty predicts, as an equivalent number of
    played episodes."""
    lowest: float = -1.0
    highest: float = 3.0
    """Largest possible reward; `lowest` is the smallest. Rewards are scaled from this range to 0 to
    1. Without timing the largest reward is 1."""


def task_weights(
    tasks: Sequence[str],
    outcomes: Iterable[tuple[str, float]],
    settings: Curriculum,
    difficulties: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Return each task's sampling weight p (1 - p) + floor, where p is the estimated success rate.

    `outcomes` are (task, reward), oldest first. p is the mean reward, scaled to 0 to 1.
    `difficulties` (0 to 1): a task's difficulty and the policy's ability predict a success rate,
    which is included in the mean like `known` further outcomes. p is 1/2 for a task without
    outcomes and without a difficulty.
    """
    seen: dict[str, list[float]] = defaultdict(list)
    for task, reward in outcomes:
        seen[task].append((reward - settings.lowest) / (settings.highest - settings.lowest))
    recent = {task: shares[-settings.memory :] for task, shares in seen.items()}
    graded = difficulties or {}
    level = ability(recent, graded, settings)
    out = {}
    for task in tasks:
        shares = recent.get(task, [])
        total, count = sum(shares), float(len(shares))
        if task in graded:
            total += settings.known * _expected(level, graded[task], settings)
            count += settings.known
        p = total / count if count else 0.5
        out[task] = p * (1 - p) + settings.floor
    return out


def ability(
    outcomes: Mapping[str, Sequence[float]], difficulties: Mapping[str, float], settings: Curriculum
) -> float:
    """Return the policy's ability in Rasch's model (log odds), fitted to its outcomes.

    `outcomes`: rewards of each task, scaled to 0 to 1. Tasks without a difficulty are ignored. One
    success and one failure at difficulty 1/2 are added, so the result is finite; without outcomes
    it is 0.
    """
    pairs = [(difficulties[t], y) for t, ys in outcomes.items() if t in difficulties for y in ys]
    pairs += [(0.5, 0.0), (0.5, 1.0)]
    low, high = -4 * settings.spread, 4 * settings.spread
    for _ in range(60):  # bisection: the surplus grows with the ability
        middle = (low + high) / 2
        surplus = sum(_expected(middle, d, settings) - y for d, y in pairs)
        low, high = (low, middle) if surplus > 0 else (middle, high)
    return (low + high) / 2


def _expected(level: float, difficulty: float, settings: Curriculum) -> float:
    return 1 / (1 + math.exp(-(level - settings.spread * (difficulty - 0.5))))


def sample_tasks(shares: Mapping[str, float], count: int, seed: int) -> list[str]:
    """Return `count` tasks drawn by systematic sampling: each task appears in proportion to its
    share.

    A task whose expected number is 2.3 appears two or three times.
    """
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
    """Append a line [iteration, task digest, reward] for each episode to the file of outcomes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as out:
        for e in episodes:
            out.write(json.dumps([iteration, e.task, e.reward]) + "\n")


def read_outcomes(path: Path, before: int) -> list[tuple[str, float]]:
    """Return (task digest, reward) of each episode played before iteration `before`.

    Lines of later iterations are deleted: a run that resumed from an earlier checkpoint plays these
    iterations again.
    """
    if not path.exists():
        return []
    rows = [row for row in read_lines(path) if row[0] < before]
    parallel.barrier()  # all processes have read before one writes
    if parallel.rank() == 0:
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
    return [(task, reward) for _, task, reward in rows]
