"""Judge the kernels of an evaluation again, in fresh processes, with fresh secret inputs.

The rewards of an evaluation are from short, cached judgements; a published result needs a new
verdict and a longer timing. The source of a kernel is rebuilt from the tool calls of its episode,
and must have the digest that was scored.
Not covered: the choice of the policy (`trial.py`).
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
from cuagent.training.data.segments import Episode, RecordError
from cuagent.training.judging.pool import JudgePool
from cuagent.training.judging.pool_server import PoolClient


@dataclass(frozen=True)
class Audit:
    """Result of judging an evaluation's kernels again: counts of distinct accepted kernels, and
    means over all episodes."""

    kernels: int
    accepted: int
    """Number of distinct kernels that the strict verdict accepts again."""
    reasons: Mapping[str, int]
    """Number of kernels that the new verdict rejected, by reason."""
    reward_before: float
    """Mean reward over all episodes, including those without a kernel."""
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
    """Judge every distinct accepted kernel of `episodes` again, without the cache; return the
    result."""
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
    """Rebuild the scored attempt of an episode from its `write` calls.

    Raises RecordError if no state of the files has the scored digest.
    """
    files = dict(initial_files)
    for call in episode.calls:
        if call.name != "write" or not call.valid:
            continue
        arguments = json.loads(call.arguments, strict=False)
        files[arguments["path"].removeprefix("./")] = arguments["text"]
        sources = {
            name: text
            for name, text in files.items()
            if name == MODULE or (name.startswith("kernels/") and name.endswith(SOURCES))
        }
        attempt = Attempt(tuple(sorted(sources.items())))
        if attempt.digest == episode.solution:
            return attempt
    raise RecordError(f"episode {episode.id}: its calls do not produce the kernel that was scored")
