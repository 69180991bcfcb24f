"""Plan all draws of a verdict from its seeds, before any candidate code runs.

Seeds are drawn in the order of the rounds, so an earlier verdict's seeds give the same plan.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.repertoire import Turns
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.tally import ROUNDS, Round, Trial, When


@dataclass(frozen=True)
class Planned:
    """One round with its draws in order."""

    part: Round
    trials: tuple[Trial, ...]
    again: tuple[Trial, ...]
    """Some of the trials a second time, in another order."""
    sweeps: tuple[tuple[Trial, ...], ...]

    @property
    def draws(self) -> Iterator[Trial]:
        """All draws of the round, in order."""
        yield from (*self.trials, *self.again)
        for sweep in self.sweeps:
            yield from sweep


def plan(
    seeds: Seeds,
    kinds: Collection[Inputs],
    turns: Mapping[Inputs, Turns],
    *,
    weights: Collection[str],
    grown: Collection[Weights] = (),
) -> tuple[Planned, ...]:
    """Return the rounds that apply to the task.

    `weights` are the names of the model's weights; `grown` are the kinds of grown weights that
    change its behaviour.
    """
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
    turns: Mapping[Inputs, Turns],
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
