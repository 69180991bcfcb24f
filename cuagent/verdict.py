"""The decision on one attempt: accepted, or rejected with a named reason and the measured
errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from cuagent.task.task import Precision


class Reason(StrEnum):
    """Reason of a verdict.

    INFRASTRUCTURE is a fault of the machine, and such a verdict has no score.
    """

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
    TOO_SLOW = "surely slower, so not verified"
    NOT_CERTIFIABLE = "the task cannot be certified"
    INFRASTRUCTURE = "infrastructure"

    @classmethod
    def _missing_(cls, value: object) -> Reason | None:
        return cls.TOO_SLOW if value == EARLIER_TOO_SLOW else None


EARLIER_TOO_SLOW = "slower than an earlier attempt, so not verified"
"""Older text of `Reason.TOO_SLOW`, which some recorded verdicts contain."""
WHILE_TIMED = "while it was timed: "
"""Prefix of `Verdict.detail` if the attempt was accepted first, and rejected while it was timed."""
FIRST_DRAWS = "the draws are those of the attempt's first verdict"
"""Note on a verdict at record effort that did not repeat the draws (`verify/standing.py`)."""


ADJECTIVES = ("own", "normal", "one-signed", "mixed magnitude", "integer")
"""Kinds of draws whose name stands before "inputs"."""


def on_inputs(kind: str) -> str:
    """Return the words for inputs of a kind, with the kind of weights if `kind` names one:
    `own inputs`, `inputs of the kind "flat rows" with shaken weights`."""
    name, _, weights = kind.partition(", ")
    text = f"{name} inputs" if name in ADJECTIVES else f'inputs of the kind "{name}"'
    return f"{text} with {weights}" if weights else text


@dataclass(frozen=True)
class Draw:
    """Result of one draw: its seed, and the candidate's error against the fp64 answer.

    Errors and bounds are absolute, in the units of the output. `ratio` is the largest error divided
    by its bound; at most 1 passes. The seed is published only after the verdict.
    """

    kind: str
    seed: int
    max_error: float
    rms_error: float
    ratio: float
    passed: bool
    note: str = ""
    """Reason why the draw failed.

    It names the worst element with its value and the expected one, and the share and position of
    the wrong elements.
    """
    rms_bound: float = math.nan
    """Bound of the rms error; NaN if outputs must be equal to the answer."""
    hint: str = ""
    """Sentence on the likely cause of the wrong elements; "" without one."""


@dataclass(frozen=True)
class RuleResult:
    """Result of one rule on all its draws (docs/reference/rules.md).

    The rule is `lax` (5 inputs, allclose at 1e-2) or `strict`.
    """

    passed: bool
    worst: float
    """Largest error divided by its bound, over all draws; at most 1 passes."""
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """The judge's decision on one attempt."""

    accepted: bool
    reason: Reason
    detail: str
    """One line that names the fault and its place.

    It may contain an expected value; the draw of that value is never used again.
    """
    task: str
    """Digest of the task."""
    attempt: str
    """Digest of the attempt."""
    lax: RuleResult | None = None
    strict: RuleResult | None = None
    precision: Precision | None = None
    """Coarsest arithmetic that the candidate's errors reveal over all draws; None if unknown."""
    draws: tuple[Draw, ...] = ()
    tier: str = "none"
    """Isolation of the candidate's process: `bubblewrap`, `landlock` or `none`."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by part of the verdict: worker start, oracle, candidate, compare."""
    notes: tuple[str, ...] = ()
    """Limits of the verdict and further observations, one line each."""
    seeds: tuple[int, ...] = ()
    """All secret seeds in the order of drawing; `cuagent audit` repeats the verdict from them."""
    perturbations: tuple[int, ...] = ()
    """Number of perturbations that the oracle ran for each of its answers, in order.

    It depends on the time, and the bounds depend on it, so an audit repeats it.
    """
    output: str = ""
    """Text for the user: compiler messages if the build failed, else the candidate's printed text.

    Its length is limited, and no program parses it.
    """
    versions: dict[str, str] = field(default_factory=dict)
    settings: str = ""
    """torch's settings of the reference and the baselines, as one line; "" in earlier records."""
    errors: dict[str, float] = field(default_factory=dict)
    """Relative rms errors against fp64 of `reference` and `candidate`, on the first lax draw."""

    def contract(self, rung: str = "", error: float | None = None) -> str:
        """Return one line with the baselines' settings and the errors; "" for an earlier record.

        `rung` is the name of the best rung, and `error` its error against fp64.
        """
        if not self.settings:
            return ""
        errors = {name: value for name, value in self.errors.items() if name != "candidate"}
        errors |= {rung: error} if rung and error is not None else {}
        errors |= {name: value for name, value in self.errors.items() if name == "candidate"}
        text = ", ".join(f"{name} {value:.1e}" for name, value in errors.items())
        return f"baselines: {self.settings}" + (f"; error against fp64: {text}" if text else "")

    def extra_note(self, draw: Draw) -> str:
        """Return the note of a draw; "" if `detail` contains it already."""
        where = draw.note.partition("; ")[2]
        repeated = draw.note in self.detail or (where and where in self.detail)
        return "" if repeated else draw.note

    @property
    def hint(self) -> str:
        """Sentence on the likely cause, from the draw that failed worst; "" if no values were
        wrong.
        """
        failed = [draw for draw in self.draws if not draw.passed]
        if self.reason is not Reason.WRONG_VALUES or not failed:
            return ""
        return max(failed, key=lambda draw: draw.ratio).hint
