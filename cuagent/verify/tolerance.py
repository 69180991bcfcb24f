"""The two rules, as pure functions on tensors: lax and strict.

lax     |x - r| <= 1e-2 + 1e-2 |r| for every element, r the reference in its declared precision
        (KernelBench, CUDA Agent). Reported beside the verdict, never instead of the strict rule.

strict  With y the fp64 oracle, r the reference, e = x - y, s the spread of the oracle when every
        input and weight is multiplied by 1 + u N(0,1), K the longest sum, u_o the unit roundoff of
        the output's dtype:
            precision   rms(e) <= max(  8 sqrt(K) rms(s) + rms(u_o y),   3 rms(r - y))
            local       |e_i|  <= max( 40 sqrt(K) rms(s) + 2 u_o |y_i|,  3 max|r - y|)
        Either bound admits. Inputs that are not zero-mean judge logic: there 8 and 40 become 100
        and 500, but no more than 5 % of the output's own variation is forgiven that way.
        Where the task admits TF32 (u = 2^-11), fp16 or bf16, 2.5 rms(s) u / 2^-24 is added to the
        first gate and five times that to the second.

NaN and Inf must stand where they stand in the reference; integers and booleans must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verify.inputs import Inputs
from cuagent.verify.verdict import RuleResult

if TYPE_CHECKING:
    from torch import Tensor

LAX = 1e-2
UNIT = 2.0**-24
"""Unit roundoff of fp32, in which products are summed; the oracle is perturbed by it."""
OWN_ERROR = 3.0
PRECISION_GATE, LOCAL_GATE = 8.0, 40.0
COARSE_GATE = 2.5
"""Of rms(s), scaled to TF32 or bf16: rounding factors of products to them errs by 0.7, truncating
by about 2, and the next coarser one by 6. No sqrt(K): the perturbation is this very rounding."""
UNEVEN = 30.0
"""Largest error over rms error, above which it is no roundoff but a wrong element."""
LOGIC_FACTOR = 12.5
FORGIVEN = 0.05
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


def lax(outputs: Sequence[Tensor], declared: Sequence[Tensor]) -> RuleResult:
    """allclose at 1e-2, the tolerance scaled by the reference and never by the candidate."""
    import torch

    worst = 0.0
    for output, reference in zip(outputs, declared, strict=True):
        if output.numel() == 0:
            continue
        if not _is_real(output):
            worst = worst if torch.equal(output, reference) else math.inf
            continue
        error = (_wide(output) - _wide(reference)).abs()
        same = (output == reference) | (output.isnan() & reference.isnan())
        ratio = torch.where(same, 0.0, error / (LAX + LAX * _wide(reference).abs()))
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
    findings = [
        _leaf(index, output, declared, precise, spread, kind, longest_sum, admitted)
        for index, (output, declared, precise, spread) in enumerate(
            zip(outputs, expected.declared, expected.precise, expected.spread, strict=True)
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
) -> Finding:
    import torch

    if not _is_real(output):
        # fp64 may order near-ties otherwise than the declared precision does; either is right.
        wrong = (output != declared) & (output != precise.to(output.dtype))
        return _exact(index, wrong)
    x, r, y = _wide(output), _wide(declared), _wide(precise)
    misplaced = _misplaced(x, r, y)
    if bool(misplaced.any()):
        return _exact(
            index, misplaced, what="NaN or Inf in the wrong place, or a wrong number there"
        )
    finite = x.isfinite() & r.isfinite() & y.isfinite()
    x, r, y, s = (tensor[finite] for tensor in (x, r, y, _wide(spread)))
    if kind is Inputs.INTEGER and torch.equal(r, y):
        return _exact(index, x != y, what="not exact on small integers")
    if not y.numel():
        return Finding(True, 0.0, 0.0, 0.0, Precision.MATCH)
    rms_bound, local_bound = _bounds(output, r, y, s, kind, longest_sum, UNITS[admitted])
    error = (x - y).abs()
    relative = error / local_bound
    ratio = max(_rms(error) / rms_bound, _number(relative.max()))
    where = int(relative.argmax())
    return Finding(
        passed=ratio <= 1,
        ratio=ratio,
        max_error=_number(error.max()),
        rms_error=_rms(error),
        precision=_explains(error, _rms(s), longest_sum, rms_bound, admitted),
        note="" if ratio <= 1 else f"output {index}, element {where} of {y.numel()}",
    )


def _bounds(
    output: Tensor,
    r: Tensor,
    y: Tensor,
    s: Tensor,
    kind: Inputs,
    longest_sum: int,
    unit: float,
) -> tuple[float, Tensor]:
    """The bound on rms(e), and on each |e_i|."""
    import torch

    info = torch.finfo(output.dtype)
    unit_out = info.eps / 2
    rms_gate = PRECISION_GATE * math.sqrt(longest_sum) * _rms(s)
    if unit > UNIT:
        rms_gate += COARSE_GATE * _rms(s) * unit / UNIT
    if kind is not Inputs.NORMAL:
        rms_gate = min(rms_gate * LOGIC_FACTOR, max(rms_gate, FORGIVEN * _rms(y - y.mean())))
    local_gate = rms_gate * LOCAL_GATE / PRECISION_GATE
    own = (r - y).abs()
    # A result below the smallest normal may be flushed to zero by honest hardware.
    rms_bound = max(rms_gate + unit_out * _rms(y), OWN_ERROR * _rms(own)) + info.tiny
    local = torch.clamp(local_gate + 2 * unit_out * y.abs(), min=OWN_ERROR * _number(own.max()))
    return rms_bound, local + info.tiny


def _explains(
    errors: Tensor, spread: float, longest_sum: int, bound: float, admitted: Precision
) -> Precision | None:
    """The finest arithmetic whose roundoff accounts for errors of this size and evenness."""
    error = _rms(errors)
    if error <= bound and admitted is Precision.MATCH:
        return Precision.MATCH
    fine = PRECISION_GATE * math.sqrt(longest_sum) * spread
    if error <= fine:
        return Precision.MATCH
    if _number(errors.max()) > UNEVEN * error:
        return None
    for precision in (Precision.TF32, Precision.BF16):
        if error <= fine + COARSE_GATE * spread * UNITS[precision] / UNIT:
            return precision
    return None


def _exact(index: int, wrong: Tensor, what: str = "not equal") -> Finding:
    count = int(wrong.sum())
    if not count:
        return Finding(True, 0.0, 0.0, 0.0, Precision.MATCH)
    note = f"output {index}: {count} of {wrong.numel()} elements {what}"
    return Finding(False, math.inf, math.inf, math.inf, None, note)


def _misplaced(x: Tensor, r: Tensor, y: Tensor) -> Tensor:
    """Where x is not finite and agrees with neither r nor y, or is finite where neither is."""
    special = ~(x.isfinite() & r.isfinite() & y.isfinite())
    agrees = (x == r) | (x == y) | (x.isnan() & (r.isnan() | y.isnan()))
    # Where only one of the two references overflows, a finite answer is right as well.
    undecided = x.isfinite() & (r.isfinite() | y.isfinite())
    return special & ~agrees & ~undecided


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _wide(tensor: Tensor) -> Tensor:
    """fp64; complex numbers as pairs."""
    import torch

    return torch.view_as_real(tensor).double() if tensor.is_complex() else tensor.double()


def _rms(tensor: Tensor) -> float:
    return _number(tensor.square().mean().sqrt())


def _number(tensor: Tensor) -> float:
    return float(tensor.item())
