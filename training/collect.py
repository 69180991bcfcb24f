"""Collecting: a policy plays tasks, iteration by iteration, and its episodes are kept on disk.

For: `collect` of the PPO loop, the sets for RFT and value pretraining, and evaluation; all are the
same thing with other tasks and seeds. Not covered: one episode (`rollout.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cuagent.task import Task
from cuagent.training import parallel
from cuagent.training.chat import Chat
from cuagent.training.curriculum import Curriculum, choose, recall, remember, weights
from cuagent.training.engine import Engine
from cuagent.training.pool import Pool
from cuagent.training.rollout import Play, play_many
from cuagent.training.segments import Episode, RecordError, write_episodes

Say = Callable[[str], None]


@dataclass
class Collector:
    """Call it with the number of an iteration; the episodes also go to `out/episodes/`."""

    tasks: Sequence[Task]
    chat: Chat
    engine: Engine
    pool: Pool
    play: Play
    out: Path
    episodes: int
    seed: int
    name: str = "policy"
    at_once: int = 256
    """Episodes in flight, a thread each."""
    curriculum: Curriculum | None = None
    """None plays every task equally often."""
    keep_runs: bool = False
    say: Say = print
    lost: dict[str, int] = field(default_factory=dict)

    def __call__(self, iteration: int) -> list[Episode]:
        """Raises RecordError where not a single episode has a reward."""
        jobs = parallel.mine(self._jobs(iteration))
        mine: list[Episode | None] = []  # None where an episode has no reward: order is kept
        for at in range(0, len(jobs), self.at_once):
            played = play_many(
                jobs[at : at + self.at_once],
                self.pool.judge_for,
                f"{self.name}@{iteration}",
                self.chat,
                self.engine,
                self.play,
                self.out / "runs" / f"{iteration:05d}-{parallel.rank()}-{at}",
                self.keep_runs,
            )
            mine += played.episodes
            for why, count in played.lost.items():
                self.lost[why] = self.lost.get(why, 0) + count
                self.say(f"  {count} episodes without a reward: {why}")
        found = [e for e in parallel.together(mine) if e is not None]
        if not found:
            raise RecordError(f"no episode of iteration {iteration} has a reward: {self.lost}")
        if parallel.rank() == 0:
            self._keep(iteration, found)
        return found

    def _keep(self, iteration: int, found: Sequence[Episode]) -> None:
        path = self.out / "episodes" / f"{iteration:05d}.jsonl"
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)  # of an attempt that was killed while it wrote
        write_episodes(partial, found)
        partial.replace(path)
        if self.curriculum is not None:
            remember(self.out / "outcomes.jsonl", iteration, found)

    def _jobs(self, iteration: int) -> list[tuple[Task, int]]:
        """(task, seed) of every episode; seeds differ between iterations and episodes."""
        by_digest = {task.digest: task for task in self.tasks}
        if self.curriculum is None:
            digests = [list(by_digest)[i % len(by_digest)] for i in range(self.episodes)]
        else:
            parallel.barrier()  # the first process has written what all read now
            past = recall(self.out / "outcomes.jsonl", iteration)
            shares = weights(list(by_digest), past, self.curriculum)
            digests = choose(shares, self.episodes, self.seed * 7919 + iteration)
        first = (self.seed * 100_003 + iteration) * 10_007
        return [(by_digest[d], first + i) for i, d in enumerate(digests)]
