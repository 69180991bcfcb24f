"""What is looked at before each step: limits, repetition, turns without a call.

A hook takes the run and returns None to go on, a text to put before the model, or a Stop. It must
not change the run. Compaction and steering will be hooks as well.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from cuagent.agent.run import Run
from cuagent.agent.stop import Stop
from cuagent.message import Message

Hook = Callable[[Run], Stop | str | None]

LAST_STEPS = 5
"""So many steps before the end the model is told."""
SAME_CALLS_WARN, SAME_CALLS_STOP = 3, 6
IDLE_TURNS = 3
"""Turns in a row without a tool call after which the run ends."""


def limits(run: Run) -> Stop | str | None:
    """Steps, cost and wall time."""
    budget = run.budget
    if budget.steps is not None and run.steps >= budget.steps:
        return Stop.STEP_LIMIT
    if budget.cost is not None and run.cost is not None and run.cost >= budget.cost:
        return Stop.COST_LIMIT
    if budget.seconds is not None and run.seconds >= budget.seconds:
        return Stop.TIME_LIMIT
    if budget.steps is not None and run.steps and budget.steps - run.steps == LAST_STEPS:
        return f"{LAST_STEPS} steps are left: bring your best attempt to an end and call submit."
    return None


def repetition(run: Run) -> Stop | str | None:
    """The same call with the same arguments, with no other in between."""
    calls = [
        (call.name, call.arguments)
        for message in reversed(run.messages)
        for call in reversed(message.tool_calls)
    ]
    same = sum(1 for _ in takewhile(lambda call: call == calls[0], calls))
    if same >= SAME_CALLS_STOP:
        return Stop.LOOPING
    if same >= SAME_CALLS_WARN and run.messages[-1].role == "tool":
        return (
            f"You have made the same {calls[0][0]} call {same} times in a row; its result will not "
            "change. Do something else: change the code, read another file, or submit."
        )
    return None


def idleness(run: Run) -> Stop | str | None:
    """A turn without a tool call ends nothing here; the model is told what does."""
    if run.messages[-1].role != "assistant" or run.messages[-1].tool_calls:
        return None
    if _idle_turns(run.messages) >= IDLE_TURNS:
        return Stop.STALLED
    return (
        "You ended your turn without calling a tool. Go on with a tool call, or call submit to "
        "end the run."
    )


HOOKS: tuple[Hook, ...] = (limits, repetition, idleness)


def _idle_turns(messages: list[Message]) -> int:
    turns = (m for m in reversed(messages) if m.role == "assistant")
    return sum(1 for _ in takewhile(lambda m: not m.tool_calls, turns))
