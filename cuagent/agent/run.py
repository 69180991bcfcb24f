"""The Run: one `optimize`, and the only thing in the agent that changes.

It holds the conversation, the attempts that were judged and what was spent. Whatever changes is
written to the log in the same shielded moment, so that memory and log never disagree.
Not covered: deciding anything (`loop.py`, `hooks.py`) and measuring anything (`cuagent.judge`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent import __version__
from cuagent.agent.shield import shielded
from cuagent.agent.stop import Budget, Stop
from cuagent.attempt import Attempt
from cuagent.events import Emit, Judged, ignore
from cuagent.message import Message, Reply, Usage
from cuagent.models.model import ToolSpec
from cuagent.record import (
    RUNS,
    RunFolder,
    RunLog,
    close_open_calls,
    commit_work,
    init_work,
    new_run,
    plain,
)

if TYPE_CHECKING:
    from cuagent.judge import Judge, Judgement
    from cuagent.task import Task

REFERENCE = "reference.py"


@dataclass(frozen=True)
class Tried:
    """One attempt of the run, with the last judgement on it."""

    n: int
    attempt: Attempt
    commit: str
    """In the history of the work folder; "" where there is none."""
    judgement: Judgement

    @property
    def accepted(self) -> bool:
        return self.judgement.verdict.accepted

    @property
    def rank(self) -> tuple[int, float]:
        """Larger is better: the milestone first, then the ratio over eager."""
        score = self.judgement.score
        return score.reward, score.over_eager or 0.0


@dataclass
class Run:
    """The state of one run. Change it through its methods, which write the log."""

    task: Task
    folder: RunFolder
    log: RunLog
    judge: Judge
    budget: Budget
    emit: Emit = ignore
    messages: list[Message] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    final: Tried | None = None
    """The attempt of record with its fresh judgement."""
    stop: Stop | None = None
    error: str = ""
    """What the provider said, if it failed."""
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = 0.0
    """US dollars; None once a call had no known price."""
    started: float = field(default_factory=time.monotonic)
    seen: dict[Path, str] = field(default_factory=dict)
    """Files of the work folder that the model has read or written, with their sha256."""
    outputs: int = 0
    """How many long outputs were put into files."""

    @property
    def work(self) -> Path:
        return self.folder.work

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def best(self) -> Tried | None:
        """The best accepted attempt, by the numbers of the loop."""
        return max((t for t in self.tried if t.accepted), key=lambda t: t.rank, default=None)

    def add(self, message: Message, call: str | None = None) -> None:
        """Append a message to the conversation and the log."""
        with shielded():
            self.log.message(message, call)
            self.messages.append(message)

    def took(self, reply: Reply, model: str, sampling: Any, seconds: float) -> None:
        """Record a call of the model and the message that came of it."""
        with shielded():
            self.usage += reply.usage
            if self.cost is not None:
                self.cost = None if reply.cost is None else self.cost + reply.cost
            call = self.log.write(
                "call",
                parent=self.log.head,
                model=model,
                sampling=sampling,
                finish=reply.finish,
                usage=reply.usage,
                cost=reply.cost,
                ms=round(1000 * seconds),
                tokens=reply.tokens,
            )
            self.add(reply.message, call)

    def close_calls(self, why: str) -> None:
        """Answer every call that has no result."""
        for message in close_open_calls(self.messages, why)[len(self.messages) :]:
            self.add(message)

    def register(self, attempt: Attempt, judgement: Judgement) -> Tried:
        """Number, commit and record a judged attempt; the same text keeps its number."""
        with shielded():
            known = next((t for t in self.tried if t.attempt.digest == attempt.digest), None)
            if known:
                tried = replace(known, judgement=judgement)
                self.tried[known.n - 1] = tried
            else:
                n = len(self.tried) + 1
                commit = commit_work(self.folder, f"attempt {n}: {judgement.verdict.reason}")
                tried = Tried(n, attempt, commit, judgement)
                self.tried.append(tried)
                self.log.write(
                    "attempt", n=n, digest=attempt.digest, commit=commit, files=dict(attempt.files)
                )
                self.log.write("checkpoint", message=self.log.head, commit=commit, attempt=n)
            self._judged(tried, "quick")
        return tried

    def settle(self, tried: Tried, judgement: Judgement) -> Tried:
        """Record the fresh judgement on the attempt of record."""
        with shielded():
            settled = replace(tried, judgement=judgement)
            self._judged(settled, "record")
            if settled.accepted:
                self.final = settled
            else:  # what a fresh judgement refuses is the best of nothing
                self.tried[tried.n - 1] = settled
        return settled

    def end(self, summary: str, reward: int | None) -> None:
        """Write the last record."""
        self.log.write(
            "end",
            stop=self.stop,
            summary=summary,
            error=self.error,
            attempt=self.final.n if self.final else None,
            rewards={"milestone": {"score": reward, "weight": 1.0}},
            steps=self.steps,
            usage=self.usage,
            cost=self.cost,
            seconds=round(self.seconds, 3),
        )

    def _judged(self, tried: Tried, effort: str) -> None:
        judged = {**plain(tried.judgement), "attempt": tried.n}
        self.log.write("judgement", effort=effort, **judged)
        self.emit(Judged(tried.n, tried.judgement))


def start_run(
    task: Task,
    judge: Judge,
    *,
    model: str,
    tools: Sequence[ToolSpec] = (),
    budget: Budget | None = None,
    root: Path = RUNS,
    emit: Emit = ignore,
    config: Any = None,
) -> Run:
    """A fresh run: its folder, its log with the first records, and the opening messages.

    Raises RecordError.
    """
    from cuagent.agent.prompt import opening, skill, skill_digest

    budget = budget or Budget()
    folder = new_run(task.name, root)
    log = RunLog(folder)
    log.write(
        "session",
        cuagent=__version__,
        task={**plain(task), "name": task.name, "digest": task.digest},
        model=model,
        tools=tools,
        skill_sha256=skill_digest(skill()),
        budget=budget,
        config=config,
    )
    reference = folder.work / REFERENCE
    reference.write_text(task.source, encoding="utf-8")
    reference.chmod(0o444)
    if not init_work(folder):
        log.write("notice", level="warning", text="git is not installed: no commits of attempts")
    commit_work(folder, "the task")
    run = Run(task, folder, log, judge, budget, emit)
    for message in opening(task):
        run.add(message)
    return run
