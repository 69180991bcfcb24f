"""Rewrite the graph algebraically, before fusion. Each rewrite is exact in real arithmetic.

- `fold_affine`: moves a per-channel multiply or add (such as BatchNorm in eval mode) after a linear
  layer or a convolution into its weight and bias.
- `read_before_expansion`: lets operations read a value before it is expanded.
- `sum_into_linear`: replaces a sum over the output features of a linear layer by one dot product
  per row with the summed weights.
- `bound_exponentials`: marks exp(x - max x), whose argument is never positive, as a cheaper exp.
- `merge_linears`: merges linear layers of one input into one product with stacked weights.
Rounding differs from the reference's only as it does between two orders of the same sum. Values
that depend on parameters alone are computed once, in fp64 (see `module`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cuagent.expert.exponentials import bound_exponentials
from cuagent.expert.graph.graph import (
    FLOATS,
    Graph,
    Kind,
    Node,
    Operand,
    Shape,
    contiguous_strides,
)
from cuagent.expert.rules.contractions import with_bias


@dataclass
class _Editor:
    """Pending edits of a graph.

    `replaced` maps a node to the nodes that take its place, `renamed` a name to the one that
    readers use instead.
    """

    graph: Graph
    replaced: dict[str, list[Node]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)

    def result(self) -> Graph:
        def name(operand: Operand) -> Operand:
            while isinstance(operand, str) and operand in self.renamed:
                operand = self.renamed[operand]
            return operand

        nodes = [
            replace(node, args=tuple(map(name, node.args)))
            for old in self.graph.nodes
            for node in self.replaced.get(old.name, [old])
        ]
        outputs = tuple(str(name(o)) for o in self.graph.outputs)
        return replace(self.graph, nodes=_sorted(nodes), outputs=outputs).live()


def _sorted(nodes: list[Node]) -> tuple[Node, ...]:
    """Sort the nodes so that arguments come first; else keep their order."""
    names = {node.name for node in nodes}
    done: set[str] = set()
    ordered: list[Node] = []
    remaining = nodes
    while remaining:
        later = []
        for node in remaining:
            if all(a in done or a not in names for a in node.inputs):
                ordered.append(node)
                done.add(node.name)
            else:
                later.append(node)
        assert len(later) < len(remaining), "a rewrite made a cycle"
        remaining = later
    return tuple(ordered)


def prepared_names(graph: Graph) -> frozenset[str]:
    """Return the nodes that depend on parameters alone.

    They are computed once, and again when a parameter changes.
    """
    from cuagent.expert.streaming.expressions import PYTHON, PYTHON_REDUCTIONS

    prepared: set[str] = set()
    for node in graph.nodes:
        leaf = node.kind in (Kind.PARAMETER, Kind.CONSTANT)
        computable = (
            (node.kind is Kind.POINTWISE and node.op in PYTHON)
            or (node.kind is Kind.REDUCE and node.op in PYTHON_REDUCTIONS)
            or node.kind is Kind.VIEW
            or node.op in PREPARATIONS
        )
        known = all(a in prepared for a in node.inputs)
        if leaf or (computable and node.inputs and known) or (node.constant and known):
            prepared.add(node.name)
    return frozenset(prepared)


SUM_FEATURES = "{0}.sum(0, keepdim=True)"
SUM_BIAS = "{0}.sum(0, keepdim=True) "
STACK = "torch.cat(({parts},))"
PREPARATIONS = {SUM_FEATURES, SUM_BIAS}
"""Library calls that rewrites apply to parameters."""


GROUPED = re.compile(r"groups=(?!1\b)")
"""Matches the call of a convolution with more than one group."""


def is_contraction(node: Node) -> bool:
    """Return True for a linear layer or a convolution."""
    layers = ("F.linear(", "F.conv1d(", "F.conv2d(", "F.conv3d(")
    if node.op.startswith("F.conv_transpose") and not GROUPED.search(node.op):
        return node.kind is Kind.LIBRARY
    return node.kind is Kind.LIBRARY and node.op.startswith(layers)


def rewrite(graph: Graph, *, fold: bool = True, merge: bool = False) -> Graph:
    """Apply all enabled rewrites until none applies."""
    graph = read_before_expansion(share_equal(graph))
    while fold:
        changed = fold_affine(graph) or sum_into_linear(graph)
        if changed is None:
            break
        graph = changed
    graph = bound_exponentials(graph)
    return merge_linears(graph) if merge else graph


EXPANSION = re.compile(r"\{0\}\.expand\(\[[\d, ]*\]\)")
"""Matches the call of a strided node that only repeats elements."""


def read_before_expansion(graph: Graph) -> Graph:
    """Let pointwise nodes read a computed value itself instead of its expansion to their shape.

    `F.normalize` expands a norm to the shape of its input, and a group cannot hold an expansion.
    """

    def source(arg: Operand) -> Operand:
        node = graph.node(arg) if isinstance(arg, str) else None
        if node is None or node.kind is not Kind.STRIDED or not EXPANSION.fullmatch(node.op):
            return arg
        inner = graph.node(node.inputs[0])
        return inner.name if inner.kind in (Kind.POINTWISE, Kind.REDUCE) else arg

    def changed(node: Node) -> Node:
        if node.kind is not Kind.POINTWISE:
            return node
        args = tuple(map(source, node.args))
        shapes = [graph.node(a).shape for a in args if isinstance(a, str)]
        return replace(node, args=args) if _broadcast(shapes) == node.shape else node

    return replace(graph, nodes=tuple(map(changed, graph.nodes))).live()


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which all of these broadcast."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(extents) for extents in zip(*padded, strict=True))


def share_equal(graph: Graph) -> Graph:
    """Merge equal floating operations on equal arguments.

    Comparisons, such as those of labels, stay separate; they cost nothing.
    """
    editor = _Editor(graph)
    first_of: dict[tuple, str] = {}
    for node in graph.nodes:
        if node.kind not in (Kind.POINTWISE, Kind.REDUCE, Kind.VIEW) or node.dtype not in FLOATS:
            continue
        args = tuple(editor.renamed.get(a, a) if isinstance(a, str) else a for a in node.args)
        key = (node.kind, node.op, args, node.shape, node.dims, node.dtype)
        if key in first_of:
            editor.renamed[node.name] = first_of[key]
            editor.replaced[node.name] = []
        else:
            first_of[key] = node.name
    return editor.result()


def fold_affine(graph: Graph) -> Graph | None:
    """Fold one multiply, divide, add or subtract into the layer before it, or return None."""
    users, prepared = graph.users(), prepared_names(graph)
    for layer in graph.nodes:
        if not is_contraction(layer) or len(users[layer.name]) != 1 or layer.name in graph.outputs:
            continue
        if layer.args[1] not in prepared or any(a not in prepared for a in layer.args[2:]):
            continue
        (user,) = users[layer.name]
        if user.kind is not Kind.POINTWISE or user.op not in ("mul", "div", "add", "sub"):
            continue
        if user.shape != layer.shape or user.args.count(layer.name) != 1:
            continue
        first = user.args[0] == layer.name
        other = user.args[1 if first else 0]
        if not first and user.op in ("div", "sub"):
            continue
        if isinstance(other, str) and (
            other not in prepared or not _per_channel(graph.node(other).shape, layer)
        ):
            continue
        return _folded(graph, layer, user, other)
    return None


def _channels(layer: Node) -> tuple[int, int]:
    """Return axis and number of the output features."""
    axis = len(layer.shape) - 1 if layer.op.startswith("F.linear") else 1
    return axis, layer.shape[axis]


def _per_channel(shape: Shape, layer: Node) -> bool:
    axis, _ = _channels(layer)
    padded = (1,) * (len(layer.shape) - len(shape)) + shape
    return all(n == 1 or k == axis for k, n in enumerate(padded))


def _folded(graph: Graph, layer: Node, user: Node, other: Operand) -> Graph:
    """Replace `user(layer, other)` by one layer with a new weight and bias and the user's name."""
    weight, bias = graph.node(str(layer.args[1])), layer.args[2] if len(layer.args) > 2 else None
    _, count = _channels(layer)
    added: list[Node] = []

    def add(op: str, args: tuple[Operand, ...], shape: Shape, hint: str) -> str:
        kind = Kind.VIEW if op == "view" else Kind.POINTWISE
        if kind is Kind.VIEW:
            base = next((n for n in added if n.name == args[0]), None) or graph.node(str(args[0]))
            while base.kind is Kind.VIEW:
                base = graph.node(base.inputs[0])
            if base.shape == shape:
                return base.name
            args = (base.name,)
        name = f"{user.name}_{hint}"
        added.append(Node(name, kind, op, args, shape, layer.dtype, origin=user.origin))
        return name

    flat, size = other, 0
    if isinstance(other, str):
        size = graph.node(other).size
        flat = add("view", (other,), (size,), "factor" if user.op in ("mul", "div") else "shift")
    new_weight, new_bias = weight.name, bias
    if user.op in ("mul", "div"):
        column = flat
        if isinstance(flat, str):
            shape = (size,) + (1,) * (len(weight.shape) - 1)
            if layer.op.startswith("F.conv_transpose"):
                shape = (1, size, *shape[2:])
            column = add("view", (flat,), shape, "factor_column")
        new_weight = add(user.op, (weight.name, column), weight.shape, "weight")
        if bias is not None:
            new_bias = add(user.op, (bias, flat), (count,), "bias")
    elif bias is not None:
        new_bias = add(user.op, (bias, flat), (count,), "bias")
    else:
        zero_plus = "add" if user.op == "add" else "sub"
        if isinstance(flat, str) and size == count:
            # The shift of a norm is computed in float32, and a layer takes one dtype only.
            new_bias = add("cast" if zero_plus == "add" else "neg", (flat,), (count,), "bias")
        else:
            # Build a bias vector from one number: add it to zeros with the weight's rows.
            first = add("view", (weight.name,), (count, weight.size // count), "rows")
            added.append(
                Node(
                    f"{user.name}_zeros",
                    Kind.LIBRARY,
                    ZEROS,
                    (first,),
                    (count,),
                    layer.dtype,
                    origin=user.origin,
                )
            )
            new_bias = add(zero_plus, (added[-1].name, flat), (count,), "bias")
    call = layer.op if len(layer.args) > 2 or new_bias is None else with_bias(layer.op)
    args = (layer.args[0], new_weight) + ((new_bias,) if new_bias is not None else ())
    folded = replace(layer, name=user.name, op=call, args=args)
    editor = _Editor(graph, {user.name: [*added, folded], layer.name: []})
    return editor.result()


ZEROS = "{0}.new_zeros({0}.shape[0])"
PREPARATIONS.add(ZEROS)


def sum_into_linear(graph: Graph) -> Graph | None:
    """Apply sum_j (x W^T + b)_j = x (sum_j W_j) + sum_j b_j once; None if it does not apply.

    The layer then has one output feature.
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
        return _Editor(graph, {node.name: added, layer.name: []}).result()
    return None


def merge_linears(graph: Graph) -> Graph:
    """Merge linear layers of the same input into one product with stacked weights, and slice it."""
    prepared = prepared_names(graph)
    alike: dict[tuple, list[Node]] = {}
    for node in graph.nodes:
        if node.op.startswith("F.linear") and all(a in prepared for a in node.args[1:]):
            alike.setdefault((node.args[0], node.op), []).append(node)
    editor = _Editor(graph)
    for layers in alike.values():
        if len(layers) < 2 or any(layer.name in graph.outputs for layer in layers):
            continue
        first = layers[0]
        name = "_".join(layer.name for layer in layers)[:48]
        added, args = [], [first.args[0]]
        for position in range(1, len(first.args)):
            parts = tuple(layer.args[position] for layer in layers)
            shape = (sum(layer.shape[-1] for layer in layers), *graph.node(str(parts[0])).shape[1:])
            op = STACK.format(parts=", ".join(f"{{{k}}}" for k in range(len(parts))))
            PREPARATIONS.add(op)
            stacked = Node(
                f"{name}_{'weight' if position == 1 else 'bias'}",
                Kind.LIBRARY,
                op,
                parts,
                shape,
                first.dtype,
            )
            added.append(stacked)
            args.append(stacked.name)
        width = sum(layer.shape[-1] for layer in layers)
        shape = (*first.shape[:-1], width)
        whole = replace(first, name=name, args=tuple(args), shape=shape, origin="")
        start = 0
        for k, layer in enumerate(layers):
            part = Node(
                layer.name,
                Kind.STRIDED,
                f"{{0}}[..., {start}:{start + layer.shape[-1]}]",
                (name,),
                layer.shape,
                layer.dtype,
                origin=layer.origin,
                contiguous=False,
                strides=contiguous_strides(shape),
                offset=start,
            )
            start += layer.shape[-1]
            editor.replaced[layer.name] = [*added, whole, part] if k == 0 else [part]
    return editor.result()
