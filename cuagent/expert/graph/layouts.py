"""Give every value the shape that its memory has, for inputs in channels-last or permuted layouts.

All nodes of the result are contiguous. A value with another order of dimensions in memory is
a node with permuted dimensions; elementwise operations, reductions, scans and pools follow their
arguments, and other operations read a permuted view. Outputs take the order that the reference
gives them. The pass runs only if an input, a convolution's result or a computed output is permuted.
Slices are read in the order in which they lie in memory. Not covered: inputs with gaps or
overlaps, which stay library calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cuagent.expert.einsums.contraction import Einsum
from cuagent.expert.graph.graph import (
    JOIN,
    TAPS,
    Graph,
    Kind,
    Node,
    Operand,
    contiguous_strides,
    reshaped,
)
from cuagent.expert.graph.orders import (
    CHANNELS_LAST,
    Order,
    by_stride,
    inverse,
    moved_slice,
    order_of,
    permuted,
)
from cuagent.expert.graph.placed import Placed

OWN = "own "
"""Start of the text of a call that a generated kernel computes. It stores the result in the given
order."""
LAST_WEIGHT = "{0}.detach()"
"""Text of a node with a convolution's weight. The prepared value is stored in the node's order."""
READ_IN_PLACE = (Kind.WINDOW, Kind.GATHER, Kind.TAKE)
"""Kinds of nodes without memory of their own (kernels read their argument). A view cannot reshape
them."""
NEW_MEMORY = ("F.linear(", "torch.matmul(", "torch.mm(", "torch.bmm(", "torch.addmm(")
"""Start of the text of calls whose results are always contiguous."""
ELEMENTWISE = re.compile(r"(F\.(gelu|relu|silu|softplus)|torch\.(sigmoid|tanh|exp))\(\{0\}[^{]*\)$")
"""Matches the text of an elementwise call of torch, whose result has the layout of its argument."""
VIEW_CALLS = ("torch.permute(", "torch.transpose(")
"""Starts of the texts of views that stay calls of torch. The trace has their strides only if their
argument has the layout of the trace."""
COPIES = ("clone", "contiguous")
"""Starts of the names of captured operators that only copy."""
FOLLOWING = (Kind.SCAN, Kind.POOL, Kind.RESAMPLE)
"""Kinds of nodes whose result takes the order of their only argument; `dims` are renumbered."""


def with_layouts(graph: Graph, wanted: Mapping[str, Order] | None = None) -> Graph:
    """Return an equal graph in which every node is contiguous and has the shape of its memory.

    `wanted`: orders of elementwise nodes that their readers need (`readers.wanted_orders`).
    """
    if not any(n.order for n in graph.nodes) and not graph.output_strides:
        return graph
    return _Layouts(graph, wanted=wanted or {}).run()


@dataclass
class _Layouts(Placed):
    wanted: Mapping[str, Order] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    """Calls of torch whose arguments are not in the layout that the reference has there."""

    def run(self) -> Graph:
        graph = self.graph
        for node in graph.nodes:
            self.origin = node.origin
            self.known[node.name] = self._placed(node)
        self.origin = ""
        names, words = [], []
        orders = graph.orders or ((),) * len(graph.outputs)
        strides = graph.output_strides or ((),) * len(graph.outputs)
        for k, (name, *wanted) in enumerate(zip(graph.outputs, orders, strides, strict=True)):
            found, order = self._output(name, *wanted)
            names.append(found)
            words.append(f"{{{k}}}" + (f".permute{inverse(order)}" if order else ""))
        inputs = {
            name: f"{text}.permute{order}" if (order := self.known[name][1]) else text
            for name, text in graph.inputs.items()
        }
        template = re.sub(
            r"\{\{|\}\}|\{(\d+)\}", lambda m: words[int(m[1])] if m[1] else m[0], graph.template
        )
        nodes = _with_ordered_weights(self.nodes)
        return Graph(nodes, tuple(names), inputs, template).live()

    def _output(self, name: str, order: Order, strides: Sequence[int]) -> tuple[str, Order]:
        """Return the node of an output and the order of its dimensions there.

        It is a slice if that has the strides of the reference's result. Else it has the given
        order; a copy is added if there is none.
        """
        found, current = self.known[name]
        node, shape = self.by_name[found], self.graph.node(name).shape
        if node.kind is not Kind.STRIDED:
            same = current == order
        else:
            place = permuted(node.strides, inverse(current))
            sides = zip(shape, place, strides, strict=False)
            same = bool(strides) and all(n == 1 or a == b for n, a, b in sides)
            dense = zip(shape, contiguous_strides(shape), strides, strict=False)
            whole = bool(strides) and all(n == 1 or a == b for n, a, b in dense)
            same = same or (current == order == () and not whole)
        if same:
            return found, current
        return self._copied(name, self.graph.node(name).origin, order), order

    # Kinds of nodes.

    def _placed(self, node: Node) -> tuple[str, Order]:
        match node.kind:
            case Kind.LIBRARY if node.op.startswith(JOIN) and node.dims:
                return self._join(node)
            case Kind.INPUT | Kind.LIBRARY:
                return self._given(node)
            case Kind.POINTWISE:
                return self._pointwise(node)
            case Kind.REDUCE:
                return self._reduce(node)
            case Kind.VIEW:
                return self._view(node)
            case Kind.STRIDED:
                return self._slice(node)
            case Kind.WINDOW:
                found, order = self.known[node.inputs[0]]
                return self._follow(node, found, order)
            case kind if kind in FOLLOWING:
                found, order = self.known[node.inputs[0]]
                return self._follow(node, found, order)
            case Kind.DEPTHWISE if node.spec.follows:
                return self._depthwise(node)
        return self._add(self._in_order(node)), ()

    def _follow(self, node: Node, found: str, order: Order) -> tuple[str, Order]:
        """Add `node` in the order of its argument `found`; return its name and order."""
        dims = tuple(order.index(d) for d in node.dims) if order else node.dims
        spec = node.spec
        if isinstance(spec, tuple) and order:
            sides = dict(zip(dims, spec, strict=True))
            dims = tuple(sorted(dims))
            spec = tuple(sides[d] for d in dims)
        shape = permuted(node.shape, order)
        return self._add(replace(node, args=(found,), shape=shape, dims=dims, spec=spec)), order

    def _depthwise(self, node: Node) -> tuple[str, Order]:
        """Add a depthwise convolution in the order of its argument, if that is channels-last."""
        found, order = self.known[node.inputs[0]]
        if order != CHANNELS_LAST:
            return self._add(self._in_order(node)), ()
        weight = self.by_name[self._to(str(node.args[1]), ())]
        taps = (weight.size // weight.shape[0], weight.shape[0])
        name = self._add(
            Node(
                self._new(f"{node.name}_taps"), Kind.LIBRARY, TAPS, (weight.name,), taps,
                weight.dtype, origin=node.origin,
            )
        )  # fmt: skip
        biases = (self._to(str(a), ()) for a in node.args[2:])
        shape = permuted(node.shape, order)
        args = (found, name, *biases)
        return self._add(replace(node, args=args, shape=shape, dims=(1, 2))), order

    def _in_order(self, node: Node) -> Node:
        """Return `node` with arguments whose dimensions are in the order of the old graph."""
        args = tuple(self._to(a, ()) if isinstance(a, str) else a for a in node.args)
        return replace(node, args=args)

    def _join(self, node: Node) -> tuple[str, Order]:
        """Add a concatenation in the order that its readers need, or that of its largest
        argument."""
        largest = max(node.inputs, key=lambda name: self.graph.node(name).size)
        order, (dim,) = self.wanted.get(node.name, self.known[largest][1]), node.dims
        args = tuple(self._to(name, order) for name in node.inputs)
        to = order.index(dim) if order else dim
        op = node.op.replace(f"), {dim})", f"), {to})")
        shape = permuted(node.shape, order)
        return self._add(replace(node, op=op, args=args, shape=shape, dims=(to,))), order

    def _given(self, node: Node) -> tuple[str, Order]:
        if self._is_elementwise(node):
            return self._call_in_place(node)
        follows = self._follows(node)
        node, order = self._in_order(self._with_places(node)), node.order
        if node.op == LAST_WEIGHT:
            # Only a call of the library reads it, in the order of the node's shape.
            return self._add(node), ()
        if not order:
            # cuDNN may choose channels-last where the trace says contiguous: kernels read a copy.
            chosen = node.kind is Kind.LIBRARY and node.op.startswith("F.conv")
            if follows and not chosen:
                node = self._restored(node)
            return self._add(replace(node, contiguous=node.contiguous and not chosen)), ()
        shape = permuted(node.shape, order)
        if node.kind is Kind.INPUT:
            return self._add(replace(node, shape=shape)), order
        if node.op.startswith(OWN):
            return self._add(replace(node, shape=shape, order=())), order
        # Memory may have another layout than the traced one; the copy is made only then.
        call = f"torch.permute({node.op}, {order}).contiguous()"
        spec = node.spec.stored_in(order) if isinstance(node.spec, Einsum) else node.spec
        stored = replace(node, op=call, shape=shape, contiguous=True, order=(), spec=spec)
        return self._add(stored), order

    def _is_elementwise(self, node: Node) -> bool:
        """Return True for an elementwise call of torch on a whole value, whose layout it keeps."""
        if node.kind is not Kind.LIBRARY or not node.dtype or not ELEMENTWISE.match(node.op):
            return False
        found, _ = self.known[node.inputs[0]]
        returned = node.name in self.graph.outputs
        return self.by_name[found].kind is not Kind.STRIDED and not returned

    def _call_in_place(self, node: Node) -> tuple[str, Order]:
        """Add an elementwise call of torch in the order of its argument."""
        found, order = self.known[node.inputs[0]]
        shape, whole = permuted(node.shape, order), self.by_name[found].contiguous
        return self._add(
            replace(node, args=(found,), shape=shape, order=(), contiguous=whole)
        ), order

    def _with_places(self, node: Node) -> Node:
        """Return a convolution of a generated kernel with copies of inputs whose spatial positions
        have no common stride, because width and height are exchanged, for instance."""
        if node.kind is not Kind.LIBRARY or not node.op.startswith(OWN):
            return node
        args = tuple(
            a if self._has_places(a) else self._copied(str(a), node.origin) for a in node.args
        )
        self.known |= {str(a): (str(a), ()) for a in args if a not in node.args}
        return replace(node, args=args)

    def _has_places(self, operand: Operand) -> bool:
        """Return True if the dimensions behind the first two are adjacent and in order."""
        if not isinstance(operand, str):
            return True
        found, order = self.known[operand]
        dims = [d for d, n in zip(order, self.by_name[found].shape, strict=False) if n > 1]
        places = [k for k, d in enumerate(dims) if d >= 2]
        adjacent = places == list(range(places[0], places[0] + len(places))) if places else True
        return adjacent and [dims[k] for k in places] == sorted(dims[k] for k in places)

    def _restored(self, node: Node) -> Node:
        """Return a call of torch with a contiguous result; several results remain as they are."""
        if not node.dtype:
            self.moved.add(node.name)
            return node
        # The call copies only where the result is not contiguous.
        return replace(node, op=f"{node.op}.contiguous()")

    def _follows(self, node: Node) -> bool:
        """Return True if torch may compute a result in the order of an argument, though the trace
        says that it is contiguous."""
        own = node.kind is not Kind.LIBRARY or node.op.startswith((OWN, *NEW_MEMORY))
        moved = any(a in self.moved or self.known[a][1] for a in node.inputs)
        moved |= node.kind is Kind.LIBRARY and node.op.startswith(VIEW_CALLS)
        return moved and not own and (node.contiguous or not node.dtype)

    def _pointwise(self, node: Node) -> tuple[str, Order]:
        rank = len(node.shape)
        sizes = {
            self.known[a][1]: self.by_name[self.known[a][0]].size
            for a in node.inputs
            if self.known[a][1] and len(self.graph.node(a).shape) == rank
        }
        order = max(sizes, key=lambda o: sizes[o]) if sizes else ()
        if order and self._is_smaller(node, sizes[order]):
            order = ()
        order = self.wanted.get(node.name, order)
        if self._is_same(node, order):
            return self.known[str(node.args[0])]
        args = tuple(self._broadcast(a, order, rank) for a in node.args)
        return self._add(replace(node, args=args, shape=permuted(node.shape, order))), order

    def _is_same(self, node: Node, order: Order) -> bool:
        """Return True for a copy of a call's result that would equal it also in memory."""
        if node.op != "cast" or not node.inputs or not node.origin.startswith(COPIES):
            return False
        found, current = self.known[node.inputs[0]]
        source, given = self.by_name[found], self.graph.node(node.inputs[0])
        same = (source.dtype, given.shape, current) == (node.dtype, node.shape, order)
        returned = {self.graph.owner(name) for name in self.graph.outputs}
        return same and source.kind is Kind.LIBRARY and node.name not in returned

    def _is_smaller(self, node: Node, size: int) -> bool:
        """Return True if a contiguous argument has more elements than `size`.

        `size` is that of the largest permuted argument.
        """
        contiguous = [
            self.graph.node(a).size
            for a in node.inputs
            if not self.known[a][1] and self.graph.node(a).kind not in (Kind.INSIDE, Kind.INDEX)
        ]
        return max(contiguous, default=0) > size

    def _broadcast(self, operand: Operand, order: Order, rank: int) -> Operand:
        if not isinstance(operand, str):
            return operand
        shape = self.graph.node(operand).shape
        if not order or len(shape) == 0:
            return self._to(operand, ())
        if len(shape) < rank:
            wide = (1,) * (rank - len(shape)) + shape
            source = self.by_name[self._to(operand, ())]
            padded = self._new(f"{operand}_wide")
            if source.kind in (Kind.INSIDE, Kind.INDEX, *READ_IN_PLACE):
                dims = tuple(d + rank - len(shape) for d in source.dims)
                if source.kind in READ_IN_PLACE:
                    padded = self._add(
                        self._view_of(padded, self.by_name[self._settled(operand)], wide)
                    )
                else:
                    self._add(replace(source, name=padded, shape=wide, dims=dims))
            else:
                self._add(self._view_of(padded, source, wide))
            return self._viewed(padded, (), order)
        return self._to(operand, order)

    def _settled(self, name: str) -> str:
        return self._copied(name, self.origin)

    def _reduce(self, node: Node) -> tuple[str, Order]:
        (name,) = node.inputs
        order = self._order_of_readers(name)
        found = self._to(name, order)
        if not order:
            return self._add(replace(node, args=(found,))), ()
        dims = tuple(sorted(order.index(d) for d in node.dims))
        keepdim = len(node.shape) == len(order)
        kept = [d for d in order if d not in node.dims]
        after = order if keepdim else tuple(sorted(kept).index(d) for d in kept)
        shape = permuted(node.shape, after)
        sizes = [d for d in after if node.shape[d] > 1]
        result = self._add(replace(node, args=(found,), shape=shape, dims=dims))
        if sizes == sorted(sizes):
            # Only dimensions of one element moved: the result is contiguous.
            view = self._view_of(self._new(f"{node.name}_kept"), self.by_name[result], node.shape)
            return (result if shape == node.shape else self._add(view)), ()
        return result, after

    def _order_of_readers(self, name: str) -> Order:
        """Return the order in which elementwise nodes read a value, if one of them is stored in an
        order that its readers need; else the value's own order."""
        readers, shape = self.graph.users()[name], self.graph.node(name).shape
        orders = [
            self.wanted[u.name] for u in readers if u.name in self.wanted and u.shape == shape
        ]
        return orders[0] if orders else self.known[name][1]

    def _view(self, node: Node) -> tuple[str, Order]:
        found, order = self.known[node.inputs[0]]
        base = self.by_name[found]
        given = self.graph.node(node.inputs[0]).shape
        if not order:
            if base.kind is Kind.STRIDED:
                return self._reshaped(node, base, base.strides)
            return self._add(replace(node, args=(found,))), ()
        strides = permuted(contiguous_strides(base.shape), inverse(order))
        place = reshaped(given, strides, node.shape)
        after = order_of(node.shape, place) if place is not None else None
        if after is None:
            copy = self._copied(node.inputs[0], node.origin)
            return self._add(replace(node, args=(copy,))), ()
        return self._add(replace(node, args=(found,), shape=permuted(node.shape, after))), after

    def _reshaped(self, node: Node, base: Node, strides: Sequence[int]) -> tuple[str, Order]:
        place = reshaped(base.shape, tuple(strides), node.shape)
        if place is None:
            copy = self._copied(node.inputs[0], node.origin)
            return self._add(replace(node, args=(copy,))), ()
        text = f"{base.op}.view({list(node.shape)})"
        return self._add(
            replace(base, name=node.name, op=text, shape=node.shape, strides=place)
        ), ()

    def _slice(self, node: Node) -> tuple[str, Order]:
        found, order = self.known[node.inputs[0]]
        given, base = self.graph.node(node.inputs[0]).shape, self.by_name[found]
        moved = moved_slice(node, given, permuted(contiguous_strides(base.shape), inverse(order)))
        if base.kind is Kind.STRIDED or moved is None:
            source = self.by_name[self._copied(node.inputs[0], node.origin)]
            return self._add(replace(node, args=(source.name,))), ()
        strides, offset = moved
        after = order_of(node.shape, strides)
        whole = after is not None and offset == 0 and node.size == base.size
        if whole and after is not None:
            shape = permuted(node.shape, after)
            if shape == base.shape:
                return found, after
            return self._add(self._view_of(node.name, base, shape)), after
        back = f".permute({list(inverse(order))})" if order else ""
        op = node.op.replace("{0}", "{0}" + back).replace(".view(", ".reshape(")
        # Kernels that read the slice go through memory in its order, as torch's kernels do.
        inside = by_stride(node.shape, strides)
        repeats = any(n > 1 and s == 0 for n, s in zip(node.shape, strides, strict=True))
        if inside == tuple(range(len(inside))) or repeats:
            return self._add(
                replace(node, args=(found,), op=op, strides=strides, offset=offset)
            ), ()
        slice_ = replace(
            node,
            args=(found,),
            op=f"{op}.permute({list(inside)})",
            shape=permuted(node.shape, inside),
            strides=permuted(strides, inside),
            offset=offset,
        )
        return self._add(slice_), inside


def _with_ordered_weights(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Store computed weights of channels-last convolutions in channels-last order.

    Otherwise the library would copy them in each call. A weight that another node reads stays
    contiguous.
    """
    orders: dict[str, Order] = {}
    for node in nodes:
        convolution = node.kind is Kind.LIBRARY and node.op.startswith("torch.permute(F.conv")
        for name in node.inputs:
            weight = convolution and name == node.args[1]
            last = (0, *range(2, len(node.shape)), 1)
            orders[name] = last if weight and orders.get(name, last) == last else ()
    return tuple(
        replace(n, order=orders[n.name])
        if n.kind is Kind.POINTWISE and orders.get(n.name) and len(n.shape) == len(orders[n.name])
        else n
        for n in nodes
    )
