"""Examine one candidate task in a forked process: the filter's checks that run code.

Cheap checks run first, torch.compile last. Degenerate answers are found by the checks of `cuagent
bench` (certificates) and `cuagent check` (fitness). A crash ends only this process.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.bench.certificates import DEGENERATE, Kind
from cuagent.synth.order import AGAIN, Order
from cuagent.synth.reasons import Reason, Rejected
from cuagent.synth.shared_gpu import SharedGpu
from cuagent.synth.sizes import (
    PROBES,
    Cost,
    count_cost,
    fastest,
    predicted_batch,
    solve,
)
from cuagent.synth.source import BATCH_LINE, has_loop, with_batch
from cuagent.task import TaskError, check_runs, flatten, load_task, open_reference
from cuagent.worker.channel import send_message

if TYPE_CHECKING:
    from torch import Tensor

    from cuagent.task.reference import Reference

TASK = "task.py"
AGREEMENT = {"float32": 1e-3, "bfloat16": 4e-2, "float16": 1e-2}
"""Largest accepted difference of an output from fp64 by dtype, relative to the largest absolute
output."""
BUDGET_S = 4.0
"""Time limit in seconds of the search for operators without effect."""
LARGEST_BATCH = 1 << 22
ERRORS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError)


def serve(channel: socket.socket, folder: Path) -> None:
    """Examine the candidate of the order in `folder`; send the measured facts or the reason of its
    rejection on `channel`."""
    import torch
    import torch._inductor.config

    order = Order.read(folder)
    torch.set_num_threads(1)
    if order.compile:
        # The number of its processes, one for each core, was read when the fork server imported it.
        torch._inductor.config.compile_threads = 1
    stages: dict[str, float] = {}
    try:
        answer = Examined(order, folder, stages).facts()
    except Rejected as rejected:
        answer = {"reason": rejected.reason.value, "detail": rejected.detail}
    except torch.OutOfMemoryError as error:
        detail = " ".join(str(error).split())[:200]
        answer = {"reason": Reason.MEMORY.value, "detail": detail, AGAIN: True}
    except Exception as error:  # noqa: BLE001 - the process boundary: a foreign module failed
        detail = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        answer = {"reason": Reason.FAILS.value, "detail": detail}
    seconds = {name: round(value, 3) for name, value in stages.items()}
    send_message(channel, answer | {"cpu_s": _cpu_seconds(), "stages": seconds})


def _cpu_seconds() -> float:
    """Return the processor time in seconds of this process and its ended child processes, such as
    compilers."""
    import resource

    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return round(sum(u.ru_utime + u.ru_stime for u in used), 2)


class Examined:
    """One candidate task with its reference. Each method that checks raises Rejected if the check
    fails."""

    def __init__(self, order: Order, folder: Path, stages: dict[str, float]) -> None:
        """Open the candidate's task. The seconds of each stage are written to `stages`."""
        self.order = order
        self.folder = folder
        self.device = order.device
        self.stages = stages
        self.gpu = SharedGpu(order.lock, order.memory)
        self.code = order.code
        with self.stage("open"):
            self.reference = self._open(order.code)

    def facts(self) -> dict[str, Any]:
        """Run all checks in order and return the measured facts by name."""
        with self.stage("labels"):
            self.labels()
        with self.gpu.slot():
            with self.stage("sizes"):
                batch, eager_s, cost = self.sizes()
            with self.gpu.shared():
                self.model = self.reference.model(0)
                self.inputs = self.reference.inputs(0)
                self.output = self.run(self.model, self.inputs)
                self.finite()
                with self.stage("fit"):
                    self.fit()
                with self.stage("fp64"):
                    exact = self.fp64()
                    error = self.agrees(self.output, exact, Reason.FP64_DIFFERS)
                self.gpu.free()
                with self.stage("certified"):
                    certified = self.certified()
        compiled = {}
        if self.order.compile:
            with self.stage("compiled"):
                compiled = self.compiled(exact)
        found = {
            "code": self.code,
            "batch": batch,
            "eager_s": eager_s,
            "error": error,
            "bytes": cost.bytes,
            "floor_bytes": self._floor_bytes(),
            "flops": cost.flops,
            "inputs": [_shape(x) for x in _leaves(self.inputs)],
            "outputs": [_shape(x) for x in self.output],
        }
        return found | certified | compiled

    def _open(self, code: str) -> Reference:
        path = self.folder / TASK
        path.write_text(code, encoding="utf-8")
        try:
            return open_reference(load_task(path, device=self.device))
        except TaskError as error:
            raise Rejected(Reason.SOURCE, str(error)) from error

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the seconds of the block as stage `name`, without the time spent waiting for the
        GPU."""
        begun, waited = time.perf_counter(), self.gpu.waited_s
        try:
            yield
        finally:
            waiting = self.gpu.waited_s - waited
            self.stages[name] = time.perf_counter() - begun - waiting
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

    def sizes(self) -> tuple[int, float, Cost]:
        """Find a batch size whose eager time is in the time window.

        Returns (batch size, eager seconds, counted work); the batch size is 0 if the code's own
        size was kept.
        """
        if not (self.order.solve and BATCH_LINE.search(self.code)):
            seconds = self.timed(None)
            with self.gpu.shared():
                cost = self.cost(None)
            low, high = self.order.window_s
            if not low <= seconds <= high:
                raise Rejected(Reason.TIME, f"{seconds * 1e3:.3g} ms; no constant BATCH")
            return 0, seconds, cost
        near, far = (self.cost(batch) for batch in PROBES)
        order = self.order
        first = predicted_batch(near, far, self.device, order.dtype, order.target_s, order.memory)
        grown = (far.made - near.made) / (PROBES[1] - PROBES[0])
        largest = int(self.order.memory / grown) if grown > 0 else LARGEST_BATCH
        if near.made > self.order.memory or largest < 1:
            raise Rejected(Reason.MEMORY, f"{near.made >> 20} MiB at a batch of {PROBES[0]}")
        batch, seconds = solve(first, self.order.window_s, self.timed, min(largest, LARGEST_BATCH))
        with self.gpu.shared():
            return batch, seconds, self.cost(batch)

    def _at(self, batch: int | None) -> tuple[Any, list[Any]]:
        """Return (model, inputs) at a batch size, and set `code` and `reference` to this size.

        `batch` None keeps the current size.
        """
        if batch is not None:
            self.code = with_batch(self.order.code, batch)
            self.reference = self._open(self.code)
        return self.reference.model(0), self.reference.inputs(0)

    def timed(self, batch: int | None) -> float:
        with self.gpu.shared():
            model, inputs = self._at(batch)
            self.run(model, inputs)
        with self.gpu.exclusive():
            return fastest(lambda: self.run(model, inputs), self.device)

    def cost(self, batch: int | None) -> Cost:
        model, inputs = self._at(batch)
        return count_cost(lambda: self.run(model, inputs))

    def finite(self) -> None:
        for number, tensor in enumerate(self.output):
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

    def agrees(self, output: Sequence[Tensor], exact: Sequence[Tensor], reason: Reason) -> float:
        """Return the largest difference between `output` and `exact` (fp64), relative to the
        largest absolute output.

        Raises Rejected with `reason` if the difference exceeds the limit of the dtype
        (`AGREEMENT`).
        """
        worst = 0.0
        for number, (a, b) in enumerate(zip(output, exact, strict=True)):
            if a.shape != b.shape:
                raise Rejected(reason, f"output {number} has another shape")
            if not a.is_floating_point():
                share = float((a != b).float().mean())
                if share > 0:
                    raise Rejected(reason, f"output {number}: {share:.2%} of its integers")
                continue
            scale = float(b.abs().max()) or 1.0
            worst = max(worst, float((a.double() - b).abs().max()) / scale)
        limit = AGREEMENT.get(self.order.dtype, AGREEMENT["float32"])
        if self.device == "cuda" and self.order.dtype == "float32":
            limit *= 4  # TF32 convolutions
        if not worst <= limit:
            raise Rejected(reason, f"{worst:.2g} of the largest output; the limit is {limit:g}")
        return worst

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

    def certified(self) -> dict[str, Any]:
        """Check the certificates of `cuagent bench`.

        Returns `family` (operator family), `operators` (number of operators) and `mode` (train or
        eval modes in which the task is usable).
        """
        from cuagent.bench.examine import Examination

        examination = Examination(self.reference, BUDGET_S, self.gpu.give_way)
        certification = examination.certification()
        mode = "train and eval"
        for certificate in certification.certificates:
            kind, detail = certificate.kind, f"{certificate.kind}: {certificate.detail}"
            if kind in (Kind.IGNORED_INPUT, Kind.IGNORED_WEIGHT):
                raise Rejected(Reason.IGNORED, detail)
            if kind in DEGENERATE:
                raise Rejected(Reason.DEGENERATE, detail)
            if kind is Kind.DEAD and not self._unused_state(certificate.detail):
                raise Rejected(Reason.IDLE, detail)
            if kind is Kind.NO_OP and self._labelled(certificate.detail):
                raise Rejected(Reason.IDLE, detail)
            if kind is Kind.TRAINING:
                if "random" in certificate.detail or "fails" in certificate.detail:
                    raise Rejected(Reason.TRAINING, certificate.detail)
                mode = "eval"
        return {"family": certification.family, "operators": certification.operators, "mode": mode}

    def _unused_state(self, detail: str) -> bool:
        """Return True if all operators without effect, listed in `detail`, belong to recurrent
        modules.

        Then only the module's last state is unused, which is usual.
        """
        import torch

        modules = dict(self.model.named_modules())
        paths = [part.partition(" in ")[2] for part in detail.split(", ")]
        return all(isinstance(modules.get(path), torch.nn.RNNBase) for path in paths)

    def _labelled(self, detail: str) -> bool:
        """Return True if one of the operators listed in `detail` is named by a label of the task.

        Other operators are internal to a function of torch, such as the lower limit of a norm in
        `normalize`.
        """
        from cuagent.synth.labelled import tail

        names = {tail(label).lower() for label in self.order.labels}
        return any(part.split()[0].strip("_") in names for part in detail.split(", "))

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
        difference = self.agrees(output, exact, Reason.COMPILE_DIFFERS)
        with self.gpu.exclusive():
            seconds = fastest(lambda: self.run(model, self.inputs), self.device)
        regions = metrics.generated_kernel_count
        return {"compile_s": seconds, "compile_error": difference, "regions": regions}

    def _floor_bytes(self) -> int:
        """Return the bytes that any kernel for the task must move: inputs, state and outputs, once
        each."""
        state = [*self.model.parameters(), *self.model.buffers()]
        tensors = [*_leaves(self.inputs), *self.output, *state]
        return sum(x.numel() * x.element_size() for x in tensors)


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
