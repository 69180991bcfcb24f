"""Why a run ended, and what it may spend."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Stop(StrEnum):
    """Why a run ended; a member's text says what it means to a person."""

    SUBMITTED = "submitted"
    """An attempt was submitted, and judged afresh it was right and faster than eager."""
    NO_GAIN = "no gain"
    """The model submitted, but nothing that was right and faster than eager."""
    ANSWERED = "answered"
    """The model ended its turn without a tool call, and a person is there to say more."""
    STALLED = "stalled"
    """The model ended its turn without a tool call, again and again."""
    LOOPING = "looping"
    """The model repeated one and the same call."""
    STEP_LIMIT = "step limit"
    COST_LIMIT = "cost limit"
    TIME_LIMIT = "time limit"
    DEVICE_LIMIT = "device-time limit"
    CONTEXT_FULL = "context full"
    """The conversation no longer fits the model."""
    MODEL_FAILED = "model failed"
    """The provider cannot answer, or did not after all retries."""
    JUDGE_FAILED = "judge failed"
    """Nothing can be judged on this machine any more; no fault of the policy's."""
    INTERRUPTED = "interrupted"
    """The user stopped it."""


FINISHED = (Stop.SUBMITTED, Stop.NO_GAIN)
"""What the model ended itself, with a result; such a run goes on only where somebody says so."""


@dataclass(frozen=True)
class Budget:
    """What a run may spend; safe by default. None is no limit."""

    steps: int | None = 100
    """Calls of the model."""
    cost: float | None = 5.0
    """US dollars; holds only where the model's price is known."""
    seconds: float | None = 3600.0
    """Wall time. No step begins after it, and a reply in flight is given up a minute later."""
    device_seconds: float | None = None
    """Time in which the judge verifies, times or profiles on the device."""
