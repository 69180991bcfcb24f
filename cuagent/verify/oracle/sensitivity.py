"""How far an answer moves when honest roundoff moves inputs, weights and every step of the way.

Asked only where a candidate's output would else be refused (`bounds` says why). The reference runs
in fp64 while its operators' results are perturbed: Monte Carlo arithmetic (Parker, UCLA CSD-970002,
1997). And it runs, in either precision, while its operators choose otherwise among equals
(`orders`). Runs in the oracle's process. Integers and booleans stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cuagent.verify.oracle.perturb import opposites, perturb, within
from cuagent.verify.oracle.tie_orders import ORDERS, ordered
from cuagent.verify.tensors import FAILURES, UNIT, in_blocks, is_inexact
from cuagent.verify.trace.hooks import intercept_operators
from cuagent.verify.trace.reductions import is_exact_operator

if TYPE_CHECKING:
    from torch import Generator, Tensor

    Answers = list[Tensor]


@dataclass(frozen=True)
class Reference:
    """The reference, with all that is moved."""

    run: Callable[[list[Tensor]], Answers]
    """In fp64, on other inputs, with the weights that `state` holds."""
    inputs: Sequence[Tensor]
    state: dict[str, Tensor]
    generator: Generator
    declared: Callable[[], Answers]
    """In its own precision, on the inputs as they are."""
    answer: Answers | None = None
    """Of `again`, where it is known."""
    wide: bool = False
    """Whether inputs become fp64 when they are perturbed."""

    def again(self) -> Answers:
        """In fp64, on the inputs as they are."""
        return self.run(list(self.inputs))


def move(
    reference: Reference, reach: float, step: float, count: int, moved: Sequence[Tensor]
) -> None:
    """Write to `moved` the largest change of each element of the answer within roundoff.

    Inputs and weights are multiplied by 1 +- `reach` N(0,1), the result of each operator by
    1 +- `step` N(0,1), in `count` runs and as many opposite ones. Weights are put back. A change
    that is no finite number counts as none; so does a run that fails.
    """
    _spread(reference, nearby(reference, reach, step, count), moved)


def choose(reference: Reference, step: float, count: int, tied: Sequence[Tensor]) -> None:
    """Write to `tied` the largest change of each element where equals are chosen otherwise.

    In `count` orders at most, of what is equal in the reference's own precision, and of what lies
    within `step` in fp64.
    """
    kinds = ((reference.declared, 0.0), (reference.again, step))
    runs = (
        attempted(run, ordered(order, slack)) for order in ORDERS[:count] for run, slack in kinds
    )
    _spread(reference, runs, tied)


def _spread(reference: Reference, runs: Iterable[Answers | None], views: Sequence[Tensor]) -> None:
    import torch

    base = reference.answer or reference.again()
    for view in views:
        view.zero_()
    for results in runs:
        for view, result, before in zip(views, results or base, base, strict=True):
            for most, *both in in_blocks(view, result, before) if is_inexact(before) else ():
                torch.maximum(most, _change(*both), out=most)
        del results, result  # before the next run is made


def carried(reference: Reference, runs: int) -> list[float]:
    """For each tensor of the answer the rms change under roundoff in each operator, in units of u.

    Of a plain sum that is about rms(y); it is more where large intermediates cancel.
    """
    base = reference.answer or reference.again()
    squares = [0.0] * len(base)
    for _ in range(runs):
        results = attempted(reference.again, _rounded(UNIT, reference.generator)) or base
        for index, (result, before) in enumerate(zip(results, base, strict=True)):
            for both in in_blocks(result, before) if is_inexact(before) else ():
                squares[index] += float(_change(*both).double().square().sum()) / result.numel()
        del results, result
    return [math.sqrt(square / runs) / UNIT for square in squares]


def nearby(reference: Reference, reach: float, step: float, count: int) -> Iterator[Answers | None]:
    """Answers under `count` perturbations and under their opposites: a tie falls either way."""
    generator, state = reference.generator, reference.state
    given = [tensor.clone() for tensor in state.values()]
    tensors = [*given, *reference.inputs]

    def run(near: list[Tensor], step: float) -> Answers | None:
        _load(state, near[: len(given)])
        inputs = near[len(given) :]
        results = attempted(partial(reference.run, inputs), _rounded(step, generator))
        if results is None:
            inputs = within(inputs, reference.inputs)
            results = attempted(partial(reference.run, inputs), _rounded(step, generator))
        return results

    try:
        for _ in range(count):
            both = opposites(tensors, generator, reach, wide=reference.wide)
            for sign in (1, -1):
                yield run(next(both), sign * step)
    finally:
        _load(state, given)


def attempted(run: Callable[[], Answers], under: AbstractContextManager[Any]) -> Answers | None:
    """None where it fails: the reference may not be made for what is a little off."""
    try:
        with under:
            return run()
    except FAILURES:
        return None


def _rounded(step: float, generator: Generator) -> AbstractContextManager[Any]:
    """Where it is entered, what operators compute comes out times 1 + step N(0,1).

    Whole numbers come out as they are: nobody errs in a floor, and a place that is computed in
    floating point (`x.floor().long()`) would be the one before it half of the time.
    """

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = function(*args, **kwargs)
        if not is_exact_operator(function):
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if _moving(tensor):
                    perturb(tensor, generator, step, steady=True)
        return result

    return intercept_operators(call)


def _moving(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and is_inexact(value)


def _change(result: Tensor, before: Tensor) -> Tensor:
    return (result - before).abs().nan_to_num(nan=0.0, posinf=0.0)


def _load(state: dict[str, Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(state.values(), values, strict=True):
        tensor.copy_(value)
