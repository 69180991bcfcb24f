"""Input sets for timed calls and the buffers that their outputs go to, in the referee's memory.

Who may see what is decided here: what the oracle drew and what trusted arms gave is lent to no
candidate. Drawing inputs and judging outputs is the referee's (`referee.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cuagent.worker import Arena
from cuagent.worker.arms import CANDIDATE
from cuagent.worker.memory.arena import POISONS


@dataclass
class Batch:
    """Input sets for timed calls and output buffers for them."""

    inputs: Arena
    """As the oracle drew them; no candidate is ever lent these."""
    lent: Arena
    """What arms are called on, laid out anew for each."""
    outputs: Arena
    """Of trusted arms: what lies here is right, and no candidate is ever lent it."""
    untrusted: Arena
    """Of the candidate."""
    seeds: dict[int, int] = field(default_factory=dict)
    """Of what lies in each slot."""

    def outputs_of(self, arm: str) -> Arena:
        return self.untrusted if arm == CANDIDATE else self.outputs

    def lay_out(self, arm: str, slots: Sequence[int]) -> None:
        """Inputs as they were drawn and poison in the outputs, whatever the arm before did."""
        outputs = self.outputs_of(arm)
        for slot in slots:
            self.lent.lay(self.inputs, slot)
            outputs.poison(POISONS[0], slot)

    @property
    def slots(self) -> list[tuple[int, int]]:
        """(input slot, output slot) of each call, as `Session.block` takes them."""
        return [(number, number) for number in range(self.inputs.count)]
