"""Describe a convolution that a generated kernel computes, and the strides of the tensors that it
reads.

A place is one spatial position; `places` are all spatial positions of a tensor, flattened.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any

from cuagent.expert.convolutions.phases import Axis
from cuagent.expert.graph.graph import Graph, Kind, Node, contiguous_strides
from cuagent.expert.graph.storage import NestError, storage

TRANSPOSED = "own F.conv of channels last"
"""Text in `Node.op` of a node that transposes the library's channels-last result and adds the
bias."""
COPY = "own F.conv copy to channels last"
"""Text in `Node.op` of a node that copies an input to (samples, *places, channels), rounded to TF32
if that precision is admitted."""

LAST = ", last=True)"
"""End of the text of a convolution whose kernel stores its result in channels-last order. The
node's shape is then (samples, *places, channels)."""

FEW, VECTOR = 32, 8
"""Number of channels below which one step of the sum has several taps, and number of float16
channels that a kernel loads together."""


@dataclass(frozen=True)
class Volume:
    """Strides of a tensor, in elements, along samples, channels and places (flattened spatial
    positions).

    The element (s, c, p) is at index `offset + sample * s + channel * c + place * p`.
    """

    tensor: str
    dtype: str
    sample: int
    channel: int
    place: int
    offset: int


@dataclass(frozen=True)
class Pool:
    """A pool with adjacent, non-overlapping windows that is computed in the kernel of a
    convolution."""

    anchor: Node
    sizes: tuple[int, ...]
    """Size of the pooling window along each spatial dimension."""
    counts: tuple[int, ...]
    """Number of pooling windows along each spatial dimension."""
    after: tuple[Node, ...]
    """Elementwise nodes computed after the pool."""

    @property
    def elements(self) -> int:
        """Number of elements of a window."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class Partials:
    """Names of tensors with partial sums over the spatial positions of each tile.

    A convolution's kernel stores them in addition to its result. A name is "" if that tensor is not
    stored.
    """

    value: str
    """Name of the node, within the convolution's epilogue, whose values are summed."""
    sums: str
    means: str
    deviations: str
    """Name of the tensor with sums of squared differences from the tile's mean."""
    counts: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors that are stored."""
        return tuple(n for n in (self.sums, self.means, self.deviations, self.counts) if n)


@dataclass(frozen=True)
class Convolution:
    """A convolution with channels-last operands that one kernel computes, with the group of
    fused nodes that follows as its epilogue."""

    node: Node
    transposed: bool
    samples: int
    channels_in: int
    channels_out: int
    axes: tuple[Axis, ...]
    left: Volume
    """Input, in which channels or spatial positions are adjacent in memory."""
    right: str
    """Name of the weight as (output channels, *taps, input channels); "" if the kernel has no
    product because `left` is the result of the library's convolution, without its bias."""
    bias: Volume | None
    epilogue: tuple[Node, ...]
    reads: dict[tuple[str, str], Volume]
    """Strides with which the epilogue reads tensors; the keys are (reading node's name, tensor's
    name).
    """
    outputs: tuple[str, ...]
    places: dict[str, tuple[int, ...]]
    """Names of the nodes that the kernel computes, as keys. The values (strides in `Group.places`)
    are not used."""
    dtypes: dict[str, str]
    """dtype of each tensor that the kernel reads, in order of first use; the keys are the tensors'
    names.
    """
    reduces: bool = False
    """True if the epilogue contains a reduction over the channels."""
    copied: bool = False
    """True if a generated kernel copied, and perhaps rounded, the input."""
    scale: str = ""
    """Name of the tensor with a scale for each output channel, if the operands are scaled float16;
    else ""."""
    groups: int = 1
    """Number of channel groups; `channels_in` is the number of input channels of one group."""
    again: tuple[Volume, str] | None = None
    """(input, weight) in float32, if the kernel reads float16 copies of both; else None.

    A tile that contains NaN is computed again from them.
    """
    flagged: bool = False
    """True if a second launch computes these tiles again, and not the same program."""
    last: bool = False
    """True if the kernel stores its results in channels-last order."""
    pool: Pool | None = None
    """Pool that the kernel computes after the epilogue; None without one."""
    copy: tuple[str, str] = ()  # type: ignore[assignment]
    """(name of a stored value, name of its scaled float16 copy in channels-last layout for the next
    convolution); () without a copy."""
    partials: Partials | None = None
    """Partial sums over spatial positions that the kernel also stores; None without any.

    Each tile then has positions of one sample only.
    """

    @property
    def is_copy(self) -> bool:
        """True if the kernel computes no convolution but only copies an input to channels-last
        layout."""
        return self.node.op == COPY

    @property
    def taps(self) -> int:
        """Number of kernel elements (taps) per pair of input and output channel."""
        return math.prod(axis.kernel for axis in self.axes)

    @property
    def pair(self) -> int | None:
        """Index of the last spatial dimension, if its two phases are computed together; else
        None.
        """
        return len(self.axes) - 1 if is_pair(self.axes[-1], self.transposed) else None

    @property
    def rows(self) -> frozenset[str]:
        """Names of the epilogue's nodes with one value per spatial position instead of one per
        channel.
        """
        size = self.node.size // self.channels_out
        return frozenset(n.name for n in self.epilogue if n.size == size and self.reduces)

    @property
    def merged(self) -> bool:
        """True if the kernel sums over one index that combines taps and input channels.

        Its steps are then full. Few adjacent channels are loaded together.
        """
        few = self.channels_in < FEW and self.channels_in % VECTOR == 0
        return self.taps > 1 and (self.left.channel != 1 or (few and self.left.dtype != "float32"))

    @property
    def most_depth(self) -> int:
        """Largest number of input channels that a step of the sum has, unless it is merged.

        A deeper step would multiply zeros: at 32 channels half of its products. Loads have no mask
        if the channels are a multiple of it.
        """
        return min(64, max(16, 1 << (self.channels_in - 1).bit_length()))

    @property
    def columns(self) -> int:
        """Number of output channels of one group."""
        return self.channels_out // self.groups

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the kernel computes."""
        pooled = (self.pool.anchor, *self.pool.after) if self.pool else ()
        return (self.node, *self.epilogue, *pooled)

    @property
    def tensors(self) -> dict[str, str]:
        """dtype of each tensor that the kernel reads, in order of first use; the keys are the
        tensors' names.
        """
        return self.dtypes


def is_pair(last: Axis, transposed: bool) -> bool:
    """Return True if one program computes two phases along the last dimension of a convolution."""
    return transposed and last.stride == 2 < last.outputs and not last.together


def settings_of(node: Node) -> dict[str, Any]:
    """Return stride, padding, output padding, dilation and groups of a convolution node, by
    name."""
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


def is_last(node: Node) -> bool:
    """Return True if the kernel of a convolution stores its result in channels-last order."""
    return node.op.endswith(LAST)


def image_shape(node: Node) -> tuple[int, ...]:
    """Return the shape of a convolution's result as (samples, channels, *places)."""
    if not is_last(node):
        return node.shape
    return (node.shape[0], node.shape[-1], *node.shape[1:-1])


def volume_of(graph: Graph, name: str, shape: tuple[int, ...]) -> Volume:
    """Return the strides of tensor `name`, broadcast to `shape` (samples, channels, *spatial
    dimensions).

    Raises NestError if the flattened spatial positions have no common stride.
    """
    node = graph.node(name)
    if node.kind in (Kind.WINDOW, Kind.INSIDE, Kind.GATHER):
        raise NestError(f"{name} is read under a condition")
    base, strides, offset = storage(graph, node)
    padded = (0,) * (len(shape) - len(node.shape)) + tuple(
        stride if extent > 1 else 0 for stride, extent in zip(strides, node.shape, strict=True)
    )
    steps = contiguous_strides(shape[2:])
    moving = [s for s, extent in zip(padded[2:], shape[2:], strict=True) if extent > 1]
    place = moving[-1] if moving else 0
    pairs = zip(padded[2:], steps, shape[2:], strict=True)
    if any(stride != place * step for stride, step, extent in pairs if extent > 1):
        raise NestError(f"{name} has no single stride from place to place")
    return Volume(base.name, base.dtype, padded[0], padded[1], place, offset)
