"""Merge the library's pointwise convolutions of one input into one with stacked weights.

The branches of an Inception module begin with pointwise convolutions of the same input. With few
places each is a short kernel that does not fill the GPU: GoogLeNet at batch 10 has 9 modules with
three of them on 490 to 7840 places. Kernels read the slices of the result and add the biases, as
they do behind single convolutions; where the library reads the result, torch added it in its own
pass. In channels-last layout the channels of a slice are adjacent in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from cuagent.expert.convolutions.convolution import settings_of
from cuagent.expert.edits import PREPARATIONS, Editor, prepared_names
from cuagent.expert.graph.graph import Graph, Kind, Node, contiguous_strides

STACKED = "_stacked"
"""End of the name of a merged convolution."""
MOST_PLACES = 1 << 14
"""Largest number of places (samples times spatial positions) of convolutions that are merged: a
kernel for 128 x 128 of them and 128 channels has a tile for each multiprocessor of an H200."""


def stack_convolutions(
    graph: Graph,
    may_stack: Callable[[Node], bool],
    without_bias: Callable[[Graph, Node], Iterator[Node]],
) -> Graph:
    """Return the graph with pointwise convolutions of the same input merged.

    `may_stack`: returns True for the convolutions that may change. `without_bias`: yields the nodes
    of a convolution without its bias, and of the addition of the bias.
    """
    prepared = prepared_names(graph)
    alike: dict[tuple[str, str], list[Node]] = {}
    for node in graph.nodes:
        constant = len(node.args) == 3 and all(a in prepared for a in node.args[1:])
        if constant and may_stack(node) and _is_short(graph, node):
            alike.setdefault((str(node.args[0]), node.op), []).append(node)
    editor = Editor(graph)
    for layers in alike.values():
        if len(layers) > 1:
            for layer, nodes in zip(layers, _stacked(graph, layers, without_bias), strict=True):
                editor.replaced[layer.name] = nodes
    return editor.result()


def _is_short(graph: Graph, node: Node) -> bool:
    """Return True for a pointwise convolution, of any stride, with few places.

    The first dimension of a transposed convolution's weight is that of the input's channels.
    """
    weight = graph.node(str(node.args[1]))
    plain = not node.op.startswith("F.conv_transpose")
    unpadded = set(settings_of(node)["padding"]) == {0}
    places = node.size // node.shape[1]
    return plain and unpadded and math.prod(weight.shape[2:]) == 1 and places <= MOST_PLACES


def _stacked(
    graph: Graph, layers: list[Node], without_bias: Callable[[Graph, Node], Iterator[Node]]
) -> Iterator[list[Node]]:
    """Yield the nodes that replace each layer; those of the first include the merged
    convolution."""
    first, channels = layers[0], sum(layer.shape[1] for layer in layers)
    name = f"{first.name}{STACKED}"
    text = f"torch.cat(({', '.join(f'{{{k}}}' for k in range(len(layers)))}),)"
    PREPARATIONS.add(text)
    inner = graph.node(str(first.args[1])).shape[1:]
    weights = tuple(layer.args[1] for layer in layers)
    weight = Node(f"{name}_weight", Kind.LIBRARY, text, weights, (channels, *inner), first.dtype)
    shape = (first.shape[0], channels, *first.shape[2:])
    call = next(iter(without_bias(graph, first))).op
    whole = replace(
        first, name=name, op=call, args=(first.args[0], weight.name), shape=shape, origin=""
    )
    added, start = [weight, whole], 0
    for layer in layers:
        conv, *rest = without_bias(graph, layer)
        end = start + layer.shape[1]
        part = Node(
            conv.name, Kind.STRIDED, f"{{0}}[:, {start}:{end}]", (name,), layer.shape, layer.dtype,
            origin=layer.origin, contiguous=False, strides=contiguous_strides(shape),
            offset=start * math.prod(shape[2:]),
        )  # fmt: skip
        yield [*added, part, *rest]
        added, start = [], end


def is_of_stack(graph: Graph, name: str) -> bool:
    """Return True if a value is a slice of a merged convolution."""
    node = graph.node(name)
    if node.kind is not Kind.STRIDED:
        return False
    return graph.node(node.inputs[0]).name.endswith(STACKED)
