"""The two rules, as pure functions on tensors: lax and strict.

lax     |x - r| <= 1e-2 + 1e-2 |r| for every element, x the candidate's output, r the reference in
        its declared precision (KernelBench, CUDA Agent). Reported with the verdict; the strict rule
        decides.

strict  With y the fp64 oracle, e = x - y, s the spread of y: its rms change when every input and
        weight is multiplied by 1 + u N(0,1), u = 2^-24, K the length of the longest sum, K' that
        of the longest sum outside a softmax, u_o the unit roundoff of the output's dtype:
            q           min(u sqrt(K), 1e-4); on BIASED kinds at least min(u K / 4, 1e-3)
            gate        8 sqrt(K') rms(s) + q rms(y)
            precision   rms(e) <= max(  gate + rms(u_o y),           3 rms(r - y)) + floor
            local       |e_i|  <= max(5 gate + (2 u_o + 5 q) |y_i|,  3 max|r - y|) + floor
            floor       u_o^2 max|y| + max(smallest normal of the dtype, 2^-114)
        The larger bound of a pair applies. Inputs that are not zero-mean judge logic: their gate is
        12.5 times as wide (1.5 times on own and one-signed inputs), and the widening forgives at
        most 5 % of the output's own variation.
        Exact probes (small integers, cancellation) keep the narrow gate, and an absolute bound of a
        quarter, if the reference itself is exact: a wrong index is off by at least one.
        Where the task admits TF32 (u = 2^-11), fp16 or bf16, 2.5 rms(s) u / 2^-24 is added to the
        gate of the rms and five times that to the local one. On round numbers nothing is added
        where that precision represents the right answer and all numbers that decide it.

An error that these bounds refuse is judged again with the sensitivity m of each element: its
largest change when inputs, weights and the results of operators are perturbed by as much as honest
sums err. If m_i > 5 gate (the narrow gate) and m_i is not proportional to s_i, the answer jumps,
and m_i is subtracted from |e_i|. In the gate's second term, w / u replaces rms(y) if it is larger,
where w is the rms change when every operator errs by u (reasons in `bounds`). Exact probes are
never judged again.

The second term of the gate covers sums of one sign inside a task (exponentials, squares) that are
added sequentially: each addition rounds the partial sum, whose size s does not contain. The error
is proportional to the sum, and so is the error of each element computed from it.

The floor covers outputs that perturbations do not change: a one-hot softmax has no spread, and an
honest exp that clamps at -87 leaves 3e-38 where the oracle has 0. An error of u_o^2 of the largest
output is far below what a single operation on that output can resolve; 2^-114 is 4096 times the
smallest normal fp32.

NaN and Inf must be where the reference has them. Integers and booleans must equal the reference in
either precision, except near-ties: values that change when the inputs are perturbed by as much as
honest sums err, 8 sqrt(K) u (`bounds.reach`). Every choice among near-ties is right (`ties` defines
them for indices). On round numbers a comparison has no such exception.

Tensors are processed in blocks, so that an output of several GB needs no second copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verdict import RuleResult
from cuagent.verify.inputs.kinds import EXACT, LENIENT, Inputs
from cuagent.verify.rules.bounds import (
    UNITS,
    Gates,
    JumpLimit,
    Sums,
    coarsest,
    explains,
    gates,
    jump_limit_of,
    number,
    reduced,
    represents,
    without_jumps,
)
from cuagent.verify.rules.discrete import UNEXPLAINED, discrete, refused
from cuagent.verify.rules.draw_facts import DrawFacts
from cuagent.verify.rules.nonfinite import all_misplaced, finite_only, misplaced, numbers_only
from cuagent.verify.rules.rows import worst_line
from cuagent.verify.rules.types import Expected, Finding
from cuagent.verify.rules.wrong import Wrong, describe
from cuagent.verify.tensors import UNIT, as_real, in_blocks, is_inexact, largest_size

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from cuagent.verify.trace.reductions import Terms

    Finite = Callable[["Block"], "Block"]
    Block = tuple[Tensor, ...]

LAX = 1e-2
"""Absolute and relative tolerance of the lax rule, as in KernelBench and CUDA Agent."""
NO_JUMPS = JumpLimit(math.inf, 0.0)
"""Jump limit of infinity, for draws on which no change of an element counts as a jump."""
NEGLIGIBLE = 1e-3
"""Change of an element, in units of the output's rms, below which it counts as unaffected by a
choice.
"""
WITH_SENSITIVITY = 5
"""Least number of tensors per output once the sensitivity is known.

They are the candidate's and the reference's output, the fp64 answer, its spread and sensitivity.
"""


def lax(outputs: Sequence[Tensor], declared: Sequence[Tensor]) -> RuleResult:
    """Return the result of the lax rule: allclose at 1e-2, relative to the reference."""
    import torch

    worst = 0.0
    for output, reference in zip(outputs, declared, strict=True):
        if not is_inexact(output):
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
    explain: bool = True,
) -> Finding:
    """Judge the candidate's `outputs` on one draw of `kind` by the strict rule.

    `terms` are the lengths of the reference's longest sums, `admitted` is the precision that the
    task admits. With `explain` a refusal describes the wrong elements.
    """
    places = expected.places or [None] * len(outputs)
    parts = [outputs, expected.declared, expected.precise, expected.spread]
    carried: Sequence[float] = [0.0] * len(outputs)
    if expected.sensitivity is not None:
        parts += filter(None, (expected.sensitivity.furthest, expected.sensitivity.tied))
        carried = expected.sensitivity.carried
    undecided = expected.sensitivity is not None and expected.sensitivity.undecided
    unit = coarsest(expected.declared, admitted, terms.unit)
    line_unit = coarsest(expected.declared, admitted)
    draw = DrawFacts(kind, terms, admitted, unit, line_unit, undecided, expected.certain, explain)
    findings = [
        _inexact(index, tensors, draw, carried[index])
        if is_inexact(tensors[0])
        else discrete(index, tensors, draw, places[index])
        for index, tensors in enumerate(zip(*parts, strict=True))
        if tensors[0].numel() and (is_inexact(tensors[0]) or kind not in LENIENT)
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
        within_sensitivity=all(
            finding.passed or finding.within_sensitivity for finding in findings
        ),
    )


def constants(expected: Expected) -> list[float]:
    """Return one number per output: its mean, which is the best constant answer to the draw."""
    return [_mean(y) if y.numel() else 0.0 for y in expected.declared]


def _mean(tensor: Tensor) -> float:
    blocks = [block.double().mean() * block.numel() for (block,) in in_blocks(tensor)]
    return math.fsum(map(number, blocks)) / as_real(tensor).numel()


def _inexact(index: int, tensors: Sequence[Tensor], draw: DrawFacts, carried: float) -> Finding:
    """Judge a floating or complex output by the strict rule.

    `tensors` are x, r, y, s and, once the sensitivity is known, m and t (`Sensitivity.tied`).
    `carried` is 0 until then.
    """
    kind, terms, admitted = draw.kind, draw.terms, draw.admitted
    blocks = list(in_blocks(*tensors))
    finite: Finite = finite_only
    plain = None if kind in LENIENT else _plain_sums(blocks, carried)
    if kind in LENIENT:
        finite = partial(numbers_only, paired=tensors[0].is_complex())
    elif plain is None and any(misplaced(block) is not None for block in blocks):
        if not draw.explain:
            return UNEXPLAINED
        return refused(index, all_misplaced(blocks, tensors[0]), tensors[0], tensors[1])
    sums = plain or Sums.of((finite(block)[:4] for block in blocks), carried)
    if not sums.count:
        return Finding(True, 0.0, 0.0, 0.0, Precision.MATCH)
    unit = UNITS[admitted]
    if draw.decides_exactly:
        sums.bound_spread()
        is_exact = sums.exact(kind) and all(represents(admitted, y) for _, _, y, *_ in blocks)
        unit = UNIT if is_exact else unit
    bound = gates(sums, tensors[0].dtype, kind, terms, unit)
    jump_limit = jump_limit_of(sums, kind, terms, draw.unit) if draw.jumps(sums) else NO_JUMPS
    if plain is not None and len(tensors) < WITH_SENSITIVITY:
        remaining, least = sums, sums.rms("error") / bound.rms
        farthest = _largest_plain_ratio(blocks, bound, sums.block_errors, least)
    else:
        remaining = (
            Sums.of(_without_jumps(map(finite, blocks), jump_limit), carried)
            if len(tensors) >= WITH_SENSITIVITY
            else sums
        )
        farthest = _largest_ratio(_without_jumps(map(finite, blocks), jump_limit), bound)
    ratio = max(remaining.rms("error") / bound.rms, farthest)
    line_ratio, which = worst_line(tensors, kind, terms, draw.line_unit)
    unmoved_ratio = 0.0
    if kind in EXACT and len(tensors) > WITH_SENSITIVITY:
        dtype, size = tensors[0].dtype, sums.rms("value")
        unmoved_ratio = _unmoved_ratio(lambda: map(finite, blocks), size, dtype, draw)
        ratio = max(ratio, unmoved_ratio)
    errors = (sums.largest["error"], sums.rms("error"))
    if line_ratio > max(1.0, ratio):
        note = f"output {index}, line {which} of a prefix sum"
        return Finding(False, line_ratio, *errors, None, note, rms_bound=bound.rms)
    within_sensitivity = (
        ratio > 1 >= unmoved_ratio
        and jump_limit is not NO_JUMPS
        and len(tensors) >= WITH_SENSITIVITY
    )
    explanation = Wrong("", "")
    if ratio > 1 and draw.explain:
        explanation = _explained(index, tensors, finite, jump_limit, bound)
    return Finding(
        passed=ratio <= 1,
        ratio=ratio,
        max_error=errors[0],
        rms_error=errors[1],
        precision=explains(remaining, terms, bound.rms, admitted),
        note=explanation.note,
        rms_bound=bound.rms,
        hint=explanation.hint,
        within_sensitivity=within_sensitivity
        and _within_sensitivity(lambda: map(finite, blocks), bound),
    )


def _within_sensitivity(blocks: Callable[[], Iterable[Block]], bound: Gates) -> bool:
    """Return True if all errors, each reduced by the sensitivity of its element, are within their
    bounds.
    """

    def nearest() -> Iterator[Block]:
        return ((reduced(x, y, moved), r, y, s) for x, r, y, s, moved, *_ in blocks())

    return Sums.of(nearest()).rms("error") <= bound.rms and _largest_ratio(nearest(), bound) <= 1


def _unmoved_ratio(
    blocks: Callable[[], Iterable[Block]], size: float, dtype: dtype, draw: DrawFacts
) -> float:
    """Return the largest ratio of an error to its bound, over the elements that `_unmoved` selects.

    `size` is the rms of the output.
    """

    def unmoved() -> Iterator[Block]:
        return (_unmoved(block, size) for block in blocks())

    return _largest_ratio(unmoved(), _gates_of(unmoved(), dtype, draw))


def _unmoved(block: Block, size: float) -> Block:
    """Return x, r, y and s of the elements that hardly change with roundoff and with the order of
    ties.

    `size` is the rms of the output. The small change with the order of ties is subtracted from the
    errors: it may exceed the bound, as in a loss that one choice of many changes.
    """
    moves = (block[4] > NEGLIGIBLE * size) | (block[5] > NEGLIGIBLE * size)
    x, r, y, s, _, tied = (tensor[~moves] for tensor in block)
    return reduced(x, y, tied), r, y, s


def _gates_of(blocks: Iterable[Block], dtype: dtype, draw: DrawFacts) -> Gates:
    """Return the bounds that follow from these blocks alone; infinite bounds without any block."""
    sums = Sums.of(blocks)
    none = Gates(math.inf, math.inf, math.inf, math.inf)
    return gates(sums, dtype, draw.kind, draw.terms, UNITS[draw.admitted]) if sums.count else none


def _without_jumps(blocks: Iterable[Block], jump_limit: JumpLimit) -> Iterator[Block]:
    """Yield x, r, y and s of each finite block, with errors reduced by jumps beyond `jump_limit`.

    The changes from another order of equal elements are subtracted first.
    """
    for x, r, y, s, *moved in blocks:
        for tied in moved[1:] if jump_limit is not NO_JUMPS else ():
            x = reduced(x, y, tied)
        yield (without_jumps(x, y, s, moved[0], jump_limit) if moved else x), r, y, s


def _largest_ratio(blocks: Iterable[Block], bound: Gates) -> float:
    """Return the largest ratio of an element's error to its bound, over all blocks."""
    return max(
        (number(_ratios(block, bound).max()) for block in blocks if block[0].numel()),
        default=0.0,
    )


def _plain_sums(blocks: Sequence[Block], carried: float) -> Sums | None:
    """Return the sums of blocks as they are; None if x, r or y may have NaN or Inf, or if y may be
    out of the range of r's dtype.

    Nearly all outputs have only such blocks, and these need neither masks nor copies in fp64.
    """
    import torch

    sums = Sums.of((block[:4] for block in blocks), carried)
    if not sums.count or not sums.are_finite:
        return None
    return sums if sums.largest["value"] <= torch.finfo(blocks[0][1].dtype).max else None


def _largest_plain_ratio(
    blocks: Sequence[Block], bound: Gates, errors: Sequence[float], least: float
) -> float:
    """Return the result of `_largest_ratio` if it exceeds `least`, else `least`, for blocks that
    `_plain_sums` accepts.

    `errors` are the largest errors of the blocks. No element's bound is below the largest of
    `bound.local` and `bound.own`, so blocks of small errors need not be read again.
    """

    def largest(x: Tensor, y: Tensor) -> Tensor:
        limit = y.abs().mul_(bound.relative).add_(bound.local)
        if bound.own > bound.local:
            limit.clamp_(bound.own)
        return largest_size((x - y).div_(limit))

    found, smallest = least, max(bound.local, bound.own)
    for error, (x, _, y, *_) in sorted(
        zip(errors, blocks, strict=True), key=lambda pair: pair[0], reverse=True
    ):
        if error / smallest <= found:
            break
        found = max(found, number(largest(x, y)))
    return found


def _ratios(block: Block, bound: Gates) -> Tensor:
    """Return the ratio of each element's error to its bound."""
    x, _, y, _ = block
    return (x - y).abs() / (bound.local + bound.relative * y.abs()).clamp(bound.own)


def _explained(
    index: int, tensors: Sequence[Tensor], finite: Finite, jump_limit: JumpLimit, bound: Gates
) -> Wrong:
    """Describe the elements whose error exceeds their bound after jumps are subtracted."""
    import torch

    flat = as_real(tensors[0]).reshape(-1)
    wrong = torch.zeros(flat.shape, dtype=torch.bool, device=flat.device)
    worst, where, start = -1.0, 0, 0
    for block in in_blocks(*tensors):
        numbers = torch.arange(start, start + block[0].numel(), device=flat.device)
        start += block[0].numel()
        *kept, at = finite((*block, numbers))
        if not at.numel():
            continue
        (remaining,) = _without_jumps([tuple(kept)], jump_limit)
        relative, at = _ratios(remaining, bound), at.long()
        wrong[at] = relative > 1
        position = int(relative.argmax())
        if (found := number(relative[position])) > worst:
            worst, where = found, int(at[position])
    if tensors[0].is_complex():
        wrong, where = wrong.view(-1, 2).any(1), where // 2
    return describe(index, tensors[0], tensors[2], wrong.view(tensors[0].shape), where)
