"""A convolution that a generated kernel computes, and the strides of the tensors that it reads."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any

from cuagent.expert.convolutions.phases import Axis
from cuagent.expert.graph.graph import Graph, Kind, Node, contiguous_strides
from cuagent.expert.streaming.nest import NestError, storage

TRANSPOSED = "own F.conv of channels last"
"""Operator of a node that transposes the library's channels-last result and adds the bias."""
COPY = "own F.conv copy to channels last"
"""Operator of a node that copies an input to (samples, *places, channels), and rounds to TF32 if
that is admitted."""


@dataclass(frozen=True)
class Volume:
    """Strides of a tensor, in elements, over samples, channels and places.

    Element (s, c, p) is at `offset + sample * s + channel * c + place * p`.
    """

    tensor: str
    dtype: str
    sample: int
    channel: int
    place: int
    offset: int


@dataclass(frozen=True)
class Pool:
    """A pool behind a convolution, with windows side by side."""

    anchor: Node
    sizes: tuple[int, ...]
    """Extents of a window."""
    counts: tuple[int, ...]
    """Windows along each dimension."""
    after: tuple[Node, ...]
    """Elementwise nodes behind the pool."""

    @property
    def elements(self) -> int:
        """Elements of a window."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class Partials:
    """Names of tensors with sums over the places of each tile, which a kernel stores in addition.

    A name is "" if the tensor is not stored.
    """

    value: str
    """Value of the epilogue that is summed."""
    sums: str
    means: str
    deviations: str
    """Sums of squared differences from the mean of the tile."""
    counts: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stored tensors."""
        return tuple(n for n in (self.sums, self.means, self.deviations, self.counts) if n)


@dataclass(frozen=True)
class Convolution:
    """A convolution with channels-last operands, and the group behind it as its epilogue."""

    node: Node
    transposed: bool
    samples: int
    channels_in: int
    channels_out: int
    axes: tuple[Axis, ...]
    left: Volume
    """Input; its channels or its places are adjacent in memory."""
    right: str
    """Weight as (output channels, *taps, input channels); "" if `left` is the result of the
    library's convolution, without its bias."""
    bias: Volume | None
    epilogue: tuple[Node, ...]
    reads: dict[tuple[str, str], Volume]
    """Tensors that the epilogue reads, by the names of the reading node and of its argument."""
    outputs: tuple[str, ...]
    places: dict[str, tuple[int, ...]]
    """Names of the computed nodes as keys, as in `Group.places`."""
    dtypes: dict[str, str]
    """Tensors that are read, with their dtypes, in order of first use."""
    reduces: bool = False
    """True if the epilogue reduces over the channels."""
    copied: bool = False
    """True if the input was copied, and rounded, by a kernel of our own."""
    scale: str = ""
    """Tensor with the scale of each output channel, if the operands are scaled float16; else ""."""
    groups: int = 1
    """Groups of channels; `channels_in` are those of one group."""
    again: tuple[Volume, str] | None = None
    """Input and weight in float32, if the sum reads float16 copies. A tile with NaN is computed
    again from them."""
    pool: Pool | None = None
    """Pool behind the epilogue."""
    copy: tuple[str, str] = ()  # type: ignore[assignment]
    """A stored value, and its scaled float16 copy in channels-last layout for the next convolution;
    () without a copy."""
    partials: Partials | None = None
    """Partial sums over places; a tile then has places of one sample only."""

    @property
    def is_copy(self) -> bool:
        """True if the kernel only copies an input to channels-last layout."""
        return self.node.op == COPY

    @property
    def taps(self) -> int:
        """Elements of the window."""
        return math.prod(axis.kernel for axis in self.axes)

    @property
    def pair(self) -> int | None:
        """Index of the last axis, if its two phases are computed together; else None."""
        last = self.axes[-1]
        return len(self.axes) - 1 if self.transposed and last.stride == 2 < last.outputs else None

    @property
    def rows(self) -> frozenset[str]:
        """Names of the epilogue's nodes that have one value for all channels of a place."""
        size = self.node.size // self.channels_out
        return frozenset(n.name for n in self.epilogue if n.size == size and self.reduces)

    @property
    def merged(self) -> bool:
        """True if taps and channels are one index of the sum."""
        return self.taps > 1 and self.left.channel != 1

    @property
    def columns(self) -> int:
        """Output channels of a group."""
        return self.channels_out // self.groups

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the kernel computes."""
        pooled = (self.pool.anchor, *self.pool.after) if self.pool else ()
        return (self.node, *self.epilogue, *pooled)

    @property
    def tensors(self) -> dict[str, str]:
        """dtype of each tensor that is read, in order of first use."""
        return self.dtypes


def settings_of(node: Node) -> dict[str, Any]:
    """Return stride, padding, output padding, dilation and groups of a convolution's call."""
    rank = len(node.shape) - 2
    given = ast.parse(node.op.removeprefix("own ").format("x", "w", "b"), mode="eval").body
    assert isinstance(given, ast.Call)
    named = {word.arg: word.value for word in given.keywords if word.arg != "bias"}
    values = {str(name): ast.literal_eval(value) for name, value in named.items()}
    defaults = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}
    for name, default in defaults.items():
        value = values.get(name, default)
        if isinstance(value, int):
            value = [value] * rank
        if isinstance(value, list | tuple):
            value = list(value) * (rank if len(value) == 1 else 1)
        values[name] = value
    return values | {"groups": values.get("groups", 1)}


def volume_of(graph: Graph, name: str, shape: tuple[int, ...]) -> Volume:
    """Return the strides of a tensor, broadcast to `shape`, which is (samples, channels, *places).

    Raises NestError if the places have no common stride.
    """
    node = graph.node(name)
    if node.kind in (Kind.WINDOW, Kind.INSIDE, Kind.GATHER):
        raise NestError(f"{name} is read under a condition")
    base, strides, offset = storage(graph, node)
    padded = (0,) * (len(shape) - len(node.shape)) + tuple(
        stride if extent > 1 else 0 for stride, extent in zip(strides, node.shape, strict=True)
    )
    steps, place = contiguous_strides(shape[2:]), padded[-1]
    pairs = zip(padded[2:], steps, shape[2:], strict=True)
    if any(stride != place * step for stride, step, extent in pairs if extent > 1):
        raise NestError(f"{name} has no single stride from place to place")
    return Volume(base.name, base.dtype, padded[0], padded[1], place, offset)
