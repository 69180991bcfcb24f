"""Define the expert's intermediate representation: a list of nodes with static shapes.

A node is one operation on whole tensors. Kernels are generated for `pointwise`, `reduce`, `scan`,
`scatter`, `selection`, `pool`, `resample` and `depthwise` nodes; every `library` node stays a call
of torch. All floating-point tensors are treated as contiguous; a node with another layout in torch
is a library call followed by a copy. A kernel computes in float32: the dtype of a float16 or
bfloat16 node is the type in which its value is stored, not the type in which it is computed.
Invariant: a node's arguments precede it in the list, and names are unique Python identifiers.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

FLOATS = frozenset({"float32", "float16", "bfloat16"})
"""dtypes whose values a kernel computes in float32."""
INTEGERS = frozenset({"int64", "int32", "uint8", "int8"})
"""Integer dtypes that a generated kernel can load."""
ITEM_BYTES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "bool": 1, "int64": 8, "int32": 4, "uint8": 1,
    "int8": 1,
}  # fmt: skip
"""Bytes of one element, for each dtype that a kernel can load."""

Shape = tuple[int, ...]
Operand = str | float | int
"""An argument of a node: the name of another node, or a literal number."""


@dataclass(frozen=True)
class Gather:
    """Options of a gather node. An index out of range gives NaN."""

    extent: int
    """Number of slices of the source, among which the gather's indices select."""
    wraps: bool
    """True if a negative index of the gather counts from the end, as in Python."""


@dataclass(frozen=True)
class Scatter:
    """Options of a scatter node. A source row with an index out of range is ignored."""

    extent: int
    """Number of rows of the scatter's destination."""
    source: tuple[int, ...]
    """Shape of the source tensor, whose rows are added to rows of the destination."""
    wraps: bool
    """True if a negative index of the scatter counts from the end, as in Python."""


@dataclass(frozen=True)
class Scan:
    """Options of a scan node: its direction."""

    reverse: bool = False


@dataclass(frozen=True)
class Window:
    """The windows of a pool along one dimension.

    Adaptive window `k` covers the indices from `k * extent / count`, rounded down, to `(k + 1) *
    extent / count`, rounded up.
    """

    extent: int
    """Number of elements of the pool's argument along the dimension."""
    count: int
    """Number of windows along the dimension."""
    kernel: int = 0
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    adaptive: bool = False
    include_padding: bool = True
    """True if padding is included in the divisor of a mean."""


@dataclass(frozen=True)
class Scale:
    """Positions in a resample's argument at which its result is interpolated, along one
    dimension."""

    extent: int
    """Number of elements of the resized tensor along the dimension, before resizing."""
    count: int
    """Number of elements of the resized tensor along the dimension, after resizing."""
    factor: float
    """Distance between the positions of adjacent results, in elements of the argument."""
    centred: bool
    """True if result k is interpolated at position `(k + 0.5) * factor - 0.5`, False if at `k *
    factor`."""


@dataclass(frozen=True)
class Depthwise:
    """Options of a depthwise convolution: its windows and its channel multiplier."""

    sides: tuple[Window, ...]
    """One `Window` for each spatial dimension of the convolution."""
    multiplier: int
    """Number of output channels for each input channel."""
    follows: bool = False
    """True if the result takes the order of an argument in channels-last layout; `dims` then are
    (1, 2)."""


class Kind(StrEnum):
    """Kind of a node. The kind determines the meaning of the node's other fields."""

    INPUT = "input"
    PARAMETER = "parameter"
    """A parameter or buffer of the module; `op` is its name in the state dict."""
    CONSTANT = "constant"
    """A tensor that the module creates; `op` is the Python expression that creates it."""
    POINTWISE = "pointwise"
    REDUCE = "reduce"
    VIEW = "view"
    """A tensor with the argument's elements in the same order under another shape."""
    STRIDED = "strided"
    """A strided view of `args[0]`. `op` is its Python expression over {0}. `strides` and `offset`
    locate its elements in the contiguous argument."""
    WINDOW = "window"
    """A tensor of zeros in which the indices `window` along `dims[0]` contain `args[0]`."""
    INSIDE = "inside"
    """A boolean tensor, True where the index along `dims[0]` is in the range `window`; without
    arguments."""
    INDEX = "index"
    """The index of each element along `dims[0]`, as a number; without arguments."""
    GATHER = "gather"
    """Slices of `args[0]` along `dims[0]` that the indices `args[1]` select; `spec` is a `Gather`.
    `op` is its Python expression. Kernels read the slices without copying them."""
    SCATTER = "scatter"
    """`args[0]` after rows of `args[2]` were added to (or combined by max or min with) the rows
    that the indices `args[1]` select; `spec` is a `Scatter`."""
    SCAN = "scan"
    """A cumulative sum, product or extreme of `args[0]` along `dims[0]`; `spec` is a `Scan`."""
    SELECTION = "selection"
    """The largest or smallest (`op`) elements of `args[0]` along the last dimension, in order. With
    the op `places`, the indices of the elements of the selection `args[0]`."""
    POOL = "pool"
    """Extremes or means of windows of `args[0]` along `dims`; `spec` has one `Window` for each
    dimension."""
    RESAMPLE = "resample"
    """Interpolated values of `args[0]` along `dims`; `spec` has one `Scale` for each dimension."""
    DEPTHWISE = "depthwise"
    """A depthwise convolution of `args[0]` with the weight `args[1]` and, if given, the bias
    `args[2]`, along `dims`; `spec` is a `Depthwise`. In channels-last order the last dimension has
    the channels, and the weight has the shape (taps, channels)."""
    MLP = "mlp"
    """Small linear layers one after another, and elementwise operations behind each; `spec` has a
    `mlps.match.Layer` for each. The arguments are the rows, then weight and, if given, bias of each
    layer. The value has the features in dimension 1; later dimensions have one element."""
    RECURRENCE = "recurrence"
    """All steps of a recurrent cell (`op`: gru, lstm, ...); the value is the state h after each
    step.

    `spec` is a `recurrences.cells.Recurrence`. The arguments are the projected inputs, the weights
    of the state, their bias if there is one, and the initial states. A node with the op `last`
    instead has as its value the last cell state c of the lstm node `args[0]`.
    """
    LOOP = "loop"
    """All steps of a loop over time; the value is the loop's first result.

    `spec` is a `loops.spec.Loop`, and the arguments are the tensors that the loop reads. With the
    op `result`, the value is result number `spec` of the loop node `args[0]`. With the op
    `PRODUCT`, it is a matrix product in a loop's body; `spec` is True if the matrix is transposed.
    """
    TAKE = "take"
    """Single elements of `args[0]` as in `torch.take_along_dim`: `args[1]` has their indices along
    `dims[0]`. `spec` is a `Gather`; `op` is its Python expression. Dimensions of size 1 are
    broadcast. Kernels read the elements without copying them."""
    LIBRARY = "library"
    """A call of torch. `op` is its Python expression, in which {0}, {1}, ... stand for the
    arguments."""


COMPUTED = (Kind.POINTWISE, Kind.REDUCE)
"""Kinds of nodes that `streaming` kernels compute; they read their arguments through views."""


@dataclass(frozen=True)
class Node:
    """One operation on whole tensors. `shape` and `dtype` are those of its result."""

    name: str
    kind: Kind
    op: str
    """Name of the operation, or its Python expression; see `Kind`."""
    args: tuple[Operand, ...]
    shape: Shape
    dtype: str = "float32"
    dims: tuple[int, ...] = ()
    """Reduced dimensions of a reduce node's argument, in ascending order; for other kinds see
    `Kind`."""
    origin: str = ""
    """Name of the captured operator that was lowered to this node."""
    contiguous: bool = True
    """False if torch returns the result of this library call, or the module has this parameter, in
    another memory layout."""
    strides: tuple[int, ...] = ()
    offset: int = 0
    window: tuple[int, int] = (0, 0)
    """(first index, end) of a WINDOW or INSIDE node's range, which may extend beyond the shape."""
    constant: bool = False
    """True for a library call that depends on parameters alone and is therefore computed once."""
    spec: Any = None
    """Options of the operation, such as a `Scan` or a `Gather`; see `Kind`."""
    order: tuple[int, ...] = ()
    """Dimensions of an input or of a library call's result in the order of memory, outermost first;
    () if contiguous. `graph.layouts` changes the shape of such a node to the order of memory."""
    beside: tuple[str, ...] = ()
    """Names of further nodes that a generated kernel reads besides the arguments."""

    @cached_property
    def size(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return tuple(arg for arg in self.args if isinstance(arg, str))


@dataclass(frozen=True)
class Part:
    """Location of a value in the memory of a concatenation, in elements."""

    owner: str
    """Name of the concatenation (`Graph.parts` has it too, with offset 0)."""
    offset: int
    strides: tuple[int, ...]


TAPS = "{0}.flatten(1).t().contiguous()"
"""Text of a call that returns the weight of a depthwise convolution as (taps, channels)."""
JOIN = "torch.cat("
"""Start of the text of a library call that concatenates. With `dims`, kernels may write its
arguments into its memory (`Graph.parts`)."""


@dataclass(frozen=True)
class Graph:
    """A captured computation. `inputs` maps the names of input nodes to expressions over forward's
    arguments."""

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    inputs: dict[str, str] = field(default_factory=dict)
    template: str = "{0}"
    """Python expression that forward returns, in which {0}, {1}, ... stand for the outputs."""
    orders: tuple[tuple[int, ...], ...] = ()
    """Memory order of the dimensions of each output in the reference's result; () if all outputs
    are contiguous."""
    output_strides: tuple[tuple[int, ...], ...] = ()
    """Strides of each output in the reference's result, in elements; () unless some values have
    permuted dimensions."""
    last: frozenset[str] = frozenset()
    """Names of values that the reference has in channels-last layout. For the result of a
    convolution the trace may be wrong, and not contain that layout."""
    parts: dict[str, Part] = field(default_factory=dict)
    """Location of each value that is in the memory of a concatenation; others have their own."""

    def node(self, name: str) -> Node:
        return self._index[name]

    @property
    def _index(self) -> dict[str, Node]:
        cached = self.__dict__.get("_nodes_by_name")
        if cached is None:
            cached = {node.name: node for node in self.nodes}
            object.__setattr__(self, "_nodes_by_name", cached)
        return cached

    def users(self) -> dict[str, list[Node]]:
        """Return the nodes that read each node, by the node's name, in order. The graph's outputs
        are not readers. The result is computed once; callers do not change it."""
        cached: dict[str, list[Node]] | None = self.__dict__.get("_users_by_name")
        if cached is None:
            cached = {node.name: [] for node in self.nodes}
            for node in self.nodes:
                for name in dict.fromkeys(node.inputs):
                    cached[name].append(node)
            object.__setattr__(self, "_users_by_name", cached)
        return cached

    def strides(self, name: str) -> tuple[int, ...]:
        """Return the strides, in elements, of a value that is not a view."""
        part = self.parts.get(name)
        return part.strides if part else contiguous_strides(self.node(name).shape)

    def owner(self, name: str) -> str:
        """Return the value whose memory a view, a slice or a window reads; `name` if it is none."""
        node = self.node(name)
        while node.kind in (Kind.VIEW, Kind.STRIDED, Kind.WINDOW):
            node = self.node(node.inputs[0])
        return node.name

    def live(self) -> Graph:
        """Return the graph without nodes on which no output depends; input nodes are kept."""
        needed = set(self.outputs)
        for node in reversed(self.nodes):
            if node.name in needed:
                needed.update(node.inputs, node.beside)
        nodes = tuple(n for n in self.nodes if n.name in needed or n.kind is Kind.INPUT)
        return replace(self, nodes=nodes)


def unused_name(name: str, taken: Container[str]) -> str:
    """Return `name`, with underscores behind it if it is taken."""
    while name in taken:
        name += "_"
    return name


def contiguous_strides(shape: Shape) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor of this shape, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def reshaped(shape: Shape, place: tuple[int, ...], to: Shape) -> tuple[int, ...] | None:
    """Return the strides, in elements, of a view with shape `to` of a tensor; None if the view
    needs a copy.

    `shape`, `place`: shape and strides of the tensor.
    """
    old = [(n, s) for n, s in zip(shape, place, strict=True) if n > 1]
    blocks: list[list[int]] = []  # size, innermost stride
    for n, s in old:
        if blocks and blocks[-1][1] == n * s:
            blocks[-1] = [blocks[-1][0] * n, s]
        else:
            blocks.append([n, s])
    result = [0] * len(to)
    axis = len(to) - 1
    for size, stride in reversed(blocks):
        left = size
        while left > 1:
            while axis >= 0 and to[axis] == 1:
                axis -= 1
            if axis < 0 or left % to[axis]:
                return None
            result[axis] = stride * (size // left)
            left //= to[axis]
            axis -= 1
    return tuple(result)
