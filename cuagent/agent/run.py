"""Hold the state of one `optimize` run, the only mutable state of the agent.

The state is the conversation, the judged attempts and the totals spent. Each change is also
written to the log, with Ctrl-C delayed meanwhile, so memory and log always agree.
Another thread may only put texts into `inbox` and call `cancel`.
Not covered: starting and resuming (`begin.py`), decisions (`loop.py`, `hooks.py`), the choice among
attempts (`tried.py`) and measurements (`cuagent.judge`).
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
from cuagent.agent.tried import Tried, best_of, next_to_settle, rival_of
from cuagent.attempt import Attempt
from cuagent.durations import Durations
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
from cuagent.verdict import Reason

if TYPE_CHECKING:
    from cuagent.agent.jobs import Job
    from cuagent.judge_protocol import Judge
    from cuagent.judgement import Judgement
    from cuagent.measure.rungs import Ladder
    from cuagent.task import Task

T = TypeVar("T")
REFERENCE = "reference.py"
CHARACTERS_PER_TOKEN = 3
"""Characters per token for estimates. Source code has three to four, so estimates are rather high.
"""


class JudgeLost(Exception):
    """Raised when the judge has failed (no worker, oracle or sandbox). The text is one line."""


@dataclass
class Run:
    """The state of one run. Its methods write each change to the log."""

    task: Task
    folder: RunFolder
    log: RunLog
    judge: Judge
    budget: Budget
    emit: Emit = ignore
    messages: list[Message] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    ladder: Ladder | None = None
    """Measured baselines that need no kernel; None until they are measured."""
    settled: dict[int, Tried] = field(default_factory=dict)
    """Attempts accepted at record effort, each with its judgement at that effort; keys are their
    numbers.
    """
    stop: Stop | None = None
    ended: Stop | None = None
    """Last stop that gave a result; None without one, or after another attempt was judged.

    A reply to a user's question does not reset it.
    """
    error: str = ""
    """Message of the error with which the provider or the judge failed; "" if neither did."""
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    known_cost: float = 0.0
    """Cost in US dollars of the calls whose price is known; the cost limit counts these."""
    unpriced_calls: int = 0
    """Number of calls of models without a known price."""
    device_seconds: float = 0.0
    """Seconds in which the judge used the device."""
    started: float | None = field(default_factory=time.monotonic)
    """Start of the current work in time.monotonic seconds; None while the run is idle."""
    earlier_seconds: float = 0.0
    """Seconds that the run worked before `started`."""
    context_tokens: int = 0
    """Length of the conversation in tokens: the provider's last count plus an estimate for later
    messages.
    """
    inbox: SimpleQueue[str] = field(default_factory=SimpleQueue)
    """Messages of the user while the agent works; the model gets them before the next step."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the model may call."""
    todo: list[dict[str, str]] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    """Background commands that the model started; the key is the name that the model sees."""
    seen: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each file of the work folder that the model has read or written; keys are
    paths.
    """
    files: dict[str, FileState] = field(default_factory=dict)
    """Files of the work folder at the last snapshot, by name."""
    settles_rung: bool = True
    """True if the best rung is timed at record effort when no kernel is the result."""
    kernels_only: bool = False
    """True if no rung can be the result, only an attempt. Attempts are then judged for the record
    although a rung is faster.
    """
    durations: Durations = field(default_factory=Durations)
    """Seconds by stage of the work; the judge adds to the same object."""
    outputs: int = 0
    """Number of files with long tool outputs so far; the number is part of the next file's name."""
    _judging: threading.Lock = field(default_factory=threading.Lock)

    @property
    def work(self) -> Path:
        return self.folder.work

    @property
    def seconds(self) -> float:
        """Seconds that the run has worked, without waiting for the user."""
        now = time.monotonic()
        return self.earlier_seconds + (0.0 if self.started is None else now - self.started)

    @property
    def cost(self) -> float | None:
        """Cost of the run in US dollars; None if the price of a call is unknown."""
        return None if self.unpriced_calls else self.known_cost

    @property
    def best(self) -> Tried | None:
        """The best accepted attempt by its latest judgement; None without one."""
        return best_of(t for t in self.tried if t.accepted)

    @property
    def final(self) -> Tried | None:
        """The best attempt among those accepted at record effort; None without one."""
        return best_of(self.settled.values())

    @property
    def result(self) -> Tried | None:
        """`final`, or `best` if no attempt was accepted at record effort.

        Confidence limits at record effort are wider, so the two are never compared by rank.
        """
        return self.final or self.best

    @property
    def next_to_settle(self) -> Tried | None:
        """The attempt to judge at record effort next; None if no attempt may be better than
        `final`.
        """
        return next_to_settle(self.tried, self.settled)

    def rival_of(self, tried: Tried) -> str:
        """Return the name of the baseline because of which an attempt is not judged for the record.

        "" if it is to be judged.
        """
        return rival_of(tried.judgement, kernels_only=self.kernels_only)

    def spent(self) -> Spent:
        """Return the run's totals (steps, seconds, tokens, cost) as an event for the views."""
        tokens_in = self.usage.input + self.usage.cache_read + self.usage.cache_write
        return Spent(self.steps, self.seconds, tokens_in, self.usage.output, self.cost)

    def cancel(self) -> None:
        """Interrupt the current step. Any thread may call this."""
        self.cancelled.set()

    def start_clock(self) -> None:
        """Start the clock of the working time, and clear an earlier cancellation."""
        self.cancelled.clear()
        self.resume_clock()

    def resume_clock(self) -> None:
        """Start the clock of the working time again; an earlier cancellation remains."""
        if self.started is None:
            self.started = time.monotonic()

    def stop_clock(self) -> None:
        """Stop the clock of the working time and add its seconds to `earlier_seconds`."""
        self.earlier_seconds, self.started = self.seconds, None

    def notice(self, text: str, level: Literal["info", "warning", "error"] = "info") -> None:
        """Log a notice and show it to the user."""
        self.log.write("notice", level=level, text=text)
        self.emit(Notice(text, level))

    def add(self, message: Message, call: str | None = None) -> None:
        """Append a message to the conversation and the log.

        `call` is the id of the record of the model call that produced the message, whose tokens are
        counted there; None for other messages, whose tokens are estimated.
        """
        with shielded():
            self.log.message(message, call)
            self.messages.append(message)
            if call is None:
                self.context_tokens += len(message.content) // CHARACTERS_PER_TOKEN

    def record_reply(self, reply: Reply, model: str, sampling: Any, seconds: float) -> None:
        """Record a reply of the model: its usage, cost and message."""
        with shielded():
            call = self.record_call(reply, model, sampling, seconds)
            self.add(reply.message, call)
            usage = reply.usage
            self.context_tokens = (
                usage.input + usage.cache_read + usage.cache_write + usage.output
            ) or self.context_tokens

    def record_call(
        self, reply: Reply, model: str, sampling: Any, seconds: float, **more: Any
    ) -> str:
        """Record usage, cost and time of a query of the model; return the log record's id.

        Queries without a known price do not count towards the cost limit; a notice says so at the
        first one.
        """
        self.usage += reply.usage
        self.add_cost(reply.cost)
        if reply.cost is None and self.unpriced_calls == 1 and self.budget.cost is not None:
            text = f"no price is known for {model}: the cost limit does not apply to its calls"
            self.notice(text, "warning")
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

    def add_cost(self, cost: float | None) -> None:
        """Count the cost of one query in US dollars; None if its price is unknown."""
        if cost is None:
            self.unpriced_calls += 1
        else:
            self.known_cost += cost

    def close_calls(self, why: str) -> None:
        """Add a result with the text `why` for every tool call that has no result."""
        for message in close_open_calls(self.messages, why)[len(self.messages) :]:
            self.add(message)

    def branch(self, messages: list[Message], head: str | None, why: str) -> None:
        """Continue the conversation from `messages`; the last one has the id `head` in the log.

        The log still contains the old branch.
        """
        with shielded():
            self.log.branch(head, why)
            self.messages[:] = messages
            self.context_tokens = tokens_of(messages)

    def consult(self, work: Callable[[Judge], T]) -> T:
        """Run `work(judge)` in a thread, one call at a time, and return its result.

        After an interrupt the work continues to its end in the background and its result is
        dropped; later calls wait for that end. Raises JudgeLost and Interrupted.
        """

        def locked() -> T:
            with self._judging:
                return work(self.judge)

        try:
            return attend(locked, self.cancelled)
        except _fatal_judge_errors() as error:
            raise JudgeLost(f"{type(error).__name__}: {error}") from error

    def measured(self, what: str, work: Callable[[Judge], T]) -> T:
        """Run `work(judge)` as in `consult`, and add its time to `device_seconds`.

        Raises JudgeLost and Interrupted.
        """
        start = time.monotonic()
        try:
            return self.consult(work)
        finally:
            seconds = time.monotonic() - start
            self.device_seconds += seconds
            self.log.write("device", what=what, seconds=round(seconds, 3))

    def snapshot(self) -> None:
        """Log the files of the work folder if they changed, so that `undo` can restore them."""
        with shielded():
            before = {name: kept.digest for name, kept in self.files.items()}
            files = take_snapshot(self.folder, self.files)
            if files != before:
                self.log.write("checkpoint", message=self.log.head, files=files)

    def register(self, attempt: Attempt, judgement: Judgement) -> Tried:
        """Give a judged attempt a number, commit it to git and record it.

        An attempt that was judged before keeps its number and gets the new judgement.
        """
        with shielded():
            earlier = next((t for t in self.tried if t.attempt.digest == attempt.digest), None)
            if earlier:
                tried = replace(earlier, judgement=judgement)
                self.tried[earlier.n - 1] = tried
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
        """Record the judgement at record effort of an attempt; return the attempt with this
        judgement.
        """
        with shielded():
            settled = replace(tried, judgement=judgement)
            self._confirm_ladder(judgement)
            self._judged(settled, "record")
            if settled.accepted:
                self.settled[tried.n] = settled
            else:  # an attempt rejected for the record cannot be the result
                self.tried[tried.n - 1] = settled
                self.settled.pop(tried.n, None)
        return settled

    def _confirm_ladder(self, judgement: Judgement) -> None:
        """Replace the ladder's quick timings by the record timings in `judgement`, for its
        rungs.
        """
        from cuagent.measure.rungs import with_record_timing

        if self.ladder is None or judgement.timing is None or not judgement.verdict.accepted:
            return
        ladder = with_record_timing(self.ladder, judgement.timing)
        if ladder != self.ladder:
            self.record_ladder(ladder, shown=False)

    def record_ladder(self, ladder: Ladder, *, shown: bool = True) -> None:
        """Store the ladder as the run's baselines and record it; with `shown` the views print
        it.
        """
        self.ladder = ladder
        self.log.write("ladder", shown=shown, **ladder.to_json())
        self.emit(LadderMeasured(ladder, shown))

    def end(self, summary: str, reward: int | None) -> None:
        """Write the last record of the run."""
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
            stages=self.durations.to_json(),
        )

    def _judged(self, tried: Tried, effort: str) -> None:
        self.ended = None
        judged = {**plain_judgement(tried.judgement), "attempt": tried.n}
        self.log.write("judgement", effort=effort, **judged)
        if tried.judgement.verdict.reason is not Reason.TOO_SLOW:  # nothing to audit
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
    """Return an estimate of a conversation's tokens, which is rather too high than too low."""
    characters = sum(len(m.content) + len(m.reasoning) for m in messages)
    arguments = sum(len(c.arguments) for m in messages for c in m.tool_calls)
    return (characters + arguments) // CHARACTERS_PER_TOKEN


def _fatal_judge_errors() -> tuple[type[Exception], ...]:
    """Return the error types after which the judge cannot work any more."""
    from cuagent.sandbox import SandboxError
    from cuagent.verify.oracle.process import OracleLost
    from cuagent.worker import ForkServerError
    from cuagent.worker.memory.cuda_ipc import CudaMemoryError

    return ForkServerError, OracleLost, SandboxError, CudaMemoryError
