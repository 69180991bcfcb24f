"""Bounds of the strict rule: the largest error of an honest result against the fp64 oracle.

Honest arithmetic is that of a correct kernel: it errs only by roundoff, in any order of summation.
`tolerance` states the formulas and the symbols x, r, y, s, m and u. A backward-stable kernel gives
the exact answer to inputs and weights that differ from the given ones by a factor of 1 +- `reach`,
8 sqrt(K) u (Higham, Accuracy and Stability of Numerical Algorithms, 1.5). The gate linearizes that
statement: s, measured under perturbations by u, times 8 sqrt(K). Here K excludes what a softmax
sums (`reductions.Terms`): that sum follows the exponentials and does not increase their error.

The linearization fails where the answer jumps: a softmax whose two largest scores are within
roundoff of each other, a threshold, a quantisation. Perturbations by u reach the jump only by
chance, and an honest kernel may end on its other side. So before a candidate is refused, the oracle
measures m, the largest change of each element under larger perturbations: of inputs and weights by
`reach`, and of the result of each operator by the error of a sum of one sign, `sequential`. If an
element changes more than the gate explains, its error counts only by what exceeds m
(`without_jumps`). The rms change under roundoff in every operator, `carried`, replaces the size of
the answer if large intermediates cancel.

Not covered: the choice of draws, and the rules for integers and NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verify.inputs.kinds import BIASED, EXACT, Inputs
from cuagent.verify.tensors import UNIT

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from cuagent.verify.trace.reductions import Terms

OWN_ERROR = 3.0
"""Largest admitted ratio of a candidate's error to the reference's own error."""
PRECISION_GATE = 8.0
"""Largest rms error of honest fp32, in units of sqrt(K) rms(s) (docs/calibration.json)."""
LOCAL = 5.0
"""Ratio of the bound on one element to the bound on the rms."""
MAX_SEQUENTIAL = 1e-4
"""Largest relative error of a sum of one sign, at any length."""
MAX_BIASED = 1e-3
"""`MAX_SEQUENTIAL` on kinds of inputs whose rounding errors add up (`BIASED`)."""
LANES = 4
"""Divisor of the worst case u K of a biased sum: it assumes at least this many partial sums, or
halves of a rounding. 94,000 nearly equal terms in one lane of 16 erred by 1.8e-3; u K is 5.6e-3."""
COARSE_GATE = 2.5
"""Gate of TF32, fp16 or bf16 in units of rms(s) scaled to that roundoff. Rounding the factors of
products errs by 0.7, truncating by about 2, the next coarser type by 6. It omits sqrt(K), since
the perturbation models this rounding itself."""
UNEVEN = 30.0
"""Ratio of largest to rms error above which the error counts as a wrong element, not as
roundoff."""
LOGIC_FACTOR = 12.5
"""Factor of the gate on draws that judge logic, relative to draws that judge precision."""
USUAL = (Inputs.OWN, Inputs.ONE_SIGNED, Inputs.TAILS)
USUAL_FACTOR = 1.5
"""`LOGIC_FACTOR` for kinds like the task's own inputs, on which 136 honest candidates reach 0.6 of
the narrow gate. It refuses coarse factors that only work for numbers of one sign."""
FORGIVEN = 0.05
"""Largest share of the output's standard deviation to which `LOGIC_FACTOR` and `USUAL_FACTOR` may
widen the gate."""
STEEPEST = 64
"""Spread, in units of the observed roundoff, above which the perturbed reference has jumped."""
DOUBLE = 2.0**-16
"""Factor of the gates where the reference computes in fp64 throughout. Roundoff of fp64 needs
2^-29, and fp32 on the way reached 0.2 of the usual gates; 2^-16 is far from both."""
QUARTER = 0.25
"""Largest absolute bound on an element of an exact draw. Its results are integers or sums of them,
so a wrong one is off by more."""
FEW_TERMS = 32
"""Longest sum assumed on draws in which nearly all terms are zero."""
NO_LUCK = 16
"""Least number of output elements with which `FEW_TERMS` is assumed. On fewer the
reference may be exact by chance although its sum is long."""
LEAST = 2.0**-114
"""Absolute error that is always admitted: 4,096 times the smallest normal fp32."""
OWN_ARITHMETIC = (Precision.MATCH, Precision.FP32)
"""Precisions that admit no coarser arithmetic than the reference's own."""
UNITS = {
    Precision.MATCH: UNIT,
    Precision.FP32: UNIT,
    Precision.TF32: 2.0**-11,
    Precision.FP16: 2.0**-11,
    Precision.BF16: 2.0**-8,
}
"""Unit roundoff of the factors of a product, by admitted precision."""


class Sums:
    """Sums of squares and largest values of one output that the bounds need, added block by
    block."""

    def __init__(self, carried: float = 0.0) -> None:
        """Create empty sums. `carried`: rms change under roundoff in operators, in units of u."""
        self.carried = carried
        self.count = 0
        self.squares = {"error": 0.0, "own": 0.0, "value": 0.0, "spread": 0.0}
        self.largest = {"error": 0.0, "own": 0.0, "value": 0.0}
        self._total = 0.0

    @classmethod
    def of(cls, blocks: Iterable[tuple[Tensor, ...]], carried: float = 0.0) -> Sums:
        """Return the sums of blocks of x, r, y and s."""
        sums = cls(carried)
        for block in blocks:
            sums.add(*block)
        return sums

    def add(self, x: Tensor, r: Tensor, y: Tensor, s: Tensor) -> None:
        """Add one block: candidate, reference, oracle and spread, all of one shape."""
        if not y.numel():
            return
        self.count += y.numel()
        self._total += number(y.sum())
        for name, tensor in (("error", x - y), ("own", r - y), ("value", y), ("spread", s)):
            self.squares[name] += number(tensor.square().sum())
            if name in self.largest:
                self.largest[name] = max(self.largest[name], number(tensor.abs().max()))

    def rms(self, name: str) -> float:
        """Return the rms of `error`, `own`, `value` or `spread`."""
        return math.sqrt(self.squares[name] / self.count)

    def bound_spread(self) -> None:
        """Limit spread and `carried` to STEEPEST times the observed roundoff.

        This applies to draws that admit no jump. There honest arithmetic moves no number across a
        tie, but the oracle's perturbations may.
        """
        roundoff = self.rms("own") + UNIT * self.rms("value")
        limit = self.count * (STEEPEST * roundoff) ** 2
        self.squares["spread"] = min(self.squares["spread"], limit)
        self.carried = min(self.carried, STEEPEST * roundoff / UNIT)

    def exact(self, kind: Inputs) -> bool:
        """Return True if the draw is of an exact kind and the reference itself makes no error on
        it."""
        return kind in EXACT and self.largest["own"] == 0

    @property
    def variation(self) -> float:
        """Standard deviation of y: rms(y - mean y)."""
        mean = self._total / self.count
        return math.sqrt(max(0.0, self.squares["value"] / self.count - mean * mean))


@dataclass(frozen=True)
class Gates:
    """Bounds on the error e of one output: rms(e) <= `rms`, and for each element |e_i| <=
    max(`local` + `relative` |y_i|, `own`)."""

    rms: float
    local: float
    """Absolute bound on one element."""
    own: float
    """Absolute bound from the reference's own largest error."""
    relative: float
    """Bound on one element relative to its size."""


def gates(sums: Sums, dtype: torch.dtype, kind: Inputs, terms: Terms, unit: float) -> Gates:
    """Return the bounds on one tensor of `dtype`, on a draw of `kind`.

    `unit` is the unit roundoff of the coarsest arithmetic that the task admits. `tolerance` states
    the formulas.
    """
    import torch

    info = torch.finfo(dtype)
    unit_out = info.eps / 2
    exact = sums.exact(kind)
    few = exact and kind is Inputs.FEW and sums.count >= NO_LUCK
    gate = _narrow(sums, terms.at_most(FEW_TERMS) if few else terms, unit, kind)
    if kind is not Inputs.NORMAL and not exact:
        factor = USUAL_FACTOR if kind in USUAL else LOGIC_FACTOR
        gate = min(gate * factor, max(gate, FORGIVEN * sums.variation))
    floor = unit_out**2 * sums.largest["value"] + max(info.tiny, LEAST)
    fine = DOUBLE if is_double(dtype, terms, unit) else 1.0
    gate *= fine
    local = gate * LOCAL
    one_signed = 0.0 if exact else fine * sequential(terms.longest, kind)
    return Gates(
        rms=max(gate + unit_out * sums.rms("value"), OWN_ERROR * sums.rms("own")) + floor,
        local=(min(local, QUARTER) if exact else local) + floor,
        own=OWN_ERROR * sums.largest["own"] + floor,
        relative=2 * unit_out + LOCAL * one_signed,
    )


def is_double(dtype: torch.dtype, terms: Terms, unit: float) -> bool:
    """Return True if a candidate must compute an output of `dtype` in fp64, as the reference
    does."""
    import torch

    return terms.double and unit <= UNIT and torch.finfo(dtype).eps <= torch.finfo(torch.double).eps


def coarsest(outputs: Iterable[Tensor], admitted: Precision, own: float = UNIT) -> float:
    """Return the unit roundoff of the coarsest honest arithmetic.

    It is the largest of three: that of the admitted precision, of the reference's own products
    (`own`, from `Terms.unit`) and of the outputs' dtypes. A kernel may round intermediates to the
    dtype of the outputs, as a reference does.
    """
    import torch

    held = [torch.finfo(x.dtype).eps / 2 for x in outputs if x.is_floating_point()]
    return max([UNITS[admitted], own, *held])


def may_jump(sums: Sums, kind: Inputs, admitted: Precision) -> bool:
    """Return True if honest arithmetic may end on the other side of a jump than the oracle."""
    return not (sums.exact(kind) and is_exact_probe(kind, admitted))


def is_exact_probe(kind: Inputs, admitted: Precision) -> bool:
    """Return True if honest arithmetic makes no error where the reference makes none.

    That holds for small integers in any precision. For the other exact kinds it holds in the
    reference's own precision, whose number of bits they fit (`Terms.fraction_bits`).
    """
    return kind in EXACT and (admitted in OWN_ARITHMETIC or kind is Inputs.INTEGER)


def reach(signed: int, unit: float) -> float:
    """Return the largest error of an honest sum of `signed` terms, relative to a term: 8 sqrt(K) u,
    more if `unit` is coarser than fp32."""
    return PRECISION_GATE * math.sqrt(signed) * UNIT + coarse(unit)


def sequential(longest: int, kind: Inputs = Inputs.NORMAL) -> float:
    """Return the largest relative error of a sequential sum of `longest` terms of one sign."""
    evenly = min(UNIT * math.sqrt(longest), MAX_SEQUENTIAL)
    if kind not in BIASED:
        return evenly
    return max(evenly, min(UNIT * longest / LANES, MAX_BIASED))


def without_jumps(x: Tensor, y: Tensor, s: Tensor, moved: Tensor, limit: JumpLimit) -> Tensor:
    """Return `x` with its error reduced by the sensitivity `moved` where that is a jump, not
    roundoff.

    A jump exceeds `limit.gate` and is not proportional to s: above five times the change that s
    predicts, or below half of it (then perturbations by u had crossed the jump already).
    """
    import torch

    predicted = limit.reach / UNIT * s
    linear = (moved >= predicted / 2) & (moved <= LOCAL * predicted)
    return torch.where((moved > limit.gate) & ~linear, reduced(x, y, moved), x)


def reduced(x: Tensor, y: Tensor, by: Tensor) -> Tensor:
    """Return `x` with its distance from `y` reduced by `by`, at most to zero."""
    error = x - y
    return y + (error.abs() - by).clamp(min=0).copysign(error)


@dataclass(frozen=True)
class JumpLimit:
    """Largest change of an element that is not a jump."""

    gate: float
    """Largest absolute change that does not count as a jump, under perturbation by `reach`."""
    reach: float
    """Relative size of the perturbations of inputs and weights."""


def jump_limit_of(sums: Sums, kind: Inputs, terms: Terms, unit: float) -> JumpLimit:
    """Return the largest change of an element of this tensor that is not a jump."""
    limit = LOCAL * _narrow(sums, terms, unit, kind)
    gate = min(limit, QUARTER) if sums.exact(kind) else limit
    return JumpLimit(gate, reach(terms.signed, unit))


def _narrow(sums: Sums, terms: Terms, unit: float, kind: Inputs) -> float:
    """Return the gate of zero-mean draws, widened to the arithmetic that the task admits
    (`unit`)."""
    return _honest(sums, terms, kind) + coarse(unit) * sums.rms("spread") / UNIT


def coarse(unit: float) -> float:
    """Return c such that products of this unit roundoff add c rms(s) / 2^-24 to the gate; 0 for
    fp32."""
    return COARSE_GATE * unit if unit > UNIT else 0.0


def _honest(sums: Sums, terms: Terms, kind: Inputs = Inputs.NORMAL) -> float:
    """Return the largest rms error of honest fp32 sums."""
    root = math.sqrt(terms.signed)
    one_signed = sequential(terms.longest, kind) * max(sums.rms("value"), sums.carried)
    return PRECISION_GATE * root * sums.rms("spread") + one_signed


def explains(sums: Sums, terms: Terms, bound: float, admitted: Precision) -> Precision | None:
    """Return the finest arithmetic whose roundoff explains errors of this size and evenness; None
    if none does. `bound` is the bound on their rms."""
    error, spread = sums.rms("error"), sums.rms("spread")
    if error <= bound and admitted in OWN_ARITHMETIC:
        return Precision.MATCH
    fine = _honest(sums, terms)
    if error <= fine:
        return Precision.MATCH
    if sums.largest["error"] > UNEVEN * error:
        return None
    for precision in (Precision.TF32, Precision.BF16):
        if error <= fine + COARSE_GATE * spread * UNITS[precision] / UNIT:
            return precision
    return None


def number(tensor: Tensor) -> float:
    """Return the value of a tensor of one element; waits for the GPU."""
    return float(tensor.item())
