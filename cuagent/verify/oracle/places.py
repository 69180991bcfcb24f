"""What the indices in the reference's output were chosen from, for the rule on ties (`ties`).

Runs in the oracle's process. A selection that sees other shapes than when it was looked at first
tells nothing, and then no index but the reference's own will do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verify.oracle.perturb import apart, opposites, tilted, untied
from cuagent.verify.rules import bounds
from cuagent.verify.rules.bounds import LOCAL, OWN_ERROR, UNITS
from cuagent.verify.rules.ties import Places, places_of
from cuagent.verify.tensors import UNIT, is_inexact
from cuagent.verify.trace.magnitude_gaps import least_fill_sizes
from cuagent.verify.trace.selections import (
    BOUNDED,
    DISTINCT,
    ReferenceTrace,
    Selection,
    TracedIndices,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

KNOWN = 3
"""So many times fewer pairs of perturbations do where one knows what is tied."""


@dataclass(frozen=True)
class NearTies:
    """How near to a tie an honest kernel may decide it otherwise than the reference."""

    longest_sum: int
    admitted: Precision
    opposites: int
    """Pairs of perturbations that ties are looked for with."""

    @property
    def reach(self) -> float:
        """As large as what honest sums may err, since a kernel breaks ties by its own roundoff."""
        return bounds.reach(self.longest_sum, UNIT)

    def perturbed(
        self, inputs: Sequence[Tensor], generator: Generator, run: ReferenceTrace
    ) -> Iterator[list[Tensor]]:
        """The inputs perturbed. Each perturbation comes with its opposite, and where integers of
        the output could not be followed so do ramps: a tie falls one way and the other."""
        opaque = any(
            traced is None and not is_inexact(output)
            for traced, output in zip(run.traced, run.outputs, strict=True)
        )
        pairs = self.opposites if opaque else max(1, self.opposites // KNOWN)
        # Where nothing tells an index, zeros stay zeros: to count them as well is wrong.
        indexed = any(chosen.indexed for chosen in run.selections)
        firm = [untied(tensor) for tensor in inputs] if indexed else list(inputs)
        for _ in range(pairs):
            yield from opposites(firm, generator, self.reach)
        for sign in (1, -1) if opaque else ():
            yield [tilted(tensor, sign * self.reach) for tensor in firm]

    def settle(
        self,
        exact: ReferenceTrace,
        declared: ReferenceTrace,
        runs: Iterable[ReferenceTrace],
        spread: Sequence[Tensor],
    ) -> list[Places]:
        """What indices were chosen from; in `spread`, how far other integers move.

        They do not where what decides them is the same in either precision, and so exact, and no
        index does.
        """
        import torch

        for view, base in zip(spread, exact.outputs, strict=True):
            if not is_inexact(base):
                view.zero_()
        indexed = any(chosen.indexed for chosen in exact.selections)
        firm = self.admitted is Precision.MATCH and not indexed and certain(exact, declared)

        def seen() -> Iterator[ReferenceTrace]:
            for run in runs:
                for view, base, other in zip(spread, exact.outputs, run.outputs, strict=True):
                    if not is_inexact(base) and not firm:
                        view.copy_(torch.maximum(view.long(), apart(other, base)))
                yield run

        coarse = bounds.coarse(UNITS[self.admitted]) / self.reach
        one_signed = bounds.sequential(self.longest_sum)
        return find_places(exact, declared, seen(), 1 + coarse, one_signed)


def certain(exact: ReferenceTrace, declared: ReferenceTrace) -> bool:
    """Whether two runs, in two precisions, decided by equal numbers."""
    import torch

    if not exact.decided or len(exact.decided) != len(declared.decided):
        return False
    return all(
        x.numel() and x.dtype != y.dtype and torch.equal(x.to(y.dtype), y)
        for x, y in zip(declared.decided, exact.decided, strict=True)
    )


def find_places(
    exact: ReferenceTrace,
    declared: ReferenceTrace,
    runs: Iterable[ReferenceTrace],
    gate: float = 1.0,
    one_signed: float = 0.0,
) -> list[Places]:
    """For each traced output what its indices were chosen from.

    `runs` are those under perturbation; `gate` and `one_signed` are factors of rms(m) and rms(z).
    """
    import torch

    outputs = [traced for traced in exact.traced if traced is not None]
    values = [_lines(exact.selections[traced.selection]) for traced in outputs]
    spreads = [tensor.new_zeros(tensor.shape) for tensor in values]
    for run in runs:
        spreads = [
            spread.maximum(_apart(value, run, traced))
            for spread, value, traced in zip(spreads, values, outputs, strict=True)
        ]
    found = []
    for traced, value, spread in zip(outputs, values, spreads, strict=True):
        chosen = exact.selections[traced.selection]
        own = _apart(value, declared, traced)
        marks = least_fill_sizes(value)
        usual = value.abs() < marks[:, None]
        sides = [
            gate * _rms(spread, among)
            + OWN_ERROR * own.where(among, 0).amax(-1)
            + LOCAL * one_signed * _rms(value, among)
            for among in (usual, torch.ones_like(usual))
        ]
        slack = 2 * torch.stack(sides, dim=-1)
        if chosen.stable:
            slack = slack.masked_fill((own == 0).all(-1, keepdim=True), -1.0)
        found.append(_places(chosen, traced, value, slack, marks))
    return found


def tell_places(places: Sequence[Places], target: Sequence[Tensor]) -> None:
    """Write them to an arena. Where the reference went another way than at first, and they have
    other shapes, no index but the reference's own will do."""
    tensors = [tensor for each in places for tensor in each.tensors]
    if [x.shape for x in tensors] == [x.shape for x in target]:
        for view, tensor in zip(target, tensors, strict=True):
            view.copy_(tensor)
        return
    for view in target:
        view.zero_()
    for each in places_of(target):
        each.slack.fill_(-1.0)


def _places(
    chosen: Selection, traced: TracedIndices, values: Tensor, slack: Tensor, marks: Tensor
) -> Places:
    import torch

    flat = traced.positions.long()
    low = high = values.new_zeros(0, dtype=torch.int64)
    if chosen.name in BOUNDED:
        low, high = (_windows(chosen)[end].view(-1, len(chosen.dims))[flat] for end in (0, 1))
    once = flat.unique().numel() == flat.numel()
    return Places(
        values=values,
        slack=slack,
        fill_sizes=marks,
        line=_line_numbers(chosen, traced.shape).reshape(-1)[flat],
        sizes=torch.tensor([chosen.operand.shape[d] for d in chosen.dims], device=values.device),
        low=low,
        high=high,
        distinct=torch.tensor([chosen.name in DISTINCT and once], device=values.device),
    )


def _lines(chosen: Selection) -> Tensor:
    """[lines, places], fp64."""
    last = chosen.operand.movedim(chosen.dims, tuple(range(-len(chosen.dims), 0)))
    return last.reshape(-1, chosen.places).double()


def _line_numbers(chosen: Selection, shape: tuple[int, ...]) -> Tensor:
    """int64 of `shape`, that of the operator's own indices."""
    import torch

    numbers = torch.arange(chosen.lines, device=chosen.operand.device)
    if math.prod(shape) == chosen.lines:
        return numbers.view(shape)
    sides = [1 if dim in chosen.dims else side for dim, side in enumerate(chosen.operand.shape)]
    return numbers.view(sides).expand(shape)


def _windows(chosen: Selection) -> tuple[Tensor, Tensor]:
    """int64 S + [d] each: the first and the last coordinates that an index may have.

    Asked of the operator itself: the maximum of a ramp is where its window ends.
    """
    import torch

    shape, ends = chosen.operand.shape, []
    for dim in chosen.dims:
        ramp = torch.arange(shape[dim], device=chosen.operand.device, dtype=torch.float64)
        ramp = ramp.view([-1 if axis == dim else 1 for axis in range(len(shape))]).expand(shape)
        up, down = (
            chosen.function(side.contiguous(), *chosen.other_args, **chosen.kwargs)[0].long()
            for side in (ramp, -ramp)
        )
        ends.append((up.minimum(-down), up.maximum(-down)))
    low, high = zip(*ends, strict=True)
    return torch.stack(low, dim=-1), torch.stack(high, dim=-1)


def _apart(values: Tensor, run: ReferenceTrace, traced: TracedIndices) -> Tensor:
    """How far the same elements lie apart in another run; zero where it went another way."""
    import torch

    if traced.selection >= len(run.selections):
        return torch.zeros_like(values)
    other = run.selections[traced.selection]
    if other.operand.numel() != values.numel() or other.places != values.shape[1]:
        return torch.zeros_like(values)
    return (_lines(other) - values).abs().nan_to_num(posinf=0.0)


def _rms(values: Tensor, among: Tensor) -> Tensor:
    """Of those elements of each line, infinities left out."""
    squares = values.nan_to_num(posinf=0.0, neginf=0.0).square().where(among, 0)
    return (squares.sum(-1) / among.sum(-1).clamp(min=1)).sqrt()
