"""Phases of convolutions: each output is computed once, from the taps that reach it."""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cuagent.expert.convolutions.phases import Axis, Phase, phases


def computed_by_phases(
    x: torch.Tensor, weight: torch.Tensor, axes: tuple[Axis, ...], transposed: bool
) -> torch.Tensor:
    """Return the convolution of one channel, summed as a generated kernel sums it."""
    result = torch.full([axis.outputs for axis in axes], torch.nan, dtype=x.dtype)
    for found in phases(axes, transposed):
        for point in product(*(range(axis.points) for axis in found)):
            place = tuple(
                p.output_step * t + p.output_start for p, t in zip(found, point, strict=True)
            )
            assert result[place].isnan(), "a phase computes an output again"
            result[place] = sum_of_taps(x, weight, found, point)
    return result


def sum_of_taps(
    x: torch.Tensor, weight: torch.Tensor, found: tuple[Phase, ...], point: tuple[int, ...]
) -> torch.Tensor:
    total = torch.zeros((), dtype=x.dtype)
    for tap in product(*(range(p.taps) for p in found)):
        element = tuple(p.kernel_step * j + p.kernel_start for p, j in zip(found, tap, strict=True))
        source = tuple(
            p.input_step * t + p.tap_step * j + p.input_start
            for p, t, j in zip(found, point, tap, strict=True)
        )
        if all(0 <= i < n for i, n in zip(source, x.shape, strict=True)):
            total += x[source] * weight[element]
    return total


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 6),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    padding=st.integers(0, 3),
    extra=st.integers(0, 3),
    dilation=st.integers(1, 4),
)
def test_phases_cover_every_output_of_a_transposed_convolution_once(
    size, kernel, stride, padding, extra, dilation
):
    extra = min(extra, max(stride, dilation) - 1)
    outputs = (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1 + extra
    if outputs < 1:
        return
    x, weight = (torch.randint(-9, 9, (n,)).double() for n in (size, kernel))
    axes = (Axis(size, outputs, kernel, stride, padding, dilation),)
    expected = F.conv_transpose1d(
        x[None, None], weight[None, None], None, stride, padding, extra, 1, dilation
    ).flatten()
    assert torch.equal(computed_by_phases(x, weight, axes, True), expected)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 9),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    dilation=st.integers(1, 3),
)
def test_one_phase_computes_a_convolution(size, kernel, stride, padding, dilation):
    outputs = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    if size + 2 * padding < dilation * (kernel - 1) + 1:
        return
    x, weight = (torch.randint(-9, 9, (n,)).double() for n in (size, kernel))
    axes = (Axis(size, outputs, kernel, stride, padding, dilation),)
    expected = F.conv1d(x[None, None], weight[None, None], None, stride, padding, dilation)
    assert torch.equal(computed_by_phases(x, weight, axes, False), expected.flatten())


def test_phases_of_two_dimensions_are_all_pairs():
    axes = (Axis(4, 8, 4, 2, 1, 1), Axis(3, 7, 3, 3, 1, 1))
    assert len(list(phases(axes, True))) == 6
