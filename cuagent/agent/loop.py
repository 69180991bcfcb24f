"""Run the ReAct loop: check the limits, query the model, execute its tool calls, until a stop.

Invariants: every tool call gets exactly one result, also when interrupted; each event is written to
the log before the next one happens; the reason for the end is always a `Stop`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from cuagent.agent.attended import Interrupted, Overdue, attend
from cuagent.agent.compaction import compact
from cuagent.agent.conclude import conclude
from cuagent.agent.hooks import HOOKS, Hook
from cuagent.agent.jobs import end_jobs
from cuagent.agent.run import JudgeLost, Run
from cuagent.agent.shield import shielded
from cuagent.agent.stop import FINISHED, Stop
from cuagent.agent.tools import TOOLS
from cuagent.agent.tools.tool import Context, Tool, execute
from cuagent.durations import Stage
from cuagent.events import (
    Emit,
    Notice,
    RunStarted,
    StepStarted,
    TextDelta,
    ToolFinished,
    ToolStarted,
    ignore,
)
from cuagent.message import Finish, Message, Reply, ToolCall
from cuagent.models.model import ContextOverflow, Model, ModelError

NOT_RUN = "not executed: the run has ended"
BY_USER = "interrupted by the user before it finished"
GRACE = 60.0
"""Seconds that the loop waits for a pending reply after the wall-time limit."""


def run_agent(
    run: Run,
    model: Model,
    tools: Sequence[Tool] = TOOLS,
    hooks: Sequence[Hook] = HOOKS,
    emit: Emit = ignore,
) -> Stop:
    """Run steps until the run stops; return the reason. A run that stopped before is continued.

    At the end every tool call has a result.
    """
    run.emit, run.tools = emit, tuple(tool.spec for tool in tools)
    _begin(run, model)
    why = NOT_RUN
    try:
        while run.stop is None:
            step(run, model, tools, hooks, emit)
    except (KeyboardInterrupt, Interrupted):
        run.stop, why = Stop.INTERRUPTED, BY_USER
    except Overdue:
        run.stop = Stop.TIME_LIMIT
    except ContextOverflow as error:
        run.stop, run.error = Stop.CONTEXT_FULL, str(error)
    except ModelError as error:
        run.stop, run.error = Stop.MODEL_FAILED, str(error)
    except JudgeLost as error:
        run.stop, run.error, why = Stop.JUDGE_FAILED, str(error), "no result: the judge failed"
    finally:
        with shielded():
            end_jobs(run.jobs.values())
            run.close_calls(why)
    conclude(run, emit)
    run.stop_clock()
    return run.stop


def _begin(run: Run, model: Model) -> None:
    """Announce a new run to the views, or log that a stopped run resumes; start the run's clock."""
    if run.started is None:
        run.log.write("resume", model=model.name, budget=run.budget)
    else:
        announce(run, model)
    run.ended = run.stop if run.stop in FINISHED else None
    run.stop, run.error = None, ""
    run.start_clock()


def announce(run: Run, model: Model) -> None:
    """Emit RunStarted to the views; for a resumed run also its totals so far."""
    where = run.folder
    run.emit(RunStarted(where.id, where.path, run.task.name, run.task.device, model.name))
    if run.steps:
        run.emit(run.spent())


def step(run: Run, model: Model, tools: Sequence[Tool], hooks: Sequence[Hook], emit: Emit) -> None:
    """Run the hooks, ask the model once and execute the calls of its reply in order."""
    for hook in hooks:
        match hook(run, model):
            case Stop() as stop:
                run.stop = stop
                return
            case str() as note:
                run.add(Message("user", note, data={"from": "cuagent"}))
                emit(Notice(note))
    emit(StepStarted(run.steps + 1))
    reply = query(run, model, emit)
    run.steps += 1  # a call without a reply does not count, as in the log
    for call in reply.message.tool_calls:
        if run.stop is not None:
            break
        act(run, call, tools, emit, cut_off=reply.finish is Finish.LENGTH)
        if run.cancelled.is_set():
            raise Interrupted
    if any(tool.changes for tool in tools if tool.name in _names(reply)):
        run.snapshot()
    emit(run.spent())


def query(run: Run, model: Model, emit: Emit) -> Reply:
    """Query the model; record the reply and its cost.

    If the conversation is too long for the model, compact it once and query again.
    """
    try:
        reply, seconds = ask(run, model, emit)
    except ContextOverflow as error:
        if not _compacted(run, model):
            raise error
        reply, seconds = ask(run, model, emit)
    reply = replace(reply, message=with_unique_ids(reply.message, run))
    run.record_reply(reply, model.name, getattr(model, "sampling", {}), seconds)
    return reply


def ask(run: Run, model: Model, emit: Emit) -> tuple[Reply, float]:
    """Query the model in a thread; return its reply and the seconds that it took.

    Raises Interrupted, and Overdue `GRACE` seconds after the wall-time limit.
    """
    messages = tuple(run.messages)
    abandoned = threading.Event()

    def on_text(text: str, kind: Literal["text", "reasoning"]) -> None:
        if abandoned.is_set():
            raise Interrupted  # ends the thread that still reads the reply
        if text:
            emit(TextDelta(text, kind))

    start = time.monotonic()
    limit = run.budget.seconds
    deadline = None if limit is None else start + max(0.0, limit - run.seconds) + GRACE
    try:
        with run.durations.of(Stage.GENERATION):
            reply = attend(
                lambda: model.query(messages, run.tools, on_text), run.cancelled, deadline
            )
    finally:
        abandoned.set()
    return reply, time.monotonic() - start


def _compacted(run: Run, model: Model) -> bool:
    try:
        return compact(run, model)
    except ContextOverflow:
        return False


def _names(reply: Reply) -> set[str]:
    return {call.name for call in reply.message.tool_calls}


def act(run: Run, call: ToolCall, tools: Sequence[Tool], emit: Emit, *, cut_off: bool) -> None:
    """Execute one tool call and add its result to the conversation.

    `cut_off` is True if the length limit ended the reply, so that its arguments may be incomplete.
    """
    tool = next((tool for tool in tools if tool.name == call.name), None)
    summary = tool.summarize(call.arguments) if tool else ""
    emit(ToolStarted(call.id, call.name, summary, call.arguments))
    before = run.seconds  # without the time in which the user is asked for approval
    result = execute(call, tool, tools, Context(run, call.id, emit), cut_off=cut_off)
    run.add(
        Message(
            "tool",
            result.text,
            tool_call_id=call.id,
            is_error=result.is_error,
            data=result.data,
        )
    )
    seconds = run.seconds - before
    emit(ToolFinished(call.id, call.name, result.text, result.is_error, seconds, result.data))


def with_unique_ids(message: Message, run: Run) -> Message:
    """Return the message with a unique id for each tool call, since providers refuse duplicates."""
    used = {call.id for m in run.messages for call in m.tool_calls}
    calls = []
    for n, call in enumerate(message.tool_calls, 1):
        id = call.id
        if not id or id in used:
            id = f"call_{run.steps + 1}_{n}"
        while id in used:
            id += "x"
        used.add(id)
        calls.append(replace(call, id=id))
    return replace(message, tool_calls=tuple(calls))
