"""Play episodes through the agent's own loop and tools, many in parallel, sampled by an engine.

PPO's `collect` and every evaluation of a policy use this module. An episode is an ordinary run with
`run_agent`, the real tools and a run log; `data.runs.episode_of` converts the log. Two things
differ from `cuagent optimize`: the model keeps its token ids, and many episodes share one engine
and one pool of judges.
Not covered: sampling itself (`engine.py`), judging (`pool.py`).
Invariant: a policy's prompt consists of the ids that it sampled before and the ids that were
inserted between them, never of a re-tokenization.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent import __version__
from cuagent.agent.attended import Interrupted
from cuagent.agent.hooks import HOOKS
from cuagent.agent.ladder import start_at_ladder
from cuagent.agent.loop import run_agent
from cuagent.agent.run import REFERENCE, Run
from cuagent.agent.stop import Budget
from cuagent.agent.tools import Tool
from cuagent.message import Finish, Message, Reply, TokenTrace, Usage
from cuagent.models.model import ContextOverflow, ModelError, OnText, ToolSpec
from cuagent.record import RunLog, new_run, plain
from cuagent.task import Task
from cuagent.training.data.runs import UnusableRun, episode_of
from cuagent.training.data.segments import Episode
from cuagent.training.engines.engine import Engine, EngineError, OutOfMemory, Request, Sampled
from cuagent.training.policy.chat import Chat

if TYPE_CHECKING:
    from cuagent.judge_protocol import Judge

Sample = Callable[[Request], Sampled]


@dataclass(frozen=True)
class Play:
    """Settings of an episode."""

    tools: Sequence[Tool]
    opening: Callable[[Task], list[Message]]
    """Function that returns the first messages: those of `cuagent optimize`, or short ones for a
    small model."""
    turns: int = 8
    """Largest number of model calls in an episode."""
    context: int = 2048
    """Largest number of tokens of a context window, prompt and turns together."""
    reply: int = 1024
    """Largest number of tokens that the policy samples in one turn."""
    temperature: float = 1.0
    seconds: float | None = None
    """Limit of an episode's wall time. None: no limit; this is the default, because an episode
    waits for the verdicts of others."""
    initial_files: Callable[[Task], Mapping[str, str]] = lambda task: {}
    """Function that returns the files in the work folder at the start (path to text), in addition
    to reference.py."""
    ladder: bool = False
    """True to measure the ladder at the start and show it to the policy, as `cuagent optimize`
    does."""
    together: float = 1.0
    """Share of the unfinished episodes that must wait for tokens before the engine runs a batch.

    With 1 nothing is judged while the engine runs, as required if one GPU samples and times. A
    smaller share (on separate GPUs) avoids that the slowest judgement delays all episodes. With 0
    no episode waits for others.
    """


class Batcher:
    """Gathers the requests of concurrent episodes into batches for the engine.

    A batch runs when the share `together` of the live episodes wait for tokens; the thread of the
    last request runs it. An episode is live inside the context `live`. With `together` 0 each
    episode calls the engine separately, unless the engine has `needs_batches`.
    """

    def __init__(
        self, engine: Engine, together: float = 1.0, stopping: threading.Event | None = None
    ) -> None:
        """Create a batcher. No batch starts after the event `stopping` is set."""
        self.engine = engine
        self.together = together
        self.stopping = stopping or threading.Event()
        self.seconds = 0.0
        """Seconds spent in the sampling engine."""
        self.fatal: OutOfMemory | None = None
        """Error that ends the collection, because every further batch would fail alike; None: no
        such error."""
        self._changed = threading.Condition()
        self._live = 0
        self._waiting: list[tuple[Request, list[Sampled | Exception]]] = []

    @contextmanager
    def live(self) -> Iterator[None]:
        """Count this episode as live inside this context, so that batches wait for its requests."""
        with self._changed:
            self._live += 1
        try:
            yield
        finally:
            with self._changed:
                self._live -= 1
                self._run_if_full()

    def stop(self) -> None:
        """Wait for the running batch, then fail all pending requests with EngineError."""
        with self._changed:
            for _, answer in self._waiting:
                answer.append(EngineError("stopped"))
            self._waiting = []
            self._changed.notify_all()

    def sample(self, request: Request) -> Sampled:
        """Return the engine's result for a request; wait until a batch with this request has run.
        Raises EngineError."""
        if self.together == 0 and not self.engine.needs_batches:
            [alone] = self._ask([request])
            return unwrap(alone)
        answer: list[Sampled | Exception] = []
        with self._changed:
            if self.stopping.is_set():
                raise EngineError("stopped")
            self._waiting.append((request, answer))
            self._run_if_full()
            self._changed.wait_for(lambda: bool(answer))
        return unwrap(answer[0])

    def _run_if_full(self) -> None:
        full = len(self._waiting) >= self.together * self._live
        if self.stopping.is_set() or not self._waiting or not full:
            return
        batch, self._waiting = self._waiting, []
        start = time.perf_counter()
        # Every request must get an answer, whatever the error; a thread without one would wait
        # forever.
        results: Sequence[Sampled | Exception] = [EngineError("the batch was lost")] * len(batch)
        try:
            results = self._ask([request for request, _ in batch])
        finally:
            self.seconds += time.perf_counter() - start
            for (_, answer), result in zip(batch, results, strict=True):
                answer.append(result)
            self._changed.notify_all()

    def _ask(self, requests: Sequence[Request]) -> Sequence[Sampled | Exception]:
        try:
            return self.engine.sample(requests)
        except (EngineError, RuntimeError, MemoryError) as error:
            if isinstance(error, OutOfMemory):
                self.fatal = error
            # The error concerns every request of the batch, not only the thread that ran it.
            return [error] * len(requests)


def unwrap(result: Sampled | Exception) -> Sampled:
    """Return `result` if it is a sample; raise EngineError if it is an error."""
    if isinstance(result, Exception):
        raise EngineError(f"sampling failed: {result}") from result
    return result


@dataclass
class TokenModel:
    """Adapter that lets the agent's loop query a policy by token ids, for one episode. It keeps all
    token ids."""

    name: str
    chat: Chat
    sample: Sample
    play: Play
    seed: int
    stream: tuple[int, ...] = ()
    """All token ids of the current context window so far."""
    seen: list[Message] = field(default_factory=list)
    """Messages of the conversation whose token ids `stream` already contains."""
    ended: bool = True
    """True if the policy sampled the end of its last turn; False if the length limit cut the
    turn."""
    turns: int = 0

    @property
    def sampling(self) -> dict[str, Any]:
        return {"temperature": self.play.temperature, "seed": self.seed}

    def query(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Reply:
        prompt = self._prompt(messages, tools)
        room = min(self.play.reply, self.play.context - len(prompt))
        if room <= 0:
            raise ContextOverflow(f"{self.name}: {len(prompt)} tokens of {self.play.context}")
        # One seed per turn; the factor separates the turns of episodes with adjacent seeds.
        seed = self.seed * 1009 + self.turns
        try:
            sampled = self.sample(Request(prompt, room, seed, self.play.temperature))
        except EngineError as error:
            raise ModelError(str(error)) from error
        message = self.chat.parse(sampled.ids, tools)
        self.turns += 1
        self.stream = prompt + sampled.ids
        self.seen = [*messages, message]
        self.ended = not sampled.cut
        on_text(message.content, "text")
        finish = Finish.TOOL_CALLS if message.tool_calls else Finish.STOP
        return Reply(
            message,
            Finish.LENGTH if sampled.cut else finish,
            Usage(input=len(prompt), output=len(sampled.ids)),
            0.0,
            TokenTrace(prompt, sampled.ids, sampled.logprobs),
        )

    def _prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the prompt's token ids: `stream` extended by the new messages, or a newly rendered
        prompt if earlier messages changed."""
        seen = len(self.seen)
        if seen and comparable(messages[:seen]) == comparable(self.seen):
            return self.stream + self.chat.continuation_ids(messages[seen:], self.ended)
        return self.chat.prompt_ids(messages, tools)


def comparable(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
    """Return the fields by which messages are compared, as one tuple per message.

    Ids of calls are left out, because the loop may rename them.
    """
    return [(m.role, m.content, [(c.name, c.arguments) for c in m.tool_calls]) for m in messages]


def start_episode(
    task: Task, judge: Judge, model: str, play: Play, root: Path, tokenizer: str | None = None
) -> Run:
    """Start a run, without git, with the opening messages and initial files of `play`.

    `model`: name of the policy. `root`: folder for the run. `tokenizer`: fingerprint of the
    tokenizer whose ids are recorded; None: no ids are recorded.
    """
    budget = Budget(steps=play.turns, cost=None, seconds=play.seconds)
    folder = new_run(task.name, root)
    log = RunLog(folder)
    log.write(
        "session",
        cuagent=__version__,
        task={**plain(task), "name": task.name, "digest": task.digest},
        model=model,
        tokenizer=tokenizer,
        tools=[tool.spec for tool in play.tools],
        budget=budget,
    )
    (folder.work / REFERENCE).write_text(task.source, encoding="utf-8")
    for name, text in play.initial_files(task).items():
        (folder.work / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.work / name).write_text(text, encoding="utf-8")
    run = Run(task, folder, log, judge, budget)
    for message in play.opening(task):
        run.add(message)
    return run


def play_one(
    task: Task,
    judge: Judge,
    name: str,
    chat: Chat,
    sample: Sample,
    play: Play,
    seed: int,
    root: Path,
    cancelled: threading.Event | None = None,
) -> Episode:
    """Play one episode and return it. `name`: name of the policy; `sample`: function that samples
    its tokens; `root`: folder for the run.

    Raises UnusableRun if the run gives no episode (for example, without a reward), and Interrupted
    if `cancelled` was set.
    """
    run = start_episode(task, judge, name, play, root, chat.fingerprint)
    run.cancelled = cancelled or run.cancelled
    try:
        hooks = (start_at_ladder, *HOOKS) if play.ladder else HOOKS
        run_agent(run, TokenModel(name, chat, sample, play, seed), play.tools, hooks)
    finally:
        run.log.close()
    if run.cancelled.is_set():
        raise Interrupted
    return replace(episode_of(run.folder, chat), id=episode_id(name, task, seed))


def episode_id(policy: str, task: Task, seed: int) -> str:
    """Return the id of an episode, from its policy's name, task and seed."""
    return f"{policy}-{task.name}-{seed}"


@dataclass(frozen=True)
class Played:
    """Episodes of one collection in the order of its jobs.

    An episode without a reward is None; `lost` counts such episodes by reason. `engine_seconds`:
    time in the engine.
    """

    episodes: tuple[Episode | None, ...]
    lost: dict[str, int]
    engine_seconds: float


def play_many(
    jobs: Sequence[tuple[Task, int]],
    judges: Callable[[Task], Judge],
    name: str,
    chat: Chat,
    engine: Engine,
    play: Play,
    root: Path,
    keep_runs: bool = False,
    on_episode: Callable[[Episode | None], None] = lambda episode: None,
) -> Played:
    """Play all `jobs` (task, seed) in parallel, one thread each; return the episodes in the order
    of the jobs.

    `on_episode`: called with each finished episode (None: without a reward) in the episode's
    thread. `keep_runs`: leave the run folders under `root`. On Ctrl-C, or on another error in one
    episode, all episodes stop and are discarded.
    """
    cancelled = threading.Event()
    batcher = Batcher(engine, play.together, cancelled)
    lost: dict[str, int] = {}

    def one(job: tuple[Task, int]) -> Episode | str:
        task, seed = job
        with batcher.live():
            started.wait()  # all episodes are live before a batch starts
            try:
                judge, sample = judges(task), batcher.sample
                played = play_one(task, judge, name, chat, sample, play, seed, root, cancelled)
            except UnusableRun as why:
                if batcher.fatal is not None:
                    raise batcher.fatal from why
                on_episode(None)
                return str(why)
            on_episode(played)
            return played

    started = threading.Barrier(len(jobs))
    with ThreadPoolExecutor(len(jobs)) as threads:
        try:
            with engine.open():  # its end makes pending requests fail
                try:
                    futures = [threads.submit(one, job) for job in jobs]
                    for future in as_completed(futures):
                        future.result()  # the first failure ends all episodes
                    results = [future.result() for future in futures]
                finally:
                    cancelled.set()
        finally:
            started.abort()
            batcher.stop()
    for result in results:
        if isinstance(result, str):
            lost[result] = lost.get(result, 0) + 1
    if not keep_runs:
        shutil.rmtree(root, ignore_errors=True)
    episodes = tuple(r if isinstance(r, Episode) else None for r in results)
    return Played(episodes, lost, batcher.seconds)
