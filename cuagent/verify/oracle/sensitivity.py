"""Measure how much an answer changes if roundoff changes inputs, weights and every operation.

This is measured only if a candidate's output would otherwise be rejected (`bounds` explains why).
The reference runs in fp64 while its operators' results are perturbed: Monte Carlo arithmetic
(Parker, UCLA CSD-970002, 1997). It also runs, in either precision, while its operators choose in
other orders among equal elements (`tie_orders`). Runs in the oracle's process. Integers and
booleans are not perturbed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cuagent.verify.oracle.perturb import antithetic, clamped_to_range, perturb
from cuagent.verify.oracle.tie_orders import ORDERS, ordered
from cuagent.verify.tensors import FAILURES, UNIT, in_blocks, is_inexact
from cuagent.verify.trace.hooks import intercept_operators
from cuagent.verify.trace.reductions import is_exact_operator

if TYPE_CHECKING:
    from torch import Generator, Tensor

    Answers = list[Tensor]


@dataclass(frozen=True)
class PerturbedReference:
    """Functions that run the reference, and the inputs and weights that are perturbed."""

    run: Callable[[list[Tensor]], Answers]
    """Run the reference in fp64 on other inputs, with the weights in `state`."""
    inputs: Sequence[Tensor]
    state: dict[str, Tensor]
    generator: Generator
    declared: Callable[[], Answers]
    """Run the reference in its own precision on the unperturbed inputs."""
    answer: Answers | None = None
    """Output of `exact()` if it was computed before, else None."""
    to_fp64: bool = False
    """True if perturbed inputs are fp64."""
    declared_on: Callable[[list[Tensor]], Answers] | None = None
    """Run the reference in its own precision on other inputs; for `sliced_answers` only."""

    def exact(self) -> Answers:
        """Return the fp64 output on the unperturbed inputs."""
        return self.run(list(self.inputs))


def measure_change(
    reference: PerturbedReference, reach: float, step: float, count: int, moved: Sequence[Tensor]
) -> None:
    """Write to `moved` the largest change of each output element under perturbations of roundoff
    size.

    Inputs and weights are multiplied by 1 + `reach` N(0,1), the result of each operator by 1 +
    `step` N(0,1), in `count` runs and as many with the opposite perturbation. Weights are restored.
    A change that is not finite counts as zero, and so does a run that fails.
    """
    write_largest_changes(reference, perturbed_answers(reference, reach, step, count), moved)


def measure_tie_change(
    reference: PerturbedReference, step: float, count: int, tied: Sequence[Tensor]
) -> None:
    """Write to `tied` the largest change of each output element under other tie-breaks.

    At most `count` orders are tried. Elements count as equal if they are equal in the reference's
    own precision, or within `step` of each other in fp64.
    """
    kinds = ((reference.declared, 0.0), (reference.exact, step))
    runs = (
        run_or_none(run, ordered(order, slack)) for order in ORDERS[:count] for run, slack in kinds
    )
    write_largest_changes(reference, runs, tied)


def write_largest_changes(
    reference: PerturbedReference, runs: Iterable[Answers | None], views: Sequence[Tensor]
) -> None:
    """Write to `views` the largest |change| of each output element over all `runs` (None: a failed
    run).
    """
    import torch

    base = reference.answer or reference.exact()
    for view in views:
        view.zero_()
    for results in runs:
        for view, result, before in zip(views, results or base, base, strict=True):
            for largest, *both in in_blocks(view, result, before) if is_inexact(before) else ():
                torch.maximum(largest, _change(*both), out=largest)
        del results, result  # free the memory before the next run


def carried(reference: PerturbedReference, runs: int) -> list[float]:
    """Return for each output tensor the rms change under roundoff in each operator, in units of u.

    For a plain sum it is about rms(y); it is more if large intermediate results cancel.
    """
    base = reference.answer or reference.exact()
    squares = [0.0] * len(base)
    for _ in range(runs):
        results = run_or_none(reference.exact, rounded(UNIT, reference.generator)) or base
        for index, (result, before) in enumerate(zip(results, base, strict=True)):
            for both in in_blocks(result, before) if is_inexact(before) else ():
                squares[index] += float(_change(*both).double().square().sum()) / result.numel()
        del results, result
    return [math.sqrt(square / runs) / UNIT for square in squares]


def perturbed_answers(
    reference: PerturbedReference, reach: float, step: float, count: int
) -> Iterator[Answers | None]:
    """Yield the outputs under `count` random perturbations, each followed by its opposite.

    None for a run that fails. Each tie is then broken once each way.
    """
    generator, state = reference.generator, reference.state
    originals = [tensor.clone() for tensor in state.values()]
    tensors = [*originals, *reference.inputs]

    def run(perturbed: list[Tensor], step: float) -> Answers | None:
        _load(state, perturbed[: len(originals)])
        inputs = perturbed[len(originals) :]
        results = run_or_none(partial(reference.run, inputs), rounded(step, generator))
        if results is None:
            inputs = clamped_to_range(inputs, reference.inputs)
            results = run_or_none(partial(reference.run, inputs), rounded(step, generator))
        return results

    try:
        for _ in range(count):
            both = antithetic(tensors, generator, reach, wide=reference.to_fp64)
            for sign in (1, -1):
                yield run(next(both), sign * step)
    finally:
        _load(state, originals)


def run_or_none(run: Callable[[], Answers], context: AbstractContextManager[Any]) -> Answers | None:
    """Return `run()` inside `context`; None if it raises, because altered inputs may be refused."""
    try:
        with context:
            return run()
    except FAILURES:
        return None


def rounded(step: float, generator: Generator) -> AbstractContextManager[Any]:
    """Return a context in which each operator's result is multiplied by 1 + step N(0,1).

    Whole numbers do not change: no implementation errs in a floor. A position computed in floating
    point (`x.floor().long()`) would otherwise be one too low half of the time.
    """

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = function(*args, **kwargs)
        if not is_exact_operator(function):
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if _is_inexact_tensor(tensor):
                    perturb(tensor, generator, step, steady=True)
        return result

    return intercept_operators(call)


def _is_inexact_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and is_inexact(value)


def _change(result: Tensor, before: Tensor) -> Tensor:
    return (result - before).abs().nan_to_num(nan=0.0, posinf=0.0)


def _load(state: dict[str, Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(state.values(), values, strict=True):
        tensor.copy_(value)
