"""The domain of calls that a verdict covers, for which an exported kernel may be used.

A candidate is verified on one form of call: the same shapes, dtypes, strides, plain arguments and
constructor arguments in every draw. Other calls are not verified, so an exported kernel runs only
for these (`cuagent.package.guard`). Not covered: the values in the tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cuagent.task import Task, TorchSettings
from cuagent.task.settings import candidate_settings
from cuagent.verify.oracle.facts import TaskFacts


@dataclass(frozen=True)
class TensorForm:
    """Form of one input tensor; `stride` counts elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class Domain:
    """Form of the calls that a verdict covers: eval mode, without gradients, on `device`."""

    device: str
    names: tuple[str, ...]
    """Parameter names of the reference's forward that can be passed by position."""
    nesting: str
    """JSON (`cuagent.task.Spec`) of the list of arguments, as text, because a log cannot store
    infinity.
    """
    tensors: tuple[TensorForm, ...]
    """The tensors in `nesting`, from left to right."""
    init: str
    """JSON (`cuagent.task.Spec`) of the constructor's [positional, named] arguments."""
    settings: TorchSettings | None = None
    """torch's settings of the candidate's process; None in earlier records."""


def packed(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(max(n, 1) for n in shape[axis + 1 :]) for axis in range(len(shape)))


def domain_of(task: Task, facts: TaskFacts) -> Domain:
    """Return the call domain that every verdict on `task` covers."""
    return Domain(
        device=task.device.value,
        names=facts.names,
        nesting=json.dumps(facts.inputs),
        tensors=tuple(
            TensorForm(leaf.dtype, leaf.shape, leaf.stride) for leaf in facts.layouts.inputs.leaves
        ),
        init=json.dumps(facts.init),
        settings=candidate_settings(facts.settings, task.precision),
    )
