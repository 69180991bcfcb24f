"""The user's reference as the oracle runs it: in its own precision and in fp64.

Runs in the oracle's process. Where a module fixes its dtype inside, or fails in fp64, its own
precision is all there is, and `exactly` gives that. Not covered: what the answers are worth
(`spread`, `doubts`), and whether it may be judged by at all (`examine`, `hidden`).

Invariant: but for `as_it_is`, no run changes the inputs that it is given; one that would raises.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from cuagent.task import Precision, Reference, Task, TaskError, flatten, unflatten
from cuagent.verify.oracle import sensitivity
from cuagent.verify.oracle.places import certain
from cuagent.verify.tensors import FAILURES, is_inexact, to_fp64
from cuagent.verify.trace import mask_fills
from cuagent.verify.trace.reductions import largest_intermediate, largest_magnitude
from cuagent.verify.trace.selections import ReferenceTrace, trace_reference

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

LARGEST_HALF = 65504.0
"""That fp16 holds."""
PAIRS = 4
"""Of perturbations that must leave infinities where they are."""


class TwoPrecisions:
    """The reference with the weights that it took on last."""

    def __init__(
        self, opened: Reference, declared: nn.Module, inputs: dict[str, Any], *, copies: bool
    ) -> None:
        self.opened = opened
        self.declared = self.precise = declared
        self.inputs = inputs
        """How the tensors of its inputs are nested."""
        self.copies = copies
        """Whether each run gets copies of its inputs."""
        self.fp64 = self.discrete = self.marked = False
        """Whether it runs in fp64; whether outputs are integers; whether it has marks (`marks`)."""
        self.infinities: frozenset[float] = frozenset()
        """Which there are in its outputs on the task's own inputs, where no NaN is beside them."""
        self.casts = False
        """Whether it makes integers of real numbers on its way."""
        self.reach = 0.0
        """How far honest arithmetic may err, relative to what it starts from (`bounds.reach`)."""
        self.narrow = False
        """Whether a kernel may compute in fp16, which ends long before fp32 does."""

    @property
    def task(self) -> Task:
        return self.opened.task

    def look(self, inputs: list[Tensor], results: list[Tensor]) -> None:
        """Find out what it runs in, and whether outputs are integers. `results` are declared."""
        self.fp64 = self._runs_in_fp64(inputs, results)
        self.take(self.declared)
        self.discrete = not all(is_inexact(result) for result in results)
        self.infinities = _infinities(results) or frozenset()
        fp16 = self.task.precision is Precision.FP16
        # Beyond it on the task's own inputs, the range is no matter (marks, say).
        self.narrow = fp16 and self._largest(inputs) <= LARGEST_HALF

    def look_for_marks(self, inputs: list[Tensor]) -> None:
        """`inputs` are the task's own."""
        self.marked = mask_fills.has_mask_fills(lambda: self.exactly(inputs).outputs, self.precise)

    def take(self, model: nn.Module) -> None:
        """Be this model from now on, in both precisions."""
        self.declared = model
        self.precise = copy.deepcopy(model).double() if self.fp64 else model

    def own(self, seed: int) -> list[Tensor]:
        """The task's own inputs."""
        return flatten(self.opened.inputs(seed), "inputs")[0]

    def as_it_is(self, inputs: list[Tensor]) -> list[Tensor]:
        """Called as its user would: it may write to these tensors, and return them."""
        return flatten(self.declared(*unflatten(inputs, self.inputs)), "output")[0]

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        """In its own precision. Raises TaskError where inputs lent for want of memory change."""
        return self._forward(self.declared, inputs)

    def run(self, model: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
        """The outputs of another model that takes the same inputs."""
        return self._forward(model, inputs)

    def followed(self, inputs: list[Tensor]) -> ReferenceTrace:
        """The same; where outputs are integers, their origin is known."""
        return self._followed(self.declared, inputs)

    def exactly(self, inputs: list[Tensor]) -> ReferenceTrace:
        """In fp64, where it runs in that."""
        with self._default_dtype():
            return self._followed(self.precise, self.wide(inputs))

    def certain(self, inputs: list[Tensor]) -> bool | None:
        """Whether all that is decided in a run is so by the same numbers in fp64; None where
        nothing is decided, or it does not run so.

        It need not answer in fp64 for that: what is made of a comparison may be of any type.
        """
        import torch

        model = self.precise if self.fp64 else copy.deepcopy(self.declared).double()
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            exact = trace_reference(lambda: self._forward(model, [to_fp64(x) for x in inputs]))
        except FAILURES:
            return None
        finally:
            torch.set_default_dtype(before)
        declared = trace_reference(lambda: self.forward(inputs))
        same = certain(exact, declared)
        # Where indices are chosen, equals are chosen among, however certain they are.
        chosen = same and any(selection.indexed for selection in exact.selections)
        return same if exact.decided and not chosen else None

    def attempted(self, inputs: list[Tensor]) -> list[Tensor] | None:
        """In fp64, on inputs that it may not be made for; None where it fails."""
        return sensitivity.attempted(
            lambda: self._forward(self.precise, inputs), self._default_dtype()
        )

    def wide(self, inputs: list[Tensor]) -> list[Tensor]:
        """As `exactly` is run on them."""
        return [to_fp64(tensor) for tensor in inputs] if self.fp64 else inputs

    def meant(self, inputs: list[Tensor]) -> bool:
        """Whether the reference means its answer to these inputs."""
        wide = self.wide(inputs)
        return self.means(wide, self.exactly(wide).outputs)

    def means(self, inputs: list[Tensor], exact: list[Tensor]) -> bool:
        """Whether it means the answer `exact`: the same where its marks stand further out."""
        if not self.marked:
            return True
        with mask_fills.enlarged_fills(self.precise):
            moved = sensitivity.attempted(lambda: self.exactly(inputs).outputs, nullcontext())
        if moved is None:
            return False
        return mask_fills.equal_up_to_roundoff(
            [x.to(y.dtype) for x, y in zip(moved, exact, strict=True)], exact
        )

    def fits(self, inputs: list[Tensor], results: list[Tensor]) -> bool:
        """Whether `results` are finite, and all on the way to them within the range of arithmetic
        that the task admits. Where the task's own inputs lead to infinities (scores that are
        hidden), to such as well, if they surely stand where they do."""
        finite = all(_finite(x) for x in results if is_inexact(x))
        return (finite or self._surely_infinite(inputs, results)) and (
            not self.narrow or self._largest(inputs) <= LARGEST_HALF
        )

    def _surely_infinite(self, inputs: list[Tensor], results: list[Tensor]) -> bool:
        """Whether its infinities are of those on its own inputs, and roundoff moves none."""
        found = _infinities(results)
        if not self.infinities or found is None or not found <= self.infinities:
            return False
        moving = sensitivity.Reference(
            run=lambda near: self.exactly(near).outputs,
            inputs=inputs,
            state=self.precise.state_dict(),
            generator=self.generator(0),
            declared=lambda: self.forward(inputs),
            wide=self.fp64,
        )
        runs = [self.exactly(inputs).outputs]
        runs += filter(None, sensitivity.nearby(moving, self.reach, self.reach, PAIRS))
        return all(
            _same_infinities(x, y) for run in runs for x, y in zip(run, results, strict=True)
        )

    def generator(self, seed: int) -> Generator:
        """On the task's device."""
        import torch

        return torch.Generator(device=self.task.device.value).manual_seed(seed)

    def _largest(self, inputs: list[Tensor]) -> float:
        return max(
            [*map(largest_magnitude, inputs), largest_intermediate(lambda: self.forward(inputs))]
        )

    def _forward(self, model: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
        # Cloned, so that a reference that writes to its inputs does not change what is judged.
        given = [x.clone() for x in inputs] if self.copies else inputs
        versions = [x._version for x in given]
        results = flatten(model(*unflatten(given, self.inputs)), "output")[0]
        if not self.copies and versions != [x._version for x in given]:
            raise TaskError(f"{self.task.path}: forward writes to its inputs on some draws only")
        return results

    def _followed(self, model: nn.Module, inputs: list[Tensor]) -> ReferenceTrace:
        if self.discrete or self.casts:
            return trace_reference(lambda: self._forward(model, inputs))
        outputs = self._forward(model, inputs)
        return ReferenceTrace(outputs, [], [None] * len(outputs))

    def _runs_in_fp64(self, inputs: list[Tensor], results: list[Tensor]) -> bool:
        import torch

        self.fp64 = True
        self.take(self.declared)
        try:
            exact = self.exactly(inputs).outputs
        except (RuntimeError, TypeError, ValueError):
            return False  # a module that fixes its dtype inside; the declared one must do
        wide = (torch.float64, torch.complex128)
        return all(
            not is_inexact(r) or x.dtype in wide for x, r in zip(exact, results, strict=True)
        )

    @contextmanager
    def _default_dtype(self) -> Iterator[None]:
        """fp64 for what the module creates itself."""
        import torch

        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if self.fp64 else before)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def _infinities(tensors: list[Tensor]) -> frozenset[float] | None:
    """Which of the two there are; None where there is a NaN. Of complex numbers none is known."""
    found: set[float] = set()
    for tensor in filter(is_inexact, tensors):
        if _finite(tensor):
            continue
        if tensor.is_complex() or bool(tensor.isnan().any()):
            return None
        found |= {sign for sign in (math.inf, -math.inf) if bool((tensor == sign).any())}
    return frozenset(found)


def _same_infinities(first: Tensor, second: Tensor) -> bool:
    import torch

    if not is_inexact(first) or first.is_complex():
        return True
    where = ~second.isfinite()
    same_places = torch.equal(~first.isfinite(), where)
    return same_places and torch.equal(first[where].sign().float(), second[where].sign().float())


def _finite(tensor: Tensor) -> bool:
    """By the sum first, which no NaN or Inf leaves: a sixteenth of the time."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
