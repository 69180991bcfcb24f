"""What a verdict will try, laid down from its seeds before anything is tried.

Seeds are drawn in the order of the rounds, so that an earlier verdict's give the same plan again.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.repertoire import SweepCount
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.tally import ROUNDS, Round, Trial, When


@dataclass(frozen=True)
class Planned:
    """One round, its draws in order."""

    part: Round
    trials: tuple[Trial, ...]
    again: tuple[Trial, ...]
    """Some of the trials once more, in another order."""
    sweeps: tuple[tuple[Trial, ...], ...]

    @property
    def draws(self) -> Iterator[Trial]:
        """All of them."""
        yield from (*self.trials, *self.again)
        for sweep in self.sweeps:
            yield from sweep


def plan(
    seeds: Seeds,
    kinds: Collection[Inputs],
    turns: Mapping[Inputs, SweepCount],
    *,
    weights: Collection[str],
    grown: Collection[Weights] = (),
) -> tuple[Planned, ...]:
    """The rounds in which something is tried; `weights` are the names of the model's, `grown` the
    kinds of grown weights that it has a use for."""
    biased = any("bias" in name for name in weights)
    without = {Weights.GROWN, Weights.PAST} - set(grown)
    without |= set() if biased else {Weights.SUNK}
    parts = (part for part in ROUNDS if part.weights not in without)
    rounds = (_round(part, seeds, kinds, turns, bool(weights)) for part in parts)
    return tuple(planned for planned in rounds if planned.trials)


def _round(
    part: Round,
    seeds: Seeds,
    kinds: Collection[Inputs],
    turns: Mapping[Inputs, SweepCount],
    weights: bool,
) -> Planned:
    in_use = When.SWAPPED if weights else When.IN_USE
    when = When.FIRST if part.fresh else in_use
    trials = [Trial(k, part.weights, seeds.draw(), when) for k in part.kinds if k in kinds]
    again = [replace(trial, when=When.AGAIN) for trial in trials[: part.again]]
    if again:
        random.Random(seeds.draw()).shuffle(again)
    sweeps = [
        tuple(Trial(k, part.weights, seed) for seed in seeds.draw_several(turns[k].made))
        for k in part.sweeps
        if k in kinds and trials
    ]
    return Planned(part, tuple(trials), tuple(again), tuple(sweeps))
