"""How much memory a verdict on a task needs, and a timing: told before either begins.

Bytes that surely are held at once: what the referee lends, what the oracle works on in fp64, and
what each arm has of its own. Not covered: what modules need beside inputs and outputs. Where that
is too much for the device, its allocator says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuagent.task import Task, TaskError
from cuagent.task.memory import free, size
from cuagent.verify.tally import ROUNDS
from cuagent.worker import Layout

WIDER = 2
"""Times as large as fp32 is fp64."""


class TooLarge(TaskError):
    """The device has no room for the task. One line: how much it takes, how much there is."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one call's tensors."""

    inputs: int
    outputs: int
    precise: int
    """The outputs in fp64."""

    @staticmethod
    def of(layouts: Mapping[str, Layout]) -> MemoryPlan:
        """By what the oracle described."""
        return MemoryPlan(*(layouts[name].size for name in ("inputs", "output", "precise")))

    @property
    def verdict(self) -> int:
        """Inputs, the worker's and its own copy; outputs, the worker's own, a snapshot and those
        that are to come again; the answer."""
        kept = 3 + max(part.again for part in ROUNDS)
        return 3 * self.inputs + kept * self.outputs + self._answering

    def timing(self, arms: int) -> int:
        """One input set, the answer to it, two snapshots and what each arm has of its own."""
        batch = 2 * (self.inputs + self.outputs)
        own = arms * (self.inputs + self.outputs)
        return batch + own + 2 * self.outputs + self._answering

    @property
    def _answering(self) -> int:
        """Declared, precise and spread; inputs and outputs in fp64 while it is found out."""
        return self.outputs + 2 * self.precise + WIDER * self.inputs + self.precise

    def assure(self, task: Task, what: str, needed: int) -> None:
        """Raises TooLarge where `what` needs more memory than is free."""
        if needed > (there := free(task.device.value)):
            raise TooLarge(
                f"{task.path}: too large: {what} needs {size(needed)} of memory on {task.device} "
                f"({size(self.inputs)} of inputs and {size(self.outputs)} of outputs a call), and "
                f"{size(there)} are free; take a smaller task"
            )
