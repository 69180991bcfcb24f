"""Input sets for timed calls and the buffers for their outputs, in the referee's memory.

This module decides which process may map which arena: no candidate can read the oracle's draws or
the outputs of trusted arms. The referee draws inputs and judges outputs (`referee.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cuagent.arms import CANDIDATE
from cuagent.worker import Arena
from cuagent.worker.memory.arena import POISONS


@dataclass
class Batch:
    """Input sets for timed calls and output buffers for them."""

    inputs: Arena
    """Original inputs as the oracle drew them; never mapped by a candidate."""
    lent: Arena
    """Copies of `inputs` on which the arms are called; refreshed before each arm."""
    outputs: Arena
    """Output buffers of the trusted arms.

    They contain right answers, so no candidate ever maps them.
    """
    untrusted: Arena
    """Output buffers of the candidate."""
    lean: bool = False
    """True for a large task: only one arm at a time allocates memory beyond its weights."""
    seeds: dict[int, int] = field(default_factory=dict)
    """Seed of the input draw, by slot number."""

    def outputs_of(self, arm: str) -> Arena:
        """Return the output arena that `arm` writes to: `untrusted` for the candidate, else
        `outputs`.
        """
        return self.untrusted if arm == CANDIDATE else self.outputs

    def lay_out(self, arm: str, slots: Sequence[int], *, rotated: bool = False) -> None:
        """Copy the original inputs to the lent slots and poison `arm`'s outputs, before `arm` is
        called.

        With `rotated` the rows of floating inputs are rotated, so that a warm-up call does not see
        the inputs that are timed next.
        """
        outputs = self.outputs_of(arm)
        for slot in slots:
            if rotated:
                self.lent.lay_rotated(self.inputs, slot)
            else:
                self.lent.lay(self.inputs, slot)
            outputs.poison(POISONS[0], slot)

    @property
    def slots(self) -> list[tuple[int, int]]:
        """(input slot, output slot) of each call, in the form of `Session.block`'s argument."""
        return [(number, number) for number in range(self.inputs.count)]
