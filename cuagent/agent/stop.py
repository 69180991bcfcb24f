"""Reasons for the end of a run, and its budget."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Stop(StrEnum):
    """Reason for the end of a run; the value is the text that users see."""

    SUBMITTED = "submitted"
    """The model submitted an attempt that is accepted and faster than eager at record effort."""
    NO_GAIN = "no gain"
    """The model submitted, but no attempt was accepted and faster than eager."""
    ANSWERED = "answered"
    """The model ended its turn without a tool call, and the user can reply."""
    STALLED = "stalled"
    """The model ended several turns in a row without a tool call."""
    LOOPING = "looping"
    """The model repeated the same call too often."""
    STEP_LIMIT = "step limit"
    COST_LIMIT = "cost limit"
    TIME_LIMIT = "time limit"
    DEVICE_LIMIT = "device-time limit"
    CONTEXT_FULL = "context full"
    """The conversation no longer fits into the model's context."""
    MODEL_FAILED = "model failed"
    """The provider cannot answer, or did not answer after all retries."""
    JUDGE_FAILED = "judge failed"
    """The judge cannot work on this machine any more, through no fault of the model."""
    INTERRUPTED = "interrupted"
    """The user stopped the run."""


FINISHED = (Stop.SUBMITTED, Stop.NO_GAIN)
"""Stops that the model caused by submitting; such a run continues only at the user's request."""


@dataclass(frozen=True)
class Budget:
    """Limits of a run; None means unlimited."""

    steps: int | None = 100
    """Number of calls of the model."""
    cost: float | None = 5.0
    """Limit in US dollars; applies only if the model's price is known."""
    seconds: float | None = 3600.0
    """Wall time in seconds. No step begins after it; a pending reply is dropped a minute later."""
    device_seconds: float | None = None
    """Seconds in which the judge may use the device: verifying, timing and profiling."""
