"""Derive inputs of each kind (`Inputs`) from the task's own inputs.

`draws` and `lines` draw one tensor; this module decides which tensors are drawn, and how.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.verify.inputs import draws, lines
from cuagent.verify.inputs.kinds import MOST_VALUES, SWEEPS, Inputs, sweep_seed
from cuagent.verify.inputs.lines import LineView, axes
from cuagent.verify.inputs.random_values import balanced, randn, seeded, uniform, with_values
from cuagent.verify.inputs.ranges import Ends, Range
from cuagent.verify.inputs.varied import Fixed
from cuagent.verify.tensors import is_inexact
from cuagent.verify.trace import halves

if TYPE_CHECKING:
    from torch import Generator, Tensor

LARGE_OFFSET = 1e4
"""Mean of inputs of kind OFFSET. With a mean of 500 a one-pass variance in fp32 would pass."""
OPPOSED_OFFSET = 1e3
"""Absolute value of the mean of inputs of kind OPPOSED, whose signs alternate between tensors."""
LARGE_SIZE, HUGE_SIZE, FAINT_SIZE = 2.0**20, 2.0**60, 2.0**-14
"""Magnitudes of inputs of the kinds LARGE, HUGE and FAINT.

The fourth power of LARGE_SIZE is finite in fp32, so that no honest formula overflows.
"""
FAR_OFFSET = 5e4
"""Magnitude of inputs of kind BELOW: larger than the "very low" constants that kernels often use.

It is within fp16's range.
"""


def derive(
    kind: Inputs,
    own: Sequence[Tensor],
    seed: int,
    ranges: Sequence[Range | None] = (),
    line_views: Sequence[Sequence[LineView]] = (),
    extreme_size: float = draws.EXTREME_SIZE,
    thresholds: Sequence[float] = (),
    edges: Sequence[float] = (),
    ends: Sequence[Ends] = (),
    fixed: Sequence[Fixed | None] = (),
    scales: Sequence[float] = (),
    mixed_tails: Collection[int] = (),
    *,
    step: int = 0,
    infinities: bool = False,
    uniform_scale: bool = False,
    fraction_bits: int = 23,
) -> list[Tensor]:
    """Return inputs of `kind` with the shapes and dtypes of `own`, results of the task's
    get_inputs.

    - `ranges`: least and largest value of each integer tensor (`ranges_of`)
    - `line_views`: lines of each tensor along which extremes move; empty for those of its axes
    - `extreme_size`: magnitude of the extremes that move in a sweep
    - `thresholds`: numbers with which the reference compares, for ties
    - `edges`: thresholds at which the reference's result jumps
    - `ends`: ends of each tensor's domain (`ends_of`)
    - `fixed`: tensors that are the same in all results of get_inputs (`varied`)
    - `scales`: numbers by which the reference multiplies
    - `mixed_tails`: steps of TAILS whose mean has both signs
    - `infinities`: True to put infinities into draws of MISSING too
    - `step`: number of the draw within its sweep
    - `uniform_scale`: True for one magnitude of large and huge numbers instead of one per row
    - `fraction_bits`: bits after the binary point that the reference's products keep (`Terms`)
    """
    if kind is Inputs.OWN:
        return list(own)
    generator = seeded(own, seed)
    bounded = list(zip(own, ranges or [None] * len(own), strict=True))
    if kind is Inputs.TAILS:
        free = [not tensor_ends for tensor_ends in ends or [()] * len(own)]
        mixed = step % len(draws.TAILS) in mixed_tails
        return draws.tails(own, free, step, generator, mixed=mixed)
    if kind is Inputs.HALVES:
        known = halves.cases(scales)
        scale, case = known[step % len(known)]
        return [
            halves.halves(x, scale, case, generator) if x.is_floating_point() else x for x in own
        ]
    if kind is Inputs.VARIED:
        return _other_fixed(own, fixed, step, generator)
    if kind is Inputs.BRINK:
        return _on_the_brink(own, edges or (0.0,), step, generator)
    if kind in SWEEPS or kind is Inputs.SORTED:
        order = seeded(own, sweep_seed(seed, step))
        sweep = SweepStep(kind, step, generator, order, extreme_size)
        return [
            sweep.drawn(tensor, bounds, known or axes(tensor))
            for (tensor, bounds), known in zip(bounded, line_views or [()] * len(own), strict=True)
        ]
    changed = _other_values(kind, bounded, ends, generator)
    if changed is not None:
        return changed
    form = _Form(uniform_scale, infinities, fraction_bits)
    return _all_drawn(kind, own, generator, thresholds, form)


def _other_values(
    kind: Inputs,
    bounded: Sequence[tuple[Tensor, Range | None]],
    ends: Sequence[Ends],
    generator: Generator,
) -> list[Tensor] | None:
    """Return the own inputs with other integers, other booleans, or numbers at the ends of their
    domains.

    `bounded` has each tensor with its range. None if draws of `kind` change other values.
    """
    match kind:
        case Inputs.EXTREMES:
            return [draws.extreme(x, of, generator) if of else x for x, of in bounded]
        case Inputs.ALIKE:
            return [x.clone().fill_(of[0]) if of else x for x, of in bounded]
        case Inputs.MASKS:
            return [draws.masked(x, generator) if boolean(x) else x for x, _ in bounded]
        case Inputs.EMPTY:
            return [x & False if boolean(x) else x for x, _ in bounded]
        case Inputs.ENDS:
            all_ends = ends or [()] * len(bounded)
            both = zip((x for x, _ in bounded), all_ends, strict=True)
            return [with_values(x, of, generator, 1 / 2) if of else x for x, of in both]
    return None


@dataclass(frozen=True)
class SweepStep:
    """One step of a sweep, with the random generators from which its tensors are drawn."""

    kind: Inputs
    step: int
    noise: Generator
    order: Generator
    """Random generator with the same seed in all steps; it determines the order of positions."""
    extreme_size: float
    """Magnitude of the extremes that move."""

    def drawn(self, tensor: Tensor, bounds: Range | None, line_views: Sequence[LineView]) -> Tensor:
        """Return the tensor for this step; `tensor` itself if its dtype is not the one that the
        kind changes.
        """
        line_view, step = line_views[self.step % len(line_views)], self.step // len(line_views)
        if self.kind is Inputs.EVERY:
            few = bounds is not None and bounds[1] - bounds[0] < MOST_VALUES
            return lines.every(tensor, bounds, self.step, self.order) if bounds and few else tensor
        if self.kind is Inputs.SINGLE:
            return lines.single(tensor, line_view, step, self.order) if boolean(tensor) else tensor
        if not tensor.is_floating_point():
            return tensor
        normal = randn(tensor, self.noise)
        if self.kind is Inputs.SORTED:
            return lines.sorted_lines(normal, line_views[0], self.order).to(tensor.dtype)
        return lines.moving(normal, self.extreme_size, line_view, step, self.order).to(tensor.dtype)


def boolean(tensor: Tensor) -> bool:
    """Return True if the tensor's dtype is bool."""
    import torch

    return tensor.dtype is torch.bool


def _other_fixed(
    own: Sequence[Tensor], fixed: Sequence[Fixed | None], step: int, generator: Generator
) -> list[Tensor]:
    """Return the inputs with one fixed tensor changed; `step` selects the tensor and its change."""
    of_each = [known.changes if known else () for known in fixed]
    rounds = range(max(map(len, of_each), default=0))
    pairs = [(n, changes[at]) for at in rounds for n, changes in enumerate(of_each) if changes[at:]]
    drawn = list(own)
    if pairs:
        number, change = pairs[step % len(pairs)]
        known = fixed[number]
        assert known is not None
        drawn[number] = known.changed(change, generator, step // len(pairs))
    return drawn


def brink_steps(own: Sequence[Tensor], edges: Sequence[float]) -> int:
    """Return the number of steps of BRINK that cover every tensor, edge and case
    (`draws.brink`).
    """
    floats = sum(x.is_floating_point() for x in own)
    return floats * min(floats, 2) * draws.BRINKS * len(edges)


def _on_the_brink(
    own: Sequence[Tensor], edges: Sequence[float], step: int, generator: Generator
) -> list[Tensor]:
    floats = [number for number, x in enumerate(own) if x.is_floating_point()]
    step, at = divmod(step, len(floats))
    others, case = divmod(step, draws.BRINKS * len(edges))
    drawn = [x.new_full(x.shape, others % 2) if x.is_floating_point() else x for x in own]
    drawn[floats[at]] = draws.brink(own[floats[at]], edges, case, generator)
    return drawn


@dataclass(frozen=True)
class _Form:
    """Options of `derive` that are the same for all tensors."""

    uniform_scale: bool
    infinities: bool
    fraction_bits: int


def _all_drawn(
    kind: Inputs,
    own: Sequence[Tensor],
    generator: Generator,
    thresholds: Sequence[float],
    form: _Form,
) -> list[Tensor]:
    """Return inputs in which every floating or complex tensor is drawn by `kind`; others are
    unchanged.

    In CANCELLATION and FEW only the first of them is; further ones are drawn as INTEGER.
    """
    drawn: list[Tensor] = []
    for tensor in own:
        if not is_inexact(tensor):
            drawn.append(tensor)
            continue
        before = sum(map(is_inexact, own[: len(drawn)]))
        what = Inputs.INTEGER if kind in (Inputs.CANCELLATION, Inputs.FEW) and before else kind
        if tensor.is_complex():
            drawn.append(_drawn_complex(what, tensor, generator, form))
            continue
        one = _drawn(what, tensor, generator, form)
        if kind is Inputs.TIES and thresholds:
            one = with_values(one, thresholds, generator)
        drawn.append(one + OPPOSED_OFFSET * (-1) ** before if kind is Inputs.OPPOSED else one)
    return drawn


def _drawn_complex(kind: Inputs, tensor: Tensor, generator: Generator, form: _Form) -> Tensor:
    """Return a complex tensor whose real and imaginary parts are drawn as one row."""
    import torch

    parts = torch.view_as_real(tensor.resolve_conj())
    drawn = _drawn(kind, parts.flatten(-2), generator, form)
    return torch.view_as_complex(drawn.reshape(parts.shape).contiguous())


def _drawn(kind: Inputs, tensor: Tensor, generator: Generator, form: _Form) -> Tensor:
    normal = randn(tensor, generator)
    match kind:
        case Inputs.LARGE if form.uniform_scale:
            drawn = normal * LARGE_SIZE
        case Inputs.HUGE if form.uniform_scale:
            drawn = -HUGE_SIZE * (1 + normal.abs())
        case Inputs.TINY:
            drawn = draws.tiny(normal, generator)
        case Inputs.FAINT:
            drawn = normal * FAINT_SIZE
        case Inputs.ONE_SIGNED:
            drawn = uniform(normal)
        case Inputs.MIXED:
            drawn = draws.mixed(normal, generator)
        case Inputs.OFFSET:
            drawn = normal + LARGE_OFFSET
        case Inputs.BELOW:
            drawn = normal - FAR_OFFSET
        case Inputs.LARGE:
            drawn = draws.large(normal, LARGE_SIZE, generator)
        case Inputs.HUGE:
            drawn = draws.large(normal, HUGE_SIZE, generator)
        case Inputs.INFINITE:
            drawn = draws.planted(normal, (math.inf, 0.0, -math.inf), generator)
        case Inputs.NAN:
            drawn = draws.planted(normal, (math.nan, 0.0), generator)
        case Inputs.MISSING:
            drawn = draws.missing(normal, generator, infinities=form.infinities)
        case Inputs.LEVELS:
            drawn = draws.levels(normal, FAR_OFFSET, generator)
        case Inputs.FLAT:
            drawn = draws.flat(normal, generator)
        case Inputs.EDGES:
            drawn = draws.edges(normal, draws.EXTREME_SIZE)
        case Inputs.OTHER_EDGES:
            drawn = draws.edges(normal, -draws.EXTREME_SIZE)
        case Inputs.FAR_EDGES:
            first = float(randn(normal.new_empty(1), generator)) > 0
            drawn = draws.edges(
                normal, draws.FAR_EXTREME_SIZE if first else -draws.FAR_EXTREME_SIZE
            )
        case Inputs.CORNERS | Inputs.OTHER_CORNERS:
            drawn = draws.corners(normal, 1 if kind is Inputs.CORNERS else -1)
        case Inputs.INTEGER:
            drawn = (normal * 1.2).round().clamp(-2, 2)
        case Inputs.CANCELLATION:
            signs = balanced(normal, generator)
            drawn = signs * (
                1 + (normal * 3).round().clamp(-8, 8) / 2 ** min(16, form.fraction_bits)
            )
        case Inputs.FEW:
            drawn = draws.few(normal, generator, form.fraction_bits)
        case Inputs.TIES:
            drawn = (normal * 2).round().clamp(-4, 4) / 2
        case _:
            drawn = normal
    return drawn.to(tensor.dtype)
