"""Collect episodes: a policy plays tasks, iteration by iteration, and its episodes are saved.

PPO, the data sets for RFT and value pretraining, and evaluations use this module with different
tasks and seeds.
Not covered: one episode (`episode.py`), the files (`store.py`).
Invariant: if a file `out/episodes/*.jsonl` exists, it has all episodes of its iteration.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuagent.task import Task
from cuagent.training import parallel
from cuagent.training.algorithms.curriculum import (
    Curriculum,
    append_outcomes,
    read_outcomes,
    sample_tasks,
    task_weights,
)
from cuagent.training.data.segments import Episode, RecordError, read_episodes, write_episodes
from cuagent.training.engines.engine import Engine
from cuagent.training.judging.pool import Pool
from cuagent.training.policy.chat import Chat
from cuagent.training.rollout.episode import Play, episode_id, play_many
from cuagent.training.rollout.store import (
    drop_later,
    episodes_file,
    partial_file,
    resume_partial,
)
from cuagent.training.throttle import Throttle

Say = Callable[[str], None]

LEAST_KEPT = 0.5
"""Least share of an iteration's episodes that must have a reward. The others are lost where kernels
are judged, so the rest would teach a policy not to submit any."""


@dataclass
class Collector:
    """Callable that plays the episodes of one iteration, writes them to `out/episodes/`, and
    returns them."""

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
    """Number of episodes that run in parallel, one thread each."""
    curriculum: Curriculum | None = None
    """Rule that chooses the tasks by earlier outcomes; None: every task is played equally often."""
    difficulties: Mapping[str, float] = field(default_factory=dict)
    """Measured difficulty (0 to 1) of tasks by digest; the curriculum uses it like a few played
    outcomes."""
    keep_runs: bool = False
    inputs: dict[str, Any] | None = None
    """Inputs that the episodes depend on, such as the policy's digest. An interrupted collection
    with equal inputs resumes; one with other inputs starts again. None: never resume."""
    keeps: bool = False
    """True if an iteration whose file exists is read from it and not played again. The caller
    ensures that the file's episodes are of this run: a resumed run reads iterations in order, up to
    the first one that is missing."""
    say: Say = print
    lost: dict[str, int] = field(default_factory=dict)

    def __call__(self, iteration: int) -> list[Episode]:
        """Play and return the episodes of an iteration. Raises RecordError if no episode has a
        reward."""
        jobs = parallel.local_share(self._jobs(iteration))
        if self.keeps:
            if (whole := episodes_file(self.out, iteration)).exists():
                return self._kept(iteration, whole)
            drop_later(self.out, iteration)
        policy = f"{self.name}@{iteration}"
        names = [episode_id(policy, task, seed) for task, seed in jobs]
        partial = partial_file(self.out, iteration, parallel.rank())
        ended = (
            {}
            if self.inputs is None
            else resume_partial(self.out, iteration, self.inputs, set(names))
        )
        if ended:
            self.say(f"  resuming from {len(ended)} episodes in {partial}")
        todo = [job for job, name in zip(jobs, names, strict=True) if name not in ended]
        progress = Progress(len(jobs), len(ended), partial if self.inputs else None, self.say)
        at_once = self._at_once() if todo else 1
        for at in range(0, len(todo), at_once):
            played = play_many(
                todo[at : at + at_once],
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
        # Episodes without a reward are None until here, so that the order is that of the jobs.
        found = [
            e for e in parallel.gather_interleaved([ended.get(n) for n in names]) if e is not None
        ]
        if len(found) < LEAST_KEPT * self.episodes:
            some = f"only {len(found)} of {self.episodes} episodes" if found else "no episode"
            verb = "have" if found else "has"
            raise RecordError(f"{some} of iteration {iteration} {verb} a reward: {self.lost}")
        if parallel.rank() == 0:
            self._write(iteration, found)
        parallel.barrier()  # delete the partial files only when the complete file exists
        partial.unlink(missing_ok=True)
        return found

    def _at_once(self) -> int:
        """Return the number of episodes to play in parallel; report it if the engine's memory
        limits it.

        With more episodes than fit, conversations would displace each other from the engine's
        memory.
        """
        fits = self.engine.conversations()
        if fits is None or fits >= min(self.max_in_flight, self.episodes):
            return self.max_in_flight
        self.say(f"  {fits} episodes run in parallel: the memory for sampling holds no more")
        return fits

    def _kept(self, iteration: int, whole: Path) -> list[Episode]:
        """Return the episodes of an iteration that an interrupted run has played."""
        found = list(read_episodes(whole))
        self.say(f"  {len(found)} episodes of {whole} are not played again")
        if parallel.rank() == 0:
            self._note_outcomes(iteration, found)
        parallel.barrier()
        return found

    def _write(self, iteration: int, found: Sequence[Episode]) -> None:
        path = episodes_file(self.out, iteration)
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)  # left by a killed process
        write_episodes(partial, found)
        partial.replace(path)
        self._note_outcomes(iteration, found)

    def _note_outcomes(self, iteration: int, found: Sequence[Episode]) -> None:
        """Append the episodes' rewards to the file from which the curriculum chooses tasks."""
        if self.curriculum is not None:
            append_outcomes(self.out / "outcomes.jsonl", iteration, found)

    def _jobs(self, iteration: int) -> list[tuple[Task, int]]:
        """Return (task, seed) of every episode to play in an iteration; every episode of every
        iteration has another seed."""
        by_digest = {task.digest: task for task in self.tasks}
        if self.curriculum is None:
            digests = [list(by_digest)[i % len(by_digest)] for i in range(self.episodes)]
        else:
            parallel.barrier()  # wait for the first process to write the outcomes
            past = read_outcomes(self.out / "outcomes.jsonl", iteration)
            shares = task_weights(list(by_digest), past, self.curriculum, self.difficulties)
            digests = sample_tasks(shares, self.episodes, self.seed * 7919 + iteration)
        first = (self.seed * 100_003 + iteration) * 10_007
        return [(by_digest[d], first + i) for i, d in enumerate(digests)]


class Progress:
    """Callback for each finished episode: print progress from time to time, and append the episode
    to the file `partial`.

    `partial` None: episodes are not saved.
    """

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
