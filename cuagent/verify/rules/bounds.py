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
from cuagent.verify.tensors import UNIT, largest_size, square_sum

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from cuagent.verify.trace.reductions import Terms

OWN_ERROR = 3.0
"""Largest ratio of a candidate's error to the reference's own error that is accepted."""
PRECISION_GATE = 8.0
"""Largest rms error of honest fp32, in units of sqrt(K) rms(s): K terms in a sum, s the spread.

The value comes from docs/calibration.json.
"""
LOCAL = 5.0
"""Ratio of the bound on one element's error to the bound on the rms error."""
MAX_SEQUENTIAL = 1e-4
"""Largest relative error of a sum of one sign, at any length."""
MAX_BIASED = 1e-3
"""Largest relative error of a sum of one sign on inputs whose rounding errors add up (`BIASED`)."""
LANES = 4
"""Least number of partial sums that an honest kernel is assumed to use; divides the worst case u K.

94,000 nearly equal terms in one lane of 16 erred by 1.8e-3; u K is 5.6e-3.
"""
COARSE_GATE = 2.5
"""Bound on the rms error of TF32, fp16 or bf16, in units of the spread scaled to that roundoff.

Rounding the factors of products errs by 0.7, truncating by about 2, the next coarser type by 6. The
bound omits sqrt(K), since the perturbation models this rounding itself.
"""
UNEVEN = 30.0
"""Ratio of largest to rms error above which an error is a wrong element, not roundoff."""
LOGIC_FACTOR = 12.5
"""Factor on the gate for draws that judge logic; draws that judge precision have 1."""
USUAL = (Inputs.OWN, Inputs.ONE_SIGNED, Inputs.TAILS)
USUAL_FACTOR = 1.5
"""`LOGIC_FACTOR` for kinds like the task's own inputs.

On these, 136 honest candidates reach 0.6 of the narrow gate. The factor still refuses coarse
arithmetic that only works for numbers of one sign.
"""
FORGIVEN = 0.05
"""Largest gate after `LOGIC_FACTOR` or `USUAL_FACTOR`, as a share of the output's standard
deviation.
"""
STEEPEST = 64
"""Ratio of spread to observed roundoff above which the perturbed reference must have jumped."""
DOUBLE = 2.0**-16
"""Factor on the gates if the reference computes in fp64 throughout.

Roundoff of fp64 needs 2^-29, and fp32 on the way reached 0.2 of the usual gates; 2^-16 is far from
both.
"""
QUARTER = 0.25
"""Largest absolute bound on an element of an exact draw. Its results are integers or sums of them,
so a wrong one is off by more."""
FEW_TERMS = 32
"""Upper limit of K on exact draws in which nearly all terms of a sum are zero."""
NO_LUCK = 16
"""Least number of output elements for which `FEW_TERMS` is used.

On fewer elements the reference may be exact by chance although its sum is long.
"""
LEAST = 2.0**-114
"""Absolute error that is always admitted: 4,096 times the smallest normal fp32."""
OWN_ARITHMETIC = (Precision.MATCH, Precision.FP32)
"""Admitted precisions under which a candidate may use no coarser arithmetic than the reference."""
UNITS = {
    Precision.MATCH: UNIT,
    Precision.FP32: UNIT,
    Precision.TF32: 2.0**-11,
    Precision.FP16: 2.0**-11,
    Precision.BF16: 2.0**-8,
}
"""Unit roundoff of the factors of a product; the key is the admitted precision."""
BITS = {Precision.TF32: 11, Precision.FP16: 11, Precision.BF16: 8}
"""Significant bits of numbers in an admitted precision that is coarser than the reference's."""


class Sums:
    """Running sums of squares and maxima of one output's error, own error, value and spread.

    They are added block by block; the bounds are computed from them.
    """

    def __init__(self, carried: float = 0.0) -> None:
        """Create empty sums.

        `carried` is the output's rms change under roundoff in operators, in units of u.
        """
        self.carried = carried
        self.count = 0
        self.squares = {"error": 0.0, "own": 0.0, "value": 0.0, "spread": 0.0}
        self.largest = {"error": 0.0, "own": 0.0, "value": 0.0}
        self.block_errors: list[float] = []
        """Largest error of each block that is not empty."""
        self._total = 0.0

    @classmethod
    def of(cls, blocks: Iterable[tuple[Tensor, ...]], carried: float = 0.0) -> Sums:
        """Return the sums over blocks (x, r, y, s)."""
        sums = cls(carried)
        for measured in [_measured(*block) for block in blocks if block[2].numel()]:
            sums._add(measured.tolist())  # one transfer for all sums of a block
        return sums

    def _add(self, measured: list[float]) -> None:
        """Add the result of `_measured` for one block."""
        count, self._total = int(measured[0]), self._total + measured[1]
        self.count += count
        for name, square in zip(self.squares, measured[2:6], strict=True):
            self.squares[name] += square
        self.block_errors.append(measured[6])
        for name, size in zip(self.largest, measured[6:], strict=True):
            self.largest[name] = max(self.largest[name], size)

    @property
    def are_finite(self) -> bool:
        """True if all numbers in the blocks are surely finite, except those of the spread."""
        found = (*self.largest.values(), self.squares["error"], self.squares["own"])
        return all(map(math.isfinite, (*found, self.squares["value"], self._total)))

    def rms(self, name: str) -> float:
        """Return the rms of one quantity: `error`, `own`, `value` or `spread`."""
        return math.sqrt(self.squares[name] / self.count)

    def bound_spread(self) -> None:
        """Limit spread and `carried` to STEEPEST times the observed roundoff.

        Used on draws whose inputs admit no jump. Honest arithmetic moves no number across a tie
        there, but the oracle's perturbations may.
        """
        roundoff = self.rms("own") + UNIT * self.rms("value")
        limit = self.count * (STEEPEST * roundoff) ** 2
        self.squares["spread"] = min(self.squares["spread"], limit)
        self.carried = min(self.carried, STEEPEST * roundoff / UNIT)

    def exact(self, kind: Inputs) -> bool:
        """Return True if `kind` is an exact kind and the reference made no error on this draw."""
        return kind in EXACT and self.largest["own"] == 0

    @property
    def variation(self) -> float:
        """Standard deviation of the fp64 answer y: rms(y - mean y)."""
        mean = self._total / self.count
        return math.sqrt(max(0.0, self.squares["value"] / self.count - mean * mean))


def _measured(x: Tensor, r: Tensor, y: Tensor, s: Tensor) -> Tensor:
    """Return the numbers of one block in fp64: its count, the sum of y, four sums of squares and
    three largest sizes, in the order of `Sums.squares` and `Sums.largest`.

    y is in fp64. NaN in x, r or y gives NaN.
    """
    import torch

    error = x - y
    squares, largest = [square_sum(error)], [largest_size(error)]
    del error
    own = r - y
    squares += [square_sum(own), square_sum(y), square_sum(s)]
    largest += [largest_size(own), largest_size(y)]
    return torch.stack([y.new_tensor(y.numel()), y.sum(), *squares, *largest])


@dataclass(frozen=True)
class Gates:
    """Bounds on the error e of one output: rms(e) <= `rms`, and each |e_i| <= max(`local` +
    `relative`
    |y_i|, `own`).
    """

    rms: float
    local: float
    """Bound on the absolute error of one element, the same for all elements."""
    own: float
    """Bound on the absolute error of one element, from the reference's own largest error."""
    relative: float
    """Bound on the error of one element, relative to the element's size."""


def gates(sums: Sums, dtype: torch.dtype, kind: Inputs, terms: Terms, unit: float) -> Gates:
    """Return the bounds on the error of one output of `dtype`, on a draw of `kind`.

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
    """Return True if a candidate must compute an output of `dtype` in fp64 because the reference
    does.
    """
    import torch

    return terms.double and unit <= UNIT and torch.finfo(dtype).eps <= torch.finfo(torch.double).eps


def coarsest(outputs: Iterable[Tensor], admitted: Precision, own: float = UNIT) -> float:
    """Return the unit roundoff of the coarsest arithmetic that a correct kernel may use.

    It is the largest of three: that of the admitted precision, of the reference's own products
    (`own`, from `Terms.unit`) and of the outputs' dtypes. A kernel may round intermediates to the
    dtype of the outputs, as a reference does.
    """
    import torch

    held = [torch.finfo(x.dtype).eps / 2 for x in outputs if x.is_floating_point()]
    return max([UNITS[admitted], own, *held])


def may_jump(sums: Sums, kind: Inputs, admitted: Precision) -> bool:
    """Return True if a correct kernel's result may be on the other side of a jump than the
    oracle's.
    """
    return not (sums.exact(kind) and is_exact_probe(kind, admitted))


def is_exact_probe(kind: Inputs, admitted: Precision) -> bool:
    """Return True if a correct kernel makes no error on draws of `kind` where the reference makes
    none.

    That is true for small integers in any precision. For the other exact kinds it is true in the
    reference's own precision, whose number of bits they fit (`Terms.fraction_bits`).
    """
    return kind in EXACT and (admitted in OWN_ARITHMETIC or kind is Inputs.INTEGER)


def represents(precision: Precision, numbers: torch.Tensor) -> bool:
    """Return True if a correct kernel in the admitted `precision` rounds none of these numbers."""
    import torch

    if precision in OWN_ARITHMETIC:
        return True
    wide = torch.view_as_real(numbers) if numbers.is_complex() else numbers
    digits = torch.frexp(wide).mantissa * 2.0 ** BITS[precision]
    return bool((digits == digits.round()).all())


def reach(signed: int, unit: float) -> float:
    """Return the largest error of a correct sum of K = `signed` terms, relative to a term: 8
    sqrt(K) u.

    More if `unit` is coarser than fp32's u.
    """
    return PRECISION_GATE * math.sqrt(signed) * UNIT + coarse(unit)


def sequential(longest: int, kind: Inputs = Inputs.NORMAL) -> float:
    """Return the largest relative error of a sequential sum of `longest` terms that have one
    sign.
    """
    evenly = min(UNIT * math.sqrt(longest), MAX_SEQUENTIAL)
    if kind not in BIASED:
        return evenly
    return max(evenly, min(UNIT * longest / LANES, MAX_BIASED))


def without_jumps(x: Tensor, y: Tensor, s: Tensor, moved: Tensor, limit: JumpLimit) -> Tensor:
    """Return `x` with errors reduced by the sensitivity `moved` at elements where the answer jumps.

    An element jumps if `moved` exceeds `limit.gate` and is not proportional to s: above five times
    the change that s predicts, or below half of it (then perturbations by u had crossed the jump
    already).
    """
    import torch

    predicted = limit.reach / UNIT * s
    linear = (moved >= predicted / 2) & (moved <= LOCAL * predicted)
    return torch.where((moved > limit.gate) & ~linear, reduced(x, y, moved), x)


def reduced(x: Tensor, y: Tensor, by: Tensor) -> Tensor:
    """Return `x` moved towards `y` by `by`, but not beyond `y`."""
    error = x - y
    return y + (error.abs() - by).clamp(min=0).copysign(error)


@dataclass(frozen=True)
class JumpLimit:
    """Criterion that separates a jump of an output element from roundoff."""

    gate: float
    """Change of an element under perturbation by `reach` above which its result jumps
    (absolute).
    """
    reach: float
    """Relative size of the perturbations of inputs and weights."""


def jump_limit_of(sums: Sums, kind: Inputs, terms: Terms, unit: float) -> JumpLimit:
    """Return the jump criterion for one output on a draw of `kind`."""
    limit = LOCAL * _narrow(sums, terms, unit, kind)
    gate = min(limit, QUARTER) if sums.exact(kind) else limit
    return JumpLimit(gate, reach(terms.signed, unit))


def _narrow(sums: Sums, terms: Terms, unit: float, kind: Inputs) -> float:
    """Return the bound on the rms error for zero-mean draws, for arithmetic of unit roundoff
    `unit`.
    """
    return _honest(sums, terms, kind) + coarse(unit) * sums.rms("spread") / UNIT


def coarse(unit: float) -> float:
    """Return the addition to the gate for products of a coarse unit roundoff, in units of rms(s) /
    2^-24.

    s is the spread. The result is 0 for fp32.
    """
    return COARSE_GATE * unit if unit > UNIT else 0.0


def _honest(sums: Sums, terms: Terms, kind: Inputs = Inputs.NORMAL) -> float:
    """Return the largest rms error of a correct kernel that computes in fp32."""
    root = math.sqrt(terms.signed)
    one_signed = sequential(terms.longest, kind) * max(sums.rms("value"), sums.carried)
    return PRECISION_GATE * root * sums.rms("spread") + one_signed


def explains(sums: Sums, terms: Terms, bound: float, admitted: Precision) -> Precision | None:
    """Return the finest arithmetic whose roundoff explains an output's error; None if none does.

    `bound` is the bound on the rms error. An error that few elements dominate is not roundoff.
    """
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
    """Return the value of a one-element tensor as a Python float; waits for the GPU."""
    return float(tensor.item())
