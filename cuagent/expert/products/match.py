"""Find the products of a graph that a kernel computes, each with the fused group that becomes its
epilogue.

A product needs operands with rows of K adjacent elements, as the weight of a linear layer has.
Operands of a batch are not copied into this form: with copies, products on an H200 were only as
fast as cuBLAS. An elementwise group becomes the epilogue of a product's kernel if it is the only
reader of the product, and each tensor that it reads has one row stride and one column stride over
the product. `qualify.py` decides which products a kernel may compute faster than the library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.graph import FLOATS, Graph, Kind, Node
from cuagent.expert.graph.storage import NestError
from cuagent.expert.products.expressions import EXPRESSIONS
from cuagent.expert.products.product import TRIANGLE, Matrix, Product, batch_of, matrix_of, parts_of
from cuagent.expert.products.qualify import may_gain, qualifies, reads_weights, splits
from cuagent.expert.streaming.group import Group, Step

Other = TypeVar("Other")
"""Type of steps that other modules have made."""
MOST_BATCH = 65535
"""Largest batch of a product: CUDA's limit of a grid's second dimension."""


def with_products(
    steps: Sequence[Step | Other],
    graph: Graph,
    target: Target,
    keep: frozenset[str],
    split: bool = True,
    small: bool = False,
) -> tuple[Step | Other | Product, ...]:
    """Return the steps with each qualifying product, and the fused group that becomes its epilogue,
    replaced by one `Product`. Steps of other types stay as they are.

    Products whose origin is in `keep` stay library calls. `split`: operands of float32 products may
    be split before the product. `small`: as in `may_gain`.
    """
    made = partial(_product, graph=graph, target=target if split else None)
    found: dict[str, Product] = {}
    absorbed: set[int] = set()
    seconds: set[str] = set()
    for step in steps:
        if not isinstance(step, Node) or step.origin in keep or not qualifies(step, target):
            continue
        if step.name in seconds:
            continue
        views, group = _reader_through_views(step, steps, graph)
        if id(group) in absorbed:  # both products of a gate are read by one group
            group = None
        product = made(step, group, views) if group is not None else None
        if product is None:
            product, group = made(step, None), None
            product = _with_triangle(product, graph) if product is not None else None
        if product is not None and may_gain(product, graph, target, small=small):
            if small and group is not None and reads_weights(step, graph):
                product = _with_second(product, group, steps, graph, keep)
                seconds |= {product.second.node.name} if product.second else set()
            found[step.name] = product
            absorbed |= {id(group)} if group is not None else set()
    return _placed([s for s in steps if _name(s) not in seconds], found, absorbed)


def product_of(
    node: Node, steps: Sequence[Step], graph: Graph, *, alone: bool = False
) -> tuple[Product | None, Group | None]:
    """Return a product without split operands, and the group that is its epilogue; None without
    one, or if `alone`. The operands may have any strides. The product is None if no kernel can be
    generated."""
    views, group = ((), None) if alone else _reader_through_views(node, steps, graph)
    made = partial(_product, graph=graph, target=None, strided=True)
    product = made(node, group, views)
    if product is None and group is not None:
        return made(node, None), None
    return product, group


def _name(step: object) -> str:
    return step.name if isinstance(step, Node) else ""


def _with_second(
    product: Product, group: Group, steps: Sequence[object], graph: Graph, keep: frozenset[str]
) -> Product:
    """Return the product with another product of the same left operand as `second`, if its epilogue
    reads such a product and nothing else does."""
    for (_, name), read in product.reads.items():
        node = graph.node(name)
        alike = (
            node.kind is Kind.LIBRARY and node.op.startswith("F.linear(") and name == read.tensor
        )
        if not alike or node.origin in keep or node.args[0] != product.node.args[0]:
            continue
        if node.shape != product.node.shape or only_reader(node, steps, graph) is not group:
            continue
        other = _product(node, None, graph=graph, target=None)
        if other is None or other.left != product.left or other.right.column != 1:
            continue
        reads = {key: matrix for key, matrix in product.reads.items() if key[1] != name}
        places: dict[str, tuple[int, ...]] = product.places | {name: ()}
        if any(matrix.tensor == name for matrix in reads.values()):
            continue
        return replace(product, second=other, reads=reads, places=places)
    return product


def _with_triangle(product: Product, graph: Graph) -> Product:
    """Return the product with its reader added as `triangle`, if its only reader is a call of triu
    or tril."""
    node = product.node
    readers = graph.users()[node.name]
    if node.name in graph.outputs or len(readers) != 1 or len(node.shape) > 2:
        return product
    (reader,) = readers
    if reader.kind is not Kind.LIBRARY or not TRIANGLE.fullmatch(reader.op):
        return product
    places: dict[str, tuple[int, ...]] = {node.name: (), reader.name: ()}
    return replace(product, triangle=reader, outputs=(reader.name,), places=places)


def _placed(
    steps: Sequence[Step | Other], found: dict[str, Product], absorbed: set[int]
) -> tuple[Step | Other | Product, ...]:
    """Return the steps with each product at the position of its epilogue, where all operands have
    been computed."""
    by_output = {name: product for product in found.values() for name in product.outputs}
    result: list[Step | Other | Product] = []
    for step in steps:
        if isinstance(step, Group):
            result.append(by_output[step.outputs[0]] if id(step) in absorbed else step)
        elif not isinstance(step, Node):
            result.append(step)
        elif step.name not in found:
            result.append(by_output.get(step.name, step))
        elif not found[step.name].epilogue and not found[step.name].triangle:
            result.append(found[step.name])
    return tuple(result)


def only_reader(node: Node, steps: Sequence[Any], graph: Graph) -> Group | None:
    """Return the fused group of elementwise nodes that is the only reader of `node` and has its
    size; None if there is none, or if a result is no floating-point tensor."""
    if node.name in graph.outputs:
        return None
    readers = {user.name for user in graph.users()[node.name]}
    for step in steps:
        if isinstance(step, Group) and readers & set(step.places):
            elementwise = step.family == "streaming" and not step.reduced
            whole = readers <= set(step.places) and elementwise
            floating = all(graph.node(name).dtype in FLOATS for name in step.outputs)
            return step if whole and floating and step.size == node.size else None
    return None


def _reader_through_views(
    node: Node, steps: Sequence[Any], graph: Graph
) -> tuple[tuple[Node, ...], Group | None]:
    """Return (views, group): the `only_reader` of `node`, or of the last of the views through which
    alone it is read."""
    views: tuple[Node, ...] = ()
    users = graph.users()
    while (group := only_reader(node, steps, graph)) is None:
        readers = users[node.name]
        if node.name in graph.outputs or len(readers) != 1 or readers[0].kind is not Kind.VIEW:
            return (), None
        node = readers[0]
        views += (node,)
    return views, group


def _product(
    node: Node,
    group: Group | None,
    views: tuple[Node, ...] = (),
    *,
    graph: Graph,
    target: Target | None,
    strided: bool = False,
) -> Product | None:
    """Return the product with `group` as its epilogue (None: without one); None if the kernel
    cannot be generated.

    It cannot if Triton has no expression for an operator of the group, a value of the group has
    other columns, or a tensor has no single row and column stride. The operands are split before
    the product if that is faster on `target`. `views` are views of the product that the group
    reads. Only with `strided` may operands have no adjacent elements along K.
    """
    nodes = (*views, *group.nodes) if group is not None else ()
    inner = {node.name, *(n.name for n in nodes)}
    outputs = group.outputs if group is not None else (node.name,)
    batch = batch_of(graph, node)
    if not 0 < batch <= MOST_BATCH:
        return None
    if not all(map(_has_expression, nodes)) or not _have_columns_of(node, nodes, batch):
        return None
    if any(graph.node(name).size != node.size for name in outputs):
        return None
    columns = node.shape[-1]
    depth = graph.node(str(node.args[0])).shape[-1]
    try:
        left, right = _operands(graph, node, batch > 1)
        bias = [matrix_of(graph, str(name), node.shape) for name in node.args[2:]]
        reads = {
            (n.name, arg): matrix_of(
                graph, arg, n.shape if n.size == node.size else node.shape, batch > 1
            )
            for n in nodes
            for arg in n.inputs
            if arg not in inner
        }
    except NestError:
        return None
    adjacent = left.column == right.column == 1
    rows = math.prod(node.shape) // (batch * columns)
    known = {n.name for n in graph.nodes}
    parts = tuple(name for name in parts_of(node) if name in known)
    float32 = node.dtype == "float32"
    split = (
        float32
        and target is not None
        and splits(rows, columns, depth, target, batch, prepared=bool(parts))
    )
    aligned = adjacent or not (float32 or {left.column, left.row}.isdisjoint({1}))
    if not (strided or aligned or split):
        return None
    places: dict[str, tuple[int, ...]] = dict.fromkeys(inner, ())
    return Product(
        node, rows, columns, depth, left, right, bias[0] if bias else None, nodes, reads, outputs,
        places, batch, split, parts if split else (),
    )  # fmt: skip


def _operands(graph: Graph, node: Node, batched: bool) -> tuple[Matrix, Matrix]:
    """Return (left operand, right operand); the right one has one row for each column of the
    result.

    Raises NestError for an operand whose rows or columns have no single stride.
    """
    left, right = (graph.node(str(arg)) for arg in node.args[:2])
    depth, columns = left.shape[-1], node.shape[-1]
    rows = matrix_of(graph, left.name, (*node.shape[:-1], depth), batched)
    if node.op.startswith("F.linear("):
        return rows, matrix_of(graph, right.name, (columns, depth))
    found = matrix_of(graph, right.name, right.shape, batched)
    return rows, replace(found, row=found.column, column=found.row)


def _has_expression(node: Node) -> bool:
    """Return True for an operator that Triton can compute, and for a view."""
    return node.kind is Kind.VIEW or (node.kind is Kind.POINTWISE and node.op in EXPRESSIONS)


def _have_columns_of(product: Node, nodes: Sequence[Node], batch: int) -> bool:
    """Return True if the values of a product's group lie in the rows and columns of the product.

    Views may divide the rows of a single product, unless the group also computes values of fewer
    elements, which are broadcast.
    """
    whole = [n.shape for n in nodes if n.size == product.size]
    if all(shape == product.shape for shape in whole):
        return all(n.size == product.size or n.kind is not Kind.VIEW for n in nodes)
    columns = product.shape[-1]
    return batch == 1 and len(whole) == len(nodes) and all(s[-1:] == (columns,) for s in whole)
