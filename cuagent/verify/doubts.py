"""How far each element of an answer moves when honest roundoff moves what it is made of.

Asked only where a candidate's output would else be refused (`bounds` says why). Runs in the
oracle's process. Integers and booleans stay as they are, in inputs and in outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cuagent.verify.perturb import opposites, pairs, real

if TYPE_CHECKING:
    from torch import Generator, Tensor

MOST, FEWEST, PATIENCE_S = 24, 6, 1.0
"""Pairs of opposite perturbations, and about how long more than the fewest may take."""


def move(
    run: Callable[[list[Tensor]], list[Tensor]],
    inputs: Sequence[Tensor],
    state: dict[str, Tensor],
    reach: float,
    generator: Generator,
    moved: Sequence[Tensor],
) -> None:
    """Write to `moved` the largest change of each element of what `run` gives.

    All is in fp64. `inputs` and the weights `state`, which are those that `run` uses and are put
    back at the end, are multiplied by 1 +- `reach` N(0,1). A change that is no finite number counts
    as none.
    """
    base = run(list(inputs))
    kept = [tensor.clone() for tensor in state.values()]
    views = [pairs(view).zero_() for view in moved]
    begun = time.perf_counter()
    for number in range(MOST):
        if number >= FEWEST and time.perf_counter() - begun > PATIENCE_S:
            break
        for tensors in opposites([*kept, *inputs], generator, reach):
            _load(state, tensors[: len(kept)])
            for view, result, before in zip(views, run(tensors[len(kept) :]), base, strict=True):
                if real(before):
                    change = pairs(result - before).abs().nan_to_num(nan=0.0, posinf=0.0)
                    view.copy_(view.maximum(change))
    _load(state, kept)


def _load(state: dict[str, Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(state.values(), values, strict=True):
        tensor.copy_(value)
