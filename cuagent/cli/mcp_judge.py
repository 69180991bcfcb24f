"""Run the judge of `cuagent mcp` in one thread, for one task at a time.

The judge of the last task stays open, so that a second call has no start-up cost.

Invariant: all work is done in one thread, one call after another, as the judge requires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ContentBlock, TextContent

from cuagent.cli import options
from cuagent.cli.exits import crashes_to, exit_for
from cuagent.cli.trust import is_agreed
from cuagent.events import Event, Phase
from cuagent.record import redactor

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.judge import LocalJudge
    from cuagent.task.task import Task

Say = Callable[[str], None]
"""Function that sends a line about the progress to the client."""


@dataclass(frozen=True)
class Given:
    """Arguments of a tool call that describe the task."""

    task: str
    inputs: str | None
    init: str | None
    device: str | None
    precision: str | None


class JudgeThread:
    """The judge of the latest task, and the thread in which it works."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "judge")
        self._judge: LocalJudge | None = None
        self._isolation = ""
        self._numbers: dict[str, int] = {}
        self._say: Say = lambda text: None

    async def work(
        self,
        context: Context[JudgeThread],
        function: Callable[..., CallToolResult],
        *arguments: Any,
    ) -> CallToolResult:
        """Call `function` in the judge's thread; return its answer, or its error as one line."""
        loop = asyncio.get_running_loop()
        steps = iter(range(1, 1 << 30))

        def say(text: str) -> None:
            progress = context.report_progress(next(steps), message=text)
            asyncio.run_coroutine_threadsafe(progress, loop)

        def answer() -> CallToolResult:
            self._say = say
            try:
                with crashes_to(None):
                    return function(*arguments)
            except Exception as error:  # the process boundary; `exit_for` tells which are foreseen
                if exit_for(error) is None:
                    raise
                return answer_of(str(error), failed=True)

        return await loop.run_in_executor(self._thread, answer)

    def judge(self, given: Given) -> LocalJudge:
        """Return the judge for a task; use the open judge again if it is for the same task."""
        from cuagent.config import resolve

        flags = {"device": given.device, "precision": given.precision}
        settings = resolve(flags, accept=is_agreed)  # no user to ask
        for line in settings.ignored.values():
            self._say(line)
        task = options.open_task(given.task, given.inputs, given.init, settings)
        same = self._judge is not None and self._judge.task == task
        if not same or self._isolation != settings.isolation:
            self._open(task, settings.isolation)
        assert self._judge is not None
        return self._judge

    def number(self, attempt: Attempt) -> int:
        """Return the attempt's number, from 1 for each task; equal attempts have equal numbers."""
        return self._numbers.setdefault(attempt.digest, len(self._numbers) + 1)

    def emit(self, event: Event) -> None:
        """Send the client a line for each phase of the work."""
        if isinstance(event, Phase):
            self._say(event.text)

    def close(self) -> None:
        """End the judge and its thread."""
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    def _open(self, task: Task, isolation: Any) -> None:
        from cuagent.judge import LocalJudge

        self._close()
        self._say(f"opening {task.name} on {task.device}")
        self._judge = LocalJudge(task, isolation, self.emit)
        self._isolation = isolation

    def _close(self) -> None:
        judge, self._judge, self._numbers = self._judge, None, {}
        if judge is not None:
            judge.close()


def answer_of(
    text: str, data: dict[str, Any] | None = None, *, failed: bool = False
) -> CallToolResult:
    """Return a tool's answer: `text` for the model and `data` as structured content, secrets
    masked.

    `failed` marks the answer as an error.
    """
    redact = redactor()
    words: list[ContentBlock] = [TextContent(type="text", text=redact(text))]
    return CallToolResult(content=words, structured_content=redact(data), is_error=failed)
