"""Compare the outputs of an imported candidate with those of its reference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import modules
import torch

from cuagent.expert.candidate import Candidate


@dataclass(frozen=True)
class Imported:
    """A generated candidate with the imported classes of candidate (`cls`) and reference, and the
    task's inputs."""

    candidate: Candidate
    cls: type[torch.nn.Module]
    reference: type[torch.nn.Module]
    inputs: Callable[[], list[Any]]


FP32, TF32 = 4e-7, 1e-3
"""Relative rms errors that sums in these precisions do not exceed."""


def assert_agrees(
    made: Imported, device: str = "cpu", seed: int = 0, step: float = 0.0, least: float = FP32
) -> torch.nn.Module:
    """Check the outputs of the candidate against the reference and against fp64; return the
    candidate's module.

    Parameters are random; with `step` they are multiples of it, which TF32 represents exactly.
    Shape, dtype and strides must equal those of the reference. The error against fp64 must be at
    most 4 times the reference's error plus `least`. `least` is TF32 for layers that cuDNN computes
    in float32 in some shapes and in TF32 in others. Inputs must stay unchanged.
    """
    torch.manual_seed(seed)
    reference = made.reference().eval().to(device)
    with torch.no_grad():
        for tensor in [*reference.parameters(), *reference.buffers()]:
            if tensor.is_floating_point():
                numbers = torch.rand_like(tensor)
                numbers = (numbers / step).round() * step if step else numbers
                tensor.copy_(numbers + 0.25)
    new = made.cls().eval().to(device)
    new.load_state_dict(reference.state_dict(), strict=True)
    inputs = modules.mapped(lambda t: t.to(device), made.inputs())
    before = modules.mapped(torch.clone, inputs)

    def to_fp64(t: torch.Tensor) -> torch.Tensor:
        return t.double() if t.is_floating_point() else t

    with torch.no_grad():
        expected = list(modules.leaves(reference(*inputs)))
        got = list(modules.leaves(new(*inputs)))
        if device == "cuda":
            torch.cuda.synchronize()  # Faults of the candidate's kernels show here.
        exact = copy.deepcopy(reference).double()(*modules.mapped(to_fp64, inputs))
    assert list(map(repr, modules.leaves(inputs))) == list(map(repr, modules.leaves(before)))
    for a, b, right in zip(expected, got, modules.leaves(exact), strict=True):
        forms = [(t.shape, t.dtype, t.stride()) for t in (b, a)]
        assert forms[0] == forms[1], forms
        scale = right.double().norm() + 1e-30
        error = (b.double() - right.double()).norm() / scale
        reference_error = (a.double() - right.double()).norm() / scale
        assert error <= 4 * reference_error + least
    return new
