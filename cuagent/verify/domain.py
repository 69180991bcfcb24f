"""The calls that a verdict covers: what an exported kernel may be used for.

A candidate is verified on one form of call: the same shapes, dtypes, strides, plain arguments and
constructor arguments in every draw. Nothing is known about other calls, so an exported kernel runs
for these alone (`cuagent.package.guard`). Not covered: the values in the tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuagent.task import Task
from cuagent.worker import Layout


@dataclass(frozen=True)
class TensorForm:
    """One input tensor; `stride` counts elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class Domain:
    """The form of the calls that were judged: eval mode, without gradients, on `device`."""

    device: str
    names: tuple[str, ...]
    """Parameters of the reference's forward that can be given by position."""
    nesting: str
    """JSON (`cuagent.task.Spec`) of the list of arguments; text, because a log has no infinity."""
    tensors: tuple[TensorForm, ...]
    """The tensors in `nesting`, from left to right."""
    init: str
    """JSON (`cuagent.task.Spec`) of [positional, named] arguments of the constructor."""


def packed(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(max(n, 1) for n in shape[axis + 1 :]) for axis in range(len(shape)))


def domain_of(task: Task, about: Mapping[str, Any]) -> Domain:
    """The domain of every verdict on `task`, from what its oracle describes."""
    leaves = Layout.from_json(about["inputs_layout"]).leaves
    return Domain(
        device=task.device.value,
        names=tuple(about["names"]),
        nesting=json.dumps(about["inputs"]),
        tensors=tuple(TensorForm(leaf.dtype, leaf.shape, leaf.stride) for leaf in leaves),
        init=json.dumps(about["init"]),
    )
