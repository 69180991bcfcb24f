"""Resolve one step of a loop into operations on single elements, each with the axes that it depends
on.

An axis is a dimension of the states, or of values that the body sums. Lanes are the axes over which
the body sums; the others are channels. No channel reads another one, so that all steps of a channel
run in one thread, or in one group of threads that divide the lanes among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cuagent.expert.graph.graph import FLOATS, Graph, Kind, Node, Operand, Shape, contiguous_strides
from cuagent.expert.graph.storage import NestError
from cuagent.expert.loops.spec import Loop

MOST_LANES = 512
"""Largest number of lanes of a channel."""


@dataclass(frozen=True)
class Place:
    """An index along one dimension of a value: `axis * scale + offset`; `offset` if `axis` is
    None.
    """

    axis: int | None = None
    scale: int = 1
    offset: int = 0


Index = tuple[Place, ...]
FIRST = Place()


@dataclass(frozen=True)
class Element:
    """One operation of a step on single elements."""

    kind: str
    """Kind of operation: `load`, `state`, `operation`, `sum` or `product`."""
    node: Node
    index: Index
    """Index of the element in the result of `node`; for a sum, the indices over which it sums."""
    args: tuple[int | float, ...] = ()
    """Operands: an integer is a position in `Elements.elements`, a float is a number."""
    axes: frozenset[int] = frozenset()
    """Axes on which the element's value depends."""
    timed: bool = False
    """True if the value differs from step to step."""
    stage: int = 0
    """Number of sums and products on the longest path to this element within a step."""
    carried: bool = False
    """True if the value depends on a state, and so on earlier steps."""


@dataclass(frozen=True)
class Target:
    """The element that is a new state or a result, and its index in that state or result."""

    element: int
    index: Index


@dataclass
class Elements:
    """All elements of a loop's step, arguments first. Raises NestError for unsupported bodies."""

    loop: Loop
    elements: list[Element] = field(default_factory=list)
    states: list[Target] = field(default_factory=list)
    """New value of each state."""
    results: list[Target] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graph: Graph = self.loop.body
        self._parents: list[int] = []
        self._extents: list[int] = []
        self._summed: set[int] = set()
        self._known: dict[tuple, int] = {}
        self._state_index = {n: self._fresh(self.graph.node(n).shape) for n in self.loop.states}
        raw = self._roots()
        self._join_equal(raw)
        # All joins of axes are known now: the second pass merges equal elements.
        self.elements, self._known = [], {}
        roots = self._roots([index for _, index in raw])
        count = len(self._state_index)
        targets = [Target(e, self._resolved(index)) for e, index in roots]
        self.states, self.results = targets[:count], targets[count:]
        self.lanes = tuple(sorted({self._find(a) for a in self._summed}))
        used = {p.axis for t in targets for p in t.index} | {
            a for e in self.elements for a in e.axes
        }
        self.channels = tuple(sorted(a for a in used if a is not None and a not in self.lanes))
        self._check()
        self._set_stages()

    def extent(self, axis: int) -> int:
        """Return the number of indices of an axis."""
        return self._extents[self._find(axis)]

    @property
    def has_products(self) -> bool:
        return any(element.kind == "product" for element in self.elements)

    def _check_products(self) -> None:
        """Raise NestError unless states are rows and products sum over the last axis of the
        states.
        """
        axes = {t.index[-1].axis for t in self.states if t.index}
        if self.lanes or len(axes) != 1 or any(len(t.index) != 2 for t in self.states):
            raise NestError("products beside sums")
        for element in self.elements:
            if element.kind != "product":
                continue
            operand = self.elements[int(element.args[0])]
            columns = {p.axis for p in element.index[1:]}
            rows = {element.index[0].axis} - {None}
            if not operand.carried or columns != axes or not operand.axes <= axes | rows:
                raise NestError("a product over other dimensions")
            (axis,) = axes
            key = ("axis", element.node.name, 1)
            if axis is None or self._find(self._axis_of[key]) != axis:
                raise NestError("a product over other dimensions")

    @property
    def lane_count(self) -> int:
        return math.prod(self.extent(a) for a in self.lanes)

    @property
    def channel_count(self) -> int:
        return math.prod(self.extent(a) for a in self.channels)

    def _roots(self, given: Sequence[Index] = ()) -> list[tuple[int, Index]]:
        """Add all elements of the step; return (position of the element, index) of each state and
        result.

        `given` are the indices from an earlier pass.
        """
        roots = []
        names = list(self._state_index)
        for k, output in enumerate(self.graph.outputs):
            if k < len(names):
                index = self._state_index[names[k]]
            else:
                index = given[k] if given else self._fresh(self.graph.node(output).shape)
            roots.append((self._at(output, index), index))
        return roots

    def _fresh(self, shape: Shape) -> Index:
        return tuple(Place(self._axis(n)) if n > 1 else FIRST for n in shape)

    def _axis(self, extent: int) -> int:
        self._parents.append(len(self._parents))
        self._extents.append(extent)
        return len(self._parents) - 1

    def _find(self, axis: int) -> int:
        while self._parents[axis] != axis:
            axis = self._parents[axis]
        return axis

    def _join(self, a: int, b: int) -> None:
        a, b = sorted((self._find(a), self._find(b)))
        if self._extents[a] != self._extents[b]:
            raise NestError("axes of different extents")
        self._parents[b] = a

    def _resolved(self, index: Index) -> Index:
        return tuple(p if p.axis is None else replace(p, axis=self._find(p.axis)) for p in index)

    def _join_equal(self, roots: Sequence[tuple[int, Index]]) -> None:
        """Merge the axes of states and results that have the shape of the largest state with its
        axes.

        Only those that share no axis with it yet are merged.
        """
        main = max(self._state_index.values(), key=self._size)
        used = {self._find(p.axis) for p in main if p.axis is not None}
        for _, index in roots:
            own = {self._find(p.axis) for p in index if p.axis is not None}
            if own.isdisjoint(used) and self._shape(index) == self._shape(main):
                for a, b in zip(main, index, strict=True):
                    if a.axis is not None and b.axis is not None:
                        self._join(a.axis, b.axis)

    def _shape(self, index: Index) -> Shape:
        return tuple(1 if p.axis is None else self.extent(p.axis) for p in index)

    def _size(self, index: Index) -> int:
        return math.prod(self._shape(index))

    def _at(self, operand: Operand, index: Index) -> int:
        """Return the position in `elements` of the element of value `operand` at `index`; add it if
        needed.
        """
        index = self._resolved(index)
        key = (operand, index)
        if key not in self._known:
            assert isinstance(operand, str)
            self._known[key] = self._element(self.graph.node(operand), index)
        return self._known[key]

    def _element(self, node: Node, index: Index) -> int:
        match node.kind:
            case Kind.INPUT:
                slot = self.loop.slots[node.name]
                if slot.state:
                    return self._state(node, index)
                axes = frozenset(p.axis for p in index if p.axis is not None)
                return self._add(Element("load", node, index, (), axes, slot.dim is not None))
            case Kind.POINTWISE:
                return self._operation(node, index)
            case Kind.VIEW:
                inner = self.graph.node(node.inputs[0])
                return self._at(inner.name, _reshaped(node.shape, index, inner.shape))
            case Kind.STRIDED:
                inner = self.graph.node(node.inputs[0])
                return self._at(inner.name, _strided(node, index, inner.shape))
            case Kind.REDUCE if node.op == "sum":
                return self._sum(node, index)
            case Kind.LOOP:
                return self._product(node, index)
        raise NestError(f"{node.op} in the body of a loop")

    def _state(self, node: Node, index: Index) -> int:
        own = self._state_index[node.name]
        for a, b in zip(own, index, strict=True):
            if a.axis is None:
                continue
            if b.axis is None or (b.scale, b.offset) != (1, 0):
                raise NestError("an element of another index of the state")
            self._join(a.axis, b.axis)
        resolved = self._resolved(own)
        axes = frozenset(p.axis for p in resolved if p.axis is not None)
        return self._add(Element("state", node, resolved, (), axes, True, 0, True))

    def _operation(self, node: Node, index: Index) -> int:
        args: list[int | float] = []
        for arg in node.args:
            if not isinstance(arg, str):
                args.append(float(arg))
                continue
            shape = self.graph.node(arg).shape
            inner = index[len(index) - len(shape) :]
            args.append(
                self._at(
                    arg, tuple(p if n > 1 else FIRST for p, n in zip(inner, shape, strict=True))
                )
            )
        found = [self.elements[a] for a in args if isinstance(a, int)]
        axes = frozenset[int]().union(*(e.axes for e in found))
        timed = any(e.timed for e in found)
        carried = any(e.carried for e in found)
        return self._add(Element("operation", node, (), tuple(args), axes, timed, 0, carried))

    def _sum(self, node: Node, index: Index) -> int:
        inner = self.graph.node(node.inputs[0])
        keeps = len(node.shape) == len(inner.shape)
        rest = iter(p for k, p in enumerate(index) if not (keeps and k in node.dims))
        own = tuple(
            self._summed_place(node, k, inner.shape[k]) if k in node.dims else next(rest)
            for k in range(len(inner.shape))
        )
        key = ("sum", node.name, index)
        if key in self._known:
            return self._known[key]
        arg = self._at(inner.name, own)
        own = self._resolved(own)
        summed = frozenset(
            self._find(p.axis) for k, p in enumerate(own) if k in node.dims and p.axis is not None
        )
        element = self.elements[arg]
        axes = frozenset(self._find(a) for a in element.axes) - summed
        return self._add(
            Element("sum", node, tuple(p for p in own if p.axis in summed), (arg,), axes,
                    element.timed, 0, element.carried)
        )  # fmt: skip

    def _product(self, node: Node, index: Index) -> int:
        """Add an element of a product with a matrix; the summed dimension becomes a new axis."""
        name, row = node.inputs[0], index[0]
        depth = self.graph.node(name).shape[1]
        key = ("axis", node.name, 1)
        if key not in self._axis_of:
            self._axis_of[key] = self._axis(depth)
        arg = self._at(name, (row, Place(self._axis_of[key]) if depth > 1 else FIRST))
        index = self._resolved(index)
        axes = frozenset(p.axis for p in index if p.axis is not None)
        timed, carried = self.elements[arg].timed, self.elements[arg].carried
        return self._add(Element("product", node, index, (arg,), axes, timed, 0, carried))

    def _summed_place(self, node: Node, dim: int, extent: int) -> Place:
        """Return the index along dimension `dim` that the sum `node` sums over, as a new axis."""
        if extent == 1:
            return FIRST
        key = ("axis", node.name, dim)
        if key not in self._axis_of:
            axis = self._axis(extent)
            self._summed.add(axis)
            self._axis_of[key] = axis
        return Place(self._axis_of[key])

    @property
    def _axis_of(self) -> dict[tuple, int]:
        found: dict[tuple, int] = self.__dict__.setdefault("_axes_of_sums", {})
        return found

    def _add(self, element: Element) -> int:
        key = (element.kind, element.node.name, element.index, element.args)
        if key not in self._known:
            self.elements.append(element)
            self._known[key] = len(self.elements) - 1
        return self._known[key]

    def _check(self) -> None:
        lanes = frozenset(self.lanes)
        for element in self.elements:
            if element.kind != "sum":
                continue
            summed = {p.axis for p in element.index}
            if summed != lanes or not lanes <= self.elements[int(element.args[0])].axes:
                raise NestError("sums over different dimensions")
        for target in (*self.states, *self.results):
            axes = [p.axis for p in target.index if p.axis is not None]
            if len(set(axes)) < len(axes):
                raise NestError("a state with one axis twice")
            if not self.elements[target.element].axes <= set(axes):
                raise NestError("a value with more axes than its state")
        if self.has_products:
            self._check_products()
        if self.lane_count > MOST_LANES:
            raise NestError("a sum over too many elements")
        state = {p.axis for t in self.states for p in t.index}
        if any(not {p.axis for p in t.index} <= state | {None} for t in self.results):
            raise NestError("a result that is larger than the state")
        if any(self.graph.node(n).dtype not in FLOATS for n in self.loop.states):
            raise NestError("a state that is no floating tensor")

    def _set_stages(self) -> None:
        stages: list[int] = []
        for k, element in enumerate(self.elements):
            before = [stages[a] for a in element.args if isinstance(a, int)]
            stage = max(before, default=0) + (element.kind in ("sum", "product"))
            stages.append(stage)
            self.elements[k] = replace(element, stage=stage)


def _reshaped(shape: Shape, index: Index, to: Shape) -> Index:
    """Convert an index into a value of `shape` to the index into its view of the shape `to`.

    Raises NestError if the shapes differ in extents above 1.
    """
    known = [p for p, n in zip(index, shape, strict=True) if n > 1]
    if [n for n in shape if n > 1] != [n for n in to if n > 1]:
        raise NestError("a reshape in the body of a loop")
    rest = iter(known)
    return tuple(next(rest) if n > 1 else FIRST for n in to)


def _strided(node: Node, index: Index, to: Shape) -> Index:
    """Convert an index into a strided slice to the index into its contiguous argument of shape
    `to`.
    """
    places: list[Place] = []
    offset, left = node.offset, list(zip(index, node.shape, node.strides, strict=True))
    for extent, stride in zip(to, contiguous_strides(to), strict=True):
        first, offset = divmod(offset, stride) if stride else (0, offset)
        found = [
            (p, n, s)
            for p, n, s in left
            if n > 1 and s and s % stride == 0 and abs(s) // stride * (n - 1) + first < extent
        ]
        if len(found) > 1 or (found and found[0][2] < 0):
            raise NestError("a slice in the body of a loop")
        place = FIRST if not found else found[0][0]
        if found:
            left.remove(found[0])
            by = found[0][2] // stride
            place = Place(place.axis, place.scale * by, place.offset * by + first)
        else:
            place = Place(None, 1, first)
        places.append(place)
    if any(n > 1 and s for _, n, s in left) or offset:
        raise NestError("a slice in the body of a loop")
    return tuple(places)
