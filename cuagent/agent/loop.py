"""The ReAct loop: look at the limits, ask the model, do what it says, until something stops it.

Invariants: every tool call gets exactly one result, also when interrupted; what happened is in
the log before anything else happens; nothing but `Stop` says why the run ended.
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
"""Seconds beyond the wall time of the budget in which a reply in flight may still come."""


def run_agent(
    run: Run,
    model: Model,
    tools: Sequence[Tool] = TOOLS,
    hooks: Sequence[Hook] = HOOKS,
    emit: Emit = ignore,
) -> Stop:
    """Step until something stops the run; leaves a whole conversation and a whole log.

    A run that had stopped goes on.
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
            end_jobs(run)
            run.close_calls(why)
    conclude(run, emit)
    run.clock_out()
    return run.stop


def _begin(run: Run, model: Model) -> None:
    """A run that had stopped here says so in the log; one that had not is told to the views."""
    if run.started is None:
        run.log.write("resume", model=model.name, budget=run.budget)
    else:
        announce(run, model)
    run.ended = run.stop if run.stop in FINISHED else None
    run.stop, run.error = None, ""
    run.clock_in()


def announce(run: Run, model: Model) -> None:
    """Tell the views which run it is and, where it was taken up again, what it has spent."""
    where = run.folder
    run.emit(RunStarted(where.id, where.path, run.task.name, run.task.device, model.name))
    if run.steps:
        run.emit(run.spent())


def step(run: Run, model: Model, tools: Sequence[Tool], hooks: Sequence[Hook], emit: Emit) -> None:
    """One question to the model, and all the calls in its reply, in their order."""
    for hook in hooks:
        match hook(run, model):
            case Stop() as stop:
                run.stop = stop
                return
            case str() as note:
                run.add(Message("user", note, data={"from": "cuagent"}))
                emit(Notice(note))
    run.steps += 1
    emit(StepStarted(run.steps))
    reply = query(run, model, emit)
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
    """Ask the model and record what it cost and said.

    A conversation that turns out to be too long is compacted, once.
    """
    try:
        reply, seconds = ask(run, model, emit)
    except ContextOverflow as error:
        if not _compacted(run, model):
            raise error
        reply, seconds = ask(run, model, emit)
    reply = replace(reply, message=with_unique_ids(reply.message, run))
    priced = run.cost is not None
    run.took(reply, model.name, getattr(model, "sampling", {}), seconds)
    if priced and run.cost is None and run.budget.cost is not None:
        run.notice(f"no price is known for {model.name}: the cost limit cannot hold", "warning")
    return reply


def ask(run: Run, model: Model, emit: Emit) -> tuple[Reply, float]:
    """One reply and the seconds it took, while the user and the clock may end the waiting."""
    messages = tuple(run.messages)
    gone = threading.Event()

    def on_text(text: str, kind: Literal["text", "reasoning"]) -> None:
        if gone.is_set():
            raise Interrupted  # in the thread that still listens to the provider
        if text:
            emit(TextDelta(text, kind))

    start = time.monotonic()
    limit = run.budget.seconds
    deadline = None if limit is None else start + max(0.0, limit - run.seconds) + GRACE
    try:
        reply = attend(lambda: model.query(messages, run.tools, on_text), run.cancelled, deadline)
    finally:
        gone.set()
    return reply, time.monotonic() - start


def _compacted(run: Run, model: Model) -> bool:
    try:
        return compact(run, model)
    except ContextOverflow:
        return False


def _names(reply: Reply) -> set[str]:
    return {call.name for call in reply.message.tool_calls}


def act(run: Run, call: ToolCall, tools: Sequence[Tool], emit: Emit, *, cut_off: bool) -> None:
    """Execute one call and record its result."""
    tool = next((tool for tool in tools if tool.name == call.name), None)
    summary = tool.summarize(call.arguments) if tool else ""
    emit(ToolStarted(call.id, call.name, summary, call.arguments))
    start = time.monotonic()
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
    seconds = time.monotonic() - start
    emit(ToolFinished(call.id, call.name, result.text, result.is_error, seconds, result.data))


def with_unique_ids(message: Message, run: Run) -> Message:
    """The reply with an id of its own for each call: providers refuse two of a kind."""
    used = {call.id for m in run.messages for call in m.tool_calls}
    calls = []
    for n, call in enumerate(message.tool_calls, 1):
        id = call.id
        if not id or id in used:
            id = f"call_{run.steps}_{n}"
        while id in used:
            id += "x"
        used.add(id)
        calls.append(replace(call, id=id))
    return replace(message, tool_calls=tuple(calls))
