"""Draw the inputs of each kind in the oracle's process; for a large task slice by slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuagent.task import TaskError, flatten
from cuagent.verify.inputs.kinds import AMONG_OWN, MAX_SWEEP, SWEEPS, Inputs, sweep_seed
from cuagent.verify.inputs.seeds import BITS
from cuagent.verify.oracle.describe import Described
from cuagent.verify.tally import OPPOSITES
from cuagent.worker.memory.arena import fill

if TYPE_CHECKING:
    from torch import Tensor

SLICE_SEEDS = MAX_SWEEP * 1_000_003
"""Difference between the seeds of two adjacent slices, a multiple of the length of a sweep."""
WHOLE = (
    Inputs.OWN,
    Inputs.VARIED,
    Inputs.EXTREMES,
    Inputs.ALIKE,
    Inputs.MASKS,
    Inputs.EMPTY,
    Inputs.SINGLE,
    Inputs.EVERY,
)
"""Kinds that are drawn whole instead of slice by slice, also for a large task.

They are the task's own inputs, and changes of integers, which take less memory.
"""


class InputDraws:
    """Draws the inputs of one task.

    Raises TaskError if get_inputs() fails or returns other shapes.
    """

    def __init__(self, description: Described) -> None:
        self._description = description
        self._sweep_base: tuple[int, list[Tensor]] | None = None
        """(seed, own inputs) from which all draws of the last sweep are derived."""

    def draw(self, kind: Inputs, seed: int, step: int, target: list[Tensor]) -> None:
        """Write inputs of `kind` from `seed` to `target`; `step` is the number within a sweep."""
        base = self._base_inputs(kind, seed, step, target)
        if self._description.reference.slicing is not None and kind not in WHOLE:
            self._draw_slices(kind, seed, step, base, target)
            return
        drawn = self._description.repertoire.drawn(kind, base, seed, step)
        if kind is Inputs.VARIED and not (
            self._description.accepts and self._description.accepts(drawn)
        ):
            drawn = base  # the reference rejects this sample, unlike the first ones
        for view, tensor in zip(target, drawn, strict=True):
            fill(view, tensor)

    def _draw_slices(
        self, kind: Inputs, seed: int, step: int, base: list[Tensor], target: list[Tensor]
    ) -> None:
        """Draw a large task's inputs slice by slice, which needs the memory of one slice only."""
        slicing = self._description.reference.slicing
        assert slicing is not None
        for number, part in enumerate(slicing.even_ranges()):
            seed_of_part = (seed + number * SLICE_SEEDS) % (1 << BITS)
            repertoire, drawn_as = self._description.repertoire, kind
            if number % 2 and OPPOSITES.get(kind) in repertoire.kinds:
                drawn_as = OPPOSITES[kind]
            own = slicing.of_inputs(base, *part)
            drawn = repertoire.drawn(drawn_as, own, seed_of_part, step)
            views = slicing.of_inputs(target, *part)
            for dim, view, tensor in zip(slicing.inputs, views, drawn, strict=True):
                if dim is not None or number == 0:
                    fill(view, tensor)

    def _base_inputs(
        self, kind: Inputs, seed: int, step: int, target: list[Tensor]
    ) -> list[Tensor]:
        """Return the inputs from which a draw of `kind` is derived.

        They are a result of get_inputs, which takes time. If only their shapes matter, `target` is
        returned instead. All draws of a sweep use the same inputs, because it tries all values of
        one kind.
        """
        keeps_own = kind in AMONG_OWN or self._description.repertoire.keeps_own(kind)
        if not keeps_own and all(tensor.is_floating_point() for tensor in target):
            return target
        if kind in SWEEPS:
            seed = sweep_seed(seed, step)
            if self._sweep_base is not None and self._sweep_base[0] == seed:
                return self._sweep_base[1]
        own, spec = flatten(self._description.reference.opened.inputs(seed), "inputs")
        if spec != self._description.reference.inputs or [x.shape for x in own] != [
            x.shape for x in target
        ]:
            path = self._description.reference.task.path
            raise TaskError(
                f"{path}: get_inputs() returns other shapes or scalars at each call; return the "
                "same ones"
            )
        if kind in SWEEPS and not self._description.facts.large:
            self._sweep_base = seed, own
        return own
