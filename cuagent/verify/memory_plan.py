"""Estimate how much memory a verdict or a timing needs, before it starts.

Counts memory that is surely held at the same time: the referee's arenas, the oracle's work in fp64,
and each arm's own memory. Not covered: memory that modules need for intermediate results. If that
is too much, the device's allocator raises the error.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuagent.task import Task, TaskError
from cuagent.task.memory import free, size
from cuagent.verify.oracle.facts import Layouts
from cuagent.verify.tally import ROUNDS

FP64_OVER_FP32 = 2
"""Size of fp64 divided by the size of fp32."""


class TooLarge(TaskError):
    """The device has too little memory for the task. One line: the needed and the free memory."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one call's tensors."""

    inputs: int
    outputs: int
    precise: int
    """Bytes of the outputs in fp64."""

    @staticmethod
    def of(layouts: Layouts) -> MemoryPlan:
        """Return the plan for the layouts that the oracle describes."""
        return MemoryPlan(layouts.inputs.size, layouts.output.size, layouts.precise.size)

    @property
    def verdict(self) -> int:
        """Bytes for a verdict.

        They hold the inputs, the worker's copy and the worker's own; the outputs, the worker's own,
        a snapshot and the ones to compare with repeated calls; and the oracle's answer.
        """
        output_sets = 3 + max(entry.repeats for entry in ROUNDS)
        return 3 * self.inputs + output_sets * self.outputs + self._answer

    def timing(self, arms: int) -> int:
        """Return the bytes for one input set, its answer, two snapshots and each arm's own
        tensors."""
        batch = 2 * (self.inputs + self.outputs)
        own = arms * (self.inputs + self.outputs)
        return batch + own + 2 * self.outputs + self._answer

    @property
    def _answer(self) -> int:
        """Bytes of the declared, precise and spread answers, and of inputs and outputs in fp64
        meanwhile."""
        return self.outputs + 2 * self.precise + FP64_OVER_FP32 * self.inputs + self.precise

    def assure(self, task: Task, what: str, needed: int) -> None:
        """Raise TooLarge if `what` needs more memory than is free."""
        if needed > (available := free(task.device.value)):
            raise TooLarge(
                f"{task.path}: too large: {what} needs {size(needed)} of memory on {task.device} "
                f"({size(self.inputs)} of inputs and {size(self.outputs)} of outputs per call), "
                f"but only {size(available)} are free; use a smaller task"
            )
