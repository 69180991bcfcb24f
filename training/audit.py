"""The kernels of an evaluation once more: fresh processes, fresh secret inputs, a longer timing.

For: a result of record, whose rewards came from quick looks that were remembered. The source is
taken from the episode's own calls and must have the digest of what was scored then.
Not covered: which policy deserves it (`trial.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cuagent.attempt import MODULE, SOURCES, Attempt
from cuagent.task import Task
from cuagent.timing import Effort
from cuagent.training.pool import JudgePool
from cuagent.training.pool_server import PoolClient
from cuagent.training.segments import Episode, RecordError


@dataclass(frozen=True)
class Audit:
    """How many different accepted kernels there were, and what became of them."""

    kernels: int
    accepted: int
    """By the strict verdict, again."""
    reasons: Mapping[str, int]
    """Of those refused now."""
    reward_before: float
    """Mean over all episodes, those without a kernel too."""
    reward_again: float
    faster_before: float
    faster_again: float


def audit(
    episodes: Sequence[Episode],
    tasks: Sequence[Task],
    initial_files: Callable[[Task], Mapping[str, str]],
    pool: JudgePool | PoolClient,
    effort: Effort | None = Effort.QUICK,
) -> Audit:
    """Judge again what `episodes` scored with, in processes of its own for each kernel."""
    by_digest = {task.digest: task for task in tasks}
    found: dict[tuple[str, str], Attempt] = {}
    for e in episodes:
        if e.reward > 0 and (e.task, e.solution) not in found:
            found[e.task, e.solution] = solution_of(e, initial_files(by_digest[e.task]))
    with ThreadPoolExecutor(64) as threads:
        judged = threads.map(
            lambda k: pool.judge_uncached(by_digest[k[0]], found[k], effort), found
        )
        again = dict(zip(found, judged, strict=True))
    refused = Counter(j.verdict.reason.value for j in again.values() if not j.verdict.accepted)
    rewards = [
        float(again[e.task, e.solution].score.reward) if e.reward > 0 else e.reward
        for e in episodes
    ]
    n = len(episodes)
    return Audit(
        len(again),
        sum(j.verdict.accepted for j in again.values()),
        dict(refused),
        sum(e.reward for e in episodes) / n,
        sum(rewards) / n,
        sum(e.reward >= 3 for e in episodes) / n,
        sum(r >= 3 for r in rewards) / n,
    )


def solution_of(episode: Episode, initial_files: Mapping[str, str]) -> Attempt:
    """The attempt that an episode was scored by, from its calls of `write`. Raises RecordError."""
    files = dict(initial_files)
    for call in episode.calls:
        if call.name != "write" or not call.valid:
            continue
        arguments = json.loads(call.arguments, strict=False)
        files[arguments["path"].removeprefix("./")] = arguments["text"]
        kept = {
            name: text
            for name, text in files.items()
            if name == MODULE or (name.startswith("kernels/") and name.endswith(SOURCES))
        }
        attempt = Attempt(tuple(sorted(kept.items())))
        if attempt.digest == episode.solution:
            return attempt
    raise RecordError(f"episode {episode.id}: its calls do not make the kernel that was scored")
