"""The two rules, as pure functions on tensors: lax and strict.

lax     |x - r| <= 1e-2 + 1e-2 |r| for every element, r the reference in its declared precision
        (KernelBench, CUDA Agent). Reported beside the verdict, never instead of the strict rule.

strict  With y the fp64 oracle, r the reference, e = x - y, s the spread of the oracle when every
        input and weight is multiplied by 1 + u N(0,1), K the longest sum, u_o the unit roundoff of
        the output's dtype:
            gate        8 sqrt(K) rms(s) + min(u sqrt(K), 1e-4) rms(y)
            precision   rms(e) <= max(  gate + rms(u_o y),   3 rms(r - y)) + floor
            local       |e_i|  <= max(5 gate + 2 u_o |y_i|,  3 max|r - y|) + floor
            floor       u_o^2 max|y| + max(smallest normal of the dtype, 2^-114)
        Either bound admits. Inputs that are not zero-mean judge logic: there the gate is 12.5 times
        as wide, but no more than 5 % of the output's own variation is forgiven that way.
        Exact probes (small integers, cancellation) are held to the narrow gate, and to a quarter,
        wherever the reference itself is exact: a wrong index is off by one at least.
        Where the task admits TF32 (u = 2^-11), fp16 or bf16, 2.5 rms(s) u / 2^-24 is added to the
        first gate and five times that to the second.

The second term of the gate is for sums of one sign inside a task (exponentials, squares) that are
taken one term after the other: each addition rounds the partial sum, whose size s does not know.

The floor is for outputs on which perturbations have no hold: a one-hot softmax has no spread, and
an honest exp that clamps at -87 leaves 3e-38 where the oracle has 0. An error of u_o^2 of the
largest output is below what a single operation on that output can resolve, twice over; 2^-114 is
4096 times the smallest normal fp32.

NaN and Inf must stand where they stand in the reference; integers and booleans must be equal to
the reference in either precision, but for those that change when the inputs are perturbed by u:
near-ties, of which every choice is right (`ties` says which there are, for indices). On round
numbers a comparison has no such excuse.

Tensors are gone through in blocks, so that an output of gigabytes needs no second gigabytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verify.inputs import EXACT, ROUND, Inputs
from cuagent.verify.ties import Places, wrong_places
from cuagent.verify.verdict import RuleResult

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LAX = 1e-2
UNIT = 2.0**-24
"""Unit roundoff of fp32, in which products are summed; the oracle is perturbed by it."""
OWN_ERROR = 3.0
PRECISION_GATE, LOCAL_GATE = 8.0, 40.0
SEQUENTIAL, MOST_SEQUENTIAL = 1.0, 1e-4
COARSE_GATE = 2.5
"""Of rms(s), scaled to TF32 or bf16: rounding factors of products to them errs by 0.7, truncating
by about 2, and the next coarser one by 6. No sqrt(K): the perturbation is this very rounding."""
UNEVEN = 30.0
"""Largest error over rms error, above which it is no roundoff but a wrong element."""
LOGIC_FACTOR = 12.5
FORGIVEN = 0.05
QUARTER = 0.25
FEW_TERMS = 32
"""The longest sum on draws in which nearly all terms are zero."""
LEAST = 2.0**-114
BLOCK = 1 << 24
"""Elements that are held in fp64 at a time."""
UNITS = {
    Precision.MATCH: UNIT,
    Precision.TF32: 2.0**-11,
    Precision.FP16: 2.0**-11,
    Precision.BF16: 2.0**-8,
}
"""Unit roundoff of the factors of a product."""


@dataclass(frozen=True)
class Expected:
    """What the oracle says about one draw; one tensor each for every tensor of the output."""

    declared: Sequence[Tensor]
    """The reference in its own precision."""
    precise: Sequence[Tensor]
    """The reference in fp64."""
    spread: Sequence[Tensor]
    """Per element, fp64: rms change of `precise` under perturbation by UNIT."""
    places: Sequence[Places | None] = ()
    """What indices were chosen from, where the output holds some; empty where nowhere."""


@dataclass(frozen=True)
class Finding:
    """The strict rule on one draw."""

    passed: bool
    ratio: float
    """Largest error over its bound; inf where something is wrong that has no bound."""
    max_error: float
    rms_error: float
    precision: Precision | None
    """Finest arithmetic that explains the error on this draw; None if none does."""
    note: str = ""
    rms_bound: float = math.nan


def lax(outputs: Sequence[Tensor], declared: Sequence[Tensor]) -> RuleResult:
    """allclose at 1e-2, the tolerance scaled by the reference and never by the candidate."""
    import torch

    worst = 0.0
    for output, reference in zip(outputs, declared, strict=True):
        if not _is_real(output):
            worst = worst if torch.equal(output, reference) else math.inf
            continue
        for x, r in _blocks(output, reference):
            same = (x == r) | (x.isnan() & r.isnan())
            bound = LAX + LAX * r.double().abs()
            ratio = torch.where(same, 0.0, (x.double() - r.double()).abs() / bound)
            worst = max(worst, _number(ratio.nan_to_num(nan=math.inf).max()))
    return RuleResult(worst <= 1, worst)


def strict(
    outputs: Sequence[Tensor],
    expected: Expected,
    kind: Inputs,
    longest_sum: int,
    admitted: Precision = Precision.MATCH,
) -> Finding:
    """The strict rule on one draw of `kind`."""
    places = expected.places or [None] * len(outputs)
    findings = [
        _leaf(index, output, declared, precise, spread, kind, longest_sum, admitted, chosen)
        for index, (output, declared, precise, spread, chosen) in enumerate(
            zip(
                outputs,
                expected.declared,
                expected.precise,
                expected.spread,
                places,
                strict=True,
            )
        )
        if output.numel()
    ]
    if not findings:
        return Finding(True, 0.0, 0.0, 0.0, Precision.MATCH)
    worst = max(findings, key=lambda finding: (not finding.passed, finding.ratio))
    measured = [finding.precision for finding in findings]
    return Finding(
        passed=all(finding.passed for finding in findings),
        ratio=worst.ratio,
        max_error=max(finding.max_error for finding in findings),
        rms_error=max(finding.rms_error for finding in findings),
        precision=None if None in measured else max(filter(None, measured), key=UNITS.__getitem__),
        note=worst.note,
        rms_bound=worst.rms_bound,
    )


def constants(expected: Expected) -> list[float]:
    """For each output the best constant answer to one draw: its mean."""
    return [_number(y.double().mean()) if y.numel() else 0.0 for y in expected.declared]


def _leaf(
    index: int,
    output: Tensor,
    declared: Tensor,
    precise: Tensor,
    spread: Tensor,
    kind: Inputs,
    longest_sum: int,
    admitted: Precision,
    places: Places | None,
) -> Finding:
    import torch

    if not _is_real(output):
        # fp64 may order near-ties otherwise than the declared precision does; either is right.
        wrong = (output != declared) & (output != precise.to(output.dtype))
        if places is not None and bool(wrong.any()):
            wrong = wrong_places(output, declared, precise, places)
        elif not (output.dtype is torch.bool and kind in ROUND):
            wrong &= ~_tied(output, declared, spread)
        return _exact(index, wrong)
    blocks = list(_blocks(output, declared, precise, spread))
    misplaced = sum(int(_misplaced(*_wide3(block)).sum()) for block in blocks)
    if misplaced:
        what = "NaN or Inf in the wrong place, or a wrong number there"
        return _refused(index, misplaced, output.numel(), what)
    sums = _Sums()
    for block in blocks:
        sums.add(*_finite(block))
    if not sums.count:
        return Finding(True, 0.0, 0.0, 0.0, Precision.MATCH)
    gates = _gates(sums, output.dtype, kind, longest_sum, UNITS[admitted])
    worst, where, begun = 0.0, 0, 0
    for block in blocks:
        x, _, y, _ = _finite(block)
        if y.numel():
            relative = (x - y).abs() / (gates.local + 2 * gates.unit * y.abs()).clamp(gates.own)
            position = int(relative.argmax())
            if (found := _number(relative[position])) > worst:
                worst, where = found, begun + position
        begun += y.numel()
    ratio = max(sums.rms("error") / gates.rms, worst)
    return Finding(
        passed=ratio <= 1,
        ratio=ratio,
        max_error=sums.largest["error"],
        rms_error=sums.rms("error"),
        precision=_explains(sums, longest_sum, gates.rms, admitted),
        note="" if ratio <= 1 else f"output {index}, element {where} of {sums.count}",
        rms_bound=gates.rms,
    )


class _Sums:
    """What the bounds need to know of a tensor, gathered block by block."""

    def __init__(self) -> None:
        self.count = 0
        self.squares = {"error": 0.0, "own": 0.0, "value": 0.0, "spread": 0.0}
        self.largest = {"error": 0.0, "own": 0.0, "value": 0.0}
        self._total = 0.0

    def add(self, x: Tensor, r: Tensor, y: Tensor, s: Tensor) -> None:
        if not y.numel():
            return
        self.count += y.numel()
        self._total += _number(y.sum())
        for name, tensor in (("error", x - y), ("own", r - y), ("value", y), ("spread", s)):
            self.squares[name] += _number(tensor.square().sum())
            if name in self.largest:
                self.largest[name] = max(self.largest[name], _number(tensor.abs().max()))

    def rms(self, name: str) -> float:
        return math.sqrt(self.squares[name] / self.count)

    @property
    def variation(self) -> float:
        """rms(y - mean y)"""
        mean = self._total / self.count
        return math.sqrt(max(0.0, self.squares["value"] / self.count - mean * mean))


@dataclass(frozen=True)
class _Gates:
    """Bound on rms(e); |e_i| <= max(local + 2 unit |y_i|, own)."""

    rms: float
    local: float
    own: float
    unit: float


def _gates(sums: _Sums, dtype: torch.dtype, kind: Inputs, longest_sum: int, unit: float) -> _Gates:
    import torch

    info = torch.finfo(dtype)
    unit_out = info.eps / 2
    spread = sums.rms("spread")
    exact = kind in EXACT and sums.largest["own"] == 0
    few = exact and kind is Inputs.FEW
    gate = _honest(sums, min(longest_sum, FEW_TERMS) if few else longest_sum)
    if unit > UNIT:
        gate += COARSE_GATE * spread * unit / UNIT
    if kind is not Inputs.NORMAL and not exact:
        gate = min(gate * LOGIC_FACTOR, max(gate, FORGIVEN * sums.variation))
    floor = unit_out**2 * sums.largest["value"] + max(info.tiny, LEAST)
    local = gate * LOCAL_GATE / PRECISION_GATE
    return _Gates(
        rms=max(gate + unit_out * sums.rms("value"), OWN_ERROR * sums.rms("own")) + floor,
        local=(min(local, QUARTER) if exact else local) + floor,
        own=OWN_ERROR * sums.largest["own"] + floor,
        unit=unit_out,
    )


def _honest(sums: _Sums, longest_sum: int) -> float:
    """rms error that honest fp32 sums may have."""
    root = math.sqrt(longest_sum)
    one_signed = min(SEQUENTIAL * UNIT * root, MOST_SEQUENTIAL) * sums.rms("value")
    return PRECISION_GATE * root * sums.rms("spread") + one_signed


def _explains(sums: _Sums, longest_sum: int, bound: float, admitted: Precision) -> Precision | None:
    """The finest arithmetic whose roundoff accounts for errors of this size and evenness."""
    error, spread = sums.rms("error"), sums.rms("spread")
    if error <= bound and admitted is Precision.MATCH:
        return Precision.MATCH
    fine = _honest(sums, longest_sum)
    if error <= fine:
        return Precision.MATCH
    if sums.largest["error"] > UNEVEN * error:
        return None
    for precision in (Precision.TF32, Precision.BF16):
        if error <= fine + COARSE_GATE * spread * UNITS[precision] / UNIT:
            return precision
    return None


def _tied(output: Tensor, declared: Tensor, spread: Tensor) -> Tensor:
    """Where a near-tie admits an integer other than the reference's.

    As far off as the oracle's own answer moves when the tie falls otherwise.
    """
    import torch

    if output.dtype is torch.bool:
        return spread != 0
    return (spread != 0) & ((output.long() - declared.long()).abs() <= spread.long())


def _exact(index: int, wrong: Tensor) -> Finding:
    count = int(wrong.sum())
    if not count:
        return Finding(True, 0.0, 0.0, 0.0, Precision.MATCH)
    return _refused(index, count, wrong.numel(), "not equal")


def _refused(index: int, count: int, total: int, what: str) -> Finding:
    note = f"output {index}: {count} of {total} elements {what}"
    return Finding(False, math.inf, math.inf, math.inf, None, note)


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same stretch of each tensor, BLOCK elements at most, complex numbers as pairs."""
    import torch

    flat = [(torch.view_as_real(t) if t.is_complex() else t).reshape(-1) for t in tensors]
    for begin in range(0, flat[0].numel(), BLOCK):
        yield tuple(tensor[begin : begin + BLOCK] for tensor in flat)


def _wide3(block: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    x, r, y = (tensor.double() for tensor in block[:3])
    return x, r, y


def _finite(block: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(x, r, y, s) in fp64 where none of the first three is NaN or Inf."""
    x, r, y, s = (tensor.double() for tensor in block)
    finite = x.isfinite() & r.isfinite() & y.isfinite()
    if bool(finite.all()):
        return x, r, y, s
    return x[finite], r[finite], y[finite], s[finite]


def _misplaced(x: Tensor, r: Tensor, y: Tensor) -> Tensor:
    """Where x is not finite and agrees with neither r nor y, or is finite where neither is."""
    special = ~(x.isfinite() & r.isfinite() & y.isfinite())
    agrees = (x == r) | (x == y) | (x.isnan() & (r.isnan() | y.isnan()))
    # Where only one of the two references overflows, a finite answer is right as well.
    undecided = x.isfinite() & (r.isfinite() | y.isfinite())
    return special & ~agrees & ~undecided


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _number(tensor: Tensor) -> float:
    return float(tensor.item())
