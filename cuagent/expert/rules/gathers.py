"""Lower embedding lookups, indexing and gathers to reads through an index tensor."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from cuagent.expert.edits import PREPARATIONS
from cuagent.expert.graph.graph import FLOATS, Gather, Graph, Kind, Node, Operand
from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    dtype_of,
    floating,
    operand,
    operator_name,
    rule,
    shape_of,
    target_of,
)
from cuagent.expert.graph.orders import is_view
from cuagent.expert.rules.views import narrowed, viewed
from cuagent.expert.rules.writes import along

MAX_DEPTH = 12
"""Largest number of elementwise operations that are moved from before a gather to after it, so that
they are computed for the selected elements only."""
CONSTANTS = (Kind.PARAMETER, Kind.CONSTANT)
READERS = (Kind.POINTWISE, Kind.REDUCE, Kind.WINDOW, Kind.SCATTER)
"""Kinds of nodes whose kernels can read an argument through an index tensor."""


@rule("embedding")
def embedding(low: Lowering, fx: Any) -> str | None:
    return _gathered(low, fx, fx.args[0], fx.args[1], 0, "F.embedding({1}, {0})", wraps=False)


@rule("index_select")
def index_select(low: Lowering, fx: Any) -> str | None:
    dim = argument(fx, 1, "dim")
    call = f"torch.index_select({{0}}, {dim}, {{1}})"
    return _sliced(low, fx, fx.args[2], dim) or _gathered(
        low, fx, fx.args[0], fx.args[2], dim, call, wraps=False
    )


@rule("index")
def index(low: Lowering, fx: Any) -> str | None:
    """Lower `x[:, index]` with one integer tensor, or `x[:, i, j]` with two constant ones."""
    used = [(k, value) for k, value in enumerate(fx.args[1]) if value is not None]
    if len(used) == 2:
        return _two_indices(low, fx, used)
    if len(used) != 1:
        return None
    ((dim, places),) = used
    call = f"{{0}}[{':, ' * dim}{{1}}]"
    sliced = _sliced(low, fx, places, dim)
    return sliced or _gathered(low, fx, fx.args[0], places, dim, call, wraps=True)


def _sliced(low: Lowering, fx: Any, places: Any, dim: int) -> str | None:
    """Lower the selection of adjacent indices, which `arange` counts, to a slice; None for others.

    A result that the module returns is no view of its argument and stays a copy.
    """
    x, shape = operand(low, fx.args[0]), shape_of(fx.args[0])
    if target_of(places) != "arange" or not isinstance(x, str) or not shape or _is_returned(fx):
        return None
    count = 1 if str(places.target).endswith("default") else 2
    ends, step = (0, *places.args[:count])[-2:], argument(places, 2, "step", 1)
    whole = all(isinstance(n, int) for n in ends) and (count == 1 or step == 1)
    dim %= len(shape)
    if not whole or not 0 <= ends[0] < ends[1] <= shape[dim]:
        return None
    return narrowed(low, x, dim, *ends)


def _is_returned(fx: Any) -> bool:
    """Return True if the module returns a value or a view of it."""
    return any(
        user.op == "output" or (user.op == "call_function" and is_view(user) and _is_returned(user))
        for user in fx.users
    )


def _two_indices(low: Lowering, fx: Any, used: list[tuple[int, Any]]) -> str | None:
    """Lower indexing by two constant tensors to one gather along both dimensions, flattened. The
    flat indices are computed once.

    The pairs of features of a DLRM are an example. Negative indices count from the end.
    """
    (dim, first), (next_dim, second) = used
    x, found = operand(low, fx.args[0]), [operand(low, value) for value in (first, second)]
    known = [_part_of_constant(low, a) for a in found if isinstance(a, str)]
    args = tuple(each[0] for each in known if each is not None)
    if not isinstance(x, str) or len(args) < 2 or next_dim != dim + 1 or not floating(fx):
        return None
    if shape_of(first) != shape_of(second) or {dtype_of(first), dtype_of(second)} != {"int64"}:
        return None
    shape = low.shape(x)
    (height, width), rest = shape[dim : dim + 2], shape[dim + 2 :]
    flat = viewed(low, x, (*shape[:dim], height * width, *rest))
    if flat is None or Kind.GATHER in _kinds(low, x):
        return None
    valid = f"({{0}} < {height}) & ({{0}} >= -{height}) & ({{1}} < {width}) & ({{1}} >= -{width})"
    call = f"torch.where({valid}, {{0}} % {height} * {width} + {{1}} % {width}, -1)"
    parts = [each[1].format(f"{{{k}}}") for k, each in enumerate(known) if each is not None]
    call = call.format(*parts)
    PREPARATIONS.add(call)
    places = low.unique_name("places")
    low.add(Node(places, Kind.LIBRARY, call, args, shape_of(first), "int64", origin=low.origin))
    return low.add(
        Node(
            low.unique_name(""),
            Kind.GATHER,
            f"{{0}}[{':, ' * dim}{{1}}]",
            (flat, places),
            shape_of(fx),
            low.by_name[x].dtype,
            (dim,),
            low.origin,
            spec=Gather(height * width, wraps=False),
        )
    )


def _part_of_constant(low: Lowering, name: str) -> tuple[str, str] | None:
    """Return (name, expression) of a value that is a parameter or a constant, or a part of one: the
    name of the whole, and the expression of the part; None for other values."""
    node = low.by_name[name]
    if node.kind in CONSTANTS:
        return name, "{0}"
    if node.kind is not Kind.STRIDED:
        return None
    whole = _part_of_constant(low, node.inputs[0])
    return None if whole is None else (whole[0], node.op.format(whole[1]))


@rule("embedding_bag", "_embedding_bag")
def embedding_bag(low: Lowering, fx: Any) -> str | None:
    """Lower an embedding bag with bags of equal size, given as a matrix of indices, to a reduction
    of the looked-up rows."""
    table, places, offsets = (operand(low, arg) for arg in fx.args[:3])
    mode, weights = argument(fx, 4, "mode", 0), argument(fx, 6, "per_sample_weights")
    last, padding = argument(fx, 7, "include_last_offset", False), argument(fx, 8, "padding_idx")
    plain = weights is None and not last and (padding is None or padding == -1)
    size = _bag_size(fx.args[2], shape_of(fx.args[1]))
    if not isinstance(table, str) or not isinstance(places, str) or not plain or not size:
        return None
    if dtype_of(fx.args[1]) not in ("int64", "int32") or not floating(fx) or mode not in BAGS:
        return None
    if offsets is None or Kind.GATHER in _kinds(low, table, places):
        return None
    if any(operator_name(user) != "getitem" or user.args[1] for user in fx.users):
        return None
    (count,), (extent, width) = shape_of(fx.args[1]), low.shape(table)
    bags = _bags(low, fx.args[1], (count // size, size))
    if bags is None:
        bags = low.view(places, (count // size, size), "bags")
    node = Node(
        low.unique_name("rows"),
        Kind.GATHER,
        "F.embedding({1}, {0})",
        (table, bags),
        (count // size, size, width),
        low.by_name[table].dtype,
        (0,),
        low.origin,
        spec=Gather(extent, wraps=False),
    )
    rows = low.add(node)
    if BAGS[mode] == "mean":
        result = low.mean(rows, [1], False)
    else:
        result = low.reduce(BAGS[mode], rows, [1], False)
    low.multiple[fx.name] = (result,)
    return result


BAGS = {0: "sum", 1: "mean"}
"""Reduction for each value of embedding_bag's argument `mode`."""


def _bags(low: Lowering, places: Any, shape: tuple[int, int]) -> str | None:
    """Return the node with the index matrix of `shape` that was flattened to `places`; None if it
    cannot be found."""
    while target_of(places) in (
        "view",
        "reshape",
        "_unsafe_view",
        "clone",
        "contiguous",
        "flatten",
    ):
        places = places.args[0]
    found = operand(low, places)
    return found if isinstance(found, str) and low.shape(found) == shape else None


def _bag_size(offsets: Any, indices: tuple[int, ...]) -> int:
    """Return the number of indices in each bag; 0 if the sizes differ or the offsets are not
    constant."""
    if target_of(offsets) != "arange" or len(offsets.args) != 3 or len(indices) != 1:
        return 0
    start, end, step = offsets.args
    whole = all(isinstance(value, int) for value in offsets.args)
    equal = whole and start == 0 and end == indices[0] and step > 0 and end % step == 0
    return int(step) if equal else 0


def _gathered(
    low: Lowering, fx: Any, table: Any, places: Any, dim: int, call: str, *, wraps: bool
) -> str | None:
    x, ids = operand(low, table), operand(low, places)
    if not isinstance(x, str) or not isinstance(ids, str) or not floating(fx):
        return None
    if dtype_of(places) not in ("int64", "int32") or Kind.GATHER in _kinds(low, x, ids):
        return None
    shape = low.shape(x)
    dim %= len(shape)
    return low.add(
        Node(
            low.unique_name(""),
            Kind.GATHER,
            call,
            (x, ids),
            shape_of(fx),
            low.by_name[x].dtype,
            (dim,),
            low.origin,
            spec=Gather(shape[dim], wraps),
        )
    )


def _kinds(low: Lowering, *names: str) -> set[Kind]:
    """Return the kinds of the named nodes and of the nodes of which they are views."""
    found = set()
    for name in names:
        node = low.by_name[name]
        found.add(node.kind)
        while node.kind in (Kind.VIEW, Kind.STRIDED, Kind.WINDOW):
            node = low.by_name[node.inputs[0]]
            found.add(node.kind)
    return found


@rule("gather")
def gather(low: Lowering, fx: Any) -> str | None:
    """Lower `torch.gather` to reads of single elements by index."""
    x, places = operand(low, fx.args[0]), operand(low, fx.args[2])
    if not isinstance(x, str) or not isinstance(places, str) or not floating(fx):
        return None
    if dtype_of(fx.args[2]) != "int64" or not shape_of(fx):
        return None
    found = taken(low, x, places, int(fx.args[1]) % len(shape_of(fx)))
    # A later view can read a computed value only, so that a TAKE alone gets a cast.
    return low.pointwise("cast", found, hint="") if low.by_name[found].kind is Kind.TAKE else found


@rule("one_hot")
def one_hot(low: Lowering, fx: Any) -> str | None:
    """Lower one_hot to zeros and ones in float32, if its result is only cast to a floating-point
    dtype."""
    labels = operand(low, fx.args[0])
    if not isinstance(labels, str) or not _only_as_numbers(fx):
        return None
    shape = shape_of(fx)
    at = viewed(low, labels, (*shape[:-1], 1))
    if at is None:
        return None
    index = along(low, len(shape) - 1, shape)
    here = low.pointwise("eq", at, index, hint="here", dtype="bool")
    return low.pointwise("where", here, 1.0, 0.0, hint="")


MOVES = ("permute", "transpose", "view", "reshape", "unsqueeze", "squeeze", "slice", "contiguous")


def _only_as_numbers(fx: Any) -> bool:
    """Return True if every reader of the result, possibly through views, casts it to a
    floating-point dtype."""
    readers = [user for user in fx.users if operator_name(user) != "_assert_tensor_metadata"]
    return bool(readers) and all(
        _only_as_numbers(user)
        if operator_name(user) in MOVES
        else operator_name(user) in ("_to_copy", "to") and dtype_of(user) in FLOATS
        for user in readers
    )


def taken(low: Lowering, x: str, places: str, dim: int) -> str:
    """Add the elements of `x` at the indices `places` along `dim`, as in `torch.gather`; return the
    node's name.

    If elementwise operations compute `x`, they are computed for the selected elements only. An
    index out of range gives NaN.
    """
    shape = low.shape(places)
    same = all(a == b for k, (a, b) in enumerate(zip(low.shape(x), shape, strict=True)) if k != dim)
    found = _taken_before(low, x, places, dim, {}) if same else None
    return found or _taken(low, x, places, dim)


def _taken(low: Lowering, x: str, places: str, dim: int) -> str:
    node = low.by_name[x]
    call = f"torch.gather({{0}}, {dim}, {{1}})"
    name = low.unique_name("taken")
    spec = Gather(node.shape[dim], wraps=False)
    args, shape = (x, places), low.shape(places)
    return low.add(
        Node(name, Kind.TAKE, call, args, shape, node.dtype, (dim,), low.origin, spec=spec)
    )


def _taken_before(
    low: Lowering, x: str, places: str, dim: int, known: dict[str, str]
) -> str | None:
    """Add `x` at the indices `places`, computed from selected elements of its operands; None if
    that is not possible.

    It is possible for a short chain of elementwise operations on stored values, and for reshapes
    of such chains. `known`: nodes whose selected elements were added before.
    """
    node = low.by_name[x]
    if node.kind is Kind.VIEW:
        return _taken_before_reshape(low, x, places, dim, known)
    if node.kind is not Kind.POINTWISE or node.dtype not in FLOATS or len(known) > MAX_DEPTH:
        return None
    rank = len(node.shape)
    args: list[Operand] = []
    for arg in node.args:
        if not isinstance(arg, str):
            args.append(arg)
            continue
        shape = low.shape(arg)
        if len(shape) + dim < rank or shape[dim - rank] == 1:
            args.append(arg)
            continue
        if len(shape) != rank or low.by_name[arg].dtype not in FLOATS:
            return None
        if arg not in known:
            before = _taken_before(low, arg, places, dim, known)
            if before is None and not _is_stored(low, arg):
                return None
            known[arg] = before or _taken(low, arg, places, dim)
        args.append(known[arg])
    return low.pointwise(node.op, *args, hint=f"{x}_taken", dtype=node.dtype)


def _taken_before_reshape(
    low: Lowering, x: str, places: str, dim: int, known: dict[str, str]
) -> str | None:
    """Do what `_taken_before` does for a reshape that keeps dimension `dim`: select before it."""
    node = low.by_name[x]
    (base,) = node.inputs
    shape, extent = low.shape(base), node.shape[dim]
    outer = math.prod(node.shape[:dim])
    before = [k for k, n in enumerate(shape) if n == extent and math.prod(shape[:k]) == outer]
    if len(before) != 1 or extent == 1 or len(known) > MAX_DEPTH:
        return None
    (axis,) = before
    given = low.shape(places)
    moved = viewed(low, places, (*shape[:axis], given[dim], *shape[axis + 1 :]))
    found = moved and _taken_before(low, base, moved, axis, {})
    return low.view(found, given, "taken") if found else None


def _is_stored(low: Lowering, name: str) -> bool:
    """Return True if the value is in memory in any case: no generated kernel computes it."""
    node = low.by_name[name]
    while node.kind in (Kind.VIEW, Kind.STRIDED):
        node = low.by_name[node.inputs[0]]
    return node.kind in (Kind.INPUT, Kind.PARAMETER, Kind.CONSTANT, Kind.LIBRARY)


def unfused_gathers_to_torch(graph: Graph) -> Graph:
    """Return the graph with each gather replaced by a call of torch if something other than a
    generated kernel reads its result."""
    users = graph.users()

    def fused(name: str) -> bool:
        readers = users[name]
        if name in graph.outputs or any(reader.kind not in READERS for reader in readers):
            return False
        return all(fused(r.name) for r in readers if r.kind is Kind.WINDOW)

    nodes = tuple(
        replace(n, kind=Kind.LIBRARY, spec=None, dims=())
        if n.kind in (Kind.GATHER, Kind.TAKE) and not fused(n.name)
        else n
        for n in graph.nodes
    )
    return replace(graph, nodes=nodes)
