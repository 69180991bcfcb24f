"""Examine one candidate task: the filter's checks that run code.

Cheap checks run first, torch.compile last. Degenerate answers are found by the checks of `cuagent
bench` (certificates) and `cuagent check` (fitness).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.synth.agreement import agreement
from cuagent.synth.certified import certified
from cuagent.synth.order import Order
from cuagent.synth.progress import Progress
from cuagent.synth.reasons import Reason, Rejected
from cuagent.synth.shared_gpu import SharedGpu
from cuagent.synth.sizes import (
    PROBES,
    Cost,
    Prediction,
    climbed,
    count_cost,
    fastest,
    predicted_batch,
    solve,
)
from cuagent.synth.source import BATCH_LINE, has_loop, with_batch
from cuagent.task import TaskError, check_runs, flatten, load_task, open_reference

if TYPE_CHECKING:
    from torch import Tensor

    from cuagent.task.reference import Reference

TASK = "task.py"
LARGEST_BATCH = 1 << 22
SLOW = 4.0
"""Ratio of a call's time to the end of the time window from which no more calls are timed."""
ERRORS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError)


class Examined:
    """One candidate task with its reference. Each method that checks raises Rejected if the check
    fails."""

    def __init__(
        self,
        order: Order,
        folder: Path,
        stages: dict[str, float],
        progress: Progress | None = None,
    ) -> None:
        """Open the candidate's task. The seconds of each stage are written to `stages`, the use of
        a shared GPU to `progress`."""
        self.order = order
        self.folder = folder
        self.device = order.device
        self.stages = stages
        self.gpu = SharedGpu(order.lock, progress)
        self.code = order.code
        with self.stage("open"):
            self.reference = self._open(order.code)

    def facts(self) -> dict[str, Any]:
        """Run all checks in order and return the measured facts by name."""
        with self.gpu.memory(self._reserved(self.order.memory)) if self.fixed else nullcontext():
            with self.stage("labels"):
                self.labels()
            with self.stage("sizes"):
                predicted = self.predicted()
        need = predicted.at(predicted.first).checked(self.order.dtype)
        with self.gpu.memory(self._reserved(need)):
            with self.stage("sizes"):
                batch, eager_s = self.sizes(predicted)
            with self.gpu.shared():
                found, exact = self.checked(batch)
            if self.order.compile:
                if not self.order.alone:
                    self.gpu.resize(predicted.at(batch).compiled(self.order.dtype))
                with self.stage("compiled"):
                    found |= self.compiled(exact)
            del self.model, self.inputs, exact
        return found | {"code": self.code, "batch": batch, "eager_s": eager_s}

    @property
    def fixed(self) -> bool:
        """True if the code's own batch size is kept."""
        return not (self.order.solve and BATCH_LINE.search(self.code))

    def _reserved(self, size: int) -> int | None:
        """Return the bytes of memory to reserve for work that needs `size` bytes; None for all."""
        return None if self.order.alone else size

    def checked(self, batch: int) -> tuple[dict[str, Any], list[Tensor]]:
        """Run the checks that need no compiler. Returns the facts that they find, and the outputs
        that were computed in fp64, rounded to fp32."""
        with self.stage("run"):
            cost = self.cost(batch or None)
            self.model = self.reference.model(0)
            self.inputs = self.reference.inputs(0)
            output = self.run(self.model, self.inputs)
            self.finite(output)
        with self.stage("fit"):
            self.fit()
        with self.stage("fp64"):
            exact = self.fp64()
            error = self._agreement(output, exact, Reason.FP64_DIFFERS)
            exact = [_rounded(x) for x in exact]
        self.gpu.free()
        found = {
            "error": error,
            "bytes": cost.bytes,
            "floor_bytes": self._floor_bytes(output),
            "flops": cost.flops,
            "inputs": [_shape(x) for x in _leaves(self.inputs)],
            "outputs": [_shape(x) for x in output],
        }
        del output
        with self.stage("certified"):
            labels, give_way = self.order.labels, self.gpu.give_way
            return found | certified(self.reference, self.model, labels, give_way), exact

    def _open(self, code: str) -> Reference:
        path = self.folder / TASK
        path.write_text(code, encoding="utf-8")
        try:
            reference = open_reference(load_task(path, device=self.device))
            # Drawing gigabytes on a CPU takes a minute, in which no other candidate can be timed.
            return replace(reference, draws_on_cpu=not self.order.lock)
        except TaskError as error:
            raise Rejected(Reason.SOURCE, str(error)) from error

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the seconds of the block as stage `name`, without the time spent waiting for the
        GPU."""
        begun, waited = time.perf_counter(), self.gpu.waited_s
        self.gpu.progress.enter(name)
        try:
            yield
        finally:
            waiting = self.gpu.waited_s - waited
            seconds = time.perf_counter() - begun - waiting
            self.stages[name] = self.stages.get(name, 0.0) + seconds
            self.stages["waiting"] = self.gpu.waited_s

    def run(self, model: Any, inputs: Sequence[Any]) -> list[Tensor]:
        import torch

        self.gpu.give_way()
        with torch.no_grad():
            output = model(*inputs)
        return [leaf.detach() for leaf in flatten(output, "output")[0]]

    def labels(self) -> None:
        """Check that the candidate's labels name the operators that really run."""
        from cuagent.synth.labelled import differences, traced

        try:
            check_runs(self.reference)
        except TaskError as error:
            raise Rejected(Reason.FAILS, str(error)) from error
        run = traced(self.reference.model(0), self.reference.inputs(0))
        repeated = has_loop(self.code)
        if wrong := differences(self.order.labels, run, self.order.exact_labels, repeated):
            raise Rejected(Reason.LABEL, wrong)

    def predicted(self) -> Prediction:
        """Predict from two small batch sizes where the time is in the time window."""
        order = self.order
        if self.fixed:
            cost = self.cost(None)
            return Prediction(0, 0, cost, cost)
        near, far = (self.cost(batch) for batch in PROBES)
        first = predicted_batch(near, far, self.device, order.dtype, order.target_s, order.memory)
        grown = (far.held - near.held) / (PROBES[1] - PROBES[0])
        largest = min(int(order.memory / grown) if grown > 0 else LARGEST_BATCH, LARGEST_BATCH)
        if near.held > order.memory or largest < 1:
            raise Rejected(Reason.MEMORY, f"{near.held >> 20} MiB at a batch of {PROBES[0]}")
        return Prediction(min(first, largest), largest, near, far)

    def sizes(self, predicted: Prediction) -> tuple[int, float]:
        """Find a batch size whose eager time is in the time window.

        Returns (batch size, eager seconds); the batch size is 0 if the code's own size was kept.
        """
        low, high = self.order.window_s
        if not predicted.first:
            seconds = self.timed(None)
            if not low <= seconds <= high:
                raise Rejected(Reason.TIME, f"{seconds * 1e3:.3g} ms; no constant BATCH")
            return 0, seconds
        first = predicted.first
        if self.order.lock:
            first = climbed(first, high, self.called)

        def timed(batch: int) -> float:
            if not self.order.alone:
                self.gpu.resize(predicted.at(batch).checked(self.order.dtype))
            return self.timed(batch)

        return solve(first, self.order.window_s, timed, predicted.largest)

    def _at(self, batch: int | None) -> tuple[Any, list[Any]]:
        """Return (model, inputs) at a batch size, and set `code` and `reference` to this size.

        `batch` None keeps the current size.
        """
        if batch is not None:
            self.code = with_batch(self.order.code, batch)
            self.reference = self._open(self.code)
        return self.reference.model(0), self.reference.inputs(0)

    def timed(self, batch: int | None) -> float:
        """Return the seconds of one eager call that has the GPU alone."""
        with self.gpu.shared():
            model, inputs = self._at(batch)
            self.run(model, inputs)
        with self.gpu.exclusive():
            most_s = SLOW * self.order.window_s[1]
            return fastest(lambda: self.run(model, inputs), self.device, most_s=most_s)

    def called(self, batch: int) -> float:
        """Return the seconds of one eager call while other candidates may use the GPU."""
        with self.gpu.shared():
            model, inputs = self._at(batch)
            return fastest(lambda: self.run(model, inputs), self.device, repeats=1)

    def cost(self, batch: int | None) -> Cost:
        model, inputs = self._at(batch)
        return count_cost(lambda: self.run(model, inputs), _leaves(inputs))

    def finite(self, output: Sequence[Tensor]) -> None:
        for number, tensor in enumerate(output):
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise Rejected(Reason.NOT_FINITE, f"output {number}")

    def fp64(self) -> list[Tensor]:
        """Return the outputs computed in fp64. Raises Rejected if the task cannot run in fp64."""
        import torch

        model = self.reference.model(0).double()
        inputs = [_double(value) for value in self.inputs]
        try:
            exact = self.run(model, inputs)
        except torch.OutOfMemoryError:
            raise
        except ERRORS as error:
            raise Rejected(Reason.FP64_FAILS, str(error)) from error
        if any(x.is_floating_point() and x.dtype != torch.float64 for x in exact):
            raise Rejected(Reason.FP64_FAILS, "a part stays in another precision")
        return exact

    def _agreement(
        self, output: Sequence[Tensor], exact: Sequence[Tensor], reason: Reason
    ) -> float:
        return agreement(output, exact, reason, self.order.dtype, self.device)

    def fit(self) -> None:
        """Check for hidden state, randomness and ignored inputs, as `cuagent check` does."""
        from cuagent.verify.fitness.examine import NOISE, examine

        findings = examine(
            self.model,
            lambda tensors: self.run(self.model, tensors),
            lambda seed: list(_leaves(self.reference.inputs(seed))),
        )
        if findings["random"] or findings["changed_state"] or findings["noise"] > NOISE:
            names = [*findings["random"], *findings["changed_state"]]
            raise Rejected(Reason.RANDOM, ", ".join(names) or f"noise {findings['noise']:.1g}")
        if findings["constant"]:
            raise Rejected(Reason.DEGENERATE, "the output does not depend on the inputs")
        if findings["ignored"]:
            raise Rejected(Reason.IGNORED, f"input {findings['ignored'][0]}")
        if findings["changed_inputs"]:
            raise Rejected(Reason.RANDOM, "changes its inputs")

    def compiled(self, exact: Sequence[Tensor]) -> dict[str, Any]:
        """Run the task under torch.compile and compare the outputs with fp64.

        Returns the seconds of one call, the largest difference, and the number of generated
        kernels.
        """
        import torch
        from torch._inductor import metrics

        metrics.reset()
        torch._dynamo.reset()
        model = torch.compile(self.reference.model(0))
        try:
            output = self.run(model, self.inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # torch.compile raises errors of many unrelated types
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise Rejected(Reason.COMPILE_FAILS, text) from error
        difference = self._agreement(output, exact, Reason.COMPILE_DIFFERS)
        del output
        with self.gpu.exclusive():
            seconds = fastest(lambda: self.run(model, self.inputs), self.device)
        regions = metrics.generated_kernel_count
        return {"compile_s": seconds, "compile_error": difference, "regions": regions}

    def _floor_bytes(self, output: Sequence[Tensor]) -> int:
        """Return the bytes that any kernel for the task must move: inputs, state and outputs, once
        each."""
        state = [*self.model.parameters(), *self.model.buffers()]
        tensors = [*_leaves(self.inputs), *output, *state]
        return sum(x.numel() * x.element_size() for x in tensors)


def _rounded(tensor: Tensor) -> Tensor:
    """Return an fp64 tensor as fp32, which needs half the memory until the compiled outputs are
    compared."""
    import torch

    return tensor.float() if tensor.dtype is torch.float64 else tensor


def _leaves(inputs: Sequence[Any]) -> list[Tensor]:
    return flatten(list(inputs), "inputs")[0]


def _double(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value


def _shape(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return f"{name}[{','.join(map(str, tensor.shape))}]"
