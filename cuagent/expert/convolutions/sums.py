"""Sum the input of a convolution instead of its result: sum_p conv(x)_p = conv'(sums of x).

A convolution is linear, and along one dimension tap k multiplies an interval of the inputs. If only
the sum of the result over that dimension is needed, the sum of the inputs in each interval
suffices, and no convolution along the dimension is computed. Taps with the same interval share one
sum, and their weights are added once. The result is equal in exact arithmetic. A box is the product
of one interval for each summed dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from cuagent.expert.convolutions.convolution import settings_of
from cuagent.expert.edits import PREPARATIONS, prepared_names
from cuagent.expert.graph.graph import Graph, Kind, Node, contiguous_strides

MOST_BOXES = 8
"""Largest number of input boxes for which a convolution is rewritten; each box needs a sum."""
Interval = tuple[int, int]
"""(first index, end) of a range of inputs along one dimension."""


def sum_before_convolutions(
    graph: Graph, keeps_precision: Callable[[Graph, Node], bool] = lambda *_: True
) -> Graph:
    """Return the graph in which convolutions whose result is only summed get sums of their input
    instead.

    The sum must be over spatial positions. `keeps_precision` receives the rewritten graph and the
    new convolution, and returns False if it may be less precise than the captured one.
    """
    users, prepared = graph.users(), prepared_names(graph)
    replaced: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.kind is not Kind.REDUCE or node.op != "sum":
            continue
        conv = graph.node(node.inputs[0])
        alone = len(users[conv.name]) == 1 and conv.name not in graph.outputs
        if alone and is_convolution(conv) and all(str(a) in prepared for a in conv.args[1:]):
            new = _summed(graph, node, conv)
            changed = {node.name: new, conv.name: []} if new else {}
            joined = next((n for n in new if is_convolution(n)), None)
            if joined is None or keeps_precision(_with(graph, replaced | changed), joined):
                replaced |= changed
    return _with(graph, replaced)


def _with(graph: Graph, replaced: dict[str, list[Node]]) -> Graph:
    nodes = (n for node in graph.nodes for n in replaced.get(node.name, [node]))
    return replace(graph, nodes=tuple(nodes))


def is_convolution(node: Node) -> bool:
    """Return True for a convolution of the library with a contiguous result."""
    return node.kind is Kind.LIBRARY and node.op.startswith("F.conv") and node.contiguous


def _summed(graph: Graph, total: Node, conv: Node) -> list[Node]:
    """Return the new nodes that compute the sum `total`; an empty list if the rewrite does not
    apply."""
    settings = settings_of(conv)
    dims = [d - 2 for d in total.dims]
    x = graph.node(str(conv.args[0]))
    numbers = all(isinstance(v, list) for k, v in settings.items() if k != "groups")
    if settings["groups"] != 1 or not numbers or min(dims) < 0 or len(x.shape) < 3:
        return []
    transposed = conv.op.startswith("F.conv_transpose")
    if not transposed and any(settings["stride"][d] != 1 for d in dims):
        return []
    weight = graph.node(str(conv.args[1]))
    boxes: dict[tuple[Interval, ...], list[tuple[int, ...]]] = {}
    for taps in product(*(range(weight.shape[2 + d]) for d in dims)):
        box = tuple(
            _interval(conv.shape[2 + d], x.shape[2 + d], k, transposed, settings, d)
            for d, k in zip(dims, taps, strict=True)
        )
        if all(low < high for low, high in box):
            boxes.setdefault(box, []).append(taps)
    if not 0 < len(boxes) <= MOST_BOXES:
        return []
    return list(_nodes(graph, total, conv, dims, boxes, settings))


def _interval(
    outputs: int, inputs: int, tap: int, transposed: bool, settings: dict[str, Any], d: int
) -> Interval:
    """Return (first index, end) of the inputs along dimension `d` that kernel element `tap`
    multiplies.
    """
    moved = settings["dilation"][d] * tap - settings["padding"][d]
    if not transposed:
        return max(0, moved), min(inputs, outputs + moved)
    stride = settings["stride"][d]
    return max(0, -(moved // stride)), min(inputs, (outputs - 1 - moved) // stride + 1)


def _nodes(
    graph: Graph,
    total: Node,
    conv: Node,
    dims: list[int],
    boxes: dict[tuple[Interval, ...], list[tuple[int, ...]]],
    settings: dict[str, Any],
) -> Iterator[Node]:
    x, weight, *bias = (graph.node(str(arg)) for arg in conv.args)
    rank = len(x.shape) - 2
    rest = [d for d in range(rank) if d not in dims]
    if rest and len(total.shape) == len(conv.shape):
        # The result keeps the summed dimensions. If the convolution keeps them too, with windows of
        # one element, its result needs no view.
        settings = _of_one(settings, dims)
        rest = list(range(rank))
    name, origin = total.name, total.origin
    sums = []
    small = (*x.shape[:2], *(1 if d in dims else x.shape[2 + d] for d in rest))
    for k, box in enumerate(boxes):
        part = _part(f"{name}_part_{k}", x, dims, box)
        yield from [part] if part is not x else []
        axes = tuple(2 + d for d in dims)
        sums.append(f"{name}_input_{k}")
        yield Node(sums[-1], Kind.REDUCE, "sum", (part.name,), small, dims=axes, origin=origin)
    joined = sums[0]
    shape = (small[0], small[1] * len(sums), *small[2:])
    if len(sums) > 1:
        joined = f"{name}_inputs"
        words = ", ".join(f"{{{k}}}" for k in range(len(sums)))
        call = f"torch.cat(({words}), 1)"
        yield Node(joined, Kind.LIBRARY, call, tuple(sums), shape, origin=origin)
    transposed = conv.op.startswith("F.conv_transpose")
    call = _weight_call(list(boxes.values()), dims, transposed, rest)
    channels = conv.shape[1]
    taps = tuple(1 if d in dims else weight.shape[2 + d] for d in rest)
    pair = (shape[1], channels) if transposed and rest else (channels, shape[1])
    yield Node(
        f"{name}_weights", Kind.LIBRARY, call, (weight.name,), (*pair, *taps), total.dtype,
        origin=origin,
    )  # fmt: skip
    args: tuple[str, ...] = (joined, f"{name}_weights")
    if bias:
        # Each summed place adds the bias once.
        count = math.prod(conv.shape[2 + d] for d in dims)
        yield Node(
            f"{name}_biases", Kind.POINTWISE, "mul", (bias[0].name, float(count)), bias[0].shape,
            total.dtype, origin=origin,
        )  # fmt: skip
        args += (f"{name}_biases",)
    dense = (conv.shape[0], channels, *(1 if d in dims else conv.shape[2 + d] for d in rest))
    keeps = dense == total.shape
    yield Node(
        name if keeps else f"{name}_product", Kind.LIBRARY,
        _call(transposed, rest, settings, bool(bias)), args, dense, total.dtype, origin=origin,
        spec=x.shape[1] if conv.spec is None else conv.spec,
    )  # fmt: skip
    if not keeps:
        yield Node(
            name, Kind.VIEW, "view", (f"{name}_product",), total.shape, total.dtype, origin=origin
        )


def _of_one(settings: dict[str, Any], dims: list[int]) -> dict[str, Any]:
    """Return a convolution's settings for a window of one element along the dimensions `dims`."""
    one = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}
    return settings | {
        name: [value if d in dims else old for d, old in enumerate(settings[name])]
        for name, value in one.items()
    }


def _part(name: str, x: Node, dims: list[int], box: tuple[Interval, ...]) -> Node:
    """Return the node with the input's elements inside a box; the input itself if the box covers
    all of it."""
    if all(ends == (0, x.shape[2 + d]) for d, ends in zip(dims, box, strict=True)):
        return x
    found = dict(zip(dims, box, strict=True))
    steps = contiguous_strides(x.shape)
    words, shape, offset = [":", ":"], [*x.shape[:2]], 0
    for d, size in enumerate(x.shape[2:]):
        low, high = found.get(d, (0, size))
        words.append(f"{low}:{high}")
        shape.append(high - low)
        offset += low * steps[2 + d]
    return Node(
        name, Kind.STRIDED, f"{{0}}[{', '.join(words)}]", (x.name,), tuple(shape), x.dtype,
        origin=x.origin, contiguous=False, strides=steps, offset=offset,
    )  # fmt: skip


def _weight_call(
    boxes: list[list[tuple[int, ...]]], dims: list[int], transposed: bool, rest: list[int]
) -> str:
    """Return the Python expression that adds the weights of all taps of each box.

    The results for the boxes are concatenated along the input channels.
    """
    parts = []
    for taps in boxes:
        words = []
        for tap in taps:
            index = [":"] * (2 + max(dims) + 1)
            for d, k in zip(dims, tap, strict=True):
                index[2 + d] = f"{k}:{k + 1}" if d in rest else str(k)
            words.append(f"{{0}}[{', '.join(index)}]")
        parts.append(" + ".join(words))
    call = f"torch.cat(({', '.join(parts)},), {0 if transposed else 1})"
    # A linear layer has its weights as (outputs, inputs).
    call += ".t()" if transposed and not rest else ""
    PREPARATIONS.add(call)
    return call


def _call(transposed: bool, rest: list[int], settings: dict[str, Any], bias: bool) -> str:
    """Return the text of the convolution along the remaining dimensions `rest`.

    Without remaining dimensions it is a linear layer.
    """
    third = ", bias={2}" if bias else ""
    if not rest:
        return f"F.linear({{0}}, {{1}}{third})"
    kept = {name: [value[d] for d in rest] for name, value in settings.items() if name != "groups"}
    if not transposed:
        kept.pop("output_padding")
    words = "".join(f", {name}={value}" for name, value in kept.items())
    kind = "conv_transpose" if transposed else "conv"
    return f"F.{kind}{len(rest)}d({{0}}, {{1}}{third}{words})"
