"""Judge integers and booleans by the strict rule, and describe errors that have no bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verify.rules.draw_facts import DrawFacts
from cuagent.verify.rules.ties import Places, wrong_places
from cuagent.verify.rules.types import Finding
from cuagent.verify.rules.wrong import describe, first

if TYPE_CHECKING:
    from torch import Tensor

UNEXPLAINED = Finding(False, math.inf, math.inf, math.inf, None)
"""Finding for an error that has no bound, if no description of the wrong elements is wanted."""


def discrete(
    index: int, tensors: Sequence[Tensor], draw: DrawFacts, places: Places | None
) -> Finding:
    """Judge an output of integers or booleans by the strict rule.

    `tensors` are the candidate's and the reference's output, the fp64 answer and its spread.
    `places` are the elements that traced indices were chosen from.
    """
    import torch

    output, declared, precise, spread = tensors[:4]
    # fp64 may order near-ties differently from the declared precision; either order is right.
    wrong = (output != declared) & (output != precise.to(output.dtype))
    if places is not None and bool(wrong.any()):
        wrong = wrong_places(output, declared, precise, places)
    elif not (output.dtype is torch.bool and draw.decides_truth):
        wrong &= ~_tied(output, declared, spread)
    return _exact(index, wrong, output, declared, explain=draw.explain)


def _tied(output: Tensor, declared: Tensor, spread: Tensor) -> Tensor:
    """Return a mask of the elements that may differ from the reference because of a near-tie.

    An integer may differ by as much as the oracle's answer changes under perturbation (`spread`).
    """
    import torch

    if output.dtype is torch.bool:
        return spread != 0
    return (spread != 0) & ((output.long() - declared.long()).abs() <= spread.long())


def _exact(
    index: int, wrong: Tensor, output: Tensor, expected: Tensor, *, explain: bool
) -> Finding:
    if not bool(wrong.any()):
        return Finding(True, 0.0, 0.0, 0.0, Precision.MATCH)
    if not explain:
        return UNEXPLAINED
    return refused(index, wrong, output, expected, integral=True)


def refused(
    index: int, wrong: Tensor, output: Tensor, expected: Tensor, *, integral: bool = False
) -> Finding:
    """Return the finding for wrong elements without a bound; its note describes the first of
    them.
    """
    wrong = wrong.view(output.shape)
    found = describe(index, output, expected, wrong, first(wrong), integral=integral)
    return Finding(False, math.inf, math.inf, math.inf, None, found.note, hint=found.hint)
