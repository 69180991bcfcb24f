"""The ReAct loop: look at the limits, ask the model, do what it says, until something stops it.

Invariants: every tool call gets exactly one result, also when interrupted; what happened is in
the log before anything else happens; nothing but `Stop` says why the run ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from cuagent.agent.conclude import conclude
from cuagent.agent.hooks import HOOKS, Hook
from cuagent.agent.run import Run
from cuagent.agent.stop import Stop
from cuagent.agent.tools import TOOLS
from cuagent.agent.tools.tool import Context, Tool, execute
from cuagent.events import (
    Emit,
    Notice,
    RunStarted,
    Spent,
    StepStarted,
    TextDelta,
    ToolFinished,
    ToolStarted,
    ignore,
)
from cuagent.message import Finish, Message, Reply, ToolCall
from cuagent.models.model import ContextOverflow, Model, ModelError

NOT_RUN = "not executed: the run has ended"


def run_agent(
    run: Run,
    model: Model,
    tools: Sequence[Tool] = TOOLS,
    hooks: Sequence[Hook] = HOOKS,
    emit: Emit = ignore,
) -> Stop:
    """Step until something stops the run; leaves a whole conversation and a whole log."""
    run.emit = emit
    emit(RunStarted(run.folder.id, run.folder.path, run.task.name, run.task.device, model.name))
    why = NOT_RUN
    try:
        while run.stop is None:
            step(run, model, tools, hooks, emit)
    except KeyboardInterrupt:
        run.stop, why = Stop.INTERRUPTED, "interrupted by the user before it finished"
    except ContextOverflow as error:
        run.stop, run.error = Stop.CONTEXT_FULL, str(error)
    except ModelError as error:
        run.stop, run.error = Stop.MODEL_FAILED, str(error)
    finally:
        run.close_calls(why)
    conclude(run, emit)
    return run.stop


def step(run: Run, model: Model, tools: Sequence[Tool], hooks: Sequence[Hook], emit: Emit) -> None:
    """One question to the model, and all the calls in its reply, in their order."""
    for hook in hooks:
        match hook(run):
            case Stop() as stop:
                run.stop = stop
                return
            case str() as note:
                run.add(Message("user", note))
                emit(Notice(note))
    run.steps += 1
    emit(StepStarted(run.steps))
    reply = query(run, model, tools, emit)
    for call in reply.message.tool_calls:
        if run.stop is not None:
            break
        act(run, call, tools, emit, cut_off=reply.finish is Finish.LENGTH)
    tokens_in = run.usage.input + run.usage.cache_read + run.usage.cache_write
    emit(Spent(run.steps, run.seconds, tokens_in, run.usage.output, run.cost))


def query(run: Run, model: Model, tools: Sequence[Tool], emit: Emit) -> Reply:
    """Ask the model and record what it cost and said."""
    start = time.monotonic()
    specs = [tool.spec for tool in tools]
    reply = model.query(tuple(run.messages), specs, lambda text, kind: emit(TextDelta(text, kind)))
    reply = replace(reply, message=with_unique_ids(reply.message, run))
    priced = run.cost is not None
    run.took(reply, model.name, getattr(model, "sampling", {}), time.monotonic() - start)
    if priced and run.cost is None and run.budget.cost is not None:
        emit(Notice(f"no price is known for {model.name}: the cost limit cannot hold", "warning"))
    return reply


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
