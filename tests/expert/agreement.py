"""A candidate that was made, and whether it computes what its reference does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import modules
import torch

from cuagent.expert.candidate import Candidate


@dataclass(frozen=True)
class Made:
    candidate: Candidate
    cls: type[torch.nn.Module]
    reference: type[torch.nn.Module]
    inputs: Callable[[], list[Any]]


def assert_agrees(made: Made, device: str = "cpu", seed: int = 0) -> torch.nn.Module:
    """The candidate's output has the reference's form and its error against fp64; gives it back."""
    torch.manual_seed(seed)
    reference = made.reference().eval().to(device)
    with torch.no_grad():
        for tensor in [*reference.parameters(), *reference.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.25)
    new = made.cls().eval().to(device)
    new.load_state_dict(reference.state_dict(), strict=True)
    inputs = modules.mapped(lambda t: t.to(device), made.inputs())
    before = modules.mapped(torch.clone, inputs)

    def widened(t: torch.Tensor) -> torch.Tensor:
        return t.double() if t.is_floating_point() else t

    with torch.no_grad():
        expected = list(modules.leaves(reference(*inputs)))
        got = list(modules.leaves(new(*inputs)))
        exact = copy.deepcopy(reference).double()(*modules.mapped(widened, inputs))
    assert list(map(repr, modules.leaves(inputs))) == list(map(repr, modules.leaves(before)))
    for theirs, ours, right in zip(expected, got, modules.leaves(exact), strict=True):
        assert (ours.shape, ours.dtype, ours.stride()) == (
            theirs.shape,
            theirs.dtype,
            theirs.stride(),
        )
        scale = right.double().norm() + 1e-30
        error = (ours.double() - right).norm() / scale
        own_error = (theirs.double() - right).norm() / scale
        assert error <= 4 * own_error + 4e-7
    return new
