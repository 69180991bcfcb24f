"""Find the certificates of a reference for `certificates.py`, in a forked process that runs the
user's module.

An answer passes by the lax rule of the published comparisons: `allclose` with atol = rtol = 1e-2 on
several draws of `get_inputs`. An answer is degenerate if it passes without the computation.
"""

from __future__ import annotations

import copy
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.bench.certificates import REQUEST, Certificate, Certification, Kind
from cuagent.device_lock import DeviceLock
from cuagent.pieces import pieces
from cuagent.task import TaskError, check_runs, flatten, open_reference, unflatten
from cuagent.task.plain import task_from_json
from cuagent.task.settings import baseline_settings, read_settings
from cuagent.worker.breaks import Breaks
from cuagent.worker.channel import send_message

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cuagent.task.reference import Reference

TOLERANCE = 1e-2
"""Tolerances atol and rtol of the lax correctness rule."""
DRAWS = 3
"""Number of input draws on all of which a degenerate answer must pass."""
SMALL_GRADIENT = 1e-3
"""Threshold on |gradient| times |weight| as a share of |output|. Only weights below it are replaced
as a test."""
MOST_WEIGHTS = 64
"""Largest number of weights that are replaced as a test."""
STAGES = 5
"""Ratio of the time limit of the whole examination to the budget for dead parts."""
SHOWN = 4
"""Largest number of weights or operators that one certificate lists by name."""
LEAST_HALVED = 4
"""Smallest size of a dimension that is tested with its second half left out."""


def serve(channel: socket.socket, folder: Path) -> None:
    """Examine the task of the request file in `folder`, and send the certification on `channel`."""
    try:
        order = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
        task = task_from_json(order["task"])
        lock = DeviceLock(None if order["lock"] is None else Path(order["lock"]))
        breaks = Breaks(channel, lock, task.device.value)
        reference = replace(open_reference(task), constructing=breaks.constructing)
        breaks.give_way()
        baseline_settings(read_settings(), task.precision).apply()
        check_runs(reference)
        examination = Examination(reference, order["budget_s"], breaks.give_way)
        answer = examination.certification().to_json()
    except TaskError as error:
        answer = {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - the process boundary: the user's module failed
        text = " ".join(str(error).split())[:300]
        answer = {"error": f"cannot be certified: {type(error).__name__}: {text}"}
    send_message(channel, answer)


class Examination:
    """State and methods of the examination of one reference; each public generator yields
    certificates of one kind."""

    def __init__(
        self,
        reference: Reference,
        budget_s: float,
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        """Build the model and draw the first inputs.

        `budget_s`: time limit in seconds of the search for dead parts. `give_way` is called before
        each run of the reference, while the device is idle.
        """
        self.reference = reference
        self._give_way = give_way
        self.budget_s = budget_s
        self.model = reference.model(0)
        self.notes: list[str] = []
        self.deadline = time.monotonic() + STAGES * budget_s
        self.fixed = False
        """True if the output does not depend on the inputs at all."""
        self.ignored: set[int] = set()
        """Indices of the inputs that do not change the problem's output."""
        self.inputs = reference.inputs(0)
        self._copied = True
        """True if the model writes to its inputs, so that each call needs copies."""
        before = [tensor._version for tensor in _tensors(self.inputs)]
        kept = _copies(self.inputs)
        self._copied = False
        self.output = self.run(self.inputs)
        self._copied = before != [tensor._version for tensor in _tensors(self.inputs)]
        self.inputs = kept if self._copied else self.inputs

    def run(self, inputs: Sequence[Any], model: nn.Module | None = None) -> list[Tensor]:
        """Return copies of the output tensors of one call of `model` (default: the reference),
        without a change of `inputs`."""
        import torch

        self._give_way()
        with torch.no_grad():
            output = (model or self.model)(*(_copies(inputs) if self._copied else inputs))
        return [leaf.detach().clone() for leaf in flatten(output, "output")[0]]

    def drawn(self, seed: int) -> tuple[list[Any], list[Tensor]]:
        """Return (inputs, outputs) of the reference for the draw with this seed; only draw 0 is
        cached."""
        if seed == 0:
            return self.inputs, self.output
        inputs = self.reference.inputs(seed)
        return inputs, self.run(inputs)

    def certification(self) -> Certification:
        """Run all examinations in order and return the certification; skip those whose result an
        earlier one implies."""
        import torch

        from cuagent.bench.families import family_of
        from cuagent.bench.traced_operators import record

        started = time.monotonic()
        found = list(self.random())
        is_random = bool(found)
        if not is_random:
            found += self.trivial_answers()
        if not any(c.kind in (Kind.RANDOM, Kind.CONSTANT, Kind.ZERO) for c in found):
            found += self._in_time("inputs", self.ignored_inputs)
            found += self._in_time("parts of the data", self.partial)
        operators = record(self.model, lambda: self.run(self.inputs))
        if not (is_random or self.fixed):
            found += self._in_time("weights", self.ignored_weights)
            found += self._in_time("dead parts", lambda: self.dead_parts(operators))
        if idle := [operator for operator in operators if operator.same]:
            found.append(Certificate(Kind.NO_OP, _labels(idle)))
        found += self._in_time("training mode", self.training_mode)
        recurrent = any(isinstance(m, torch.nn.RNNBase) for m in self.model.modules())
        family = family_of(
            operators,
            len(self.output) == 1 and self.output[0].numel() == 1,
            len(list(_tensors(self.inputs))),
            recurrent,
        )
        seconds = time.monotonic() - started
        return Certification(tuple(found), family, len(operators), tuple(self.notes), seconds)

    def _in_time(
        self, what: str, examine: Callable[[], Iterator[Certificate]]
    ) -> Iterator[Certificate]:
        """Run one examination unless the deadline has passed.

        If the deadline cuts the examination short, add a note; `what` describes the examination in
        the note.
        """
        if time.monotonic() < self.deadline:
            yield from examine()
        if time.monotonic() >= self.deadline:
            self.notes.append(f"not examined to the end for lack of time: {what}")

    def random(self) -> Iterator[Certificate]:
        """Yield a certificate if two calls on equal inputs give different outputs."""
        again = self.run(self.inputs)
        if not passes(again, self.output):
            yield Certificate(Kind.RANDOM, "two calls on equal inputs differ")

    def trivial_answers(self) -> Iterator[Certificate]:
        """Yield a certificate if a constant, zeros or an unchanged input passes as the output on
        every draw."""
        import torch

        from cuagent.bench.traced_operators import unchanged

        constant, zero, self.fixed = bool(list(_tensors(self.inputs))), True, True
        identities = set(range(len(self.inputs)))
        for seed in range(DRAWS):
            inputs, output = self.drawn(seed)
            constant = constant and passes(self.output, output)
            self.fixed = self.fixed and unchanged(output, self.output)
            zero = zero and passes([torch.zeros_like(tensor) for tensor in output], output)
            identities = {n for n in identities if _is_identity(inputs[n], output)}
            if not (constant or zero or identities):
                return
        if constant:
            yield Certificate(Kind.CONSTANT, "the output for one draw passes for all others")
        if zero:
            largest = max(float(t.abs().max()) for t in self.output if t.numel())
            yield Certificate(Kind.ZERO, f"the largest output is {largest:.2g}")
        for index in sorted(identities):
            yield Certificate(Kind.IDENTITY, f"input {index} passes for the output")

    def ignored_inputs(self) -> Iterator[Certificate]:
        """Yield certificates of inputs without effect: after a new draw of that input alone, the
        output still passes."""
        import torch

        if len(list(_tensors(self.inputs))) < 2:
            return
        other = self.reference.inputs(1)
        for index, given in enumerate(self.inputs):
            if not isinstance(given, torch.Tensor) or torch.equal(given, other[index]):
                continue
            replaced = [*self.inputs]
            replaced[index] = other[index]
            try:
                output = self.run(replaced)
            except (RuntimeError, IndexError, ValueError):
                continue  # the inputs depend on each other, so this one has an effect
            if passes(output, self.output):
                self.ignored.add(index)
                yield Certificate(Kind.IGNORED_INPUT, f"input {index} may hold other numbers")

    def partial(self) -> Iterator[Certificate]:
        """Yield certificates of dimensions whose second half can be left out of the computation."""
        import torch

        used = [x for n, x in enumerate(self.inputs) if n not in self.ignored]
        tensors = [x for x in used if isinstance(x, torch.Tensor) and x.is_floating_point()]
        for dimension in range(max((x.dim() for x in tensors), default=0)):
            sizes = {x.shape[dimension] for x in tensors if x.dim() > dimension}
            for size in sorted(size for size in sizes if size >= LEAST_HALVED):
                if time.monotonic() > self.deadline:
                    return
                if self._half_passes(dimension, size):
                    detail = f"the first half of dimension {dimension} ({size}) suffices"
                    yield Certificate(Kind.PARTIAL, detail)

    def _half_passes(self, dimension: int, size: int) -> bool:
        for seed in range(2):
            inputs, output = self.drawn(seed)
            halved = [_halved(x, dimension, size) for x in inputs]
            if all(a is b for a, b in zip(halved, inputs, strict=True)):
                return False  # equal halves: nothing was left out
            try:
                if not passes(self.run(halved), output):
                    return False
            except (RuntimeError, IndexError, ValueError):
                return False
        return True

    def ignored_weights(self) -> Iterator[Certificate]:
        """Yield a certificate of the weights that can be replaced without a change of the output
        beyond roundoff."""
        names = [name for name in self._suspects() if self._has_no_effect(name)]
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            yield Certificate(Kind.IGNORED_WEIGHT, ", ".join(names[:SHOWN]) + more)

    def _suspects(self) -> list[str]:
        """Return the names of weights that may have no effect: those with a gradient near zero, or
        all if gradients cannot be computed."""
        import torch

        weights = dict(self.model.named_parameters())
        try:
            with torch.enable_grad():
                leaves = flatten(self.model(*_copies(self.inputs)), "output")[0]
                torch.manual_seed(0)
                floats = [x for x in leaves if x.is_floating_point()]
                total = torch.stack([(x * torch.randn_like(x)).sum() for x in floats]).sum()
                gradients = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
        except (RuntimeError, TypeError):
            return list(weights)[:MOST_WEIGHTS]
        scale = max(float(x.abs().max()) for x in self.output if x.numel()) or 1.0
        found = []
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            effect = 0.0 if gradient is None else float((gradient.abs() * _size(weight)).max())
            if effect < SMALL_GRADIENT * scale:
                found.append(name)
        if len(found) > MOST_WEIGHTS:
            self.notes.append(f"{len(found) - MOST_WEIGHTS} weights were not disturbed")
        return found[:MOST_WEIGHTS]

    def _has_no_effect(self, name: str) -> bool:
        import torch

        from cuagent.bench.traced_operators import unchanged

        weight = dict(self.model.named_parameters())[name]
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.copy_(torch.randn_like(weight) * _size(kept) - kept)
            try:
                return unchanged(self.run(self.inputs), self.output)
            finally:
                weight.copy_(kept)

    def dead_parts(self, operators: Sequence[Any]) -> Iterator[Certificate]:
        """Yield certificates of operators whose result has no effect on the output."""
        from cuagent.bench.traced_operators import without_effect

        again: Callable[[], list[Tensor]] = lambda: self.run(self.inputs)  # noqa: E731
        dead, tried = without_effect(operators, again, self.output, self.budget_s)
        if tried < len(operators):
            self.notes.append(f"{tried} of {len(operators)} operators were tried for dead parts")
        if dead:
            yield Certificate(Kind.DEAD, _labels([operators[n] for n in dead]))

    def training_mode(self) -> Iterator[Certificate]:
        """Yield a certificate if training mode, which KernelBench uses, gives another output than
        eval mode."""
        from cuagent.task.reference import training_note

        if not training_note(self.reference.task, self.model):
            return
        model = copy.deepcopy(self.model).train()
        try:
            first, second = self.run(self.inputs, model), self.run(self.inputs, model)
        except (RuntimeError, ValueError) as error:
            detail = f"training mode fails: {' '.join(str(error).split())[:80]}"
            yield Certificate(Kind.TRAINING, detail)
            return
        names = sorted({type(m).__name__ for m in model.modules() if _acts_differently(m)})
        which = ", ".join(names[:SHOWN]) or "forward"
        if not passes(first, second):
            yield Certificate(Kind.TRAINING, f"random in training mode: {which}")
        elif not passes(first, self.output):
            yield Certificate(Kind.TRAINING, f"other numbers in training mode: {which}")


def passes(output: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Return True if `output` passes as `expected` under the lax rule."""
    import torch

    if [t.shape for t in output] != [t.shape for t in expected]:
        return False
    return all(
        torch.allclose(x, y, atol=TOLERANCE, rtol=TOLERANCE, equal_nan=True)
        if a.is_floating_point() or a.is_complex()
        else torch.equal(x, y)
        for a, b in zip(output, expected, strict=True)
        for x, y in pieces(a, b)
    )


def _is_identity(given: Any, output: Sequence[Tensor]) -> bool:
    """Return True if the reference has one output, and the input `given` passes as that output."""
    import torch

    if len(output) != 1 or not isinstance(given, torch.Tensor):
        return False
    if given.numel() != output[0].numel() or given.dtype != output[0].dtype:
        return False
    return passes([given.reshape(output[0].shape)], output)


def _halved(value: Any, dimension: int, size: int) -> Any:
    """Return a copy of a tensor in which the second half of `dimension` is replaced by the first
    half.

    Returns `value` itself if it is not a tensor, its size there is not `size`, or both halves are
    equal.
    """
    import torch

    if not isinstance(value, torch.Tensor) or value.dim() <= dimension:
        return value
    if value.shape[dimension] != size:
        return value
    half = size // 2
    other = value.clone()
    first = value.narrow(dimension, 0, half)
    other.narrow(dimension, size - half, half).copy_(first)
    return value if torch.equal(other, value) else other


def _copies(inputs: Sequence[Any]) -> list[Any]:
    leaves, spec = flatten(list(inputs), "inputs")
    copies: list[Any] = unflatten([leaf.clone() for leaf in leaves], spec)
    return copies


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    yield from flatten(list(values), "inputs")[0]


def _size(weight: Tensor) -> float:
    return float(weight.detach().abs().max()) or 1.0


def _labels(operators: Sequence[Any]) -> str:
    labels = list(dict.fromkeys(operator.label for operator in operators))
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return ", ".join(labels[:SHOWN]) + more


def _acts_differently(module: nn.Module) -> bool:
    import torch

    drops = torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU
    return isinstance(module, (torch.nn.modules.batchnorm._NormBase, *drops))
