"""Plan how much memory a verdict and a timing take, before they start.

Each stage of the work has a function here. It returns the bytes that all processes together have
allocated in the stage: the referee's arenas, the oracle's models and runs, the arms. The largest
stage decides if a task fits on the device. A large task (`TaskFacts.large`) is judged with less
memory: one input set, the fp64 reference in slices (`oracle.slices`), spread and sensitivity in a
narrow dtype, and memory that is released between the stages. Its plan is tested against the
measured peak (tests/verify/test_large.py).

Not covered: memory inside operators, such as cuDNN's workspace (of fp64 convolutions the plan knows
the columns); the code and contexts of processes; what a candidate allocates beyond the reference's
own intermediate results.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuagent.task import Device, Task, TaskError
from cuagent.task.memory import free, size
from cuagent.verify.oracle.facts import TaskFacts
from cuagent.verify.tally import ROUNDS

FP64_OVER_FP32 = 2
"""Size of fp64 divided by the size of fp32."""
SLICE_RUNS = 3
"""Number of fp64 copies of a slice's inputs, intermediates and outputs that exist at the same time.

They belong to one run, its perturbed inputs and the temporaries of a perturbation.
"""
OPENING_CALLS = 2
"""Number of calls whose tensors a model holds at the same time while it opens."""
DRAW_TEMPORARIES = 4
"""Number of copies of a tensor that exist while it is drawn."""


class TooLarge(TaskError):
    """Error: the device has too little memory for the task.

    The message gives the needed and the free memory in one line.
    """


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes in bytes of one call's tensors, and the peak memory of each stage of a verdict or
    timing.
    """

    inputs: int
    outputs: int
    precise: int
    """Bytes of the fp64 outputs."""
    spread: int = 0
    """Bytes of the spread of the outputs."""
    state: int = 0
    """Bytes of the weights."""
    temporary: int = 0
    """Peak bytes of the intermediate results of one call of the reference."""
    slices: int = 0
    """Number of slices in which the fp64 reference runs; 0 if it runs on the whole input at
    once.
    """
    columns: int = 0
    """Bytes that a convolution of an fp64 run takes besides its output."""
    widening: int = FP64_OVER_FP32
    """Size of fp64 divided by the size of the reference's numbers."""
    large: bool = False
    on_gpu: bool = False
    budget: int | None = None
    """Limit of the device's memory in bytes; None for no limit."""

    @staticmethod
    def of(facts: TaskFacts, device: Device, budget: int | None = None) -> MemoryPlan:
        """Return the memory plan of a task from the facts that the oracle reported."""
        layouts = facts.layouts
        inputs, outputs, state = layouts.inputs.size, layouts.output.size, layouts.state.size
        precise = layouts.precise.size
        widening = -(-precise // max(1, outputs)) if facts.fp64 else 1
        return MemoryPlan(
            inputs=inputs,
            outputs=outputs,
            precise=precise,
            spread=layouts.spread.size,
            state=state,
            temporary=max(0, facts.peak - inputs - outputs - state),
            slices=facts.slices,
            columns=facts.columns,
            widening=max(widening, FP64_OVER_FP32 if facts.fp64 else 1),
            large=facts.large,
            on_gpu=device is Device.CUDA,
            budget=budget,
        )

    @property
    def verdict(self) -> int:
        """Peak bytes of a verdict."""
        if self.large:
            return max(self.stages.values())
        # Inputs: the referee's, the worker's copy and the candidate's own. Outputs: the referee's,
        # the candidate's own, a snapshot, and those that repeated calls are compared with.
        output_sets = 3 + max(entry.repeats for entry in ROUNDS)
        return 3 * self.inputs + output_sets * self.outputs + self._answer

    @property
    def stages(self) -> dict[str, int]:
        """Peak bytes of a large task's verdict, by stage."""
        return {
            "describing": self.describing,
            "drawing": self.drawing,
            "calling": self.calling,
            "computing the answer": self.declaring,
            "judging": self.judging,
        }

    @property
    def describing(self) -> int:
        """Peak bytes while the oracle collects the facts: inputs, outputs, one run in each
        precision.
        """
        whole = self.inputs + 2 * self.outputs + self.temporary
        return self._models + whole + (self._precise_run if self.slices else self._whole_precise)

    @property
    def drawing(self) -> int:
        """Peak bytes while inputs are drawn."""
        drawn = self.inputs if self.slices else (1 + DRAW_TEMPORARIES) * self.inputs
        slice_ = DRAW_TEMPORARIES * self.inputs // max(1, self.slices)
        return self._held + drawn + slice_ + self._lent

    @property
    def calling(self) -> int:
        """Peak bytes during the candidate's second call, while the output of the first call still
        exists.

        It is assumed that the candidate allocates as much as the reference.
        """
        lent = self.inputs + self.outputs
        return self._held + lent + self._worker + self.outputs

    @property
    def declaring(self) -> int:
        """Peak bytes while the oracle runs the reference in its own precision."""
        run = self.outputs + self.temporary
        return self._held + self._lent + 2 * self.outputs + run

    @property
    def judging(self) -> int:
        """Peak bytes while the oracle computes the fp64 answer and its spread, and the referee
        compares.
        """
        answers = self.outputs + self.precise + self.spread
        run = self._precise_run if self.slices else self._whole_precise
        return self._held + self._lent + self.outputs + answers + run

    @property
    def beside_a_call(self) -> int:
        """Bytes that all processes except the candidate's need during a call of the candidate."""
        if not self.large:
            return self.verdict - self.inputs - self.outputs
        return self.calling - self._worker - self.state

    @property
    def beside_a_candidate(self) -> int:
        """Bytes that all other processes need at most while a candidate's process exists."""
        if not self.large:
            return self.beside_a_call
        return max(self.drawing, self.declaring, self.judging) - self.state

    def timing(self, arms: int) -> int:
        """Return the peak bytes of a timing of `arms` models whose processes exist at the same
        time.
        """
        if not self.large:
            batch = 2 * (self.inputs + self.outputs)
            own = arms * (self.inputs + self.outputs + self.temporary)
            return batch + own + 2 * self.outputs + self._answer
        # One arm at a time holds more than its weights.
        batch = 2 * self.inputs + 2 * self.outputs + (2 * self.outputs if arms > 2 else 0)
        own = self._worker
        judged = self.outputs + max(
            self.outputs + self.temporary, self.precise + self.spread + self._precise_run
        )
        models = self._models + (arms + 1) * self.state
        return models + batch + max(own, judged)

    @property
    def opening(self) -> int:
        """Bytes that a model of a timing takes at most while it opens.

        Compilers and cuDNN try kernels with further copies of the outputs.
        """
        return self.state + OPENING_CALLS * self._worker

    @property
    def _worker(self) -> int:
        """Bytes that a worker allocates in a call besides the weights.

        They are the inputs (on a GPU only), the outputs and the intermediate results.
        """
        own = self.inputs if self.on_gpu else 0
        return own + self.outputs + self.temporary

    @property
    def _models(self) -> int:
        """Bytes of the weights of the oracle's two models: in the reference's own precision and in
        fp64.
        """
        return (1 + self.widening) * self.state

    @property
    def _held(self) -> int:
        """Bytes allocated throughout a verdict: the oracle's models, three sets of weights, an
        input set.
        """
        return self._models + 3 * self.state + self.inputs

    @property
    def _lent(self) -> int:
        """Bytes of the inputs and outputs that a candidate on a GPU keeps mapped between its
        calls.
        """
        return self.inputs + self.outputs if self.on_gpu else 0

    @property
    def _precise_run(self) -> int:
        """Bytes of the fp64 runs on one slice."""
        whole = self.widening * (self.inputs + self.outputs + self.temporary)
        return SLICE_RUNS * whole // max(1, self.slices) + self.columns

    @property
    def _whole_precise(self) -> int:
        """Bytes of an fp64 run on the whole input, with perturbed inputs and the sum of squares."""
        run = self.widening * (2 * self.inputs + self.outputs + self.temporary)
        return run + self.precise + self.columns

    @property
    def _answer(self) -> int:
        """Bytes of an answer: the declared and fp64 outputs and the spread.

        The inputs and outputs in fp64, which exist while it is computed, are included.
        """
        run = self.precise + FP64_OVER_FP32 * self.inputs + self.columns
        return self.outputs + 2 * self.precise + run

    def available(self, device: str) -> int:
        """Return the free bytes of the device, or the budget if that is less."""
        there = free(device)
        return there if self.budget is None else min(there, self.budget)

    def assure(self, task: Task, what: str, needed: int) -> None:
        """Raise TooLarge if `needed` bytes exceed the free memory; `what` names the work in the
        message.
        """
        if needed > (available := self.available(task.device.value)):
            whole = (
                ""
                if self.slices or not self.large
                else (", and its fp64 reference cannot be computed in slices of one dimension")
            )
            raise TooLarge(
                f"{task.path}: too large: {what} needs {size(needed)} of memory on {task.device} "
                f"({size(self.inputs)} of inputs and {size(self.outputs)} of outputs per call"
                f"{whole}), but only {size(available)} are free; use a smaller task"
            )
