"""The rounds of a verdict, and the tally that turns the findings on all draws into a conclusion."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verdict import Draw, Reason, RuleResult, on_inputs
from cuagent.verify.inputs.kinds import EXACT, SWEEPS, Inputs
from cuagent.verify.inputs.sweeps import SweepCount
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.rules.bounds import UNITS
from cuagent.verify.rules.tolerance import lax
from cuagent.verify.rules.types import Expected, Finding
from cuagent.verify.tensors import relative_error

if TYPE_CHECKING:
    from torch import Tensor

LAX_DRAWS = 5
"""Number of draws on which the lax rule is applied, as in KernelBench and CUDA Agent."""


@dataclass(frozen=True)
class Round:
    """Kinds of draws that a verdict makes with one kind of weights."""

    weights: Weights
    kinds: tuple[Inputs, ...]
    fresh: bool = True
    """True if the round constructs a new model; False if it loads its weights into the previous
    model.
    """
    repeats: int = 0
    """Number of draws whose inputs are used again, in another order, after all other draws."""
    sweeps: tuple[Inputs, ...] = ()
    """Kinds of inputs that are drawn as sweeps; each draw is called once, in a block of calls."""


FEW_DRAWS = 3
"""Number of draws of `Inputs.FEW`.

On one draw, a product of operands that keep 16 bits has only 1.0 to 1.4 times the admitted error,
and about one verdict in fifty accepted it.
"""
ROUNDS = (
    Round(Weights.OWN, (*[Inputs.OWN] * LAX_DRAWS, Inputs.NORMAL, Inputs.TIES)),
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
        repeats=3,
        sweeps=SWEEPS,
    ),
    Round(Weights.GROWN, (Inputs.OWN,)),
    Round(Weights.PAST, (Inputs.OWN,)),
    Round(Weights.SMALL, (Inputs.MIXED,)),
    Round(Weights.SUNK, (Inputs.OWN,)),
    Round(
        Weights.INTEGER,
        (Inputs.INTEGER, Inputs.CANCELLATION, *[Inputs.FEW] * FEW_DRAWS),
        fresh=False,
        sweeps=(Inputs.HALVES,),
    ),
)
"""All rounds of a verdict, in order."""


FEW_OWN = 2
"""Number of draws on which the lax rule is applied for a large task."""
OPPOSITES = {Inputs.EDGES: Inputs.OTHER_EDGES, Inputs.CORNERS: Inputs.OTHER_CORNERS}
"""Pairs of kinds of inputs of which a large task draws one.

A large task is drawn slice by slice (`oracle.server`), so one of its draws contains both kinds of a
pair, in alternate slices.
"""


def rounds_of(*, large: bool, weights: bool) -> tuple[Round, ...]:
    """Return the rounds of a verdict; `weights` is True if the model has weights.

    A `large` task has fewer draws, because each has as many numbers as many draws of a small task.
    """
    if not large:
        return ROUNDS
    found = []
    for entry in ROUNDS:
        own = entry.kinds.count(Inputs.OWN)
        kinds = [kind for kind in entry.kinds if kind not in OPPOSITES.values()]
        if own == LAX_DRAWS:
            kinds = kinds[LAX_DRAWS - FEW_OWN :]
        if entry.weights is Weights.INTEGER:
            kinds = list(dict.fromkeys(kinds))
        if weights or entry.weights is not Weights.SMALL:
            found.append(replace(entry, kinds=tuple(kinds), repeats=min(1, entry.repeats)))
    return tuple(found)


def call_count(sweep_counts: Mapping[Inputs, SweepCount]) -> int:
    """Return the number of candidate calls in a verdict that uses every kind of draw."""
    swept = sum(
        sweep_counts[kind].made * (1 + (kind in entry.kinds))
        for entry in ROUNDS
        for kind in (*entry.sweeps, *entry.kinds)
        if kind in sweep_counts
    )
    return swept + sum(2 * len(entry.kinds) + entry.repeats for entry in ROUNDS)


class When(StrEnum):
    """Circumstances of a draw: the first call, a repetition, a block as timed, or a model in
    use.
    """

    FIRST = ""
    AGAIN = "again"
    """An earlier draw is repeated after other draws; shows state that the model keeps between
    calls.
    """
    TIMED = "as timed"
    """A call in a block without poison, as in timing; shows code that detects the timing."""
    SWAPPED = "weights swapped"
    """The weights were loaded into a model that was called before.

    Shows values that the model derived from the old weights and did not update.
    """
    IN_USE = "model in use"
    """The model has no weights and was called before, in an earlier round."""


class Rejected(Exception):
    """Exception that ends a verdict: the attempt is rejected, no further draw is needed."""

    def __init__(self, reason: Reason, detail: str, output: str = ""):
        super().__init__(detail)
        self.reason = reason
        self.output = output


@dataclass(frozen=True, eq=False)
class Trial:
    """One planned draw of a verdict. Two trials with equal fields are still different trials."""

    kind: Inputs
    weights: Weights
    seed: int
    when: When = When.FIRST
    step: int = 0
    """Index of the draw within its sweep; 0 outside of sweeps."""
    has_weights: bool = True
    """False if the model has no weights; then the draw's name leaves them out."""

    @property
    def name(self) -> str:
        """Name of the draw in a verdict, from its kind of inputs, its weights and `when`."""
        parts = [self.kind.value]
        if self.has_weights and self.weights is not Weights.OWN:
            parts.append(f"{self.weights} weights")
        return ", ".join([*parts, self.when.value] if self.when else parts)

    @property
    def is_lax(self) -> bool:
        """True if the lax rule is applied to the draw: the task's own inputs with the constructor's
        weights.
        """
        return self.kind is Inputs.OWN and self.weights is Weights.OWN


class Tally:
    """Accumulates the findings of one verdict and concludes from them."""

    def __init__(self, perturbations: Sequence[int] = ()) -> None:
        """Create an empty tally.

        `perturbations` are the numbers of perturbations per draw of an earlier verdict that is
        repeated.
        """
        self.perturbations: list[int] = []
        self.recorded_counts = iter(perturbations)
        self.draws: list[Draw] = []
        self.seconds: dict[str, float] = {}
        self._lax: list[RuleResult] = []
        self._findings: list[tuple[Trial, Finding]] = []
        self._unwritten = False
        self.constant_passes = True
        """True while an output that repeats one constant, chosen on the first draw, passes on all
        draws.
        """
        self.constants: list[float] | None = None
        self._nondeterministic: Trial | None = None
        self._remarks: list[str] = []
        self.errors: dict[str, float] = {}
        """Relative errors against fp64, keys "reference" and "candidate", on the first lax draw."""

    def add(
        self,
        trial: Trial,
        snapshots: Sequence[Sequence[Tensor]],
        expected: Expected,
        findings: Sequence[Finding],
        unwritten: bool,
    ) -> None:
        """Add the findings on the two calls of one draw.

        There is one finding if the outputs of both calls are equal. `snapshots` are these outputs.
        `unwritten` is True if an output still contains poison.
        """
        worst = max(findings, key=lambda finding: (not finding.passed, finding.ratio))
        if trial.is_lax:
            results = [lax(outputs, expected.declared) for outputs in snapshots]
            self._lax.append(max(results, key=lambda result: result.worst))
            self.errors = self.errors or {
                "reference": relative_error(expected.declared, expected.precise),
                "candidate": relative_error(snapshots[0], expected.precise),
            }
        self._findings.append((trial, worst))
        if findings[-1].passed and not findings[0].passed and self._nondeterministic is None:
            self._nondeterministic = trial
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
        """True if some draw failed the strict rule."""
        return not all(finding.passed for _, finding in self._findings)

    def worst_in_use(self) -> Trial | None:
        """Return the worst failed draw if only draws on a model called before (SWAPPED, IN_USE)
        failed.

        Return None if no draw or another draw failed.
        """
        failed = [(t, f) for t, f in self._findings if not f.passed]
        if not failed or any(t.when not in (When.SWAPPED, When.IN_USE) for t, _ in failed):
            return None
        return max(failed, key=lambda pair: pair[1].ratio)[0]

    def conclusion(self) -> tuple[Reason, str]:
        """Return (reason, one line of detail) of the verdict, after all draws."""
        failed = [(t, f) for t, f in self._findings if not f.passed]
        if not failed:
            if self._findings and self.constant_passes:
                return Reason.NOT_CERTIFIABLE, "a constant passes on every draw"
            return (
                Reason.ACCEPTED,
                f"{len(self._findings)} draws, worst {self._worst():.2g} of its bound",
            )
        if self._unwritten:
            return Reason.NOT_WRITTEN, "part of the output was never written"
        if self._nondeterministic is not None:
            return (
                Reason.NOT_DETERMINISTIC,
                f"right and wrong on the same {on_inputs(self._nondeterministic.kind)}",
            )
        trial, finding = max(failed, key=lambda pair: pair[1].ratio)
        times = f", {finding.ratio:.2g} times the bound" if math.isfinite(finding.ratio) else ""
        where = f"on {on_inputs(trial.kind)}: {finding.note}{times}"
        if all(t.when is When.AGAIN for t, _ in failed):
            symptom = "right at first, wrong when the same inputs were repeated after others"
            return Reason.NOT_DETERMINISTIC, f"{symptom}; {where}"
        if all(t.when is When.TIMED for t, _ in failed):
            symptom = "right in a single call, wrong in a block of calls as in timing"
            return Reason.WRONG_VALUES, f"{symptom}; {where}"
        if all(t.when is When.SWAPPED for t, _ in failed):
            symptom = "right in a fresh model, wrong after load_state_dict into the model in use"
            return Reason.WRONG_VALUES, f"{symptom}; new weights must take effect; {where}"
        if all(t.when is When.IN_USE for t, _ in failed):
            symptom = "right in a fresh model, wrong in one that was called before"
            return Reason.NOT_DETERMINISTIC, f"{symptom}; {where}"
        if all(t.kind in (Inputs.CANCELLATION, Inputs.FEW) for t, _ in failed):
            return Reason.LESS_PRECISE, f"sums that are exact in fp32 were not exact; {where}"
        coarsest = _coarsest([f for _, f in failed])
        exact = any(t.kind in EXACT for t, _ in failed)
        if coarsest not in (None, Precision.MATCH) and not exact:
            return Reason.LESS_PRECISE, f"the error is that of {coarsest} arithmetic; {where}"
        return Reason.WRONG_VALUES, where

    def notes(self) -> tuple[str, ...]:
        """Return the notes of the verdict."""
        if self._findings and not self._has_zero_mean_draws:
            loose = (
                "precision could not be judged tightly: the reference accepts no zero-mean inputs"
            )
            return (loose, *self._remarks)
        return tuple(self._remarks)

    def lax_rule(self) -> RuleResult | None:
        """Return the result of the lax rule over its draws; None if there was none."""
        if not self._lax:
            return None
        worst = max(result.worst for result in self._lax)
        return RuleResult(worst <= 1, worst, f"{len(self._lax)} draws, allclose at 1e-2")

    def strict_rule(self) -> RuleResult | None:
        """Return the result of the strict rule over all draws; None if there was none."""
        if not self._findings:
            return None
        passed = all(finding.passed for _, finding in self._findings)
        return RuleResult(passed, self._worst(), f"{len(self._findings)} draws")

    @property
    def _has_zero_mean_draws(self) -> bool:
        return any(trial.kind is Inputs.NORMAL for trial, _ in self._findings)

    def precision(self) -> Precision | None:
        """Return the coarsest arithmetic that the candidate's errors reveal; None if they fit none.

        Zero-mean draws decide, or the task's own inputs if there are none.
        """
        zero_mean = [f for t, f in self._findings if t.kind is Inputs.NORMAL]
        own_draws = [f for t, f in self._findings if t.kind is Inputs.OWN]
        explained = _coarsest(zero_mean or own_draws)
        if explained is None and self._findings and not (self.failed or zero_mean):
            return Precision.MATCH  # on one-signed sums fp32 in another order has this error too
        return explained

    def _worst(self) -> float:
        return max(finding.ratio for _, finding in self._findings)

    def add_note(self, line: str) -> None:
        """Add a note to the verdict that does not count against the candidate."""
        self._remarks.append(line)

    def add_seconds(self, part: str, seconds: float) -> None:
        """Add `seconds` to the time of the verdict's part named `part`."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    @contextmanager
    def clock(self, part: str) -> Iterator[None]:
        """Context whose duration is added to the time of the verdict's part named `part`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds(part, time.perf_counter() - start)


def _coarsest(findings: Sequence[Finding]) -> Precision | None:
    """Return the coarsest `Finding.precision`; None if some finding has none."""
    explained = [finding.precision for finding in findings if finding.precision is not None]
    return (
        max(explained, key=UNITS.__getitem__)
        if explained and len(explained) == len(findings)
        else None
    )
