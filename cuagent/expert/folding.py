"""Fold operations after a linear layer or a convolution into its weight and bias.

- `fold_affine`: a per-channel multiply or add, such as BatchNorm in eval mode, also behind a view
  that keeps the channels.
- `sum_into_linear`: a sum over the output features of a linear layer becomes one dot product per
  row with the summed weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from cuagent.expert.edits import PREPARATIONS, Editor, prepared_names
from cuagent.expert.graph.graph import Graph, Kind, Node, Operand, Shape
from cuagent.expert.rules.contractions import with_bias

SUM_FEATURES = "{0}.sum(0, keepdim=True)"
SUM_BIAS = "{0}.sum(0, keepdim=True) "
ZEROS = "{0}.new_zeros({0}.shape[0])"
PREPARATIONS |= {SUM_FEATURES, SUM_BIAS, ZEROS}
GROUPED = re.compile(r"groups=(?!1\b)")
"""Matches the call of a convolution with more than one group."""


def is_contraction(node: Node) -> bool:
    """Return True for a linear layer or a convolution (transposed ones without groups only)."""
    layers = ("F.linear(", "F.conv1d(", "F.conv2d(", "F.conv3d(")
    if node.op.startswith("F.conv_transpose") and not GROUPED.search(node.op):
        return node.kind is Kind.LIBRARY
    return node.kind is Kind.LIBRARY and node.op.startswith(layers)


def fold_affine(graph: Graph) -> Graph | None:
    """Return the graph with a multiply, divide, add or subtract folded into each layer before one.

    None if the graph contains no operation that can be folded. The next operation after a layer can
    be folded into the result.
    """
    users, prepared = graph.users(), prepared_names(graph)
    replaced: dict[str, list[Node]] = {}
    for layer in graph.nodes:
        if not is_contraction(layer) or len(users[layer.name]) != 1 or layer.name in graph.outputs:
            continue
        if layer.args[1] not in prepared or any(a not in prepared for a in layer.args[2:]):
            continue
        view, user = _reader(graph, users, layer)
        seen = layer if view is None else replace(layer, name=view.name, shape=view.shape)
        if user.kind is not Kind.POINTWISE or user.op not in ("mul", "div", "add", "sub"):
            continue
        if user.shape != seen.shape or user.args.count(seen.name) != 1:
            continue
        if not _returns_to(layer.dtype, graph, users, user):
            continue
        first = user.args[0] == seen.name
        other = user.args[1 if first else 0]
        if not first and user.op in ("div", "sub"):
            continue
        if isinstance(other, str) and (
            other not in prepared or not _per_channel(graph.node(other).shape, seen)
        ):
            continue
        nodes = _folded(graph, layer, user, other)
        if view is not None:
            flat = replace(nodes[-1], name=f"{user.name}_unviewed")
            shaped = replace(view, name=user.name, args=(flat.name,), dtype=flat.dtype)
            nodes = [*nodes[:-1], flat, shaped]
            replaced[view.name] = []
        replaced |= {user.name: nodes, layer.name: []}
    return Editor(graph, replaced).result() if replaced else None


def _reader(graph: Graph, users: dict[str, list[Node]], layer: Node) -> tuple[Node | None, Node]:
    """Return the only view of a layer's result that keeps its channels, None without one, and the
    operation that reads this view or the result itself."""
    (user,) = users[layer.name]
    if user.kind is not Kind.VIEW or user.name in graph.outputs or len(users[user.name]) != 1:
        return None, user
    axis, count = _channels(layer)
    last = axis == len(layer.shape) - 1
    kept = user.shape[-1:] == (count,) if last else user.shape[:2] == layer.shape[:2]
    return (user, users[user.name][0]) if kept else (None, user)


def _returns_to(dtype: str, graph: Graph, users: dict[str, list[Node]], node: Node) -> bool:
    """Return True if a value, or a later one that it alone leads to, has the given dtype.

    A half-precision layer times a float32 parameter has a float32 result, which a folded layer
    would not have. A batch norm's operations are in float32 up to its own result.
    """
    while node.dtype != dtype:
        readers = users[node.name]
        if node.name in graph.outputs or len(readers) != 1:
            return False
        (node,) = readers
        if node.kind not in (Kind.POINTWISE, Kind.VIEW):
            return False
    return True


def _channels(layer: Node) -> tuple[int, int]:
    """Return (axis, number) of a layer's output features."""
    axis = len(layer.shape) - 1 if layer.op.startswith("F.linear") else 1
    return axis, layer.shape[axis]


def _per_channel(shape: Shape, layer: Node) -> bool:
    axis, _ = _channels(layer)
    padded = (1,) * (len(layer.shape) - len(shape)) + shape
    return all(n == 1 or k == axis for k, n in enumerate(padded))


def _folded(graph: Graph, layer: Node, user: Node, other: Operand) -> list[Node]:
    """Return the nodes that replace `user(layer, other)`: one layer with another weight and
    bias.
    """
    weight, bias = graph.node(str(layer.args[1])), layer.args[2] if len(layer.args) > 2 else None
    fold, scales = _Fold(graph, layer, user), user.op in ("mul", "div")
    flat = other
    if isinstance(other, str):
        flat = fold.add(
            "view", (other,), (graph.node(other).size,), "factor" if scales else "shift"
        )
    new_weight = fold.scaled_weight(weight, flat) if scales else weight.name
    new_bias = bias
    if bias is not None:
        new_bias = fold.add(user.op, (bias, flat), (_channels(layer)[1],), "bias")
    elif not scales:
        new_bias = fold.first_bias(weight, flat)
    call = layer.op if len(layer.args) > 2 or new_bias is None else with_bias(layer.op)
    args = (layer.args[0], new_weight) + ((new_bias,) if new_bias is not None else ())
    return [*fold.added, replace(layer, name=user.name, op=call, args=args)]


@dataclass
class _Fold:
    """Adds the nodes that compute a layer's new weight and bias from the operation after it."""

    graph: Graph
    layer: Node
    user: Node
    added: list[Node] = field(default_factory=list)

    def add(self, op: str, args: tuple[Operand, ...], shape: Shape, hint: str) -> str:
        """Add a node and return its name; if `op` is a view of a value that has the shape, return
        the value.
        """
        kind = Kind.VIEW if op == "view" else Kind.POINTWISE
        if kind is Kind.VIEW:
            own = (node for node in self.added if node.name == args[0])
            base = next(own, None) or self.graph.node(str(args[0]))
            while base.kind is Kind.VIEW:
                base = self.graph.node(base.inputs[0])
            if base.shape == shape:
                return base.name
            args = (base.name,)
        return self._added(kind, op, args, shape, hint)

    def _added(
        self, kind: Kind, op: str, args: tuple[Operand, ...], shape: Shape, hint: str
    ) -> str:
        name, origin = f"{self.user.name}_{hint}", self.user.origin
        self.added.append(Node(name, kind, op, args, shape, self.layer.dtype, origin=origin))
        return name

    def scaled_weight(self, weight: Node, factor: Operand) -> str:
        """Add the weight scaled by a number, or by one factor per output feature; return its
        name.
        """
        column = factor
        if isinstance(factor, str):
            size = self._size(factor)
            shape = (size,) + (1,) * (len(weight.shape) - 1)
            if self.layer.op.startswith("F.conv_transpose"):
                shape = (1, size, *shape[2:])
            column = self.add("view", (factor,), shape, "factor_column")
        return self.add(self.user.op, (weight.name, column), weight.shape, "weight")

    def first_bias(self, weight: Node, shift: Operand) -> str:
        """Add the bias of a layer that had none; return its name."""
        _, count = _channels(self.layer)
        adds = self.user.op == "add"
        if isinstance(shift, str) and self._size(shift) == count:
            # The shift of a norm is computed in float32, and a layer takes one dtype only.
            return self.add("cast" if adds else "neg", (shift,), (count,), "bias")
        # Build a bias vector from one number: add it to zeros with the weight's rows.
        first = self.add("view", (weight.name,), (count, weight.size // count), "rows")
        zeros = self._added(Kind.LIBRARY, ZEROS, (first,), (count,), "zeros")
        return self.add("add" if adds else "sub", (zeros, shift), (count,), "bias")

    def _size(self, name: str) -> int:
        own = (node for node in self.added if node.name == name)
        return (next(own, None) or self.graph.node(name)).size


def sum_into_linear(graph: Graph) -> Graph | None:
    """Return the graph with one sum over a linear layer's output features moved into its weights.

    sum_j (x W^T + b)_j = x (sum_j W_j) + sum_j b_j; the layer then has one output feature. None if
    the graph contains no such sum.
    """
    users, prepared = graph.users(), prepared_names(graph)
    for node in graph.nodes:
        if node.kind is not Kind.REDUCE or node.op != "sum":
            continue
        layer = graph.node(node.inputs[0])
        last = len(layer.shape) - 1
        if not layer.op.startswith("F.linear") or node.dims != (last,) or layer.shape[last] == 1:
            continue
        if len(users[layer.name]) != 1 or layer.name in graph.outputs:
            continue
        if any(a not in prepared for a in layer.args[1:]):
            continue
        weight = graph.node(str(layer.args[1]))
        total = Node(
            f"{node.name}_weight", Kind.LIBRARY, SUM_FEATURES, (weight.name,), (1, weight.shape[1]),
            layer.dtype,             origin=node.origin,
        )  # fmt: skip
        added, args = [total], [layer.args[0], total.name]
        if len(layer.args) > 2:
            shift = Node(
                f"{node.name}_bias", Kind.LIBRARY, SUM_BIAS, (layer.args[2],), (1,),
                layer.dtype,                 origin=node.origin,
            )  # fmt: skip
            added.append(shift)
            args.append(shift.name)
        shape = (*layer.shape[:-1], 1)
        keeps = node.shape == shape
        dot = replace(
            layer, name=node.name if keeps else f"{node.name}_dot", shape=shape, args=tuple(args)
        )
        added.append(dot)
        if not keeps:
            added.append(
                Node(
                    node.name,
                    Kind.VIEW,
                    "view",
                    (dot.name,),
                    node.shape,
                    layer.dtype,
                    origin=node.origin,
                )
            )
        return Editor(graph, {node.name: added, layer.name: []}).result()
    return None
