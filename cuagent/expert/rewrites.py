"""Rewrite the graph algebraically, before fusion. Each rewrite is exact in real arithmetic.

- `folding`: moves operations behind a layer into its weight and bias.
- `read_before_expansion`: lets operations read a value before it is expanded.
- `bound_exponentials`: marks exp(x - max x), whose argument is never positive, as a cheaper exp.
- `merge_linears`: merges linear layers of one input into one product with stacked weights.
Rounding differs from the reference's only as it does between two orders of the same sum. Values
that depend on parameters alone are computed once, in fp64 (see `module`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from cuagent.expert.edits import PREPARATIONS, Editor, prepared_names
from cuagent.expert.exponentials import bound_exponentials
from cuagent.expert.folding import fold_affine, sum_into_linear
from cuagent.expert.graph.graph import (
    COMPUTED,
    FLOATS,
    Graph,
    Kind,
    Node,
    Operand,
    Shape,
    contiguous_strides,
)

STACK = "torch.cat(({parts},))"


def rewrite(graph: Graph, *, fold: bool = True, merge: bool = False) -> Graph:
    """Return the graph after all enabled rewrites, each applied until it changes nothing."""
    graph = read_before_expansion(share_equal(graph))
    while fold:
        changed = fold_affine(graph) or sum_into_linear(graph)
        if changed is None:
            break
        graph = changed
    graph = bound_exponentials(graph)
    return merge_linears(graph) if merge else graph


EXPANSION = re.compile(r"\{0\}\.expand\(\[[\d, ]*\]\)")
"""Matches the expression of a strided node that only repeats elements."""


def read_before_expansion(graph: Graph) -> Graph:
    """Return the graph in which pointwise nodes read a value itself instead of its expansion.

    `F.normalize` expands a norm to the shape of its input, and a group cannot contain an expansion.
    """

    def source(arg: Operand) -> Operand:
        node = graph.node(arg) if isinstance(arg, str) else None
        if node is None or node.kind is not Kind.STRIDED or not EXPANSION.fullmatch(node.op):
            return arg
        inner = graph.node(node.inputs[0])
        return inner.name if inner.kind in COMPUTED else arg

    def changed(node: Node) -> Node:
        if node.kind is not Kind.POINTWISE:
            return node
        args = tuple(map(source, node.args))
        shapes = [graph.node(a).shape for a in args if isinstance(a, str)]
        return replace(node, args=args) if _broadcast(shapes) == node.shape else node

    return replace(graph, nodes=tuple(map(changed, graph.nodes))).live()


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which all of `shapes` broadcast."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(extents) for extents in zip(*padded, strict=True))


def share_equal(graph: Graph) -> Graph:
    """Return the graph with equal floating operations on equal arguments merged, and equal values
    that are computed once.

    Comparisons, such as those of labels, stay separate, because they cost little.
    """
    editor = Editor(graph)
    first_of: dict[tuple, str] = {}
    for node in graph.nodes:
        computed = node.kind in (Kind.POINTWISE, Kind.REDUCE, Kind.VIEW) and node.dtype in FLOATS
        once = node.kind is Kind.LIBRARY and node.constant
        if not (computed or once):
            continue
        args = tuple(editor.renamed.get(a, a) if isinstance(a, str) else a for a in node.args)
        key = (node.kind, node.op, args, node.shape, node.dims, node.dtype)
        if key in first_of:
            editor.renamed[node.name] = first_of[key]
            editor.replaced[node.name] = []
        else:
            first_of[key] = node.name
    return editor.result()


def merge_linears(graph: Graph) -> Graph:
    """Return the graph with linear layers of the same input merged into one product.

    Their weights are stacked, and the result is sliced.
    """
    prepared = prepared_names(graph)
    alike: dict[tuple, list[Node]] = {}
    for node in graph.nodes:
        if node.op.startswith("F.linear") and all(a in prepared for a in node.args[1:]):
            alike.setdefault((node.args[0], node.op), []).append(node)
    editor = Editor(graph)
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
