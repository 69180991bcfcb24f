"""The tools of `cuagent mcp`: what `verify`, `profile` and `export` do, for an agent that asks.

Each names a task and, where it needs one, a candidate folder; paths are as seen from the server's
current folder. The judge of the task that was asked for last stays open, so that a second call
costs what the work itself costs. Answers are words for a model, with the figures beside them as
structured content.
Invariant: all work is done in one thread, one call after another; the judge allows no other way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from cuagent import __version__
from cuagent.cli import options
from cuagent.cli.exits import crashes_to, exit_for
from cuagent.events import Event, Phase

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.judge import Judge, Judgement
    from cuagent.task.task import Task

INSTRUCTIONS = (
    "Judge kernels that make a PyTorch module faster. A task is a file with Model, get_inputs and "
    "get_init_inputs, or path.py:ClassName with inputs and init. A candidate is a folder with "
    "model_new.py (class ModelNew, same constructor and state_dict) and kernels/*.cu or *.cpp of "
    'extern "C" functions, loaded with cuagent.kernels.load. Begin with check and baseline; then '
    "compile, verify and profile until verify says that it is right and faster; then export."
)
Spec = Annotated[str, Field(description="Path of the task: FILE.py or FILE.py:ClassName.")]
Folder = Annotated[str, Field(description="Path of the candidate: a folder with model_new.py.")]
Inputs = Annotated[
    str | None, Field(description='What forward takes, for FILE.py:ClassName: "f32[8,512]".')
]
Init = Annotated[str | None, Field(description='What the constructor takes: "512, eps=1e-5".')]
Device = Annotated[Literal["auto", "cpu", "cuda"] | None, Field(description="Where it runs.")]
Precision = Annotated[
    Literal["match", "tf32", "bf16", "fp16"] | None,
    Field(description="Arithmetic admitted in place of the task's own."),
]
Say = Callable[[str], None]
"""Tells the client what is being done."""


class Bench:
    """The judge of one task at a time, and the thread in which it works."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "judge")
        self._judge: Judge | None = None
        self._isolation = ""
        self._numbers: dict[str, int] = {}
        self._say: Say = lambda text: None

    async def work(
        self, context: Context, function: Callable[..., CallToolResult], *arguments: Any
    ) -> CallToolResult:
        """The answer of `function`, or the line that says why there is none."""
        loop = asyncio.get_running_loop()
        steps = iter(range(1, 1 << 30))

        def say(text: str) -> None:
            told = context.report_progress(next(steps), message=text)
            asyncio.run_coroutine_threadsafe(told, loop)

        def answer() -> CallToolResult:
            self._say = say
            try:
                with crashes_to(None):
                    return function(*arguments)
            except Exception as error:
                if exit_for(error) is None:
                    raise
                return _answer(str(error), failed=True)

        return await loop.run_in_executor(self._thread, answer)

    def judge(self, *given: str | None) -> Judge:
        """The open judge of that task, the warm one where the task is still the same."""
        from cuagent.config import resolve

        spec, inputs, init, device, precision = given
        settings = resolve({"device": device, "precision": precision})
        task = options.open_task(str(spec), inputs, init, settings)
        same = self._judge is not None and self._judge.task == task
        if not same or self._isolation != settings.isolation:
            self._open(task, settings.isolation)
        assert self._judge is not None
        return self._judge

    def number(self, attempt: Attempt) -> int:
        """Attempts are counted from 1 for each task; the same text keeps its number."""
        return self._numbers.setdefault(attempt.digest, len(self._numbers) + 1)

    def emit(self, event: Event) -> None:
        """What the rooms say while they work, told to the client."""
        if isinstance(event, Phase):
            self._say(event.text)

    def close(self) -> None:
        """End the judge and its thread."""
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    def _open(self, task: Task, isolation: Any) -> None:
        from cuagent.judge import Judge

        self._close()
        self._say(f"opening {task.name} on {task.device}")
        self._judge = Judge(task, isolation, self.emit)
        self._isolation = isolation

    def _close(self) -> None:
        judge, self._judge, self._numbers = self._judge, None, {}
        if judge is not None:
            judge.close()


def serve() -> None:
    """Answer until the client closes the connection."""
    bench = Bench()
    try:
        server(bench).run()
    finally:
        bench.close()


def server(bench: Bench) -> MCPServer:
    """The tools, bound to `bench`."""
    made = MCPServer("cuagent", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    looks = ToolAnnotations(read_only_hint=True, open_world_hint=False)

    @made.tool(annotations=looks)
    async def check(
        task: Spec,
        context: Context,
        inputs: Inputs = None,
        init: Init = None,
        device: Device = None,
        precision: Precision = None,
    ) -> CallToolResult:
        """Say whether a task can be judged at all: one right answer, and work to find it."""
        return await bench.work(context, _check, bench, (task, inputs, init, device, precision))

    @made.tool(annotations=looks)
    async def baseline(
        task: Spec,
        context: Context,
        inputs: Inputs = None,
        init: Init = None,
        device: Device = None,
        precision: Precision = None,
    ) -> CallToolResult:
        """Time what is free: eager, torch.compile's modes, memory formats, precisions.

        What a kernel adds is counted from the best of them. Takes up to some minutes once.
        """
        return await bench.work(context, _baseline, bench, (task, inputs, init, device, precision))

    @made.tool(annotations=looks)
    async def compile(
        task: Spec,
        candidate: Folder,
        context: Context,
        inputs: Inputs = None,
        init: Init = None,
        device: Device = None,
        precision: Precision = None,
    ) -> CallToolResult:
        """Compile a candidate's kernels: errors with their lines, registers, spills."""
        given = (task, inputs, init, device, precision)
        return await bench.work(context, _compile, bench, given, candidate)

    @made.tool(annotations=looks)
    async def verify(
        task: Spec,
        candidate: Folder,
        context: Context,
        timing: Annotated[
            Literal["none", "quick", "record"],
            Field(description="Time it once it is right; record is slow and for the final word."),
        ] = "quick",
        inputs: Inputs = None,
        init: Init = None,
        device: Device = None,
        precision: Precision = None,
    ) -> CallToolResult:
        """Judge a candidate on secret inputs against a double-precision oracle, then time it.

        Timing is paired, against eager PyTorch and torch.compile. The reward is -1 wrong, 1 right,
        2 more than 5 % faster than eager, 3 than torch.compile as well.
        """
        given = (task, inputs, init, device, precision)
        return await bench.work(context, _verify, bench, given, candidate, timing)

    @made.tool(annotations=looks)
    async def profile(
        task: Spec,
        context: Context,
        candidate: Annotated[
            str | None, Field(description="Path of the candidate; the reference where left out.")
        ] = None,
        inputs: Inputs = None,
        init: Init = None,
        device: Device = None,
        precision: Precision = None,
    ) -> CallToolResult:
        """Show where the time goes, by operator and by kernel, against the roofline."""
        given = (task, inputs, init, device, precision)
        return await bench.work(context, _profile, bench, given, candidate)

    @made.tool(annotations=ToolAnnotations(destructive_hint=False, open_world_hint=False))
    async def export(
        task: Spec,
        candidate: Folder,
        out: Annotated[str, Field(description="The folder to make; it may not hold anything.")],
        context: Context,
        inputs: Inputs = None,
        init: Init = None,
        device: Device = None,
        precision: Precision = None,
    ) -> CallToolResult:
        """Judge a candidate afresh and write it as a package that works without cuagent."""
        given = (task, inputs, init, device, precision)
        return await bench.work(context, _export, bench, given, candidate, out)

    return made


def _check(bench: Bench, given: tuple[str | None, ...]) -> CallToolResult:
    from cuagent.record import plain
    from cuagent.verify.admission import admit

    found = admit(bench.judge(*given).referee)
    notes = [f"note: {note}" for note in found.notes]
    text = "\n".join([found.refusal or "the task can be certified", *notes])
    return _answer(text, plain(found) | {"certifiable": found.certifiable})


def _baseline(bench: Bench, given: tuple[str | None, ...]) -> CallToolResult:
    from cuagent.cli.baseline import lines
    from cuagent.measure.ladder import ladder
    from cuagent.record import plain

    found = ladder(bench.judge(*given).referee, emit=bench.emit)
    return _answer("\n".join(lines(found)), plain(found.to_json()))


def _compile(bench: Bench, given: tuple[str | None, ...], candidate: str) -> CallToolResult:
    from cuagent.agent.wording import build_lines
    from cuagent.record import plain

    attempt = options.open_candidate(Path(candidate))
    built = bench.judge(*given).build(attempt)
    return _answer("\n".join(build_lines(built)), plain(built), failed=not built.ok)


def _verify(
    bench: Bench, given: tuple[str | None, ...], candidate: str, timing: str
) -> CallToolResult:
    from cuagent.measure.timing import Effort

    attempt = options.open_candidate(Path(candidate))
    effort = None if timing == "none" else Effort(timing)
    judgement = bench.judge(*given).judge(attempt, effort)
    return _judged(bench, attempt, judgement)


def _profile(bench: Bench, given: tuple[str | None, ...], candidate: str | None) -> CallToolResult:
    from cuagent.record import plain

    attempt = options.open_candidate(Path(candidate)) if candidate else None
    found = bench.judge(*given).profile(attempt)
    return _answer("\n".join(found.lines()), plain(found.to_json()))


def _export(
    bench: Bench, given: tuple[str | None, ...], candidate: str, out: str
) -> CallToolResult:
    from cuagent.measure.timing import Effort
    from cuagent.package import export

    attempt = options.open_candidate(Path(candidate))
    judge = bench.judge(*given)
    judgement = judge.judge(attempt, Effort.RECORD)
    said = _judged(bench, attempt, judgement)
    if not judgement.verdict.accepted:
        return said
    made = export(attempt, judge.task, judgement, Path(out))
    text = f"{_text(said)}\nexported to {made}"
    return _answer(text, {"out": str(made), **(said.structured_content or {})})


def _judged(bench: Bench, attempt: Attempt, judgement: Judgement) -> CallToolResult:
    """A rejection is an answer like any other, no error of the call."""
    from cuagent.agent.run import Tried
    from cuagent.agent.wording import judgement_lines
    from cuagent.record import plain

    tried = Tried(bench.number(attempt), attempt, "", judgement)
    return _answer("\n".join(judgement_lines(tried, best=False)), plain(judgement))


def _answer(text: str, data: dict[str, Any] | None = None, failed: bool = False) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=data, is_error=failed
    )


def _text(answer: CallToolResult) -> str:
    return "\n".join(part.text for part in answer.content if isinstance(part, TextContent))
