"""How far an honest result may lie from the fp64 oracle: the bounds of the strict rule.

`tolerance` states them. A backward-stable kernel gives the exact answer to inputs and weights that
differ from the given by a factor of 1 +- `reach`, 8 sqrt(K) u (Higham, Accuracy and Stability of
Numerical Algorithms, 1.5). The gate is that statement made linear: s, seen under perturbations by
u, times 8 sqrt(K). Here K leaves out what a softmax sums (`reductions.Terms`): that comes after its
exponents, and none of them err more for it.

Where the answer jumps (a softmax whose two largest scores lie within roundoff of each other, a
threshold, a quantisation) it is not linear: perturbations by u see the jump by luck only, and an
honest kernel falls on its other side. Before an error is held against anybody, the oracle is
therefore asked for m, the furthest that each element goes when inputs and weights are perturbed by
`reach` and the result of each operator by what a sum of one sign errs, `sequential`. What moves
further than the gate explains is `settled`: its error counts by what it exceeds m. And what is
`carried` from large intermediates that cancel stands in for the size of the answer.

Not covered: which draws there are, and how integers and NaN are judged.
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
"""How many times the reference's own error a candidate's may be."""
PRECISION_GATE = 8.0
"""rms error over sqrt(K) rms(s) up to which fp32 is honest (docs/calibration.json)."""
LOCAL = 5.0
"""The bound on one element over that on the rms."""
MOST_SEQUENTIAL = 1e-4
"""However long a sum of one sign is, relative to itself."""
MOST_BIASED = 1e-3
"""The same where roundings add up."""
A_LANE = 4
"""Lanes, at least, or halves of a rounding: 94,000 nearly equal terms in one lane of 16 erred by
1.8e-3, where their number times u is 5.6e-3."""
COARSE_GATE = 2.5
"""Of rms(s), scaled to TF32 or bf16: rounding factors of products to them errs by 0.7, truncating
by about 2, and the next coarser one by 6. No sqrt(K): the perturbation is this very rounding."""
UNEVEN = 30.0
"""Largest error over rms error, above which it is no roundoff but a wrong element."""
LOGIC_FACTOR = 12.5
"""The gate of draws that judge logic over that of those that judge precision."""
USUAL = (Inputs.OWN, Inputs.ONE_SIGNED, Inputs.TAILS)
USUAL_FACTOR = 1.5
"""The same of what a module is called on, where 136 honest candidates reach 0.6 of the narrow gate:
so that coarse factors for numbers of one sign alone, which inputs often are, do not pass."""
FORGIVEN = 0.05
"""Of the output's variation: more is not forgiven for the sake of `LOGIC_FACTOR`."""
STEEPEST = 64
"""Times the roundoff that is seen: more is a jump of the reference itself."""
QUARTER = 0.25
"""On exact draws results are integers, or sums of them: this much off is no roundoff."""
FEW_TERMS = 32
"""The longest sum on draws in which nearly all terms are zero."""
NO_LUCK = 16
"""Results: the reference does not hit so many by luck. A sum over lines, each with its few terms,
is no short one, and one number is right half of the time nevertheless."""
LEAST = 2.0**-114
"""Absolute error that is always admitted: 4,096 times the smallest normal fp32."""
UNITS = {
    Precision.MATCH: UNIT,
    Precision.TF32: 2.0**-11,
    Precision.FP16: 2.0**-11,
    Precision.BF16: 2.0**-8,
}
"""Unit roundoff of the factors of a product."""


class Sums:
    """What the bounds need to know of a tensor, gathered block by block."""

    def __init__(self, carried: float = 0.0) -> None:
        """`carried`: rms change under roundoff in each operator, in units of u, where known."""
        self.carried = carried
        self.count = 0
        self.squares = {"error": 0.0, "own": 0.0, "value": 0.0, "spread": 0.0}
        self.largest = {"error": 0.0, "own": 0.0, "value": 0.0}
        self._total = 0.0

    @classmethod
    def of(cls, blocks: Iterable[tuple[Tensor, ...]], carried: float = 0.0) -> Sums:
        """Of blocks of x, r, y and s."""
        sums = cls(carried)
        for block in blocks:
            sums.add(*block)
        return sums

    def add(self, x: Tensor, r: Tensor, y: Tensor, s: Tensor) -> None:
        """A candidate's values, the reference's, the oracle's and its spread, of any one shape."""
        if not y.numel():
            return
        self.count += y.numel()
        self._total += number(y.sum())
        for name, tensor in (("error", x - y), ("own", r - y), ("value", y), ("spread", s)):
            self.squares[name] += number(tensor.square().sum())
            if name in self.largest:
                self.largest[name] = max(self.largest[name], number(tensor.abs().max()))

    def rms(self, name: str) -> float:
        """Of `error`, `own`, `value` or `spread`."""
        return math.sqrt(self.squares[name] / self.count)

    def forget_jumps(self) -> None:
        """Where nothing may jump: what spreads so much further than the reference errs has."""
        roundoff = self.rms("own") + UNIT * self.rms("value")
        most = self.count * (STEEPEST * roundoff) ** 2
        self.squares["spread"] = min(self.squares["spread"], most)

    def exact(self, kind: Inputs) -> bool:
        """Whether honest arithmetic makes no error here."""
        return kind in EXACT and self.largest["own"] == 0

    @property
    def variation(self) -> float:
        """rms(y - mean y)"""
        mean = self._total / self.count
        return math.sqrt(max(0.0, self.squares["value"] / self.count - mean * mean))


@dataclass(frozen=True)
class Gates:
    """Bound on rms(e); |e_i| <= max(local + each |y_i|, own)."""

    rms: float
    local: float
    """Absolute."""
    own: float
    """Absolute, by the reference's own largest error."""
    each: float
    """Relative to the element."""


def gates(sums: Sums, dtype: torch.dtype, kind: Inputs, terms: Terms, unit: float) -> Gates:
    """The bounds on one tensor of `dtype`, on a draw of that `kind`.

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
    local = gate * LOCAL
    one_signed = 0.0 if exact else sequential(terms.longest, kind)
    return Gates(
        rms=max(gate + unit_out * sums.rms("value"), OWN_ERROR * sums.rms("own")) + floor,
        local=(min(local, QUARTER) if exact else local) + floor,
        own=OWN_ERROR * sums.largest["own"] + floor,
        each=2 * unit_out + LOCAL * one_signed,
    )


def coarsest(outputs: Iterable[Tensor], admitted: Precision) -> float:
    """Unit roundoff of the coarsest arithmetic that is honest: what the task admits, or holds.

    A kernel may round to the type of the outputs on its way as often as a reference does.
    """
    import torch

    held = [torch.finfo(x.dtype).eps / 2 for x in outputs if x.is_floating_point()]
    return max([UNITS[admitted], *held])


def doubtful(sums: Sums, kind: Inputs, admitted: Precision) -> bool:
    """Whether honest arithmetic may fall on the other side of a jump."""
    return not (sums.exact(kind) and round_numbers(kind, admitted))


def round_numbers(kind: Inputs, admitted: Precision) -> bool:
    """Whether honest arithmetic makes no error where the reference makes none: on small integers
    in any precision, on the other exact probes in fp32."""
    return kind in EXACT and (admitted is Precision.MATCH or kind is Inputs.INTEGER)


def reach(signed: int, unit: float) -> float:
    """How far honest arithmetic with sums of so many terms may err, relative to what it starts
    from."""
    return PRECISION_GATE * math.sqrt(signed) * UNIT + coarse(unit)


def sequential(longest: int, kind: Inputs = Inputs.NORMAL) -> float:
    """How far a sum of one sign may err, relative to itself, one term after the other."""
    evenly = min(UNIT * math.sqrt(longest), MOST_SEQUENTIAL)
    if kind not in BIASED:
        return evenly
    return max(evenly, min(UNIT * longest / A_LANE, MOST_BIASED))


def settled(x: Tensor, y: Tensor, s: Tensor, moved: Tensor, most: Steady) -> Tensor:
    """`x`, but nearer to `y` by `moved` wherever that is a jump and no roundoff.

    A jump is more than `most.gate`, and either five times as far as s foretells in proportion, or
    less than half: that is an answer that had jumped already under perturbation by u.
    """
    import torch

    foretold = most.reach / UNIT * s
    linear = (moved >= foretold / 2) & (moved <= LOCAL * foretold)
    return torch.where((moved > most.gate) & ~linear, nearer(x, y, moved), x)


def nearer(x: Tensor, y: Tensor, by: Tensor) -> Tensor:
    """`x`, but nearer to `y` by so much, and no further than it."""
    error = x - y
    return y + (error.abs() - by).clamp(min=0).copysign(error)


@dataclass(frozen=True)
class Steady:
    """What is no jump yet."""

    gate: float
    """How far an element may move under perturbation by `reach`."""
    reach: float
    """By how much, relative to them, inputs and weights are perturbed."""


def steady(sums: Sums, kind: Inputs, terms: Terms, unit: float) -> Steady:
    """How far an element of this tensor may move before that is a jump."""
    most = LOCAL * _narrow(sums, terms, unit, kind)
    gate = min(most, QUARTER) if sums.exact(kind) else most
    return Steady(gate, reach(terms.signed, unit))


def _narrow(sums: Sums, terms: Terms, unit: float, kind: Inputs) -> float:
    """The gate of precision, in the arithmetic that the task admits."""
    return _honest(sums, terms, kind) + coarse(unit) * sums.rms("spread") / UNIT


def coarse(unit: float) -> float:
    """Factor of rms(s) / 2^-24 by which products in that unit roundoff widen the gate."""
    return COARSE_GATE * unit if unit > UNIT else 0.0


def _honest(sums: Sums, terms: Terms, kind: Inputs = Inputs.NORMAL) -> float:
    """rms error that honest fp32 sums may have."""
    root = math.sqrt(terms.signed)
    one_signed = sequential(terms.longest, kind) * max(sums.rms("value"), sums.carried)
    return PRECISION_GATE * root * sums.rms("spread") + one_signed


def explains(sums: Sums, terms: Terms, bound: float, admitted: Precision) -> Precision | None:
    """The finest arithmetic whose roundoff accounts for errors of this size and evenness."""
    error, spread = sums.rms("error"), sums.rms("spread")
    if error <= bound and admitted is Precision.MATCH:
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
    """Of a tensor that holds one; waits for the GPU."""
    return float(tensor.item())
