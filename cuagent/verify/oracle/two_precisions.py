"""Run the user's reference in its own precision and in fp64.

Runs in the oracle's process. If a module converts to fp32 inside, as after autocast, the fp64 run
keeps fp64 there. If it fixes its dtype in another way, or fails in fp64, only its own precision is
available, and `forward_fp64` returns that. Not covered: how much roundoff changes the answers
(`spread`, `sensitivity`), and if the reference is fit to judge by (`fitness`).

Invariant: no run except `call_directly` changes its inputs; one that would change them raises.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from cuagent.task import Precision, Reference, Task, TaskError, flatten, unflatten
from cuagent.verify.oracle import sensitivity
from cuagent.verify.oracle.convolutions import Convolutions
from cuagent.verify.oracle.infinities import equal_infinities, infinities_of, is_finite
from cuagent.verify.oracle.places import keeps_first, roundoff_chooses, traces_decide_equally
from cuagent.verify.oracle.slices import Slicing
from cuagent.verify.tensors import FAILURES, is_inexact, to_fp64
from cuagent.verify.trace import mask_fills
from cuagent.verify.trace.hooks import intercept_operators
from cuagent.verify.trace.reductions import largest_intermediate, largest_magnitude
from cuagent.verify.trace.reference_trace import ReferenceTrace, trace_reference

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

LARGEST_FP16 = 65504.0
"""Largest finite number of fp16."""
INFINITY_PAIRS = 4
"""Number of perturbation pairs under which infinities must stay at their positions."""


class TwoPrecisions:
    """The reference with its current weights, runnable in its own precision and in fp64."""

    def __init__(
        self, opened: Reference, declared: nn.Module, inputs: dict[str, Any], *, copies_inputs: bool
    ) -> None:
        self.opened = opened
        self.declared = self.precise = declared
        self.inputs = inputs
        """Spec of forward's arguments."""
        self.copies_inputs = copies_inputs
        """True if each run gets copies of its inputs, so that the reference may write to them."""
        self.fp64 = self.discrete = self.has_mask_fills = False
        """Three facts about the reference: it runs in fp64, has integer outputs, has mask fills."""
        self.widens_casts = False
        """True if conversions to fp32 inside the reference must give fp64, to get fp64 outputs."""
        self.infinities: frozenset[float] = frozenset()
        """Signs of the infinities in the outputs on the task's own inputs; empty if these contain
        NaN.
        """
        self.casts_to_integers = False
        """True if the reference casts some floating intermediate result to integers."""
        self.roundoff = 0.0
        """Relative error of honest arithmetic (`bounds.reach`)."""
        self.fp16_range = False
        """True if a kernel may compute in fp16, whose range is much smaller than fp32's."""
        self.before_call: Callable[[], None] | None = None
        """Callback before each run of the reference; None for none."""
        self.slicing: Slicing | None = None
        """Slices in which a large reference runs in fp64; None if it runs on the whole input at
        once.
        """
        self.convolutions = Convolutions()
        """Implementation of the convolutions in fp64."""

    @property
    def task(self) -> Task:
        return self.opened.task

    def inspect(self, inputs: list[Tensor], results: list[Tensor]) -> None:
        """Determine properties of the reference: does it run in fp64, are outputs integers, finite.

        `results` are its outputs on `inputs` in its own precision.
        """
        self.fp64 = self._runs_in_fp64(inputs, results)
        self.set_model(self.declared)
        self.discrete = not all(is_inexact(result) for result in results)
        self.infinities = infinities_of(results) or frozenset()
        fp16 = self.task.precision is Precision.FP16
        # If the task's own inputs exceed the range (mask fills, for example), it does not matter.
        self.fp16_range = fp16 and self._largest(inputs) <= LARGEST_FP16

    def use_slices(self, slicing: Slicing, results: list[Tensor]) -> None:
        """Run the reference in fp64 in slices from now on.

        `results` are its whole outputs on the task's own inputs.
        """
        self.slicing = slicing
        self.infinities = infinities_of(results) or frozenset()

    def plain_fp64(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return the fp64 outputs, without a trace of the run."""
        with self._default_dtype():
            return self._forward(self.precise, self.widened(inputs))

    def detect_mask_fills(self, inputs: list[Tensor]) -> None:
        """Determine if the reference has mask fills; `inputs` are the task's own."""
        self.has_mask_fills = mask_fills.has_mask_fills(
            lambda: self.forward_fp64(inputs).outputs, self.precise
        )

    def set_model(self, model: nn.Module) -> None:
        """Use `model` as the reference from now on, in both precisions."""
        self.declared = model
        self.precise = copy.deepcopy(model).double() if self.fp64 else model

    def own_inputs(self, seed: int) -> list[Tensor]:
        """Return the result of the task's get_inputs for `seed`, as a flat list of tensors."""
        return flatten(self.opened.inputs(seed), "inputs")[0]

    def call_directly(self, inputs: list[Tensor]) -> list[Tensor]:
        """Call the reference on these tensors themselves, to which it may write; return its
        outputs.
        """
        if self.before_call is not None:
            self.before_call()
        return flatten(self.declared(*unflatten(inputs, self.inputs)), "output")[0]

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return the outputs of a run in the reference's own precision.

        Raises TaskError if the reference changes inputs that were not copied to save memory.
        """
        return self._forward(self.declared, inputs)

    def run(self, model: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
        """Return the outputs of another model on `inputs`, run like the reference."""
        return self._forward(model, inputs)

    def traced(self, inputs: list[Tensor]) -> ReferenceTrace:
        """Run in the reference's own precision; return its outputs and, if needed, a trace.

        A trace is needed if the reference has integer outputs or casts to integers.
        """
        return self._followed(self.declared, inputs)

    def forward_fp64(self, inputs: list[Tensor]) -> ReferenceTrace:
        """Run in fp64, or in the reference's own precision if it does not support fp64.

        Returns the outputs and, if needed, a trace (`traced`).
        """
        with self._default_dtype():
            return self._followed(self.precise, self.widened(inputs))

    def write_fp64(self, inputs: list[Tensor], target: list[Tensor]) -> bool:
        """Run in fp64 in slices and write the outputs to `target`.

        Returns False if a cast of the run was out of range (`ReferenceTrace.defined`).
        """
        assert self.slicing is not None
        defined = []

        def run(part: list[Tensor]) -> list[Tensor]:
            traced = self.forward_fp64(part)
            defined.append(traced.defined)
            return traced.outputs

        self.slicing.run(run, inputs, target)
        return all(defined)

    def decided_equally(self, inputs: list[Tensor], *, kinks: bool = False) -> bool | None:
        """Return True if all decisions of the reference depend on numbers equal in both precisions.

        Decisions are made by operators that round, compare or return integers; `kinks` adds the
        kinks of the backward pass. False if some numbers differ. None if no operator decides, if
        the reference does not run in fp64, or if the numbers are equal but an index was chosen,
        because equal elements may tie.
        """
        found = [self._decided_equally(part, kinks) for part in self._parts(inputs)]
        return None if None in found else all(found)

    def _decided_equally(self, inputs: list[Tensor], kinks: bool) -> bool | None:
        both = self._traced_in_both(inputs)
        if both is None:
            return None
        exact, _ = both
        same = traces_decide_equally(*both, self.task.precision, kinks=kinks)
        # An index may be a choice among equal elements, even if their values are certain.
        has_indices = same and any(selection.indexed for selection in exact.selections)
        decides = exact.decided or (kinks and exact.kinks)
        return same if decides and not has_indices else None

    def roundoff_chooses(self, inputs: list[Tensor]) -> bool:
        """Return True if roundoff decides some index in the outputs (`places.roundoff_chooses`)."""
        traces = map(self._traced_in_both, self._parts(inputs))
        return any(both is not None and roundoff_chooses(*both) for both in traces)

    def keeps_first(self, inputs: list[Tensor]) -> bool:
        """Return True if a kernel must choose the same of equal elements (`places.keeps_first`)."""
        traces = map(self._traced_in_both, self._parts(inputs))
        return all(both is not None and keeps_first(*both, self.task.precision) for both in traces)

    def _parts(self, inputs: list[Tensor]) -> list[list[Tensor]]:
        """Return the inputs of each slice; the whole inputs as one part if the reference has no
        slices.
        """
        if self.slicing is None:
            return [inputs]
        return [self.slicing.of_inputs(inputs, *part) for part in self.slicing.ranges()]

    def _traced_in_both(self, inputs: list[Tensor]) -> tuple[ReferenceTrace, ReferenceTrace] | None:
        """Return the traces in fp64 and in the reference's own precision; None if fp64 fails."""
        import torch

        model = self.precise if self.fp64 else copy.deepcopy(self.declared).double()
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with self._wide_operators():
                exact = trace_reference(lambda: self._forward(model, [to_fp64(x) for x in inputs]))
        except FAILURES:
            return None
        finally:
            torch.set_default_dtype(before)
        return exact, trace_reference(lambda: self.forward(inputs))

    def run_fp64_or_none(self, inputs: list[Tensor]) -> list[Tensor] | None:
        """Return the fp64 outputs on altered inputs; None if the reference fails on them."""
        return sensitivity.run_or_none(
            lambda: self._forward(self.precise, inputs), self._default_dtype()
        )

    def widened(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return the inputs in fp64 if the reference runs in fp64, else unchanged."""
        return [to_fp64(tensor) for tensor in inputs] if self.fp64 else inputs

    def fills_hidden(self, inputs: list[Tensor]) -> bool:
        """Return True if enlarged mask fills do not change the answer to these inputs."""
        widened = self.widened(inputs)
        return self.answer_hides_fills(widened, self.forward_fp64(widened).outputs)

    def answer_hides_fills(self, inputs: list[Tensor], exact: list[Tensor]) -> bool:
        """Return True if the fp64 answer remains `exact` when mask fills are enlarged."""
        if not self.has_mask_fills:
            return True
        if self.slicing is not None and self.slicing.joins:
            return all(
                self._hides_fills(
                    self.slicing.of_inputs(inputs, *part), self.slicing.of_outputs(exact, *part)
                )
                for part in self.slicing.ranges()
            )
        return self._hides_fills(inputs, exact)

    def _hides_fills(self, inputs: list[Tensor], exact: list[Tensor]) -> bool:
        with mask_fills.enlarged_fills(self.precise):
            moved = sensitivity.run_or_none(lambda: self._answer_fp64(inputs, exact), nullcontext())
        if moved is None:
            return False
        return mask_fills.equal_up_to_roundoff(
            [x.to(y.dtype) for x, y in zip(moved, exact, strict=True)], exact
        )

    def _answer_fp64(self, inputs: list[Tensor], like: list[Tensor]) -> list[Tensor]:
        """Return the fp64 answer to whole inputs; `like` has its shapes."""
        if self.slicing is None or self.slicing.joins:
            return self.forward_fp64(inputs).outputs
        found = [y.new_zeros(y.shape) for y in like]
        self.slicing.run(lambda part: self.forward_fp64(part).outputs, inputs, found)
        return found

    def within_range(self, inputs: list[Tensor], results: list[Tensor]) -> bool:
        """Return True if `results` and the intermediate results are finite in the admitted dtype.

        If the task's own inputs lead to infinities (masked scores), these inputs may too, if
        roundoff does not move them.
        """
        finite = all(is_finite(x) for x in results if is_inexact(x))
        return (finite or self._has_stable_infinities(inputs, results)) and (
            not self.fp16_range or self._largest(inputs) <= LARGEST_FP16
        )

    def _has_stable_infinities(self, inputs: list[Tensor], results: list[Tensor]) -> bool:
        """Return True if roundoff moves no infinity, and each sign also occurs on the task's own
        inputs.
        """
        found = infinities_of(results)
        if not self.infinities or found is None or not found <= self.infinities:
            return False
        if self.slicing is None:
            return self._roundoff_keeps_infinities(inputs, results)
        return self.slicing.joins and all(
            self._roundoff_keeps_infinities(
                self.slicing.of_inputs(inputs, *part), self.slicing.of_outputs(results, *part)
            )
            for part in self.slicing.ranges()
        )

    def _roundoff_keeps_infinities(self, inputs: list[Tensor], results: list[Tensor]) -> bool:
        moving = sensitivity.PerturbedReference(
            run=lambda near: self.forward_fp64(near).outputs,
            inputs=inputs,
            state=self.precise.state_dict(),
            generator=self.generator(0),
            declared=lambda: self.forward(inputs),
            to_fp64=self.fp64,
        )
        runs = [self.forward_fp64(inputs).outputs]
        runs += filter(
            None,
            sensitivity.perturbed_answers(moving, self.roundoff, self.roundoff, INFINITY_PAIRS),
        )
        return all(
            equal_infinities(x, y) for run in runs for x, y in zip(run, results, strict=True)
        )

    def generator(self, seed: int) -> Generator:
        """Return a random generator on the task's device with this seed."""
        import torch

        return torch.Generator(device=self.task.device.value).manual_seed(seed)

    def _largest(self, inputs: list[Tensor]) -> float:
        return max(
            [*map(largest_magnitude, inputs), largest_intermediate(lambda: self.forward(inputs))]
        )

    def _forward(self, model: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
        if self.before_call is not None:
            self.before_call()
        # Clone, so that a reference that writes to its inputs does not change the judged inputs.
        arguments = [x.clone() for x in inputs] if self.copies_inputs else inputs
        versions = [x._version for x in arguments]
        results = flatten(model(*unflatten(arguments, self.inputs)), "output")[0]
        if not self.copies_inputs and versions != [x._version for x in arguments]:
            raise TaskError(
                f"{self.task.path}: forward writes to its inputs on some draws only; let it write "
                "to a copy"
            )
        return results

    def _followed(self, model: nn.Module, inputs: list[Tensor]) -> ReferenceTrace:
        if self.discrete or self.casts_to_integers:
            return trace_reference(lambda: self._forward(model, inputs))
        outputs = self._forward(model, inputs)
        return ReferenceTrace(outputs, [], [None] * len(outputs))

    def _runs_in_fp64(self, inputs: list[Tensor], results: list[Tensor]) -> bool:
        import torch

        self.fp64 = True
        self.set_model(self.declared)
        widened = (torch.float64, torch.complex128)
        for self.widens_casts in (False, True):
            try:
                exact = self.forward_fp64(inputs).outputs
            except (RuntimeError, TypeError, ValueError):
                continue
            pairs = zip(exact, results, strict=True)
            if all(not is_inexact(r) or x.dtype in widened for x, r in pairs):
                return True
        self.widens_casts = False
        return False  # the module fixes its dtype inside; only its own precision is available

    @contextmanager
    def _wide_operators(self) -> Iterator[None]:
        """Context of an fp64 run: the fastest fp64 convolutions, and with `widens_casts`
        conversions from fp64 to fp32 that give fp64.
        """
        kept = intercept_operators(_keep_fp64) if self.widens_casts else nullcontext()
        with self.convolutions.native(), kept:
            yield

    @contextmanager
    def _default_dtype(self) -> Iterator[None]:
        """Context in which tensors that the module creates are fp64, if the reference runs in
        fp64.
        """
        import torch

        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if self.fp64 else before)
        try:
            with self._wide_operators():
                yield
        finally:
            torch.set_default_dtype(before)


def _keep_fp64(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call an operator, but leave the result in fp64 if it converts fp64 to fp32."""
    import torch

    name = function.overloadpacket.__name__
    if name == "_to_copy" and kwargs.get("dtype") is torch.float32:
        kwargs = kwargs | {"dtype": torch.float64} if args[0].dtype is torch.float64 else kwargs
    return function(*args, **kwargs)
