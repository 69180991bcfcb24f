"""Make the calls of a verdict: single ones, and blocks in the form in which calls are timed.

The worker gets a copy of the inputs. Outputs are in the referee's memory, which is poisoned before
a call and copied immediately after it. After each call the guard bytes and the inputs are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuagent.task import Device
from cuagent.verdict import Reason, on_inputs
from cuagent.verify.context import VerifyContext
from cuagent.verify.outputs import are_equal
from cuagent.verify.prefetch import OraclePrefetcher
from cuagent.verify.tally import Rejected, Tally, Trial
from cuagent.worker import Session
from cuagent.worker.memory.arena import POISONS

if TYPE_CHECKING:
    from torch import Tensor

FLUSH = 256 << 20
"""Number of bytes to overwrite before a call, to empty the GPU's caches.

It exceeds the L2 cache of every GPU so far. Overwriting also takes long enough to hide the launch
latency; otherwise a kernel of 10 us measures as 12 us.
"""


class Calls:
    """Makes the calls of one candidate. Methods raise Rejected, SessionEnded, OracleLost."""

    def __init__(
        self,
        context: VerifyContext,
        prefetcher: OraclePrefetcher,
        session: Session,
        tally: Tally,
        call_s: float,
    ) -> None:
        """Prepare calls in `session`; `call_s` is the time limit of one call in seconds."""
        self._context, self._prefetcher = context, prefetcher
        self._session, self._tally, self._call_s = session, tally, call_s

    def input_slot(self, trial: Trial) -> int:
        """Wait for a trial's inputs; return the slot of the inputs arena with them."""
        with self._tally.clock("oracle"):
            return self._prefetcher.inputs(trial)

    def single(
        self, trial: Trial, slot: int, poison: int, other: list[Tensor] | None = None
    ) -> list[Tensor]:
        """Make a single call and return its output.

        All memory that the candidate allocates is filled with the byte `poison`. `other` is the
        output of another call on these inputs. For a large task it is returned instead of an equal
        copy.
        """
        context = self._context
        if context.facts.large:
            context.outputs.mend_guards(slot)
        context.lent.copy_slot(context.inputs, slot, self._prefetcher.slot(trial))
        context.outputs.poison(poison, slot)
        with self._tally.clock("candidate"):
            self._session.run(
                context.lent,
                context.outputs,
                [(slot, slot)],
                deadline_s=self._call_s,
                poison=poison,
                lean=context.facts.large,
            )
            snapshot = self._taken(slot, other)
        self._check_memory(trial, slot)
        return snapshot

    def _taken(self, slot: int, other: list[Tensor] | None) -> list[Tensor]:
        """Return a private copy of the output in a slot.

        For a large task return `other` if it is equal to the output, to save memory.
        """
        outputs = self._context.outputs
        if (
            self._context.facts.large
            and other is not None
            and are_equal(outputs.tensors(slot), other)
        ):
            return other
        return outputs.snapshot(slot)

    def block(
        self,
        trials: Sequence[Trial],
        others: Sequence[list[Tensor]] | None = None,
        *,
        upward: bool = False,
    ) -> list[list[Tensor]]:
        """Make a block of calls in the form in which calls are timed; return their outputs.

        The calls use the slots in descending order; with `upward`, in ascending order. `others` are
        the outputs of other calls on these inputs. For a large task they are returned instead of
        equal copies.
        """
        context, slots = self._context, range(len(trials))
        for slot, trial in enumerate(trials):
            context.lent.copy_slot(context.inputs, slot, self._prefetcher.slot(trial))
            if context.facts.large:
                context.outputs.mend_guards(slot)
            context.outputs.poison(POISONS[0], slot)
        with self._tally.clock("candidate"):
            self._session.block(
                context.lent,
                context.outputs,
                [(slot, slot) for slot in (slots if upward else reversed(slots))],
                deadline_s=self._call_s * len(trials),
                flush=FLUSH if context.task.device is Device.CUDA else 0,
                lean=context.facts.large,
                # The last output but one exists during a call anyway, so it takes no more memory.
                keep=1 if context.facts.large else len(trials),
            )
            snapshots = [self._taken(slot, others[slot] if others else None) for slot in slots]
        for slot, trial in enumerate(trials):
            self._check_memory(trial, slot)
        return snapshots

    def clear_lent(self) -> None:
        """Release the inputs and outputs that the worker has mapped, between calls; large tasks
        only.
        """
        if self._context.facts.large:
            self._context.lent.clear()
            self._context.outputs.clear()

    def _check_memory(self, trial: Trial, slot: int) -> None:
        """Raise Rejected if a call changed its inputs, or bytes outside of its inputs and
        outputs.
        """
        context, drawn = self._context, self._prefetcher.slot(trial)
        if not context.lent.slot_equals(context.inputs, slot, drawn):
            if context.lent.guards_like(context.inputs, slot, drawn):
                what = f"a call changed its {on_inputs(trial.kind)}"
                raise Rejected(Reason.CHANGED_INPUT, what, self._session.output())
            raise Rejected(
                Reason.WROTE_OUTSIDE, "wrote outside an input tensor", self._session.output()
            )
        if not self._context.outputs.guards_hold():
            raise Rejected(
                Reason.WROTE_OUTSIDE, "wrote outside an output tensor", self._session.output()
            )
