"""The two rules, as pure functions on tensors: lax and strict.

lax     |x - r| <= 1e-2 + 1e-2 |r| for every element, r the reference in its declared precision
        (KernelBench, CUDA Agent). Reported beside the verdict, never instead of the strict rule.

strict  With y the fp64 oracle, r the reference, e = x - y, s the spread of the oracle when every
        input and weight is multiplied by 1 + u N(0,1), K the longest sum, K' the longest but for
        those inside a softmax, u_o the unit roundoff of the output's dtype:
            q           min(u sqrt(K), 1e-4); on BIASED kinds at least min(u K / 4, 1e-3)
            gate        8 sqrt(K') rms(s) + q rms(y)
            precision   rms(e) <= max(  gate + rms(u_o y),           3 rms(r - y)) + floor
            local       |e_i|  <= max(5 gate + (2 u_o + 5 q) |y_i|,  3 max|r - y|) + floor
            floor       u_o^2 max|y| + max(smallest normal of the dtype, 2^-114)
        Either bound admits. Inputs that are not zero-mean judge logic: there the gate is 12.5 times
        as wide, on own and one-signed inputs 1.5 times, but no more than 5 % of the output's own
        variation is forgiven that way.
        Exact probes (small integers, cancellation) are held to the narrow gate, and to a quarter,
        wherever the reference itself is exact: a wrong index is off by one at least.
        Where the task admits TF32 (u = 2^-11), fp16 or bf16, 2.5 rms(s) u / 2^-24 is added to the
        first gate and five times that to the second.

An error that is refused so is looked at again, once it is known how far m each element moves when
inputs, weights and the results of operators are perturbed by as much as honest sums err: where
m_i > 5 gate, the narrow one, and out of proportion to s_i, the answer jumps, and m_i is taken off
|e_i|. In the gate's second term w / u, w the rms change when every operator errs by u, then stands
for rms(y) where it is more (`bounds` says why). Exact probes have no such doubt.

The second term of the gate is for sums of one sign inside a task (exponentials, squares) that are
taken one term after the other: each addition rounds the partial sum, whose size s does not know.
It errs in proportion to the sum, and so does each element that is made from it.

The floor is for outputs on which perturbations have no hold: a one-hot softmax has no spread, and
an honest exp that clamps at -87 leaves 3e-38 where the oracle has 0. An error of u_o^2 of the
largest output is below what a single operation on that output can resolve, twice over; 2^-114 is
4096 times the smallest normal fp32.

NaN and Inf must stand where they stand in the reference; integers and booleans must be equal to
the reference in either precision, but for those that change when the inputs are perturbed by as
much as honest sums err, 8 sqrt(K) u (`bounds.reach`): near-ties, of which every choice is right
(`ties` says which there are, for indices). On round numbers a comparison has no such excuse.

Tensors are gone through in blocks, so that an output of gigabytes needs no second gigabytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verdict import RuleResult
from cuagent.verify.inputs.kinds import EXACT, LENIENT, ROUND, Inputs
from cuagent.verify.rules.bounds import (
    UNITS,
    Gates,
    Steady,
    Sums,
    coarsest,
    doubtful,
    explains,
    gates,
    nearer,
    number,
    settled,
    steady,
)
from cuagent.verify.rules.nonfinite import all_misplaced, finite_only, misplaced, numbers_only
from cuagent.verify.rules.rows import worst_line
from cuagent.verify.rules.ties import Places, wrong_places
from cuagent.verify.rules.types import Expected, Finding
from cuagent.verify.rules.wrong import Wrong, describe, first
from cuagent.verify.tensors import in_blocks, pairs, real

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from cuagent.verify.trace.reductions import Terms

    Finite = Callable[["Block"], "Block"]
    Block = tuple[Tensor, ...]

LAX = 1e-2
NOTHING = Steady(math.inf, 0.0)
"""No motion is a jump."""
STILL = 1e-3
"""Of the rms of an output: an element that moves less is no part of what hangs on a choice."""
IN_DOUBT = 5
"""Tensors that the rule looks at, or more, once it is known how far each element moves."""


UNTOLD = Finding(False, math.inf, math.inf, math.inf, None)
"""A refusal without a bound of which nobody reads why."""


def lax(outputs: Sequence[Tensor], declared: Sequence[Tensor]) -> RuleResult:
    """allclose at 1e-2, the tolerance scaled by the reference and never by the candidate."""
    import torch

    worst = 0.0
    for output, reference in zip(outputs, declared, strict=True):
        if not real(output):
            worst = worst if torch.equal(output, reference) else math.inf
            continue
        for x, r in in_blocks(output, reference):
            same = (x == r) | (x.isnan() & r.isnan())
            bound = LAX + LAX * r.double().abs()
            ratio = torch.where(same, 0.0, (x.double() - r.double()).abs() / bound)
            worst = max(worst, number(ratio.nan_to_num(nan=math.inf).max()))
    return RuleResult(worst <= 1, worst)


def strict(
    outputs: Sequence[Tensor],
    expected: Expected,
    kind: Inputs,
    terms: Terms,
    admitted: Precision = Precision.MATCH,
    *,
    told: bool = True,
) -> Finding:
    """The strict rule on one draw of `kind`; with `told` a refusal says where and how."""
    places = expected.places or [None] * len(outputs)
    parts = [outputs, expected.declared, expected.precise, expected.spread]
    carried: Sequence[float] = [0.0] * len(outputs)
    if expected.moved is not None:
        parts += filter(None, (expected.moved.furthest, expected.moved.tied))
        carried = expected.moved.carried
    undecided = expected.moved is not None and expected.moved.undecided
    unit = coarsest(expected.declared, admitted)
    drawn = _Drawn(kind, terms, admitted, unit, undecided, expected.certain, told)
    findings = [
        _real(index, tensors, drawn, carried[index])
        if real(tensors[0])
        else _whole(index, tensors, drawn, places[index])
        for index, tensors in enumerate(zip(*parts, strict=True))
        if tensors[0].numel() and (real(tensors[0]) or kind not in LENIENT)
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
        hint=worst.hint,
        steep=all(finding.passed or finding.steep for finding in findings),
    )


def constants(expected: Expected) -> list[float]:
    """For each output the best constant answer to one draw: its mean."""
    import torch

    return [
        number(pairs(y).mean(dtype=torch.float64)) if y.numel() else 0.0 for y in expected.declared
    ]


def _whole(index: int, tensors: Sequence[Tensor], drawn: _Drawn, places: Places | None) -> Finding:
    """The rule for integers and booleans."""
    import torch

    output, declared, precise, spread = tensors[:4]
    # fp64 may order near-ties otherwise than the declared precision does; either is right.
    wrong = (output != declared) & (output != precise.to(output.dtype))
    if places is not None and bool(wrong.any()):
        wrong = wrong_places(output, declared, precise, places)
    elif not (output.dtype is torch.bool and drawn.decides_truth):
        wrong &= ~_tied(output, declared, spread)
    return _exact(index, wrong, output, declared, told=drawn.told)


@dataclass(frozen=True)
class _Drawn:
    """What of a draw the bounds hang on."""

    kind: Inputs
    terms: Terms
    admitted: Precision
    unit: float
    """The roundoff by which m was found (`bounds.coarsest`)."""
    undecided: bool
    """See `Moved`."""
    certain: bool
    """See `Expected`."""
    told: bool
    """Whether somebody reads why an output is refused."""

    @property
    def decides_truth(self) -> bool:
        """Whether no near-tie excuses a truth value."""
        sure = self.certain or self.kind not in (Inputs.BRINK, Inputs.HALVES)
        return self.kind in EXACT and sure

    @property
    def firm(self) -> bool:
        """Whether honest arithmetic decides as the reference does."""
        return self.certain and self.kind in ROUND and self.admitted is Precision.MATCH

    def jumps(self, sums: Sums) -> bool:
        """Whether honest arithmetic may fall on the other side of a jump."""
        if self.firm:
            return False
        return self.undecided or doubtful(sums, self.kind, self.admitted)


def _real(index: int, tensors: Sequence[Tensor], drawn: _Drawn, carried: float) -> Finding:
    """The rule for real and complex numbers; `tensors` are x, r, y, s and in doubt m, t.

    `carried` is 0 before a doubt.
    """
    kind, terms, admitted = drawn.kind, drawn.terms, drawn.admitted
    blocks = list(in_blocks(*tensors))
    finite: Finite = finite_only
    if kind in LENIENT:
        finite = partial(numbers_only, paired=tensors[0].is_complex())
    elif any(misplaced(block) is not None for block in blocks):
        if not drawn.told:
            return UNTOLD
        return _refused(index, all_misplaced(blocks, tensors[0]), tensors[0], tensors[1])
    sums = Sums.of((finite(block)[:4] for block in blocks), carried)
    if not sums.count:
        return Finding(True, 0.0, 0.0, 0.0, Precision.MATCH)
    if drawn.firm:
        sums.forget_jumps()
    bound = gates(sums, tensors[0].dtype, kind, terms, UNITS[admitted])
    most = steady(sums, kind, terms, drawn.unit) if drawn.jumps(sums) else NOTHING
    left = Sums.of(_left(map(finite, blocks), most), carried) if len(tensors) >= IN_DOUBT else sums
    farthest = _farthest(_left(map(finite, blocks), most), bound)
    ratio = max(left.rms("error") / bound.rms, farthest)
    line, which = worst_line(tensors, kind, terms, drawn.unit)
    unmoved = 0.0
    if kind in EXACT and len(tensors) > IN_DOUBT:
        still = [_still(block, sums.rms("value")) for block in map(finite, blocks)]
        unmoved = _farthest(still, _gates_of(still, tensors[0].dtype, drawn))
        ratio = max(ratio, unmoved)
    if line > max(1.0, ratio):
        return Finding(
            passed=False,
            ratio=line,
            max_error=sums.largest["error"],
            rms_error=sums.rms("error"),
            precision=None,
            note=f"output {index}, line {which} of a prefix sum",
            rms_bound=bound.rms,
        )
    steep = ratio > 1 >= unmoved and most is not NOTHING and len(tensors) >= IN_DOUBT
    told = Wrong("", "")
    if ratio > 1 and drawn.told:
        told = _told(index, tensors, finite, most, bound)
    return Finding(
        passed=ratio <= 1,
        ratio=ratio,
        max_error=sums.largest["error"],
        rms_error=sums.rms("error"),
        precision=explains(left, terms, bound.rms, admitted),
        note=told.note,
        rms_bound=bound.rms,
        hint=told.hint,
        steep=steep and _moves_so_far(list(map(finite, blocks)), bound),
    )


def _moves_so_far(blocks: Sequence[Block], bound: Gates) -> bool:
    """Whether nothing is past the bounds that is not within what its element moves, jump or no."""
    nearest = [(nearer(x, y, moved), r, y, s) for x, r, y, s, moved, *_ in blocks]
    return Sums.of(nearest).rms("error") <= bound.rms and _farthest(nearest, bound) <= 1


def _still(block: Block, size: float) -> Block:
    """x, r, y and s of what moves neither with roundoff nor with the order of equals."""
    moves = (block[4] > STILL * size) | (block[5] > STILL * size)
    x, r, y, s = (tensor[~moves] for tensor in block[:4])
    return x, r, y, s


def _gates_of(blocks: Sequence[Block], dtype: dtype, drawn: _Drawn) -> Gates:
    """The bounds of a part of a tensor by itself."""
    sums = Sums.of(blocks)
    none = Gates(math.inf, math.inf, math.inf, math.inf)
    return (
        gates(sums, dtype, drawn.kind, drawn.terms, UNITS[drawn.admitted]) if sums.count else none
    )


def _left(blocks: Iterable[Block], most: Steady) -> Iterator[Block]:
    """x, r, y and s of each block, all finite; of the errors what a choice among equals and a jump
    of more than `most` leave over."""
    for x, r, y, s, *moved in blocks:
        for tied in moved[1:] if most is not NOTHING else ():
            x = nearer(x, y, tied)
        yield (settled(x, y, s, moved[0], most) if moved else x), r, y, s


def _farthest(blocks: Iterable[Block], bound: Gates) -> float:
    """The largest error over its bound."""
    return max(
        (number(_relative(block, bound).max()) for block in blocks if block[0].numel()),
        default=0.0,
    )


def _relative(block: Block, bound: Gates) -> Tensor:
    """The error of each element over its bound."""
    x, _, y, _ = block
    return (x - y).abs() / (bound.local + bound.each * y.abs()).clamp(bound.own)


def _told(
    index: int, tensors: Sequence[Tensor], finite: Finite, most: Steady, bound: Gates
) -> Wrong:
    """Which elements are past their bound, in words; what a jump excuses is not among them."""
    import torch

    flat = pairs(tensors[0]).reshape(-1)
    wrong = torch.zeros(flat.shape, dtype=torch.bool, device=flat.device)
    worst, where = -1.0, 0
    places = torch.arange(flat.numel(), device=flat.device)
    for *block, at in in_blocks(*tensors, places):
        *kept, at = finite((*block, at))
        if not at.numel():
            continue
        (left,) = _left([tuple(kept)], most)
        relative, at = _relative(left, bound), at.long()
        wrong[at] = relative > 1
        position = int(relative.argmax())
        if (found := number(relative[position])) > worst:
            worst, where = found, int(at[position])
    if tensors[0].is_complex():
        wrong, where = wrong.view(-1, 2).any(1), where // 2
    return describe(index, tensors[0], tensors[2], wrong.view(tensors[0].shape), where)


def _tied(output: Tensor, declared: Tensor, spread: Tensor) -> Tensor:
    """Where a near-tie admits an integer other than the reference's.

    As far off as the oracle's own answer moves when the tie falls otherwise.
    """
    import torch

    if output.dtype is torch.bool:
        return spread != 0
    return (spread != 0) & ((output.long() - declared.long()).abs() <= spread.long())


def _exact(index: int, wrong: Tensor, output: Tensor, expected: Tensor, *, told: bool) -> Finding:
    if not bool(wrong.any()):
        return Finding(True, 0.0, 0.0, 0.0, Precision.MATCH)
    if not told:
        return UNTOLD
    return _refused(index, wrong, output, expected, integral=True)


def _refused(
    index: int, wrong: Tensor, output: Tensor, expected: Tensor, *, integral: bool = False
) -> Finding:
    """Of a wrongness that has no bound: the first such element stands for all."""
    wrong = wrong.view(output.shape)
    told = describe(index, output, expected, wrong, first(wrong), integral=integral)
    return Finding(False, math.inf, math.inf, math.inf, None, told.note, hint=told.hint)
