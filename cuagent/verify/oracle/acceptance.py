"""Test if a reference accepts inputs that its task's get_inputs does not return.

On CUDA an index outside its table is a device assert, which ends the oracle's context. So a CUDA
task is tested on a copy of the model on the CPU, where the same index raises an exception. Runs in
the oracle's process. Not covered: how well the answer measures candidates.
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
from cuagent.verify.trace.tables import wraps

if TYPE_CHECKING:
    from torch import Tensor, nn

SLOWEST_CALL_S = 0.02
"""Longest call on the GPU in seconds for which a CPU copy is made.

A slower reference would take seconds on the CPU.
"""
SLOWEST_COPY_S = 0.5
"""Longest call, in seconds, of a reference's copy on the CPU for which the copy is used."""


@dataclass(frozen=True)
class Acceptance:
    """Test if a model accepts given inputs; `own_outputs` are its outputs on inputs from
    get_inputs.
    """

    run: Callable[[list[Tensor]], list[Tensor]]
    own_outputs: list[Tensor]
    device: str
    own_wrap: bool
    """True if the task's own inputs contain negative indices, which count from the end of a
    table.
    """

    def __call__(self, inputs: Sequence[Tensor]) -> bool:
        """Return True if the model's outputs on `inputs` have the usual shapes and no new NaN or
        Inf.

        A length of zero that makes the reference read index -1, the last row, is a fault that torch
        does not report; no kernel needs to repeat it. So inputs with new negative indices are not
        accepted.
        """
        given, results = [tensor.to(self.device) for tensor in inputs], []
        try:
            new_wrap = wraps(lambda: results.extend(self.run(given))) and not self.own_wrap
        except (*FAILURES, TaskError):
            return False
        return (
            not new_wrap
            and len(results) == len(self.own_outputs)
            and all(
                x.shape == y.shape and bool((x.isfinite() | ~y.isfinite()).all())
                for x, y in zip(results, self.own_outputs, strict=True)
                if is_inexact(y) or x.shape != y.shape
            )
        )


def acceptance(
    reference: TwoPrecisions, model: nn.Module, inputs: Sequence[Tensor], call_s: float
) -> Acceptance | None:
    """Return the acceptance test of a reference.

    None if a call would take too long (`call_s` are the seconds of one call), or if the model does
    not run on the CPU.
    """
    if reference.task.device is Device.CPU:
        return _acceptance(reference.forward, list(inputs))
    if call_s > SLOWEST_CALL_S:
        return None
    try:
        cpu_model = copy.deepcopy(model).cpu()
        cpu_inputs = [tensor.cpu() for tensor in inputs]
        start = time.perf_counter()
        reference.run(cpu_model, cpu_inputs)
        too_slow = time.perf_counter() - start > SLOWEST_COPY_S
    except (*FAILURES, TaskError):
        return None
    return None if too_slow else _acceptance(lambda x: reference.run(cpu_model, x), cpu_inputs)


def _acceptance(run: Callable[[list[Tensor]], list[Tensor]], inputs: list[Tensor]) -> Acceptance:
    own_outputs: list[Tensor] = []
    own_wrap = wraps(lambda: own_outputs.extend(run(inputs)))
    return Acceptance(run, own_outputs, "cpu", own_wrap)
