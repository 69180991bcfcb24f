"""Define the typed events of a run: the engine emits them, the views consume them.

The engine never imports a view. Events carry frozen data from lower packages and are cheap to make.
A view may ignore any of them.
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
    """A stage of long work without a model (opening the task, measuring baselines)."""

    text: str
    passing: bool = False
    """True if only the live status line shows it: it is too short or too frequent to keep."""


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
    """One-line summary for the user: the command, the file, the pattern."""
    arguments: str = ""
    """Arguments as JSON, as the model wrote them; may be malformed."""


@dataclass(frozen=True)
class ToolOutput:
    """Part of a tool's output while it still runs."""

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
    """An attempt was judged. `judgement` is a `cuagent.judgement.Judgement`."""

    attempt: int
    judgement: Any


@dataclass(frozen=True)
class LadderMeasured:
    """The ladder, or further rungs of it, were measured. `ladder` is a
    `cuagent.measure.rungs.Ladder`."""

    ladder: Any
    shown: bool = True
    """True if views show it as a table; False if the next event shows it."""


@dataclass(frozen=True)
class Spent:
    """Totals after a step."""

    step: int
    seconds: float
    tokens_in: int
    tokens_out: int
    cost: float | None


@dataclass(frozen=True)
class UserSaid:
    """A message of the user reaches the model with the next step."""

    text: str


@dataclass(frozen=True)
class Notice:
    text: str
    level: Literal["info", "warning", "error"] = "info"


@dataclass(frozen=True)
class RunEnded:
    stop: str
    """A `cuagent.agent.Stop` value."""
    best: Any
    """The best `Judgement`, or None."""
    summary: str
    ladder: Any = None
    """The `Ladder` at the end, or None."""


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
    """Ignore an event; the default of `Emit` parameters."""
