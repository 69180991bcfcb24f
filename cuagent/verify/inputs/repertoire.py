"""Select the kinds of inputs for a task, and the number of draws in each sweep.

An operator that chooses among the elements of a line shows only the chosen element: one output of a
maximum depends on one place. So the largest element moves from line to line and from draw to draw
until it has been in every place, or until a time limit. With R lines of n places each, D draws
reach the share min(1, D R / n) of the places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from cuagent.verify.inputs.derive import FAINT_SIZE, boolean, derive
from cuagent.verify.inputs.draws import EXTREME_SIZE, FAR_EXTREME_SIZE, TAILS, flat_among
from cuagent.verify.inputs.kinds import LENIENT, PLACED, SWEEPS, Inputs
from cuagent.verify.inputs.lines import LineView
from cuagent.verify.inputs.ranges import Ends, Range
from cuagent.verify.inputs.reference_runs import (
    HUGE_MARGIN,
    TINY_SHARE,
    ReferenceRuns,
    agrees_with_fp64,
    keeps_size,
    rms,
    scaled,
)
from cuagent.verify.inputs.sweeps import (
    STEP_CALLS,
    STEP_S,
    SWEEP_S,
    SweepCount,
    is_float,
    sweep_count,
    values_of,
)
from cuagent.verify.inputs.traced import (
    computes_with_indices,
    line_views_of,
    shifts_along_axes,
    squares,
)
from cuagent.verify.inputs.varied import Change, Fixed, accepted_changes
from cuagent.verify.tensors import is_inexact
from cuagent.verify.trace.reference_trace import ReferenceTrace
from cuagent.verify.trace.selections import SHIFTED

if TYPE_CHECKING:
    from torch import Tensor

FAINT_NORM = 0.25
"""Norm of the tiny tensor in draws of Inputs.FAINT with a single one: below a usual limit of 1."""
MOST_FAINT = 3
"""Largest number of draws of Inputs.FAINT in which one tensor is tiny."""
MOST_VARIED = 8
"""Largest number of draws with changed fixed integers; more only if there are more changes."""


@dataclass(frozen=True)
class Repertoire:
    """Kinds of inputs for one task, with the data from which inputs of each kind are drawn.

    `ranges`, `line_views`, `ends` and `fixed` have one item per input tensor.
    """

    ranges: tuple[Range | None, ...]
    line_views: tuple[tuple[LineView, ...], ...]
    kinds: tuple[Inputs, ...]
    sweep_counts: dict[Inputs, SweepCount]
    extreme_size: float = FAR_EXTREME_SIZE
    """Magnitude of the extreme element that a sweep moves along an axis."""
    thresholds: tuple[float, ...] = ()
    """Constants with which the reference compares numbers."""
    edges: tuple[float, ...] = ()
    """Thresholds at which the reference's output jumps."""
    ends: tuple[Ends, ...] = ()
    """Ends of the domain of each input tensor (`ends_of`)."""
    mixed_tails: tuple[int, ...] = ()
    """Step numbers of Inputs.TAILS at which the mean has both signs instead of one.

    With one sign an output nearly vanishes, and any kernel has a large relative error there.
    """
    scales: tuple[float, ...] = ()
    """Constants by which the reference multiplies."""
    fixed: tuple[Fixed | None, ...] = ()
    """Integer tensors that are the same in every draw of get_inputs, with the changes that the
    reference accepts; None for other tensors.
    """
    infinities: bool = False
    """True if the reference tests its inputs for infinities."""
    uniform_scale: bool = False
    """True if integer outputs are computed from indices; large inputs then have one magnitude
    throughout.

    With magnitudes that differ from row to row, a sum in another order could absorb the numbers
    that decide an index.
    """
    kept_domains: frozenset[Inputs] = frozenset()
    """Kinds of inputs on which tensors with a limited domain (`ends`) keep the numbers of
    get_inputs.
    """
    flat_own: bool = False
    """True if flat rows of tensors with a limited domain are zero or repeat one of their own
    numbers, because the reference refuses other flat rows."""
    fraction_bits: int = 23
    """Bits after the binary point in the factors of the reference's products (23 for fp32)."""

    faint: tuple[int, ...] = ()
    """Numbers of the tensors of which one is tiny in each draw of Inputs.FAINT; the others are
    normal. Empty if all are tiny."""

    def keeps_own(self, kind: Inputs) -> bool:
        """Return True if tensors with a limited domain keep numbers of their own in this kind."""
        return kind in self.kept_domains or (self.flat_own and kind is Inputs.FLAT)

    def drawn(self, kind: Inputs, own: Sequence[Tensor], seed: int, step: int = 0) -> list[Tensor]:
        """Return inputs of `kind` with the shapes and dtypes of `own`, inputs from get_inputs.

        `step` is the number of the draw within a sweep.
        """
        drawn = derive(
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
            self.mixed_tails,
            step=step,
            infinities=self.infinities,
            uniform_scale=self.uniform_scale,
            fraction_bits=self.fraction_bits,
        )
        if kind is Inputs.FAINT and self.faint:
            only = self.faint[step % len(self.faint)]
            return [_single_faint(x, n == only) for n, x in enumerate(drawn)]
        if kind is Inputs.FLAT and self.flat_own:
            both = zip(own, drawn, self.ends, strict=True)
            return [flat_among(x, y) if of else y for x, y, of in both]
        if kind not in self.kept_domains:
            return drawn
        return [x if of else y for x, y, of in zip(own, drawn, self.ends, strict=True)]


SIZED = (
    *(Inputs.MIXED, Inputs.OFFSET, Inputs.BELOW, Inputs.LARGE, Inputs.LEVELS, Inputs.FLAT),
    *(Inputs.EDGES, Inputs.OTHER_EDGES, Inputs.FAR_EDGES, Inputs.CORNERS, Inputs.OTHER_CORNERS),
)
"""Kinds of inputs with numbers of unusual size or order; none of them judges precision.

If a reference refuses such a kind, tensors with a limited domain (probabilities, positive numbers)
keep the numbers of get_inputs in it.
"""
FLAT, NONE = Inputs.FLAT, frozenset[Inputs]()


def repertoire(
    own: Sequence[Tensor],
    ranges: Sequence[Range | None],
    trace: ReferenceTrace,
    runs: ReferenceRuns,
    call_s: float,
    ends: Sequence[Ends] = (),
    fraction_bits: int = 23,
) -> Repertoire:
    """Return the kinds of inputs on which a reference can judge candidates.

    `own` are inputs from get_inputs, `trace` is a trace of one run, `call_s` the seconds of one
    call, `ends` the result of `ends_of`, `fraction_bits` that of `Terms`.
    """
    selections = trace.selections
    line_views = tuple(line_views_of(tensor, selections) for tensor in own)
    all_kinds = Repertoire(
        tuple(ranges),
        line_views,
        tuple(Inputs),
        {},
        thresholds=trace.thresholds,
        edges=trace.edges,
        scales=trace.scales,
        ends=tuple(ends),
        infinities=trace.handles_infinity,
        uniform_scale=computes_with_indices(trace),
        fraction_bits=fraction_bits,
    )
    if any(ends) and not all(of for of, x in zip(ends, own, strict=True) if is_float(x)):
        kept = replace(all_kinds, kept_domains=frozenset(Inputs))
        refused = [kind for kind in SIZED if not _is_answered(runs, all_kinds, kind, own)]
        kept_domains = frozenset(kind for kind in refused if _is_answered(runs, kept, kind, own))
        all_kinds = replace(all_kinds, kept_domains=kept_domains)
    if any(ends) and not _is_answered(runs, replace(all_kinds, kept_domains=NONE), FLAT, own):
        within = replace(all_kinds, flat_own=True)
        all_kinds = within if _is_answered(runs, within, FLAT, own) else all_kinds
    if not _is_answered(runs, all_kinds, Inputs.MOVING, own):
        all_kinds = replace(all_kinds, extreme_size=EXTREME_SIZE)
    discrete = runs.discrete or bool(trace.thresholds)
    selects = any(chosen.name not in SHIFTED for chosen in selections)
    kinds = tuple(
        kind
        for kind in Inputs
        if _applies(kind, own, ranges, discrete=discrete, selects=selects)
        and not (kind is Inputs.BRINK and not trace.edges)
        and not (kind is Inputs.HALVES and not trace.rounds)
        and not (kind is Inputs.MISSING and not trace.handles_nan)
        and not (kind is Inputs.ENDS and not any(ends))
        and not (kind in (Inputs.TINY, Inputs.FAINT) and all_kinds.uniform_scale)
        and not (kind in (Inputs.LARGE, Inputs.HUGE) and shifts_along_axes(selections))
        and not (kind is Inputs.HUGE and squares(trace.names))
        and (kind is Inputs.OWN or _is_answered(runs, all_kinds, kind, own, selects=selects))
    )
    chosen = replace(all_kinds, kinds=kinds)
    if Inputs.FAINT not in kinds and not all_kinds.uniform_scale:
        chosen = _with_single_faint(chosen, runs, own)
    if Inputs.TAILS in kinds:
        chosen = replace(chosen, mixed_tails=_vanishing_steps(runs, chosen, own))
    return _with_sweeps(chosen, own, trace, call_s)


def _single_faint(tensor: Tensor, is_only: bool) -> Tensor:
    """Return a tensor of size FAINT_SIZE scaled to a norm of 1/4, or to unit size unless
    `is_only`."""
    if not is_inexact(tensor):
        return tensor
    return tensor * ((FAINT_NORM / max(1, tensor.numel()) ** 0.5 if is_only else 1.0) / FAINT_SIZE)


def _with_single_faint(
    chosen: Repertoire, runs: ReferenceRuns, own: Sequence[Tensor]
) -> Repertoire:
    """Return the repertoire plus draws of Inputs.FAINT in which one of several tensors is tiny."""
    inexact = [number for number, x in enumerate(own) if is_inexact(x)]
    if len(inexact) < 2:
        return chosen
    faint = tuple(
        number
        for number in inexact
        if _is_answered(runs, replace(chosen, faint=(number,)), Inputs.FAINT, own)
    )[:MOST_FAINT]
    return replace(chosen, faint=faint, kinds=(*chosen.kinds, Inputs.FAINT)) if faint else chosen


def _vanishing_steps(
    runs: ReferenceRuns, available: Repertoire, own: Sequence[Tensor]
) -> tuple[int, ...]:
    """Return the step numbers of Inputs.TAILS at which the rms of some output is nearly zero."""
    usual = runs.forward(list(own))
    shifts = [step for step, (mean, _) in enumerate(TAILS) if mean]
    found = []
    for step in shifts:
        results = runs.forward(available.drawn(Inputs.TAILS, own, step, step))
        both = [(x, y) for x, y in zip(results, usual, strict=True) if is_inexact(y)]
        if any(rms(x) < TINY_SHARE * rms(y) for x, y in both):
            found.append(step)
    return tuple(found)


def with_fixed(
    suited: Repertoire,
    fixed: Sequence[Fixed | None],
    own: Sequence[Tensor],
    accepts: Callable[[list[Tensor]], bool] | None,
    call_s: float,
) -> Repertoire:
    """Return the repertoire plus a sweep (Inputs.VARIED) that changes the fixed integers and masks.

    Integers that other kinds change already are left out. `accepts(inputs)` is True if the
    reference accepts these inputs; without it no sweep is added.
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
    suited: Repertoire, own: Sequence[Tensor], trace: ReferenceTrace, call_s: float
) -> Repertoire:
    ranges, line_views = suited.ranges, suited.line_views
    sweep_counts: dict[Inputs, SweepCount] = {
        kind: sweep_count(kind, own, ranges, line_views, trace, call_s)
        for kind in SWEEPS
        if kind is not Inputs.VARIED
    }
    if suited.faint:
        sweep_counts[Inputs.FAINT] = SweepCount(len(suited.faint), len(suited.faint))
    return replace(suited, sweep_counts=sweep_counts)


def _applies(
    kind: Inputs,
    own: Sequence[Tensor],
    ranges: Sequence[Range | None],
    *,
    discrete: bool,
    selects: bool,
) -> bool:
    """Return True if inputs of `kind` differ from `own` in a way that can affect this reference."""
    match kind:
        case Inputs.OWN:
            return True
        case Inputs.VARIED:
            return False  # `with_fixed` adds it
        case Inputs.EXTREMES | Inputs.ALIKE:
            return any(ranges)
        case Inputs.EVERY:
            return any(values_of(bounds) for bounds in ranges)
        case Inputs.MASKS | Inputs.EMPTY | Inputs.SINGLE:
            return any(boolean(tensor) for tensor in own)
        case Inputs.TIES if not discrete:
            return False
        case Inputs.SORTED if not selects:
            return False
        case Inputs.MISSING:
            return any(map(is_float, own))
        case Inputs.NAN if selects:
            return False  # honest sorts place numbers differently next to NaN
    of_kind = is_float if kind in SWEEPS or kind in (Inputs.SORTED, Inputs.OPPOSED) else is_inexact
    return sum(map(of_kind, own)) > (kind is Inputs.OPPOSED)


def _is_answered(
    runs: ReferenceRuns,
    available: Repertoire,
    kind: Inputs,
    own: Sequence[Tensor],
    *,
    selects: bool = False,
) -> bool:
    """Run the reference on inputs of `kind`; return True if its outputs are fit to judge
    candidates.
    """
    given = available.drawn(kind, own, 0)
    if kind is Inputs.HUGE:
        given = scaled(given, HUGE_MARGIN)
    try:
        results = runs.forward(given)
        for step in range(1, len(TAILS)) if kind is Inputs.TAILS else ():
            runs.forward(available.drawn(kind, own, step, step))
    except (RuntimeError, ValueError, IndexError):
        return False  # outside the domain, for example of probabilities
    if kind is Inputs.MISSING and selects:
        return not any(bool(x.isnan().any()) for x in results)  # else it sorts NaN among numbers
    if kind in LENIENT:
        return runs.fills_hidden is None  # an infinity exceeds any mask fill
    if kind in PLACED:
        return True
    if not runs.fits(given, results):
        return False
    if kind is Inputs.FAINT and not available.faint:
        usual = runs.forward(scaled(given, 1 / FAINT_SIZE))
        if not keeps_size(results, usual):
            return False
    if kind is Inputs.HUGE and not agrees_with_fp64(results, runs.forward_fp64(given)):
        return False
    return runs.fills_hidden is None or runs.fills_hidden(given)
