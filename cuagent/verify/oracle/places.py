"""Find the elements from which the reference chose the indices in its output, for the tie rule.

Runs in the oracle's process. If an operator gets other shapes than in the first run, its elements
are unknown, and then only the reference's own index passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verify.oracle.perturb import antithetic, integer_distance, tilted, without_zeros
from cuagent.verify.rules import bounds
from cuagent.verify.rules.bounds import LOCAL, OWN_ERROR, UNITS
from cuagent.verify.rules.ties import Places, places_of
from cuagent.verify.tensors import UNIT, is_inexact
from cuagent.verify.trace.magnitude_gaps import least_fill_sizes
from cuagent.verify.trace.reference_trace import ReferenceTrace
from cuagent.verify.trace.selections import (
    BOUNDED,
    DISTINCT,
    Selection,
    TracedIndices,
    index_of,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

TRACED_DIVISOR = 3
"""Divisor of the number of perturbation pairs if all output indices are traced to their elements.

Fewer runs are enough then, because the elements themselves show which are tied.
"""


_SATURATING = """
sigmoid tanh _softmax _log_softmax erf erfc exp exp2 expm1 softplus log_sigmoid_forward silu gelu
mish elu celu selu
"""
SATURATING = frozenset(_SATURATING.split())
"""Operators (sigmoid, tanh, ...) that give equal results for different large numbers.

They preserve order, so a correct kernel may omit one before a maximum, and then sees no tie.
"""


TAKING = frozenset(("argmax", "argmin", "max", "min", "topk"))
"""Operators that return the index of the largest or least elements of a line."""
ROUNDOFF = 8.0
"""Factor on a line's error: roundoff may exchange two of the line's numbers if they differ by
less.
"""
BESIDE = 16.0
"""Divisor of the chosen element: smaller elements are left out when roundoff in a line is
measured.
"""


@dataclass(frozen=True)
class NearTies:
    """Search for near-ties, at which a correct kernel may choose another element than the
    reference.
    """

    longest_sum: int
    admitted: Precision
    pairs: int
    """Number of opposite perturbation pairs with which ties are searched."""
    unit: float = UNIT
    """Unit roundoff of the reference's own products (`Terms.unit`)."""

    @property
    def reach(self) -> float:
        """Largest relative error of a correct kernel's sum.

        Two elements that are closer than this count as tied, because roundoff alone may order them.
        """
        return bounds.reach(self.longest_sum, self.unit)

    def perturbed(
        self, inputs: Sequence[Tensor], generator: Generator, run: ReferenceTrace
    ) -> Iterator[list[Tensor]]:
        """Yield perturbed inputs, each followed by the opposite perturbation.

        `run` is a trace of the reference. If some integers of its output could not be traced,
        inputs tilted by ramps follow (`tilted`).
        """
        untraced = any(
            traced is None and not is_inexact(output)
            for traced, output in zip(run.traced, run.outputs, strict=True)
        )
        count = self.pairs if untraced else max(1, self.pairs // TRACED_DIVISOR)
        # Without index selections zeros stay zero, because a kernel must not count them.
        indexed = any(selection.indexed for selection in run.selections)
        varied = [without_zeros(tensor) for tensor in inputs] if indexed else list(inputs)
        for _ in range(count):
            yield from antithetic(varied, generator, self.reach)
        for sign in (1, -1) if untraced else ():
            yield [tilted(tensor, sign * self.reach) for tensor in varied]

    def find(
        self,
        exact: ReferenceTrace,
        declared: ReferenceTrace,
        runs: Iterable[ReferenceTrace],
        spread: Sequence[Tensor],
    ) -> list[Places]:
        """Return the elements from which each traced index was chosen.

        `exact` and `declared` are traces in fp64 and in the reference's own precision, `runs`
        traces on perturbed inputs. For each integer output that is not traced, write its largest
        change over `runs` to `spread`. The change is 0 if two things are true: the numbers that
        decide the output are exact (`traces_decide_equally`); and each chosen index is surely the
        first of equal elements.
        """
        import torch

        for view, base in zip(spread, exact.outputs, strict=True):
            if not is_inexact(base):
                view.zero_()
        indexed = any(selection.indexed for selection in exact.selections)
        decided = keeps_first if indexed else traces_decide_equally
        fixed = decided(exact, declared, self.admitted)

        def observed() -> Iterator[ReferenceTrace]:
            for run in runs:
                for view, base, other in zip(spread, exact.outputs, run.outputs, strict=True):
                    if not is_inexact(base) and not fixed:
                        view.copy_(torch.maximum(view.long(), integer_distance(other, base)))
                yield run

        admitted = UNITS[self.admitted]
        coarse = bounds.coarse(admitted) / self.reach if admitted > self.unit else 0.0
        one_signed = bounds.sequential(self.longest_sum)
        return find_places(exact, declared, observed(), 1 + coarse, one_signed)


def traces_decide_equally(
    exact: ReferenceTrace, declared: ReferenceTrace, admitted: Precision, *, kinks: bool = False
) -> bool:
    """Return True if all decisions of the reference depend on numbers that are equal in both
    precisions, and that the `admitted` precision represents.

    Decisions are comparisons, roundings and choices. With `kinks` those at the kinks of a backward
    pass (relu, abs) are included.
    """
    import torch

    ours = [*declared.decided, *(declared.kinks if kinks else ())]
    theirs = [*exact.decided, *(exact.kinks if kinks else ())]
    if not theirs or len(theirs) != len(ours):
        return False
    return all(
        x.numel()
        and x.dtype != y.dtype
        and torch.equal(x.to(y.dtype), y)
        and bounds.represents(admitted, y)
        for x, y in zip(ours, theirs, strict=True)
    )


def keeps_first(exact: ReferenceTrace, declared: ReferenceTrace, admitted: Precision) -> bool:
    """Return True if a kernel must choose the same indices as the reference, also among equal
    elements.

    The elements are exact (`traces_decide_equally`), and each operator guarantees the first of
    equal ones.
    """
    chosen = [selection for selection in exact.selections if selection.indexed]
    guaranteed = all(selection.first_wins for selection in chosen)
    if not chosen or not guaranteed or _saturates(exact):
        return False
    if not exact.decided and not declared.decided:
        return True  # all decisions are between integers or booleans
    return traces_decide_equally(exact, declared, admitted)


def roundoff_chooses(exact: ReferenceTrace, declared: ReferenceTrace) -> bool:
    """Return True if an operator chose an index although the next element is within roundoff of it.

    Elements that are equal in fp64 do not count: torch has an order for them (`tie_orders`).
    Roundoff is the declared run's own error in the line, among elements not much smaller than the
    chosen one; an element that underflows has an error of its size. Only operators in TAKING are
    examined.
    """
    both = zip(exact.selections, declared.selections, strict=False)
    return any(_near_ties(wide, own) for wide, own in both if wide.name in TAKING)


def _near_ties(wide: Selection, own: Selection) -> bool:
    import torch

    taken = int(wide.other_args[0]) if wide.name == "topk" else 1
    if not own.operand.is_floating_point() or not 0 < taken < wide.places or not wide.lines:
        return False
    sign = -1 if wide.name in ("argmin", "min") or wide.other_args[2:3] == (False,) else 1
    lines, order = (sign * _lines(wide)).sort(-1, descending=True)
    errors = (sign * _lines(own)).gather(-1, order).sub(lines).abs()
    last, after = lines[:, taken - 1], lines[:, taken]
    size = torch.maximum(last.abs(), after.abs())
    near = lines.abs() >= size[:, None] / BESIDE
    own_error = (errors / lines.abs()).where(near & (lines != 0), 0).amax(-1)
    unit = torch.finfo(own.operand.dtype).eps
    gap = last - after
    return bool(((gap > 0) & (gap <= ROUNDOFF * (own_error + unit) * size)).any())


def _saturates(run: ReferenceTrace) -> bool:
    return bool(SATURATING & {*run.names, *(name.rstrip("_") for name in run.names)})


def find_places(
    exact: ReferenceTrace,
    declared: ReferenceTrace,
    runs: Iterable[ReferenceTrace],
    gate: float = 1.0,
    one_signed: float = 0.0,
) -> list[Places]:
    """Return for each traced output the elements from which its indices were chosen.

    `runs` are traces on perturbed inputs. `gate` and `one_signed` are the factors of rms(m) and
    rms(z) in the slack (`rules.ties`).
    """
    import torch

    outputs = [traced for traced in exact.traced if traced is not None]
    values = [_lines(exact.selections[traced.selection]) for traced in outputs]
    spreads = [tensor.new_zeros(tensor.shape) for tensor in values]
    for run in runs:
        spreads = [
            spread.maximum(_distance(value, run, traced))
            for spread, value, traced in zip(spreads, values, outputs, strict=True)
        ]
    found = []
    saturates = _saturates(exact)
    for traced, value, spread in zip(outputs, values, spreads, strict=True):
        selection = exact.selections[traced.selection]
        own_error = _distance(value, declared, traced)
        fill_sizes = least_fill_sizes(value)
        not_fills = value.abs() < fill_sizes[:, None]
        sides = [
            gate * _rms(spread, mask)
            + OWN_ERROR * own_error.where(mask, 0).amax(-1)
            + LOCAL * one_signed * _rms(value, mask)
            for mask in (not_fills, torch.ones_like(not_fills))
        ]
        slack = 2 * torch.stack(sides, dim=-1)
        if selection.stable:
            slack = slack.masked_fill((own_error == 0).all(-1, keepdim=True), -1.0)
        moved = (spread != 0).any(-1)
        flags = ((value == 0) | (value == 1)).all(-1)
        first = _chooses_first(selection, value) & (own_error == 0).all(-1)
        # A flag (0 or 1) changes by a whole step, so roundoff may set another one.
        first &= torch.where(flags, ~moved, _is_wider(selection, declared, traced))
        if saturates:
            first &= moved
        found.append(_places(selection, traced, value, slack, fill_sizes, first))
    return found


def write_places(places: Sequence[Places], target: Sequence[Tensor]) -> None:
    """Copy `places` to the arena tensors `target`.

    The shapes differ if the reference ran other operators than in the first run. Then a negative
    slack is written, so that only the reference's own index passes.
    """
    tensors = [tensor for each in places for tensor in each.tensors]
    if [x.shape for x in tensors] == [x.shape for x in target]:
        for view, tensor in zip(target, tensors, strict=True):
            view.copy_(tensor)
        return
    for view in target:
        view.zero_()
    for each in places_of(target):
        each.slack.fill_(-1.0)


def _chooses_first(selection: Selection, values: Tensor) -> Tensor:
    """Return bool [lines]: True if the operator chose the first of the equal elements in a line.

    False for operators whose documentation does not guarantee that. A documented guarantee is
    checked by a call on this device.
    """
    import torch

    if not selection.first_wins:
        return values.new_zeros(len(values), dtype=torch.bool)
    result = selection.function(selection.operand, *selection.other_args, **selection.kwargs)
    index = index_of(selection.name, result)
    assert index is not None
    chosen = index.reshape(-1, 1)
    equal = values == values.gather(-1, chosen)
    place = torch.arange(values.shape[-1], device=values.device)
    return ~(equal & (place < chosen)).any(-1)


def _is_wider(exact: Selection, declared: ReferenceTrace, traced: TracedIndices) -> bool:
    """Return True if equal elements in both runs prove that the elements are exact.

    That is so if the two runs' dtypes differ, or if the elements are integers.
    """
    other = declared.selections[traced.selection].operand
    return exact.operand.dtype is not other.dtype or not is_inexact(exact.operand)


def _places(
    selection: Selection,
    traced: TracedIndices,
    values: Tensor,
    slack: Tensor,
    fill_sizes: Tensor,
    first: Tensor,
) -> Places:
    import torch

    flat = traced.positions.long()
    low = high = values.new_zeros(0, dtype=torch.int64)
    if selection.name in BOUNDED:
        low, high = (_windows(selection)[end].view(-1, len(selection.dims))[flat] for end in (0, 1))
    once = flat.unique().numel() == flat.numel()
    return Places(
        values=values,
        slack=slack,
        fill_sizes=fill_sizes,
        line=_line_numbers(selection, traced.shape).reshape(-1)[flat],
        sizes=torch.tensor(
            [selection.operand.shape[d] for d in selection.dims], device=values.device
        ),
        low=low,
        high=high,
        distinct=torch.tensor([selection.name in DISTINCT and once], device=values.device),
        first=first,
    )


def _lines(selection: Selection) -> Tensor:
    """Return the operator's operand as fp64 [lines, places]; a line contains the compared
    elements.
    """
    last = selection.operand.movedim(selection.dims, tuple(range(-len(selection.dims), 0)))
    return last.reshape(-1, selection.places).double()


def _line_numbers(selection: Selection, shape: tuple[int, ...]) -> Tensor:
    """Return for each index the number of the line from which it was chosen, int64 of shape
    `shape`.
    """
    import torch

    numbers = torch.arange(selection.lines, device=selection.operand.device)
    if math.prod(shape) == selection.lines:
        return numbers.view(shape)
    sides = [
        1 if dim in selection.dims else side for dim, side in enumerate(selection.operand.shape)
    ]
    return numbers.view(sides).expand(shape)


def _windows(selection: Selection) -> tuple[Tensor, Tensor]:
    """Return the first and the last coordinates that a pooling's index may have, int64 S + [d]
    each.

    They are measured: the operator's maximum of a ramp is at the end of its window.
    """
    import torch

    shape, ends = selection.operand.shape, []
    for dim in selection.dims:
        ramp = torch.arange(shape[dim], device=selection.operand.device, dtype=torch.float64)
        ramp = ramp.view([-1 if axis == dim else 1 for axis in range(len(shape))]).expand(shape)
        up, down = (
            selection.function(side.contiguous(), *selection.other_args, **selection.kwargs)[
                0
            ].long()
            for side in (ramp, -ramp)
        )
        ends.append((up.minimum(-down), up.maximum(-down)))
    low, high = zip(*ends, strict=True)
    return torch.stack(low, dim=-1), torch.stack(high, dim=-1)


def _distance(values: Tensor, run: ReferenceTrace, traced: TracedIndices) -> Tensor:
    """Return the absolute difference of each element from the same element in another run.

    Zeros if the runs differ in shape.
    """
    import torch

    if traced.selection >= len(run.selections):
        return torch.zeros_like(values)
    other = run.selections[traced.selection]
    if other.operand.numel() != values.numel() or other.places != values.shape[1]:
        return torch.zeros_like(values)
    return (_lines(other) - values).abs().nan_to_num(posinf=0.0)


def _rms(values: Tensor, mask: Tensor) -> Tensor:
    """Return the rms of each line over the elements where `mask` is True, infinities as zero."""
    squares = values.nan_to_num(posinf=0.0, neginf=0.0).square().where(mask, 0)
    return (squares.sum(-1) / mask.sum(-1).clamp(min=1)).sqrt()
