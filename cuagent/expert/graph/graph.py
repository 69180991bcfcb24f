"""Define the expert's intermediate representation: a list of nodes with static shapes.

A node is one operation on whole tensors. Kernels are generated for `pointwise`, `reduce`, `scan`,
`scatter`, `pool`, `resample` and `depthwise` nodes; every `library` node stays a call of torch. All
floating tensors count as contiguous; a node with another layout in torch is a library call followed
by a copy. A kernel computes in float32: the dtype of a float16 or bfloat16 node says how its value
is stored, not how it is computed.
Invariant: a node's arguments come before it, and names are unique Python identifiers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

FLOATS = frozenset({"float32", "float16", "bfloat16"})
"""dtypes whose values a kernel computes in float32."""
INTEGERS = frozenset({"int64", "int32", "uint8"})
"""dtypes of whole numbers that a kernel can load."""
ITEM_BYTES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "bool": 1, "int64": 8, "int32": 4, "uint8": 1,
}  # fmt: skip
"""dtypes that a kernel can load, with the bytes of one element."""

Shape = tuple[int, ...]
Operand = str | float | int
"""The name of a node, or a literal number."""


@dataclass(frozen=True)
class Gather:
    """Options of a gather. An index out of range gives NaN."""

    extent: int
    """Slices from which the gather selects."""
    wraps: bool
    """True if negative indices count from the end."""


@dataclass(frozen=True)
class Scatter:
    """Options of a scatter. A source row with an index out of range is left out."""

    extent: int
    """Destination rows."""
    source: tuple[int, ...]
    """Shape of the source, whose rows are added."""
    wraps: bool
    """True if negative indices count from the end."""


@dataclass(frozen=True)
class Scan:
    """Direction of a scan."""

    reverse: bool = False


@dataclass(frozen=True)
class Window:
    """The windows of a pool along one dimension.

    An adaptive window `k` covers the indices from `k * extent / count`, rounded down, to
    `(k + 1) * extent / count`, rounded up.
    """

    extent: int
    """Elements of the argument along the dimension."""
    count: int
    """Windows along the dimension."""
    kernel: int = 0
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    adaptive: bool = False
    include_padding: bool = True
    """True if padding counts in the divisor of a mean."""


@dataclass(frozen=True)
class Scale:
    """Positions in the argument of the elements of a resample's result, along one dimension."""

    extent: int
    """Elements of the argument along the dimension."""
    count: int
    """Elements of the result along the dimension."""
    factor: float
    """Distance of adjacent positions, in elements of the argument."""
    centred: bool
    """True if element k is at `(k + 0.5) * factor - 0.5`, False if it is at `k * factor`."""


@dataclass(frozen=True)
class Depthwise:
    """Windows and channels of a depthwise convolution."""

    sides: tuple[Window, ...]
    """One for each spatial dimension."""
    multiplier: int
    """Output channels for each input channel."""


class Kind(StrEnum):
    """Kinds of nodes; each defines the meaning of a node's other fields."""

    INPUT = "input"
    PARAMETER = "parameter"
    """A parameter or buffer; `op` is its state_dict name."""
    CONSTANT = "constant"
    """A tensor that the module creates; `op` is its Python expression."""
    POINTWISE = "pointwise"
    REDUCE = "reduce"
    VIEW = "view"
    """The same elements in the same order under another shape."""
    STRIDED = "strided"
    """A strided slice of a tensor. `op` is its Python expression over {0}; `strides` and `offset`
    locate its elements in the contiguous argument."""
    WINDOW = "window"
    """A tensor of zeros with `args[0]` at the indices `window` along `dims[0]`."""
    INSIDE = "inside"
    """The predicate that the index along `dims[0]` is in `window`; it has no arguments."""
    INDEX = "index"
    """The index along `dims[0]`, as a number; it has no arguments."""
    GATHER = "gather"
    """Slices of `args[0]` along `dims[0]` that `args[1]` selects; `spec` is a `Gather`. `op` is its
    Python expression. Kernels read the slices in place."""
    SCATTER = "scatter"
    """`args[0]` with the rows of `args[2]` added to the rows that `args[1]` selects, or their
    extremes; `spec` is a `Scatter`."""
    SCAN = "scan"
    """A cumulative sum or product of `args[0]` along `dims[0]`; `spec` is a `Scan`."""
    POOL = "pool"
    """Extremes or means of windows of `args[0]` over `dims`; `spec` is a tuple of `Window`."""
    RESAMPLE = "resample"
    """Interpolated values of `args[0]` over `dims`; `spec` is a tuple of `Scale`."""
    DEPTHWISE = "depthwise"
    """A convolution of `args[0]` in which each channel has weights of its own, with the weight
    `args[1]` and, if there is one, the bias `args[2]`; `spec` is a `Depthwise`."""
    RECURRENCE = "recurrence"
    """All steps of the cell `op`; the value is h of each step. `spec` is a
    `recurrences.cells.Recurrence`. The arguments are the projected inputs, the weights of the
    state, their bias if there is one, and the first states. A node with the op `last` has the
    last c of the lstm in `args[0]` instead."""
    LOOP = "loop"
    """All steps of a loop over time; the value is the loop's first result. `spec` is a
    `loops.spec.Loop`, and the arguments are its leaves. With the op `result` the value is result
    number `spec` of the loop node `args[0]`. With PRODUCT it is a matrix product in a loop's body;
    `spec` is True if the matrix is transposed."""
    TAKE = "take"
    """Elements of `args[0]` as in `torch.take_along_dim`: `args[1]` has their indices along
    `dims[0]`. `spec` is a `Gather`; `op` is its Python expression. Dimensions of one element are
    broadcast. Kernels read the elements in place."""
    LIBRARY = "library"
    """A call of torch. `op` is its Python expression with the operands as {0}, {1}, ..."""


@dataclass(frozen=True)
class Node:
    """One operation on whole tensors; shape and dtype are those of its result."""

    name: str
    kind: Kind
    op: str
    """Name of the operation, or a Python expression; see `Kind`."""
    args: tuple[Operand, ...]
    shape: Shape
    dtype: str = "float32"
    dims: tuple[int, ...] = ()
    """Reduced dimensions of a reduce node's argument, ascending; for other kinds see `Kind`."""
    origin: str = ""
    """Name of the captured operation that this node is a part of."""
    contiguous: bool = True
    """False if torch returns the result of this library call with another layout."""
    strides: tuple[int, ...] = ()
    offset: int = 0
    window: tuple[int, int] = (0, 0)
    """First index and end of a window or of a predicate; they may lie outside of the shape."""
    constant: bool = False
    """True for a library call that depends on parameters alone and is made once."""
    spec: Any = None
    """Options of the operation, such as a `Scan` or a `Gather`; see `Kind`."""
    order: tuple[int, ...] = ()
    """Dimensions of an input or of a library call's result as memory has them, outermost first; ()
    if it is contiguous. `graph.layouts` gives such a node the shape that memory has."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(arg for arg in self.args if isinstance(arg, str))


@dataclass(frozen=True)
class Graph:
    """A captured computation. `inputs` maps input nodes to expressions over forward's arguments."""

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    inputs: dict[str, str] = field(default_factory=dict)
    template: str = "{0}"
    """Expression that forward returns, with the outputs as {0}, {1}, ..."""
    orders: tuple[tuple[int, ...], ...] = ()
    """Order of each output's dimensions in the reference's result; () if all are contiguous."""

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
        """Return the nodes that read each node, in order; graph outputs do not count."""
        found: dict[str, list[Node]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found[name].append(node)
        return found

    def owner(self, name: str) -> str:
        """Return the value whose memory a view, a slice or a window reads; `name` if it is none."""
        node = self.node(name)
        while node.kind in (Kind.VIEW, Kind.STRIDED, Kind.WINDOW):
            node = self.node(node.inputs[0])
        return node.name

    def live(self) -> Graph:
        """Return the graph without nodes that no output needs; inputs stay."""
        needed = set(self.outputs)
        for node in reversed(self.nodes):
            if node.name in needed:
                needed.update(node.inputs)
        nodes = tuple(n for n in self.nodes if n.name in needed or n.kind is Kind.INPUT)
        return replace(self, nodes=nodes)


def contiguous_strides(shape: Shape) -> tuple[int, ...]:
    """Return the element strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def reshaped(shape: Shape, place: tuple[int, ...], to: Shape) -> tuple[int, ...] | None:
    """Return the strides of a tensor's view with the shape `to`; None if that needs a copy.

    The tensor has the given shape, and `place` has its strides.
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
