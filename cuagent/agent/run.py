"""The Run: one `optimize`, and the only thing in the agent that changes.

It holds the conversation, the attempts that were judged and what was spent. Whatever changes is
written to the log in the same shielded moment, so that memory and log never disagree.
Another thread may put texts into `inbox` and call `cancel`, and nothing else.
Not covered: how a run begins (`begin.py`), deciding anything (`loop.py`, `hooks.py`) and measuring
anything (`cuagent.judge`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from cuagent.agent.attended import attend
from cuagent.agent.shield import shielded
from cuagent.agent.stop import Budget, Stop
from cuagent.attempt import Attempt
from cuagent.events import Emit, Judged, LadderMeasured, Notice, Spent, ignore
from cuagent.message import Message, Reply, Usage
from cuagent.models.model import ToolSpec
from cuagent.record import (
    FileState,
    RecordError,
    RunFolder,
    RunLog,
    close_open_calls,
    commit_work,
    keep_evidence,
    plain_judgement,
    take_snapshot,
)

if TYPE_CHECKING:
    from cuagent.agent.jobs import Job
    from cuagent.judge import Judge, Judgement
    from cuagent.measure.ladder import Ladder
    from cuagent.task import Task

T = TypeVar("T")
REFERENCE = "reference.py"
CHARACTERS_A_TOKEN = 3
"""For guesses on the safe side: source code has three to four."""


class JudgeLost(Exception):
    """Nothing can be judged any more: no worker, no oracle, no sandbox. One line."""


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
        """Larger is better (`Judgement.rank`)."""
        return self.judgement.rank


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
    ladder: Ladder | None = None
    """What is free; None until it was measured."""
    settled: dict[int, Tried] = field(default_factory=dict)
    """Attempts that were accepted when judged for the record, by number, with that judgement."""
    stop: Stop | None = None
    ended: Stop | None = None
    """The end with a result that stands until something more is judged: a question that is only
    answered takes nothing back."""
    error: str = ""
    """What the provider said, if it failed."""
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = 0.0
    """US dollars; None once a call had no known price."""
    device_seconds: float = 0.0
    """Spent in the judge on the device."""
    started: float | None = field(default_factory=time.monotonic)
    """On the monotonic clock; None while nobody works."""
    earlier_seconds: float = 0.0
    """Worked before `started`."""
    context_tokens: int = 0
    """How long the conversation is, by the provider's count and a guess for what came since."""
    inbox: SimpleQueue[str] = field(default_factory=SimpleQueue)
    """What the user says while the agent works; it reaches the model before the next step."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    tools: tuple[ToolSpec, ...] = ()
    """What the model is offered."""
    todo: list[dict[str, str]] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    """Background commands, by the name the model knows them by."""
    seen: dict[str, str] = field(default_factory=dict)
    """Files of the work folder that the model has read or written, with their sha256."""
    files: dict[str, FileState] = field(default_factory=dict)
    """The work folder after the last step that changed it."""
    outputs: int = 0
    """How many long outputs were put into files."""
    _judging: threading.Lock = field(default_factory=threading.Lock)

    @property
    def work(self) -> Path:
        return self.folder.work

    @property
    def seconds(self) -> float:
        """Worked so far; the time in which a person thought is not counted."""
        now = time.monotonic()
        return self.earlier_seconds + (0.0 if self.started is None else now - self.started)

    @property
    def best(self) -> Tried | None:
        """The best accepted attempt, by the numbers of the loop."""
        return max((t for t in self.tried if t.accepted), key=lambda t: t.rank, default=None)

    @property
    def final(self) -> Tried | None:
        """The best attempt by the judgements of record; None where there is none."""
        return max(self.settled.values(), key=lambda t: t.rank, default=None)

    @property
    def result(self) -> Tried | None:
        """The best accepted attempt, each by its judgement of record where it has one."""
        known = (self.settled.get(t.n, t) for t in self.tried)
        return max((t for t in known if t.accepted), key=lambda t: t.rank, default=None)

    def spent(self) -> Spent:
        """Totals so far, for the views."""
        tokens_in = self.usage.input + self.usage.cache_read + self.usage.cache_write
        return Spent(self.steps, self.seconds, tokens_in, self.usage.output, self.cost)

    def cancel(self) -> None:
        """Interrupt the step in flight, from any thread."""
        self.cancelled.set()

    def clock_in(self) -> None:
        """Work begins, again perhaps."""
        self.cancelled.clear()
        if self.started is None:
            self.started = time.monotonic()

    def clock_out(self) -> None:
        """Work ends for now."""
        self.earlier_seconds, self.started = self.seconds, None

    def notice(self, text: str, level: Literal["info", "warning", "error"] = "info") -> None:
        """Tell the user something, and keep it."""
        self.log.write("notice", level=level, text=text)
        self.emit(Notice(text, level))

    def add(self, message: Message, call: str | None = None) -> None:
        """Append a message to the conversation and the log."""
        with shielded():
            self.log.message(message, call)
            self.messages.append(message)
            if call is None:
                self.context_tokens += len(message.content) // CHARACTERS_A_TOKEN

    def took(self, reply: Reply, model: str, sampling: Any, seconds: float) -> None:
        """Record a call of the model and the message that came of it."""
        with shielded():
            call = self.paid(reply, model, sampling, seconds)
            self.add(reply.message, call)
            usage = reply.usage
            self.context_tokens = (
                usage.input + usage.cache_read + usage.cache_write + usage.output
            ) or self.context_tokens

    def paid(self, reply: Reply, model: str, sampling: Any, seconds: float, **more: Any) -> str:
        """Record what a call of the model took; returns the record's id."""
        self.usage += reply.usage
        if self.cost is not None:
            self.cost = None if reply.cost is None else self.cost + reply.cost
        return self.log.write(
            "call",
            parent=self.log.head,
            model=model,
            sampling=sampling,
            finish=reply.finish,
            usage=reply.usage,
            cost=reply.cost,
            ms=round(1000 * seconds),
            tokens=reply.tokens,
            **more,
        )

    def close_calls(self, why: str) -> None:
        """Answer every call that has no result."""
        for message in close_open_calls(self.messages, why)[len(self.messages) :]:
            self.add(message)

    def branch(self, messages: list[Message], head: str | None, why: str) -> None:
        """Go on from `messages`, the last of which is `head` in the log; what was stays there."""
        with shielded():
            self.log.branch(head, why)
            self.messages[:] = messages
            self.context_tokens = tokens_of(messages)

    def consult(self, work: Callable[[Judge], T]) -> T:
        """Let the judge do something. Raises JudgeLost and Interrupted.

        Interrupted work goes on to its end, unseen, and the judge does nothing else before.
        """

        def in_turn() -> T:
            with self._judging:
                return work(self.judge)

        try:
            return attend(in_turn, self.cancelled)
        except _losses() as error:
            raise JudgeLost(f"{type(error).__name__}: {error}") from error

    def measured(self, what: str, work: Callable[[Judge], T]) -> T:
        """Like `consult`, for what runs on the device: the time it takes is counted."""
        start = time.monotonic()
        try:
            return self.consult(work)
        finally:
            seconds = time.monotonic() - start
            self.device_seconds += seconds
            self.log.write("device", what=what, seconds=round(seconds, 3))

    def snapshot(self) -> None:
        """Keep the files of the work folder if they have changed, for `undo` to come back to."""
        with shielded():
            before = {name: kept.digest for name, kept in self.files.items()}
            files = take_snapshot(self.folder, self.files)
            if files != before:
                self.log.write("checkpoint", message=self.log.head, files=files)

    def register(self, attempt: Attempt, judgement: Judgement) -> Tried:
        """Number, commit and record a judged attempt; the same text keeps its number."""
        with shielded():
            known = next((t for t in self.tried if t.attempt.digest == attempt.digest), None)
            if known:
                tried = replace(known, judgement=judgement)
                self.tried[known.n - 1] = tried
            else:
                n = len(self.tried) + 1
                commit = self._commit(f"attempt {n}: {judgement.verdict.reason}")
                tried = Tried(n, attempt, commit, judgement)
                self.tried.append(tried)
                self.log.write(
                    "attempt", n=n, digest=attempt.digest, commit=commit, files=dict(attempt.files)
                )
            self._judged(tried, "quick")
        return tried

    def settle(self, tried: Tried, judgement: Judgement) -> Tried:
        """Record the fresh judgement on the attempt of record."""
        with shielded():
            settled = replace(tried, judgement=judgement)
            self._confirm_ladder(judgement)
            self._judged(settled, "record")
            if settled.accepted:
                self.settled[tried.n] = settled
            else:  # a result that the judgement of record refuses is none
                self.tried[tried.n - 1] = settled
                self.settled.pop(tried.n, None)
        return settled

    def _confirm_ladder(self, judgement: Judgement) -> None:
        """The rungs in a record timing have its figures from now on, and the best is among them."""
        from cuagent.measure.ladder import with_record_timing

        if self.ladder is None or judgement.timing is None or not judgement.verdict.accepted:
            return
        found = with_record_timing(self.ladder, judgement.timing)
        if found != self.ladder:
            self.keep_ladder(found, shown=False)

    def keep_ladder(self, found: Ladder, *, shown: bool = True) -> None:
        """Take over what is free, and record it; `shown` as a table of its own."""
        self.ladder = found
        self.log.write("ladder", shown=shown, **found.to_json())
        self.emit(LadderMeasured(found, shown))

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
            device_seconds=round(self.device_seconds, 3),
        )

    def _judged(self, tried: Tried, effort: str) -> None:
        self.ended = None
        judged = {**plain_judgement(tried.judgement), "attempt": tried.n}
        self.log.write("judgement", effort=effort, **judged)
        keep_evidence(
            self.folder,
            self.task,
            tried.attempt,
            tried.judgement,
            (tried.n, effort),
            self.log.redact,
        )
        self.emit(Judged(tried.n, tried.judgement))

    def _commit(self, message: str) -> str:
        try:
            return commit_work(self.folder, message)
        except RecordError as error:
            self.notice(f"{error}; the attempt is in the log only", "warning")
            return ""


def tokens_of(messages: Sequence[Message]) -> int:
    """A guess, rather too high, at how long a conversation is."""
    characters = sum(len(m.content) + len(m.reasoning) for m in messages)
    arguments = sum(len(c.arguments) for m in messages for c in m.tool_calls)
    return (characters + arguments) // CHARACTERS_A_TOKEN


def _losses() -> tuple[type[Exception], ...]:
    """What the judge raises when it is at its end itself."""
    from cuagent.sandbox import SandboxError
    from cuagent.verify.oracle.client import OracleLost
    from cuagent.worker import ForkServerError
    from cuagent.worker.memory.cuda_ipc import CudaMemoryError

    return ForkServerError, OracleLost, SandboxError, CudaMemoryError
