"""Whether a reference accepts inputs that its task does not draw by itself.

On CUDA an index outside its table is a device assert, which ends the oracle's context. So a task
for CUDA is asked on a copy of its model on the CPU, where the same index raises an exception. Runs
in the oracle's process. Not covered: what the answer is worth as a measure of candidates.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.task import Device, TaskError
from cuagent.verify.oracle.two_precisions import TwoPrecisions
from cuagent.verify.tensors import FAILURES, is_inexact

if TYPE_CHECKING:
    from torch import Tensor, nn

SLOWEST_CALL_S = 0.02
"""Of a call on the GPU: a slower reference would take seconds on the CPU."""
SLOWEST_COPY_S = 0.5
"""Of a call of the copy on the CPU."""


@dataclass(frozen=True)
class Acceptance:
    """Asks a model about other inputs; `usual` are its outputs on the task's own."""

    run: Callable[[list[Tensor]], list[Tensor]]
    usual: list[Tensor]
    device: str

    def __call__(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the outputs have the usual shapes, and are finite where they usually are."""
        try:
            results = self.run([tensor.to(self.device) for tensor in inputs])
        except (*FAILURES, TaskError):
            return False
        return len(results) == len(self.usual) and all(
            x.shape == y.shape and bool((x.isfinite() | ~y.isfinite()).all())
            for x, y in zip(results, self.usual, strict=True)
            if is_inexact(y) or x.shape != y.shape
        )


def acceptance(
    reference: TwoPrecisions, model: nn.Module, inputs: Sequence[Tensor], call_s: float
) -> Acceptance | None:
    """None where asking would take too long, or the model does not run on the CPU."""
    if reference.task.device is Device.CPU:
        return Acceptance(reference.forward, reference.forward(list(inputs)), "cpu")
    if call_s > SLOWEST_CALL_S:
        return None
    try:
        beside = copy.deepcopy(model).cpu()
        given = [tensor.cpu() for tensor in inputs]
        begun = time.perf_counter()
        usual = reference.run(beside, given)
        slow = time.perf_counter() - begun > SLOWEST_COPY_S
    except (*FAILURES, TaskError):
        return None
    return None if slow else Acceptance(lambda x: reference.run(beside, x), usual, "cpu")
