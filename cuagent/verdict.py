"""The Verdict: accepted, or rejected with a named reason, with what was measured on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from cuagent.task.task import Precision


class Reason(StrEnum):
    """Why a verdict is what it is. INFRASTRUCTURE is nobody's fault and no score."""

    ACCEPTED = "accepted"
    BUILD_FAILED = "build failed"
    IMPORT_FAILED = "import failed"
    CONSTRUCT_FAILED = "construction failed"
    STATE_MISMATCH = "state_dict does not match"
    CRASHED = "crashed"
    RAISED = "raised an exception"
    TIMED_OUT = "timed out"
    WRONG_FORM = "output has the wrong structure, shape or dtype"
    WRONG_VALUES = "wrong values"
    LESS_PRECISE = "less precise than the task allows"
    NOT_WRITTEN = "output not written"
    WROTE_OUTSIDE = "wrote outside the output"
    CHANGED_INPUT = "changed an input"
    NOT_DETERMINISTIC = "different results for equal inputs"
    MEMORY_FAULT = "a fault in memory that no output shows"
    WRONG_WHILE_TIMED = "wrong while timed"
    CLOCK_CONTRADICTION = "its own clock contradicts the wall clock"
    NOT_CERTIFIABLE = "the task cannot be certified"
    INFRASTRUCTURE = "infrastructure"


WHILE_TIMED = "while it was timed: "
"""How the detail of a verdict begins that timing took back."""


@dataclass(frozen=True)
class Draw:
    """One set of inputs and how far the candidate was from the fp64 oracle on it.

    Errors and bounds are absolute, in the units of the output; `ratio` is the largest of
    error / bound, so at most 1 is a pass. The seed is revealed after the verdict.
    """

    kind: str
    seed: int
    max_error: float
    rms_error: float
    ratio: float
    passed: bool
    note: str = ""
    """Where it was refused: the worst element with what was got and expected, the share of wrong
    elements and where they lie."""
    rms_bound: float = math.nan
    """Of the rms error; NaN where outputs must be equal."""
    hint: str = ""
    """What the wrong elements suggest to look for; a sentence, or nothing."""


@dataclass(frozen=True)
class RuleResult:
    """Opinion of one rule: `lax` (5 inputs, allclose at 1e-2) or `strict` (reference/rules.md)."""

    passed: bool
    worst: float
    """Largest error over its bound; at most 1 is a pass."""
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """The judge's word on one attempt."""

    accepted: bool
    reason: Reason
    detail: str
    """One line that says what happened, and where. An expected value in it is of a draw that is
    never used again."""
    task: str
    attempt: str
    """Digests."""
    lax: RuleResult | None = None
    strict: RuleResult | None = None
    precision: Precision | None = None
    """The arithmetic that was measured, coarsest first that explains the error."""
    draws: tuple[Draw, ...] = ()
    tier: str = "none"
    """Isolation that held while it was judged."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time went: worker start, oracle, candidate, compare."""
    notes: tuple[str, ...] = ()
    """What could not be judged, and what was looked at besides, a line each."""
    seeds: tuple[int, ...] = ()
    """All that was drawn, in order, so that the verdict can be given again (`cuagent audit`)."""
    perturbations: tuple[int, ...] = ()
    """How many there were for each answer, in order; the clock decides it, and bounds follow."""
    output: str = ""
    """What the compiler said where the build failed, else what the candidate printed, capped;
    feedback only, nothing is read from it."""
    versions: dict[str, str] = field(default_factory=dict)

    def more(self, draw: Draw) -> str:
        """The note of a draw, unless the detail says as much: of another element, the same."""
        rest = draw.note.partition("; ")[2]
        known = draw.note in self.detail or (rest and rest in self.detail)
        return "" if known else draw.note

    @property
    def hint(self) -> str:
        """What the wrong elements of the worst draw suggest to look for; "" where nothing."""
        failed = [draw for draw in self.draws if not draw.passed]
        if self.reason is not Reason.WRONG_VALUES or not failed:
            return ""
        return max(failed, key=lambda draw: draw.ratio).hint
