"""The course of a verdict: which draws with which weights, and what their findings amount to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verify.inputs import Inputs, Weights
from cuagent.verify.tolerance import UNITS, Expected, Finding, lax
from cuagent.verify.verdict import Draw, Reason, RuleResult

if TYPE_CHECKING:
    from torch import Tensor

LAX_DRAWS = 5
ROUNDS: tuple[tuple[Weights, tuple[Inputs, ...]], ...] = (
    (Weights.OWN, (*[Inputs.OWN] * LAX_DRAWS, Inputs.NORMAL)),
    (
        Weights.SHAKEN,
        (Inputs.NORMAL, Inputs.OWN, Inputs.ONE_SIGNED, Inputs.MIXED, Inputs.OFFSET),
    ),
    (Weights.INTEGER, (Inputs.INTEGER,)),
)
"""Weights are loaded anew for each round, into a newly constructed model in the same process."""


class Rejected(Exception):
    """The referee has seen enough."""

    def __init__(self, reason: Reason, detail: str, output: str = ""):
        super().__init__(detail)
        self.reason = reason
        self.output = output


@dataclass(frozen=True)
class Trial:
    """One draw to be made."""

    kind: Inputs
    weights: Weights
    seed: int

    @property
    def is_lax(self) -> bool:
        """Whether it is one of the lax rule's: own inputs, own weights."""
        return self.kind is Inputs.OWN and self.weights is Weights.OWN


class Tally:
    """What one verdict has gathered so far."""

    def __init__(self) -> None:
        self.draws: list[Draw] = []
        self.seconds: dict[str, float] = {}
        self._lax: list[RuleResult] = []
        self._findings: list[tuple[Trial, Finding]] = []
        self._unwritten = False
        self.trivial = True
        """Whether the constant that suits the first draw would have passed on all so far."""
        self.constants: list[float] | None = None
        self._unsteady: Trial | None = None

    def add(
        self,
        trial: Trial,
        snapshots: Sequence[Sequence[Tensor]],
        expected: Expected,
        findings: Sequence[Finding],
        unwritten: bool,
    ) -> None:
        """Take in the two calls of one draw."""
        worst = max(findings, key=lambda finding: (not finding.passed, finding.ratio))
        if trial.is_lax:
            results = [lax(outputs, expected.declared) for outputs in snapshots]
            self._lax.append(max(results, key=lambda result: result.worst))
        self._findings.append((trial, worst))
        if len({finding.passed for finding in findings}) > 1 and self._unsteady is None:
            self._unsteady = trial
        self._unwritten |= unwritten and not worst.passed
        name = (
            trial.kind if trial.weights is Weights.OWN else f"{trial.kind}, {trial.weights} weights"
        )
        self.draws.append(
            Draw(
                kind=name,
                seed=trial.seed,
                max_error=worst.max_error,
                rms_error=worst.rms_error,
                ratio=worst.ratio,
                passed=worst.passed,
                note=worst.note,
            )
        )

    @property
    def failed(self) -> bool:
        return not all(finding.passed for _, finding in self._findings)

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
        coarsest = _coarsest([f for _, f in failed])
        exact = any(t.kind is Inputs.INTEGER for t, _ in failed)
        if coarsest is not None and not exact:
            return Reason.LESS_PRECISE, f"the error is that of {coarsest} arithmetic"
        trial, finding = max(failed, key=lambda pair: pair[1].ratio)
        detail = f"on {trial.kind} inputs: {finding.note}, {finding.ratio:.2g} times the bound"
        return Reason.WRONG_VALUES, detail

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

    def precision(self) -> Precision | None:
        """The coarsest arithmetic seen on zero-mean draws; None if no draw tells."""
        return _coarsest([f for t, f in self._findings if t.kind is Inputs.NORMAL])

    def _worst(self) -> float:
        return max(finding.ratio for _, finding in self._findings)

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
