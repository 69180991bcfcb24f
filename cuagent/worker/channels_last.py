"""Change the memory layout of a module's weights to channels-last.

Convolutions compute in the layout of their weights, also if the input is contiguous.
`module.to(memory_format=...)` changes weights of one rank only and fails for the other, so weights
of two- and three-dimensional convolutions are changed one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

RANKS = (4, 5)
"""Numbers of dimensions of the weights that have a channels-last layout."""


def has_channels_last(shapes: Iterable[Sequence[int]]) -> bool:
    """Return True if `to_channels_last` changes one of the weights, given by their shapes."""
    return any(len(shape) in RANKS for shape in shapes)


def to_channels_last(module: nn.Module) -> nn.Module:
    """Change the weights with four or five dimensions in place; return the module."""
    import torch

    layouts = dict(zip(RANKS, (torch.channels_last, torch.channels_last_3d), strict=True))
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.ndim in layouts:
            # `contiguous` would leave the strides of pointwise and depthwise weights, by which
            # torch chooses the layout of the convolution.
            tensor.data = tensor.data.to(memory_format=layouts[tensor.ndim])
    return module
