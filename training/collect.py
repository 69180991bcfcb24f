"""Collecting: a policy plays tasks, iteration by iteration, and its episodes are kept on disk.

For: `collect` of the PPO loop, the sets for RFT and value pretraining, and evaluation; all are the
same thing with other tasks and seeds. Not covered: one episode (`rollout.py`).
Invariant: a file in `out/episodes` that ends in .jsonl has all episodes of its iteration.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cuagent.task import Task
from cuagent.training import parallel
from cuagent.training.chat import Chat
from cuagent.training.curriculum import (
    Curriculum,
    append_outcomes,
    read_outcomes,
    sample_tasks,
    task_weights,
)
from cuagent.training.engine import Engine
from cuagent.training.files import read_lines, write_atomic
from cuagent.training.pool import Pool
from cuagent.training.rollout import Play, episode_id, play_many
from cuagent.training.segments import (
    VERSION,
    Episode,
    RecordError,
    episode_from,
    write_episodes,
)
from cuagent.training.throttle import Throttle

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
    max_in_flight: int = 256
    """Episodes in flight, a thread each."""
    curriculum: Curriculum | None = None
    """None plays every task equally often."""
    keep_runs: bool = False
    inputs: dict[str, Any] | None = None
    """What episodes depend on beside their seed, the policy above all. Where it is given, and is
    the same, a collection goes on from what a kill left of it; else it begins anew."""
    say: Say = print
    lost: dict[str, int] = field(default_factory=dict)

    def __call__(self, iteration: int) -> list[Episode]:
        """Raises RecordError where not a single episode has a reward."""
        jobs = parallel.local_share(self._jobs(iteration))
        policy = f"{self.name}@{iteration}"
        partial = self.out / "episodes" / f"{iteration:05d}-{parallel.rank()}.incomplete"
        ended = {} if self.inputs is None else resume_partial(partial, self.inputs)
        if ended:
            self.say(f"  going on from {len(ended)} episodes in {partial}")
        names = [episode_id(policy, task, seed) for task, seed in jobs]
        todo = [job for job, name in zip(jobs, names, strict=True) if name not in ended]
        progress = Progress(len(jobs), len(ended), partial if self.inputs else None, self.say)
        for at in range(0, len(todo), self.max_in_flight):
            played = play_many(
                todo[at : at + self.max_in_flight],
                self.pool.judge_for,
                policy,
                self.chat,
                self.engine,
                self.play,
                self.out / "runs" / f"{iteration:05d}-{parallel.rank()}-{at}",
                self.keep_runs,
                progress,
            )
            ended |= {e.id: e for e in played.episodes if e is not None}
            for why, count in played.lost.items():
                self.lost[why] = self.lost.get(why, 0) + count
                self.say(f"  {count} episodes without a reward: {why}")
        # None where an episode has no reward: the order is kept.
        found = [
            e for e in parallel.gather_interleaved([ended.get(n) for n in names]) if e is not None
        ]
        if not found:
            raise RecordError(f"no episode of iteration {iteration} has a reward: {self.lost}")
        if parallel.rank() == 0:
            self._write(iteration, found)
        parallel.barrier()  # what was begun is needed until the whole is there
        partial.unlink(missing_ok=True)
        return found

    def _write(self, iteration: int, found: Sequence[Episode]) -> None:
        path = self.out / "episodes" / f"{iteration:05d}.jsonl"
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)  # of an attempt that was killed while it wrote
        write_episodes(partial, found)
        partial.replace(path)
        if self.curriculum is not None:
            append_outcomes(self.out / "outcomes.jsonl", iteration, found)

    def _jobs(self, iteration: int) -> list[tuple[Task, int]]:
        """(task, seed) of every episode; seeds differ between iterations and episodes."""
        by_digest = {task.digest: task for task in self.tasks}
        if self.curriculum is None:
            digests = [list(by_digest)[i % len(by_digest)] for i in range(self.episodes)]
        else:
            parallel.barrier()  # the first process has written what all read now
            past = read_outcomes(self.out / "outcomes.jsonl", iteration)
            shares = task_weights(list(by_digest), past, self.curriculum)
            digests = sample_tasks(shares, self.episodes, self.seed * 7919 + iteration)
        first = (self.seed * 100_003 + iteration) * 10_007
        return [(by_digest[d], first + i) for i, d in enumerate(digests)]


class Progress:
    """Hears of every episode that ends: says now and then how many there are, and keeps each in the
    file `begun`, if there is one."""

    def __init__(self, total: int, ended_before: int, partial: Path | None, say: Say) -> None:
        self.all = total
        self.ended = ended_before
        self.partial = partial
        self.say = say
        self._throttle = Throttle()
        self._lock = threading.Lock()

    def __call__(self, episode: Episode | None) -> None:
        with self._lock:
            self.ended += 1
            if episode is not None and self.partial is not None:
                write_episodes(self.partial, [episode])
            if self._throttle.due() and self.ended < self.all:
                self.say(f"  {self.ended} of {self.all} episodes played")


def resume_partial(path: Path, inputs: dict[str, Any]) -> dict[str, Episode]:
    """The episodes, by id, of a collection that was begun in the same way; the file is made ready
    for more of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    inputs = json.loads(json.dumps({"v": VERSION, **inputs}))  # as it is read again
    lines: list[Any] = read_lines(path) if path.exists() else []
    head, *rows = lines or [None]
    found = [episode_from(row) for row in rows] if head == inputs else []
    lines = [inputs, *({"v": VERSION, **asdict(episode)} for episode in found)]
    write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines))
    return {episode.id: episode for episode in found}
