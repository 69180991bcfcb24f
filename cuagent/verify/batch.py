"""Input sets for timed calls and the buffers for their outputs, in the referee's memory.

This module decides who may see them: no candidate gets access to the oracle's draws and to the
outputs of trusted arms. The referee draws inputs and judges outputs (`referee.py`).
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
    """Original inputs as the oracle drew them; no candidate ever gets access to them."""
    lent: Arena
    """Inputs that arms are called on, copied from the originals for each arm."""
    outputs: Arena
    """Outputs of trusted arms. They hold right values, so no candidate ever gets access to them."""
    untrusted: Arena
    """Outputs of the candidate."""
    lean: bool = False
    """True for a large task: one arm at a time holds memory beyond its weights."""
    seeds: dict[int, int] = field(default_factory=dict)
    """Seed of the inputs in each slot."""

    def outputs_of(self, arm: str) -> Arena:
        """Return the output buffers for `arm`."""
        return self.untrusted if arm == CANDIDATE else self.outputs

    def lay_out(self, arm: str, slots: Sequence[int], *, rotated: bool = False) -> None:
        """Copy the original inputs to the lent slots and poison the outputs, before an arm is
        called.

        With `rotated` the rows of floating inputs are rotated, so that the inputs differ from those
        that are timed next.
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
        """(input slot, output slot) of each call, as `Session.block` takes them."""
        return [(number, number) for number in range(self.inputs.count)]
