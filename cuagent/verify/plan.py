"""Plan all draws of a verdict from its seeds, before any candidate code runs.

Seeds are drawn in the order of the rounds, so an earlier verdict's seeds give the same plan.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from cuagent.verify.inputs.kinds import SWEEPS, Inputs
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.sweeps import SweepCount
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.tally import Round, Trial, When, rounds_of


@dataclass(frozen=True)
class PlannedRound:
    """One round of a verdict with the seeds of all its draws."""

    round: Round
    trials: tuple[Trial, ...]
    repeats: tuple[Trial, ...]
    """Copies of some of `trials`, in random order; they are called again after the others."""
    sweeps: tuple[tuple[Trial, ...], ...]

    @property
    def draws(self) -> Iterator[Trial]:
        """Yield all draws of the round in order: trials, repeats, sweeps."""
        yield from (*self.trials, *self.repeats)
        for sweep in self.sweeps:
            yield from sweep


def plan(
    seeds: Seeds,
    kinds: Collection[Inputs],
    sweep_counts: Mapping[Inputs, SweepCount],
    *,
    weights: Collection[str],
    grown: Collection[Weights] = (),
    large: bool = False,
) -> tuple[PlannedRound, ...]:
    """Return the rounds of a verdict on this task, with the seeds of all draws.

    `kinds` are the kinds of inputs that the reference accepts, `sweep_counts` the numbers of draws
    in sweeps, and of draws of another kind if there are several. `weights` are the names of the
    model's weights; `grown` are the kinds of grown weights that change the model's outputs. A
    `large` task gets fewer draws.
    """
    if large:
        sweep_counts = {kind: count for kind, count in sweep_counts.items() if kind in SWEEPS}
    biased = any("bias" in name for name in weights)
    without = {Weights.GROWN, Weights.PAST} - set(grown)
    without |= set() if biased else {Weights.SUNK}
    every = rounds_of(large=large, weights=bool(weights))
    parts = (entry for entry in every if entry.weights not in without)
    rounds = (_round(entry, seeds, kinds, sweep_counts, bool(weights)) for entry in parts)
    return tuple(planned for planned in rounds if planned.trials)


def _round(
    entry: Round,
    seeds: Seeds,
    kinds: Collection[Inputs],
    sweep_counts: Mapping[Inputs, SweepCount],
    weights: bool,
) -> PlannedRound:
    in_use = When.SWAPPED if weights else When.IN_USE
    when = When.FIRST if entry.fresh else in_use
    draw = partial(Trial, has_weights=weights)
    trials = [
        draw(k, entry.weights, seeds.draw(), when, step)
        for k in entry.kinds
        if k in kinds
        for step in range(sweep_counts[k].made if k in sweep_counts else 1)
    ]
    repeats = [replace(trial, when=When.AGAIN) for trial in trials[: entry.repeats]]
    if repeats:
        random.Random(seeds.draw()).shuffle(repeats)
    sweeps = [
        tuple(
            draw(k, entry.weights, seed, step=step)
            for step, seed in enumerate(seeds.draw_several(sweep_counts[k].made))
        )
        for k in entry.sweeps
        if k in kinds and trials
    ]
    return PlannedRound(entry, tuple(trials), tuple(repeats), tuple(sweeps))
