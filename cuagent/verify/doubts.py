"""How far an answer moves when honest roundoff moves inputs, weights and every step of the way.

Asked only where a candidate's output would else be refused (`bounds` says why). The reference runs
in fp64 while its operators' results are perturbed: Monte Carlo arithmetic (Parker, UCLA CSD-970002,
1997). Runs in the oracle's process. Integers and booleans stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuagent.verify.bounds import UNIT
from cuagent.verify.perturb import opposites, pairs, perturbed, real
from cuagent.verify.reductions import moves
from cuagent.verify.watching import watching

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True)
class Reference:
    """The reference in fp64: `run` on inputs, which uses the weights that `state` holds."""

    run: Callable[[list[Tensor]], list[Tensor]]
    state: dict[str, Tensor]
    generator: Generator


def move(
    reference: Reference,
    inputs: Sequence[Tensor],
    reach: float,
    step: float,
    count: int,
    moved: Sequence[Tensor],
) -> None:
    """Write to `moved` the largest change of each element of the answer.

    Inputs and weights are multiplied by 1 +- `reach` N(0,1), the result of each operator by
    1 +- `step` N(0,1), in `count` runs and as many opposite ones. Weights are put back. A change
    that is no finite number counts as none.
    """
    base = reference.run(list(inputs))
    given = [tensor.clone() for tensor in reference.state.values()]
    views = [pairs(view).zero_() for view in moved]
    try:
        for _ in range(count):
            for results in _opposites(reference, [*given, *inputs], reach, step):
                for view, result, before in zip(views, results, base, strict=True):
                    if real(before):
                        view.copy_(view.maximum(_change(result, before)))
    finally:
        _load(reference.state, given)


def carried(reference: Reference, inputs: Sequence[Tensor], runs: int) -> list[float]:
    """For each tensor of the answer the rms change under roundoff in each operator, in units of u.

    Of a plain sum that is about rms(y); it is more where large intermediates cancel.
    """
    base = reference.run(list(inputs))
    squares = [0.0] * len(base)
    for _ in range(runs):
        with _rounded(UNIT, reference.generator):
            results = reference.run(list(inputs))
        for index, (result, before) in enumerate(zip(results, base, strict=True)):
            if real(before) and before.numel():
                squares[index] += float(_change(result, before).square().mean())
    return [math.sqrt(square / runs) / UNIT for square in squares]


def _opposites(
    reference: Reference, tensors: Sequence[Tensor], reach: float, step: float
) -> Iterator[list[Tensor]]:
    """Answers under one perturbation of all and under its opposite: a tie falls either way."""
    generator, weights = reference.generator, len(reference.state)
    for sign, near in zip((1, -1), opposites(tensors, generator, reach), strict=True):
        _load(reference.state, near[:weights])
        with _rounded(sign * step, generator):
            yield reference.run(near[weights:])


def _rounded(step: float, generator: Generator) -> AbstractContextManager[Any]:
    """Where it is entered, what operators compute comes out times 1 + step N(0,1)."""

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = function(*args, **kwargs)
        if not moves(function):
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if _moving(tensor):
                    tensor.copy_(perturbed(tensor, generator, step))
        return result

    return watching(call)


def _moving(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and real(value)


def _change(result: Tensor, before: Tensor) -> Tensor:
    return pairs(result - before).abs().nan_to_num(nan=0.0, posinf=0.0)


def _load(state: dict[str, Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(state.values(), values, strict=True):
        tensor.copy_(value)
