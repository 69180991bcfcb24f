"""The tools of `cuagent mcp`: `verify`, `profile`, `export` and others for an agent.

Each tool takes a task and, if needed, a candidate folder; paths are relative to the server's
current folder. Answers are text for a model, with the figures as structured content.

Not covered: the thread that does the work (`mcp_judge.py`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from cuagent import __version__
from cuagent.cli import options
from cuagent.cli.mcp_judge import Given, JudgeThread, answer_of

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.judgement import Judgement

INSTRUCTIONS = (
    "Judge kernels that make a PyTorch module faster. A task is a file with Model, get_inputs and "
    "get_init_inputs, or path.py:ClassName with inputs and init. A candidate is a folder with "
    "model_new.py (class ModelNew, same constructor and state_dict) and kernels/*.cu or *.cpp of "
    'extern "C" functions, loaded with cuagent.kernels.load. Begin with check and baseline; then '
    "compile, verify and profile until verify says that it is right and faster; then export. "
    "Candidates run in a sandbox. The task's file does not: each tool imports it with the user's "
    "rights, so name no task whose code nobody has read."
)
Spec = Annotated[str, Field(description="Path of the task: FILE.py or FILE.py:ClassName.")]
Folder = Annotated[str, Field(description="Path of the candidate: a folder with model_new.py.")]
Inputs = Annotated[
    str | None, Field(description='What forward takes, for FILE.py:ClassName: "f32[8,512]".')
]
Init = Annotated[str | None, Field(description='What the constructor takes: "512, eps=1e-5".')]
Device = Annotated[Literal["auto", "cpu", "cuda"] | None, Field(description="Where it runs.")]
Precision = Annotated[
    Literal["match", "fp32", "tf32", "bf16", "fp16"] | None,
    Field(
        description="match: the torch settings of the user's process; fp32: IEEE fp32 in all arms; "
        "others: also admit that arithmetic."
    ),
]
UNSURE = "note: the kernel was not measured to be surely faster than what torch offers"
RUNS_CODE = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
)
"""MCP hints for every tool. A tool imports the task's file, which is arbitrary Python, with the
user's rights and outside of the sandbox. So a client should ask the user before it calls a tool."""


def serve() -> None:
    """Run the MCP server on stdin and stdout until the client closes the connection."""
    judge_thread = JudgeThread()
    try:
        server(judge_thread).run()
    finally:
        judge_thread.close()


def server(judge_thread: JudgeThread) -> MCPServer[JudgeThread]:
    """Return the MCP server with its tools, which use `judge_thread`."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[JudgeThread]) -> AsyncIterator[JudgeThread]:
        yield judge_thread

    made = MCPServer(
        "cuagent",
        instructions=INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
        lifespan=lifespan,
    )
    for tool in (check, baseline, compile, verify, profile, export):
        made.add_tool(tool, annotations=RUNS_CODE)
    return made


async def check(
    task: Spec,
    context: Context[JudgeThread],
    inputs: Inputs = None,
    init: Init = None,
    device: Device = None,
    precision: Precision = None,
) -> CallToolResult:
    """Check that a task can be certified: one right answer that takes work to compute."""
    return await _work(context, _check, Given(task, inputs, init, device, precision))


async def baseline(
    task: Spec,
    context: Context[JudgeThread],
    fresh: Annotated[
        bool, Field(description="Time everything again; else recent timings are reused.")
    ] = False,
    inputs: Inputs = None,
    init: Init = None,
    device: Device = None,
    precision: Precision = None,
) -> CallToolResult:
    """Time the options without a kernel: eager, torch.compile's modes, memory formats, precisions.

    The gain of a kernel is measured against the best of them. The first call can take minutes.
    """
    return await _work(context, _baseline, Given(task, inputs, init, device, precision), fresh)


async def compile(
    task: Spec,
    candidate: Folder,
    context: Context[JudgeThread],
    inputs: Inputs = None,
    init: Init = None,
    device: Device = None,
    precision: Precision = None,
) -> CallToolResult:
    """Compile a candidate's kernels: errors with their lines, registers, spills."""
    return await _work(context, _compile, Given(task, inputs, init, device, precision), candidate)


async def verify(
    task: Spec,
    candidate: Folder,
    context: Context[JudgeThread],
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

    Timing is paired, against eager PyTorch and torch.compile. The reward is -1 wrong, 1 right, 2
    more than 5 % faster than eager, 3 than torch.compile as well.
    """
    return await _work(
        context, _verify, Given(task, inputs, init, device, precision), candidate, timing
    )


async def profile(
    task: Spec,
    context: Context[JudgeThread],
    candidate: Annotated[
        str | None, Field(description="Path of the candidate; the reference where left out.")
    ] = None,
    counters: Annotated[
        bool, Field(description="CUDA: hardware counters of each launch too, in some 10 s more.")
    ] = False,
    inputs: Inputs = None,
    init: Init = None,
    device: Device = None,
    precision: Precision = None,
) -> CallToolResult:
    """Profile by operator and by kernel, and compare with the roofline."""
    given = Given(task, inputs, init, device, precision)
    return await _work(context, _profile, given, candidate, counters)


async def export(
    task: Spec,
    candidate: Folder,
    out: Annotated[str, Field(description="The folder to write; it must be empty or new.")],
    context: Context[JudgeThread],
    force: Annotated[
        bool, Field(description="Also export a kernel that was measured to be slower.")
    ] = False,
    inputs: Inputs = None,
    init: Init = None,
    device: Device = None,
    precision: Precision = None,
) -> CallToolResult:
    """Judge a candidate afresh and write it as a package that works without cuagent."""
    return await _work(
        context, _export, Given(task, inputs, init, device, precision), candidate, out, force
    )


async def _work(
    context: Context[JudgeThread], function: Callable[..., CallToolResult], *arguments: Any
) -> CallToolResult:
    judge_thread = context.request_context.lifespan_context
    return await judge_thread.work(context, function, judge_thread, *arguments)


def _check(judge_thread: JudgeThread, given: Given) -> CallToolResult:
    from cuagent.record import result
    from cuagent.verify.admission import admit

    found = admit(judge_thread.judge(given).referee)
    notes = [f"note: {note}" for note in found.notes]
    text = "\n".join([found.refusal or "the task can be certified", *notes])
    return answer_of(text, result("check", found, certifiable=found.certifiable))


def _baseline(judge_thread: JudgeThread, given: Given, fresh: bool) -> CallToolResult:
    from cuagent.cli.baseline import lines
    from cuagent.measure.ladder import time_rungs
    from cuagent.record import result

    found = time_rungs(judge_thread.judge(given).referee, emit=judge_thread.emit, fresh=fresh)
    text = "\n".join(lines(found)).replace("--fresh", "fresh=true")
    return answer_of(text, result("baseline", found))


def _compile(judge_thread: JudgeThread, given: Given, candidate: str) -> CallToolResult:
    from cuagent.agent.wording import build_lines
    from cuagent.record import result

    attempt = options.open_candidate(Path(candidate))
    built = judge_thread.judge(given).build(attempt)
    return answer_of("\n".join(build_lines(built)), result("compile", built), failed=not built.ok)


def _verify(judge_thread: JudgeThread, given: Given, candidate: str, timing: str) -> CallToolResult:
    from cuagent.timing import Effort

    attempt = options.open_candidate(Path(candidate))
    effort = None if timing == "none" else Effort(timing)
    judge, started = judge_thread.judge(given), time.monotonic()
    judgement = judge.judge(attempt, effort)
    return _judged(judge_thread, attempt, judgement, "verify", started)


def _profile(
    judge_thread: JudgeThread, given: Given, candidate: str | None, counters: bool
) -> CallToolResult:
    from cuagent.record import result

    attempt = options.open_candidate(Path(candidate)) if candidate else None
    found = judge_thread.judge(given).profile(attempt, counters=counters)
    return answer_of("\n".join(found.lines()), result("profile", found))


def _export(
    judge_thread: JudgeThread, given: Given, candidate: str, out: str, force: bool
) -> CallToolResult:
    from cuagent.cli.apply import slower
    from cuagent.package import export
    from cuagent.timing import Effort

    options.refuse_full(Path(out))
    attempt = options.open_candidate(Path(candidate))
    judge, started = judge_thread.judge(given), time.monotonic()
    judgement = judge.judge(attempt, Effort.RECORD)
    said = _judged(judge_thread, attempt, judgement, "export", started)
    told = said.structured_content or {}
    if not judgement.verdict.accepted:
        return answer_of(_text(said), told | {"out": None})
    if not force and (why := slower(judgement)):
        text = f"{_text(said)}\nnot exported: {why}; pass force=true to export it anyway"
        return answer_of(text, told | {"out": None}, failed=True)
    made = export(attempt, judge.task, judgement, Path(out))
    note = "" if judgement.beats_best_rung else f"\n{UNSURE}"
    return answer_of(f"{_text(said)}\nexported to {made}{note}", told | {"out": str(made)})


def _judged(
    judge_thread: JudgeThread, attempt: Attempt, judgement: Judgement, command: str, started: float
) -> CallToolResult:
    """Return a judgement as a tool's answer. A rejection does not mark the call as failed."""
    from cuagent.agent.tried import Tried
    from cuagent.agent.wording import judgement_lines
    from cuagent.record import result

    tried = Tried(judge_thread.number(attempt), attempt, "", judgement)
    told = result(command, judgement, duration_s=round(time.monotonic() - started, 3))
    return answer_of("\n".join(judgement_lines(tried, best=False)), told)


def _text(answer: CallToolResult) -> str:
    return "\n".join(part.text for part in answer.content if isinstance(part, TextContent))
