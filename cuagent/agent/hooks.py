"""Hooks that run before each step: user messages, limits, repetition, turns without calls, length.

A hook is a function of the run and the model. It returns None to continue, a text to send to the
model, or a Stop to end the run. It changes the run only through the run's methods, and leaves no
tool call without a result.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, takewhile
from queue import Empty

from cuagent.agent.compaction import compact, is_due
from cuagent.agent.run import Run
from cuagent.agent.stop import Stop
from cuagent.events import UserSaid
from cuagent.message import Message
from cuagent.models.model import Model

Hook = Callable[[Run, Model], Stop | str | None]

LAST_STEPS = 5
"""Number of remaining steps at which the model gets a request to finish."""
SAME_CALLS_WARN, SAME_CALLS_STOP = 3, 6
"""Number of identical calls in a row after which the model is warned, and the run is stopped."""
WAITING = ("bash_output",)
"""Tools whose repeated calls are allowed, because the result may change."""
IDLE_TURNS = 3
"""Number of turns in a row without a tool call after which the run ends."""


def steering(run: Run, model: Model) -> None:
    """Add the user's new messages from `run.inbox` to the conversation, word for word."""
    while True:
        try:
            text = run.inbox.get_nowait()
        except Empty:
            return
        run.add(Message("user", text, data={"from": "user"}))
        run.emit(UserSaid(text))


def limits(run: Run, model: Model) -> Stop | str | None:
    """Return a Stop if steps, cost, wall time or device time reached the budget.

    Shortly before the last step, return a warning for the model.
    """
    budget = run.budget
    if budget.steps is not None and run.steps >= budget.steps:
        return Stop.STEP_LIMIT
    if budget.cost is not None and run.known_cost >= budget.cost:
        return Stop.COST_LIMIT
    if budget.seconds is not None and run.seconds >= budget.seconds:
        return Stop.TIME_LIMIT
    if budget.device_seconds is not None and run.device_seconds >= budget.device_seconds:
        return Stop.DEVICE_LIMIT
    if budget.steps is not None and run.steps and budget.steps - run.steps == LAST_STEPS:
        return f"{LAST_STEPS} steps are left: finish your best attempt and call submit."
    return None


def repetition(run: Run, model: Model) -> Stop | str | None:
    """Return a warning, later a Stop, if the model repeats one call with the same arguments."""
    calls = (
        (call.name, call.arguments)
        for message in takewhile(lambda m: not _from_user(m), reversed(run.messages))
        for call in reversed(message.tool_calls)
        if call.name not in WAITING
    )
    latest = list(islice(calls, SAME_CALLS_STOP))
    same = sum(1 for _ in takewhile(lambda call: call == latest[0], latest))
    if same >= SAME_CALLS_STOP:
        return Stop.LOOPING
    if same >= SAME_CALLS_WARN and run.messages[-1].role == "tool":
        return (
            f"You have made the same {latest[0][0]} call {same} times in a row; its result will "
            "not change. Do something else: change the code, read another file, or submit."
        )
    return None


def idleness(run: Run, model: Model) -> Stop | str | None:
    """Return a request for a tool call after a turn without one, and a Stop after IDLE_TURNS of
    them.
    """
    if run.messages[-1].role != "assistant" or run.messages[-1].tool_calls:
        return None
    if _idle_turns(run.messages) >= IDLE_TURNS:
        return Stop.STALLED
    return (
        "You ended your turn without calling a tool. Continue with a tool call, or call submit to "
        "end the run."
    )


def answered(run: Run, model: Model) -> Stop | None:
    """Return a Stop after a turn without a tool call, so that the user can reply.

    Interactive sessions use this hook in place of `idleness`.
    """
    last = run.messages[-1]
    return Stop.ANSWERED if last.role == "assistant" and not last.tool_calls else None


def compaction(run: Run, model: Model) -> None:
    """Replace a conversation that approaches the model's context length by a summary."""
    if is_due(run, model):
        compact(run, model)


HOOKS: tuple[Hook, ...] = (steering, limits, repetition, idleness, compaction)
INTERACTIVE: tuple[Hook, ...] = (steering, limits, repetition, answered, compaction)


def _from_user(message: Message) -> bool:
    return message.data.get("from") == "user"


def _idle_turns(messages: list[Message]) -> int:
    turns = (
        m
        for m in takewhile(lambda m: not _from_user(m), reversed(messages))
        if m.role == "assistant"
    )
    return sum(1 for _ in takewhile(lambda m: not m.tool_calls, turns))
