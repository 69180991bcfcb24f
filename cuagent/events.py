"""Typed events of a run: the engine emits them, the views display them.

The engine never imports a view. Events contain frozen data from lower packages and are cheap to
create. A view may ignore any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class RunStarted:
    run_id: str
    folder: Path
    task: str
    device: str
    model: str


@dataclass(frozen=True)
class Phase:
    """Begin of long work without a model: opening the task, measuring baselines."""

    text: str
    passing: bool = False
    """True if views show the phase only in the live status line, because it is short or
    frequent.
    """


@dataclass(frozen=True)
class TextDelta:
    text: str
    kind: Literal["text", "reasoning"] = "text"


@dataclass(frozen=True)
class StepStarted:
    step: int


@dataclass(frozen=True)
class ToolStarted:
    call_id: str
    name: str
    summary: str
    """Argument of the call that summarizes it for the user: the command, the file, the pattern."""
    arguments: str = ""
    """Arguments of the call as the model wrote them: JSON, possibly malformed."""


@dataclass(frozen=True)
class ToolOutput:
    """A part of a tool's output, emitted while the tool still runs."""

    call_id: str
    text: str


@dataclass(frozen=True)
class ToolFinished:
    call_id: str
    name: str
    output: str
    is_error: bool
    seconds: float
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """An attempt was judged.

    `attempt` is its number, `judgement` a `cuagent.judgement.Judgement`.
    """

    attempt: int
    judgement: Any


@dataclass(frozen=True)
class LadderMeasured:
    """Rungs of the ladder were measured. `ladder` is a `cuagent.measure.rungs.Ladder`."""

    ladder: Any
    shown: bool = True
    """True if views show the ladder as a table; False if the next event contains it."""


@dataclass(frozen=True)
class Spent:
    """Totals of the run after a step: seconds, tokens, US dollars."""

    step: int
    seconds: float
    tokens_in: int
    tokens_out: int
    cost: float | None


@dataclass(frozen=True)
class UserSaid:
    """The user sent a message, which the model gets in the next step."""

    text: str


@dataclass(frozen=True)
class Notice:
    text: str
    level: Literal["info", "warning", "error"] = "info"


@dataclass(frozen=True)
class RunEnded:
    stop: str
    """Reason for the end, a value of `cuagent.agent.Stop`."""
    best: Any
    """`Judgement` on the best attempt; None if none was accepted."""
    summary: str
    ladder: Any = None
    """`Ladder` at the end of the run; None if it was not measured."""


Event = (
    RunStarted
    | Phase
    | TextDelta
    | StepStarted
    | ToolStarted
    | ToolOutput
    | ToolFinished
    | Judged
    | LadderMeasured
    | Spent
    | UserSaid
    | Notice
    | RunEnded
)
Emit = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Do nothing with an event; the default of `Emit` parameters."""
