"""Which kinds of inputs a task is tried on, and how often those that go through all places.

An operator that chooses among the elements of a line shows no more than what it chose: one output
of a maximum tells of one place. So the largest stands in another place from line to line and from
draw to draw, until it has stood everywhere, or until that would take too long: of a line of n
places in R lines, D draws reach min(1, D R / n).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from cuagent.verify.inputs.draws import (
    EXTREME_SIZE,
    FAR_EXTREME_SIZE,
    LineView,
    axes,
    steps_of_every,
)
from cuagent.verify.inputs.kinds import (
    FAINT_SIZE,
    LENIENT,
    MAX_SWEEP,
    MOST_VALUES,
    PLACED,
    SWEEPS,
    Inputs,
    boolean,
    brink_steps,
    derive,
)
from cuagent.verify.inputs.ranges import Ends, Range
from cuagent.verify.inputs.varied import Change, Fixed, accepted_changes
from cuagent.verify.tensors import is_inexact
from cuagent.verify.trace.halves import cases
from cuagent.verify.trace.selections import POOLS, SHIFTED, ReferenceTrace, Selection

if TYPE_CHECKING:
    from torch import Tensor

SWEEP_S = 0.4
"""About how long one sweep may take."""
STEP_S, STEP_CALLS = 0.003, 8
"""What one draw of a sweep takes besides, and how many calls of the reference it is worth."""
FEWEST_STEPS = 2
FEW_TAILS, MOST_TAILS = 3, 6
"""Turns of moderate tails on slow tasks, and on quick ones."""
TAILS_TRIED = (3, 4, 8)
"""Turns of them that the reference must take: the farthest."""
MOST_BRINKS = 24
MOST_HALVES = 24
MOST_VARIED = 8
"""Turns of other fixed integers, unless there are more changes."""
HUGE_MARGIN = 2.0**40
"""What the reference must bear beyond huge numbers: what squares them does not, and then an honest
kernel may have to square something else."""
TINY_SHARE = 1 / 16
"""Of the rms of an output on usual inputs: what is less on tiny ones is tiny itself."""
FAR = 1e-3

Forward = Callable[[list["Tensor"]], "list[Tensor]"]
FillsHidden = Callable[[list["Tensor"]], bool]
Fits = Callable[[list["Tensor"], list["Tensor"]], bool]


@dataclass(frozen=True)
class SweepCount:
    """Draws of a sweep: made, and those after which everything would have been everywhere."""

    made: int
    needed: int


@dataclass(frozen=True)
class Repertoire:
    """What a task is tried on. `ranges` and `ways` are for each tensor of its inputs."""

    ranges: tuple[Range | None, ...]
    line_views: tuple[tuple[LineView, ...], ...]
    kinds: tuple[Inputs, ...]
    sweep_counts: dict[Inputs, SweepCount]
    extreme_size: float = FAR_EXTREME_SIZE
    """How far moving extremes stand out."""
    thresholds: tuple[float, ...] = ()
    """What the reference compares with."""
    edges: tuple[float, ...] = ()
    """Those where its result jumps."""
    ends: tuple[Ends, ...] = ()
    """Of the range of each tensor."""
    scales: tuple[float, ...] = ()
    """Numbers by which the reference scales."""
    fixed: tuple[Fixed | None, ...] = ()
    """What is known of the tensors that are always alike, with the changes that are possible."""
    uniform_scale: bool = False
    """Whether integers hang on what is chosen: whose size differs from row to row, a sum in another
    order swallows what decides."""

    def drawn(self, kind: Inputs, own: Sequence[Tensor], seed: int) -> list[Tensor]:
        """Inputs of `kind` in the forms of the task's own."""
        return derive(
            kind,
            own,
            seed,
            self.ranges,
            self.line_views,
            self.extreme_size,
            self.thresholds,
            self.edges,
            self.ends,
            self.fixed,
            self.scales,
            uniform_scale=self.uniform_scale,
        )


SQUARING = ("var", "std", "norm", "dist", "hypot", "complex abs")
"""In the names of operators whose formula, as it is written out, squares."""


@dataclass(frozen=True)
class ReferenceRuns:
    """How a reference may be run, and what it is."""

    forward: Forward
    """In its own precision."""
    forward_fp64: Forward
    """In fp64."""
    discrete: bool
    """Whether integers are among its outputs."""
    fits: Fits
    """Whether results are finite, and within what admitted arithmetic holds all the way."""
    fills_hidden: FillsHidden | None = None
    """Whether it means its answer, where it has marks (`marks`)."""


def repertoire(
    own: Sequence[Tensor],
    ranges: Sequence[Range | None],
    seen: ReferenceTrace,
    runs: ReferenceRuns,
    call_s: float,
    ends: Sequence[Ends] = (),
) -> Repertoire:
    """What suits a reference: `seen` is a run of it, `call_s` how long a call takes."""
    selections = seen.selections
    line_views = tuple(_line_views(tensor, selections) for tensor in own)
    all_kinds = Repertoire(
        tuple(ranges),
        line_views,
        tuple(Inputs),
        {},
        thresholds=seen.thresholds,
        edges=seen.edges,
        scales=seen.scales,
        ends=tuple(ends),
        uniform_scale=_computes_with_indices(seen),
    )

    if not _is_answered(runs, all_kinds, Inputs.MOVING, own):
        all_kinds = replace(all_kinds, extreme_size=EXTREME_SIZE)
    discrete = runs.discrete or bool(seen.thresholds)
    selects = any(chosen.name not in SHIFTED for chosen in selections)
    kinds = tuple(
        kind
        for kind in Inputs
        if _applies(kind, own, ranges, discrete=discrete, selects=selects)
        and not (kind is Inputs.BRINK and not seen.edges)
        and not (kind is Inputs.HALVES and not seen.rounds)
        and not (kind is Inputs.MISSING and not seen.handles_nan)
        and not (kind is Inputs.ENDS and not any(ends))
        and not (kind in (Inputs.TINY, Inputs.FAINT) and all_kinds.uniform_scale)
        and not (kind is Inputs.HUGE and _squares(seen.names))
        and (kind is Inputs.OWN or _is_answered(runs, all_kinds, kind, own, selects=selects))
    )
    return _with_sweeps(replace(all_kinds, kinds=kinds), own, seen, call_s)


def with_fixed(
    suited: Repertoire,
    fixed: Sequence[Fixed | None],
    own: Sequence[Tensor],
    accepts: Callable[[list[Tensor]], bool] | None,
    call_s: float,
) -> Repertoire:
    """With draws that change the integers and masks which are always alike.

    Tensors whose integers other kinds change already are left out. `takes` says whether the
    reference accepts inputs; without it nothing is changed.
    """
    ranged = {Inputs.EXTREMES, Inputs.EVERY} & set(suited.kinds)
    found: list[Fixed | None] = []
    for number, (known, bounds) in enumerate(zip(fixed, suited.ranges, strict=True)):
        changes: tuple[Change, ...] = ()
        if known and accepts and not (bounds and ranged):
            changes = accepted_changes(known, partial(_accepts_at, accepts, own, number), number)
        found.append(replace(known, changes=changes) if known else None)
    count = sum(len(known.changes) for known in found if known)
    if not count:
        return replace(suited, fixed=tuple(found))
    made = max(count, min(2 * count, MOST_VARIED, int(SWEEP_S / (STEP_S + STEP_CALLS * call_s))))
    sweep_counts = suited.sweep_counts | {Inputs.VARIED: SweepCount(made, made)}
    kinds = (*suited.kinds, Inputs.VARIED)
    return replace(suited, fixed=tuple(found), sweep_counts=sweep_counts, kinds=kinds)


def _accepts_at(
    accepts: Callable[[list[Tensor]], bool], own: Sequence[Tensor], number: int, sample: Tensor
) -> bool:
    given = list(own)
    given[number] = sample
    return accepts(given)


def _with_sweeps(
    suited: Repertoire, own: Sequence[Tensor], seen: ReferenceTrace, call_s: float
) -> Repertoire:
    ranges, line_views = suited.ranges, suited.line_views
    sweep_counts: dict[Inputs, SweepCount] = {
        kind: _sweep_count(kind, own, ranges, line_views, seen, call_s)
        for kind in SWEEPS
        if kind is not Inputs.VARIED
    }
    return replace(suited, sweep_counts=sweep_counts)


def _applies(
    kind: Inputs,
    own: Sequence[Tensor],
    ranges: Sequence[Range | None],
    *,
    discrete: bool,
    selects: bool,
) -> bool:
    """Whether the kind changes anything about these inputs that this reference could show."""
    match kind:
        case Inputs.OWN:
            return True
        case Inputs.VARIED:
            return False  # added once it is known what the reference takes (`with_fixed`)
        case Inputs.EXTREMES | Inputs.ALIKE:
            return any(ranges)
        case Inputs.EVERY:
            return any(_values(bounds) for bounds in ranges)
        case Inputs.MASKS | Inputs.EMPTY | Inputs.SINGLE:
            return any(boolean(tensor) for tensor in own)
        case Inputs.TIES if not discrete:
            return False
        case Inputs.SORTED if not selects:
            return False
        case Inputs.MISSING:
            return any(map(_is_float, own))
        case Inputs.NAN if selects:
            return False  # by how they compare it, sorts put numbers into other places
    return sum(map(_is_float, own)) > (kind is Inputs.OPPOSED)


def _is_answered(
    runs: ReferenceRuns,
    available: Repertoire,
    kind: Inputs,
    own: Sequence[Tensor],
    *,
    selects: bool = False,
) -> bool:
    """Whether the reference has an answer to inputs of the kind that others can be held to."""
    given = available.drawn(kind, own, 0)
    if kind is Inputs.HUGE:
        given = _scaled(given, HUGE_MARGIN)
    try:
        results = runs.forward(given)
        for step in TAILS_TRIED if kind is Inputs.TAILS else ():
            runs.forward(available.drawn(kind, own, step))
    except (RuntimeError, ValueError, IndexError):
        return False  # outside what the reference accepts (probabilities, say)
    if kind is Inputs.MISSING and selects:
        return all(bool(x.isfinite().all()) for x in results)  # else it sorts them in somewhere
    if kind in LENIENT:
        return runs.fills_hidden is None  # an infinity goes beyond any mark
    if kind in PLACED:
        return True
    if not runs.fits(given, results):
        return False
    if kind is Inputs.FAINT and not _keeps_size(
        results, runs.forward(_scaled(given, 1 / FAINT_SIZE))
    ):
        return False
    if kind is Inputs.HUGE and not _agrees_with_fp64(results, runs.forward_fp64(given)):
        return False
    return runs.fills_hidden is None or runs.fills_hidden(given)


def _scaled(tensors: Sequence[Tensor], factor: float) -> list[Tensor]:
    return [x * factor if x.is_floating_point() else x for x in tensors]


def _keeps_size(results: Sequence[Tensor], larger: Sequence[Tensor]) -> bool:
    """Whether some output of tiny inputs is no tiny one, beside that of usual inputs.

    Where all are, whoever computes `exp(x) - 1` for an ELU errs by as much as they are worth.
    """
    return any(
        _rms(small) > TINY_SHARE * _rms(large)
        for small, large in zip(results, larger, strict=True)
        if is_inexact(small)
    )


def _rms(tensor: Tensor) -> float:
    numbers = tensor[tensor.isfinite()].abs().double()
    return float(numbers.square().mean().sqrt()) if numbers.numel() else 0.0


def _computes_with_indices(seen: ReferenceTrace) -> bool:
    """Whether integers among the outputs are computed from indices of what was chosen."""
    whole = zip(seen.outputs, seen.traced, strict=True)
    return any(chosen.indexed for chosen in seen.selections) and any(
        not is_inexact(output) and not boolean(output) and traced is None
        for output, traced in whole
    )


def _squares(names: Iterable[str]) -> bool:
    """Whether an operator squares what it is given, in fp64 perhaps, where nothing overflows."""
    return any(word in name for name in names for word in SQUARING)


def _agrees_with_fp64(results: Sequence[Tensor], exact: Sequence[Tensor]) -> bool:
    """Whether no output is far from what fp64 gives, as where something overflowed on the way."""
    return all(
        bool(((r - y).abs().double() <= FAR * y.abs().double().max()).all())
        for r, y in zip(results, exact, strict=True)
        if r.numel() and is_inexact(r)
    )


def _line_views(tensor: Tensor, selections: Sequence[Selection]) -> tuple[LineView, ...]:
    """The lines of this input among which something is chosen; none where that is not known.

    What has as many elements as the input is taken for it: most often it is, in another shape or
    after something that was done to each element.
    """
    found: dict[LineView, None] = {}
    for chosen in selections:
        if chosen.operand.numel() == tensor.numel() and chosen.places > 1:
            dims = chosen.dims[-1:] if chosen.name in POOLS else chosen.dims
            found[LineView(tuple(chosen.operand.shape), dims)] = None
    # Where lines are parts of longer ones, an extreme of the one is one of the other.
    return tuple(
        line_view
        for line_view in found
        if not any(
            other.shape == line_view.shape and set(other.dims) < set(line_view.dims)
            for other in found
        )
    )


def _sweep_count(
    kind: Inputs,
    own: Sequence[Tensor],
    ranges: Sequence[Range | None],
    line_views: Sequence[Sequence[LineView]],
    seen: ReferenceTrace,
    call_s: float,
) -> SweepCount:
    most, selections = int(SWEEP_S / (STEP_S + STEP_CALLS * call_s)), seen.selections
    if kind is Inputs.TAILS:
        made = max(FEW_TAILS, min(MOST_TAILS, most))
        return SweepCount(made, made)
    if kind is Inputs.HALVES:
        needed = len(cases(seen.scales))
        return SweepCount(max(1, min(needed, most, MOST_HALVES)), needed)
    if kind is Inputs.BRINK:
        needed = brink_steps(own, seen.edges)
        return SweepCount(max(1, min(needed, most, MOST_BRINKS)), needed)
    if kind is Inputs.EVERY:
        values = zip(own, map(_values, ranges), strict=True)
        needed = max((sum(steps_of_every(x, count)) for x, count in values), default=0)
        return SweepCount(max(1, min(needed, most, MAX_SWEEP - 1)), needed)
    of_kind = boolean if kind is Inputs.SINGLE else _is_float
    lines = [known or axes(x) for x, known in zip(own, line_views, strict=True) if of_kind(x)]
    needed = max(
        (len(all_) * max(line_view.steps for line_view in all_) for all_ in lines), default=0
    )
    if kind is Inputs.SINGLE or any(chosen.name in ("any", "all") for chosen in selections):
        needed *= 2  # once with all else below zero, or clear, and once the other way
    if kind is Inputs.MOVING and not any(line_views):
        needed = min(needed, FEWEST_STEPS)  # nothing is chosen, or from what one cannot reach
    return SweepCount(max(FEWEST_STEPS, min(needed, most, MAX_SWEEP - 1)), needed)


def _values(bounds: Range | None) -> int:
    """How many values of an integer input are dealt out one by one."""
    if bounds is None or bounds[1] - bounds[0] >= MOST_VALUES:
        return 0
    return max(bounds[1] - max(bounds[0], 0) + 1, 0) + (bounds[0] < 0)


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point()
