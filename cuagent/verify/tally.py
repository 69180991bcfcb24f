"""The course of a verdict: which draws with which weights, and what their findings amount to."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verdict import Draw, Reason, RuleResult
from cuagent.verify.inputs.kinds import EXACT, SWEEPS, Inputs
from cuagent.verify.inputs.repertoire import SweepCount
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.rules.bounds import UNITS
from cuagent.verify.rules.tolerance import lax
from cuagent.verify.rules.types import Expected, Finding

if TYPE_CHECKING:
    from torch import Tensor

LAX_DRAWS = 5


@dataclass(frozen=True)
class Round:
    """Some draws under the same weights."""

    weights: Weights
    kinds: tuple[Inputs, ...]
    fresh: bool = True
    """Whether a model is constructed for them; else the weights go into the one in use."""
    again: int = 0
    """How many of the draws come a second time, in another order, when all have come once."""
    sweeps: tuple[Inputs, ...] = ()
    """Kinds of which several draws belong together; each is called once, in a block."""


ROUNDS = (
    Round(Weights.OWN, (*[Inputs.OWN] * LAX_DRAWS, Inputs.NORMAL)),
    Round(
        Weights.SHAKEN,
        (
            Inputs.NORMAL,
            Inputs.OWN,
            Inputs.ONE_SIGNED,
            Inputs.MIXED,
            Inputs.OFFSET,
            Inputs.BELOW,
            Inputs.LARGE,
            Inputs.TINY,
            Inputs.FAINT,
            Inputs.HUGE,
            Inputs.OPPOSED,
            Inputs.LEVELS,
            Inputs.FLAT,
            Inputs.EDGES,
            Inputs.OTHER_EDGES,
            Inputs.FAR_EDGES,
            Inputs.CORNERS,
            Inputs.OTHER_CORNERS,
            Inputs.INFINITE,
            Inputs.NAN,
            Inputs.MISSING,
            Inputs.SORTED,
            Inputs.TIES,
            Inputs.ENDS,
            Inputs.EXTREMES,
            Inputs.ALIKE,
            Inputs.MASKS,
            Inputs.EMPTY,
        ),
        again=3,
        sweeps=SWEEPS,
    ),
    Round(Weights.GROWN, (Inputs.OWN,)),
    Round(Weights.PAST, (Inputs.OWN,)),
    Round(Weights.SMALL, (Inputs.MIXED,)),
    Round(Weights.SUNK, (Inputs.OWN,)),
    Round(
        Weights.INTEGER,
        (Inputs.INTEGER, Inputs.CANCELLATION, Inputs.FEW),
        fresh=False,
        sweeps=(Inputs.HALVES,),
    ),
)


def most_calls(turns: Mapping[Inputs, SweepCount]) -> int:
    """Calls of a verdict in which every kind of draw is used, with so many turns of each sweep."""
    swept = sum(turns[k].made for part in ROUNDS for k in part.sweeps if k in turns)
    return swept + sum(2 * len(part.kinds) + part.again for part in ROUNDS)


class When(StrEnum):
    """What is special about a draw beside its inputs and weights."""

    FIRST = ""
    AGAIN = "again"
    """The same inputs came before, others in between: state that is kept shows."""
    TIMED = "as timed"
    """In a block of calls without poison, as in timing: whoever tells the two apart shows."""
    SWAPPED = "weights swapped"
    """The weights were loaded into a model in use: what was derived from the old ones shows."""
    IN_USE = "model in use"
    """The same for a model without weights, which was not constructed anew."""


class Rejected(Exception):
    """The referee has seen enough."""

    def __init__(self, reason: Reason, detail: str, output: str = ""):
        super().__init__(detail)
        self.reason = reason
        self.output = output


@dataclass(frozen=True, eq=False)
class Trial:
    """One draw to be made, and no other though it were like it."""

    kind: Inputs
    weights: Weights
    seed: int
    when: When = When.FIRST

    @property
    def name(self) -> str:
        parts = [self.kind.value]
        if self.weights is not Weights.OWN:
            parts.append(f"{self.weights} weights")
        return ", ".join([*parts, self.when.value] if self.when else parts)

    @property
    def is_lax(self) -> bool:
        """Whether it is one of the lax rule's: own inputs, own weights."""
        return self.kind is Inputs.OWN and self.weights is Weights.OWN


class Tally:
    """What one verdict has gathered so far."""

    def __init__(self, perturbations: Sequence[int] = ()) -> None:
        """`perturbations` are those of an earlier verdict that is to be given again."""
        self.perturbations: list[int] = []
        self.to_perturb = iter(perturbations)
        self.draws: list[Draw] = []
        self.seconds: dict[str, float] = {}
        self._lax: list[RuleResult] = []
        self._findings: list[tuple[Trial, Finding]] = []
        self._unwritten = False
        self.trivial = True
        """Whether the constant that suits the first draw would have passed on all so far."""
        self.constants: list[float] | None = None
        self._unsteady: Trial | None = None
        self._remarks: list[str] = []

    def add(
        self,
        trial: Trial,
        snapshots: Sequence[Sequence[Tensor]],
        expected: Expected,
        findings: Sequence[Finding],
        unwritten: bool,
    ) -> None:
        """Take in the two calls of one draw, or the one that both are like."""
        worst = max(findings, key=lambda finding: (not finding.passed, finding.ratio))
        if trial.is_lax:
            results = [lax(outputs, expected.declared) for outputs in snapshots]
            self._lax.append(max(results, key=lambda result: result.worst))
        self._findings.append((trial, worst))
        if findings[-1].passed and not findings[0].passed and self._unsteady is None:
            self._unsteady = trial
        self._unwritten |= unwritten
        self.draws.append(
            Draw(
                kind=trial.name,
                seed=trial.seed,
                max_error=worst.max_error,
                rms_error=worst.rms_error,
                ratio=worst.ratio,
                passed=worst.passed,
                note=worst.note,
                rms_bound=worst.rms_bound,
                hint=worst.hint,
            )
        )

    @property
    def failed(self) -> bool:
        return not all(finding.passed for _, finding in self._findings)

    def worst_in_use(self) -> Trial | None:
        """The draw that failed worst, where only those in the model in use did."""
        failed = [(t, f) for t, f in self._findings if not f.passed]
        if not failed or any(t.when not in (When.SWAPPED, When.IN_USE) for t, _ in failed):
            return None
        return max(failed, key=lambda pair: pair[1].ratio)[0]

    def conclusion(self) -> tuple[Reason, str]:
        """The reason and a line of detail, once all draws are in."""
        failed = [(t, f) for t, f in self._findings if not f.passed]
        if not failed:
            if self._findings and self.trivial:
                return Reason.NOT_CERTIFIABLE, "a constant passes on every draw"
            return (
                Reason.ACCEPTED,
                f"{len(self._findings)} draws, worst {self._worst():.2g} of its bound",
            )
        if self._unwritten:
            return Reason.NOT_WRITTEN, "part of the output was never written"
        if self._unsteady is not None:
            return (
                Reason.NOT_DETERMINISTIC,
                f"right and wrong on the same {self._unsteady.kind} inputs",
            )
        trial, finding = max(failed, key=lambda pair: pair[1].ratio)
        times = f", {finding.ratio:.2g} times the bound" if math.isfinite(finding.ratio) else ""
        where = f"on {trial.kind} inputs: {finding.note}{times}"
        if all(t.when is When.AGAIN for t, _ in failed):
            what = "right at first, wrong when the same inputs came again after others"
            return Reason.NOT_DETERMINISTIC, f"{what}; {where}"
        if all(t.when is When.TIMED for t, _ in failed):
            what = "right when called alone, wrong in a block of calls as in timing"
            return Reason.WRONG_VALUES, f"{what}; {where}"
        if all(t.when is When.SWAPPED for t, _ in failed):
            what = "right in a fresh model, wrong after load_state_dict into the model in use"
            return Reason.WRONG_VALUES, f"{what}, where new weights must take effect; {where}"
        if all(t.when is When.IN_USE for t, _ in failed):
            what = "right in a fresh model, wrong in one that was called before"
            return Reason.NOT_DETERMINISTIC, f"{what}; {where}"
        if all(t.kind in (Inputs.CANCELLATION, Inputs.FEW) for t, _ in failed):
            return Reason.LESS_PRECISE, f"sums that fp32 holds exactly were not exact; {where}"
        coarsest = _coarsest([f for _, f in failed])
        exact = any(t.kind in EXACT for t, _ in failed)
        if coarsest not in (None, Precision.MATCH) and not exact:
            return Reason.LESS_PRECISE, f"the error is that of {coarsest} arithmetic; {where}"
        return Reason.WRONG_VALUES, where

    def notes(self) -> tuple[str, ...]:
        """What a reader of the verdict should know beside it."""
        if self._findings and not self._judges_precision:
            loose = "precision could not be judged tightly: the reference takes no zero-mean inputs"
            return (loose, *self._remarks)
        return tuple(self._remarks)

    def lax_rule(self) -> RuleResult | None:
        if not self._lax:
            return None
        worst = max(result.worst for result in self._lax)
        return RuleResult(worst <= 1, worst, f"{len(self._lax)} draws, allclose at 1e-2")

    def strict_rule(self) -> RuleResult | None:
        if not self._findings:
            return None
        passed = all(finding.passed for _, finding in self._findings)
        return RuleResult(passed, self._worst(), f"{len(self._findings)} draws")

    @property
    def _judges_precision(self) -> bool:
        return any(trial.kind is Inputs.NORMAL for trial, _ in self._findings)

    def precision(self) -> Precision | None:
        """The coarsest arithmetic seen, on zero-mean draws where there are any."""
        tight = [f for t, f in self._findings if t.kind is Inputs.NORMAL]
        own = [f for t, f in self._findings if t.kind is Inputs.OWN]
        seen = _coarsest(tight or own)
        if seen is None and self._findings and not (self.failed or tight):
            return Precision.MATCH  # on one-signed sums fp32 in another order errs as much
        return seen

    def _worst(self) -> float:
        return max(finding.ratio for _, finding in self._findings)

    def remark(self, line: str) -> None:
        """Have a reader of the verdict know this, which is not held against the candidate."""
        self._remarks.append(line)

    def spend(self, what: str, seconds: float) -> None:
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    @contextmanager
    def clock(self, what: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.spend(what, time.perf_counter() - begun)


def _coarsest(findings: Sequence[Finding]) -> Precision | None:
    """The coarsest arithmetic that was needed to explain them; None where none explains one."""
    seen = [finding.precision for finding in findings if finding.precision is not None]
    return max(seen, key=UNITS.__getitem__) if seen and len(seen) == len(findings) else None
