"""Compute convolutions of a network in channels-last layout by generated kernels where these are
faster than the library's convolution and an elementwise kernel.

In half precision a generated kernel reads channels-last memory as it is, and stores its result in
that layout with the operations that follow. Times on an H200 in bfloat16, in us:

    layer                                           one kernel   library's convolution
    64 to 64 channels, 3x3, 64 x 56 x 56                43              97
    the same, and a residual                            48              97
    128 to 32 channels, 3x3, 32 x 28 x 28               11              13
    512 to 512 channels, 3x3, 64 x 7 x 7                75              27

They are shares of profiles of a ResNet-18 and of a dense block. The library's figures have no
epilogue; its rates with more than 64 channels are means over the layers of a ResNet-18.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cuagent.expert.capture.subject import Target
from cuagent.expert.convolutions.convolution import LAST, VECTOR, settings_of
from cuagent.expert.convolutions.operands import WEIGHT
from cuagent.expert.convolutions.qualify import (
    FEW_CHANNELS,
    LARGE,
    LEAST_OPERATIONS,
    is_pointwise,
    is_read_in_place,
)
from cuagent.expert.convolutions.tiles import pointwise_tiles
from cuagent.expert.graph.graph import ITEM_BYTES, Graph, Kind, Node
from cuagent.expert.graph.orders import CHANNELS_LAST
from cuagent.expert.products import rates

ROWS = 128
"""Rows of a tile."""
TERMS = {16: 1.6e-12, 32: 9.5e-13, 64: 5.8e-13, 128: 9e-13}
"""Seconds of a multiprocessor for one term of the sum and one element of a tile of a window of
several elements, by the tile's columns."""
FEW_RATE, RATE = 150e12, 540e12
"""Floating-point operations per second of the library's convolutions of up to FEW_COLUMNS output
channels, and of those with more, for full tiles of 128 channels."""
FEW_COLUMNS = 64
FULL_TILE, MOST_BLOCKS = 128 * 128, 8
"""Elements of a tile of which a multiprocessor has one, and most blocks that it has at a time:
estimates from the registers of compiled kernels."""
LOADS = {8: 1.0, 4: 1.3, 2: 2.0}
"""Time of a term in a kernel whose channels allow loads of so many together, relative to a kernel
with loads of VECTOR channels: an estimate from the number of load instructions."""
FEW_POINTWISE = 16
"""Least number of input channels of a pointwise convolution."""
STEM = 64
"""Largest number of terms in the sum of a network's first convolution that gets a kernel. The
kernel took 0.25 ms for 147 terms and 64 x 112 x 112 places on an H200, and the library 0.12 to 0.18
with its copies."""


def reads_channels_last(graph: Graph, node: Node, target: Target) -> bool:
    """Return True if a generated kernel of a convolution may read and write channels-last memory:
    one of half precision and many channels."""
    if target.capability < rates.FAST_LIBRARY or not node.op.startswith("F.conv2d("):
        return False
    x, weight = (graph.node(str(arg)) for arg in node.args[:2])
    ungrouped = settings_of(node)["groups"] == 1 and len(node.shape) == 4
    if not ungrouped or node.dtype == "float32":
        return False
    least = FEW_POINTWISE if math.prod(weight.shape[2:]) == 1 else FEW_CHANNELS
    return x.shape[1] >= least or _is_short_stem(graph, x, weight)


def _is_short_stem(graph: Graph, x: Node, weight: Node) -> bool:
    """Return True for the convolution of an image of few channels that has a short sum.

    The library copies the image to channels-last layout and fills it to eight channels. The kernel
    reads it in place.
    """
    image = x.kind is Kind.INPUT and not x.order and x.shape[1] < VECTOR
    return image and math.prod(weight.shape[1:]) <= STEM and is_read_in_place(graph, x)


def may_follow(node: Node, target: Target) -> bool:
    """Return True if the kernel of a depthwise convolution may read and write channels-last memory,
    as its neighbours in a network of half precision do.

    Planes of an odd number of places have no aligned vectors in the captured layout.
    """
    image = len(node.shape) == 4 and node.spec.multiplier == 1
    return image and node.dtype != "float32" and target.capability >= rates.FAST_LIBRARY


def following(node: Node) -> Node:
    """Return a depthwise convolution whose result has the order of its argument; other nodes as
    they are."""
    if node.kind is not Kind.DEPTHWISE:
        return node
    return replace(node, spec=replace(node.spec, follows=True))


def own_in_network(graph: Graph, target: Target, keep: frozenset[str]) -> Graph:
    """Return the graph with convolutions marked for kernels that store channels-last results.

    Their arguments must be in this layout already. `keep`: origins that stay unchanged.
    """
    if target.capability < rates.FAST_LIBRARY:
        return graph
    users = graph.users()
    nodes: list[Node] = []
    known: dict[str, bool] = {}
    for node in graph.nodes:
        if node.origin in keep or not _may_be_own(graph, node, target, users, known):
            nodes.append(node)
            continue
        weight = graph.node(str(node.args[1]))
        name = weight.name
        if not is_pointwise(node, weight):
            name = f"{node.name}_taps"
            shape = (weight.shape[0], *weight.shape[2:], weight.shape[1])
            nodes.append(
                Node(name, Kind.LIBRARY, WEIGHT, (weight.name,), shape, weight.dtype,
                     origin=node.origin)
            )  # fmt: skip
        call = f"own {node.op.removesuffix(')')}{LAST}"
        args = (node.args[0], name, *node.args[2:])
        nodes.append(replace(node, op=call, args=args, order=CHANNELS_LAST))
    return replace(graph, nodes=tuple(nodes))


def _may_be_own(
    graph: Graph, node: Node, target: Target, users: dict[str, list[Node]], known: dict[str, bool]
) -> bool:
    """Return True if a generated kernel can compute a convolution, and takes less time."""
    library = node.kind is Kind.LIBRARY and node.contiguous
    if not library or not reads_channels_last(graph, node, target):
        return False
    settings = settings_of(node)
    x, weight = (graph.node(str(arg)) for arg in node.args[:2])
    whole = all(isinstance(v, list) for k, v in settings.items() if k != "groups")
    if not whole or max(x.size, node.size) >= LARGE:
        return False
    stem = _is_short_stem(graph, x, weight)
    if _vector_of(node) not in LOADS or not (stem or _vector_of(x) in LOADS):
        return False
    if node.size * math.prod(weight.shape[1:]) < LEAST_OPERATIONS:
        return False
    if weight.dtype != node.dtype or x.dtype != node.dtype or not weight.contiguous:
        return False
    if stem:
        return True
    if not _is_channels_last(graph, x, known):
        return False
    return own_time(graph, node, target) < library_time(graph, node, users)


def _is_channels_last(graph: Graph, x: Node, known: dict[str, bool]) -> bool:
    """Return True if a value of a network has channels-last layout: a convolution's result, and
    what is computed from it elementwise, by pools and by concatenations."""
    if x.name not in known:
        match x.kind:
            case Kind.LIBRARY if x.op.startswith(("F.conv2d(", "own F.conv2d(")):
                known[x.name] = True
            case Kind.STRIDED if x.strides[1:2] == (1,):
                known[x.name] = x.contiguous is False
            case Kind.POINTWISE | Kind.POOL | Kind.LIBRARY | Kind.WINDOW | Kind.DEPTHWISE:
                known[x.name] = any(
                    _is_channels_last(graph, n, known)
                    for n in map(graph.node, x.inputs)
                    if n.kind is not Kind.PARAMETER and (len(n.shape) == 4 or _keeps_places(n, x))
                )
            case Kind.VIEW | Kind.STRIDED:
                inner = graph.node(x.inputs[0])
                same = _keeps_places(inner, x)
                known[x.name] = same and _is_channels_last(graph, inner, known)
            case _:
                known[x.name] = False
    return known[x.name]


def _keeps_places(given: Node, node: Node) -> bool:
    """Return True if `node` may rearrange the channels of `given` alone: it has the same samples
    and places, in the same order."""
    same = min(len(given.shape), len(node.shape)) >= 4 and given.shape[0] == node.shape[0]
    rows = node.strides[-2:] == (node.shape[-1], 1) or node.kind is not Kind.STRIDED
    return same and given.shape[-2:] == node.shape[-2:] and rows


def _vector_of(image: Node) -> int:
    """Return the number of channels that a kernel can access together: up to VECTOR."""
    return math.gcd(image.shape[1], VECTOR)


def own_time(graph: Graph, node: Node, target: Target) -> float:
    """Return the seconds of a generated kernel, with the operations that follow."""
    x, weight = (graph.node(str(arg)) for arg in node.args[:2])
    rows, columns = node.size // node.shape[1], node.shape[1]
    terms = math.prod(weight.shape[1:])
    if math.prod(weight.shape[2:]) == 1:
        tile = pointwise_tiles(rows, columns, node.dtype, target.processors)[0]
        sides, term = (tile.rows, tile.columns), rates.TERM / tile.speed
        # Blocks of small tiles begin and end while others compute.
        begin = rates.BLOCK / min(MOST_BLOCKS, max(1, FULL_TILE // math.prod(sides)))
    else:
        wide = min(128, max(16, 1 << (columns - 1).bit_length()))
        sides, term, begin = (ROWS, wide), TERMS[wide], rates.BLOCK
    if x.shape[1] >= FEW_POINTWISE:
        term *= LOADS[_vector_of(x)]
    count = math.ceil(rows / sides[0]) * math.ceil(columns / sides[1])
    written = ITEM_BYTES[node.dtype]
    tile_time = begin + math.prod(sides) * (term * terms + rates.BYTE * written)
    waves = math.ceil(count / target.processors)
    return max(waves * tile_time, _moved(graph, node) / rates.BANDWIDTH)


def library_time(graph: Graph, node: Node, users: dict[str, list[Node]]) -> float:
    """Return the seconds of the library's convolution and of an elementwise kernel behind it."""
    weight, columns = graph.node(str(node.args[1])), node.shape[1]
    terms = math.prod(weight.shape[1:])
    full = 128 * math.ceil(columns / 128)
    rate = FEW_RATE if columns <= FEW_COLUMNS else RATE * columns / full
    if math.prod(weight.shape[2:]) == 1:
        rate, terms = rates.RATE, terms + rates.DEPTH
    operations = 2 * node.size * terms
    time = max(rates.START + operations / rate, _moved(graph, node) / rates.BANDWIDTH)
    time += _padding_time(graph, node)
    readers = users[node.name]
    follows = len(node.args) > 2 or any(n.kind is Kind.POINTWISE for n in readers)
    if not follows:
        return time
    return time + rates.LAUNCH + _passes(2 * node.size * ITEM_BYTES[node.dtype])


def _padding_time(graph: Graph, node: Node) -> float:
    """Return the seconds that the library takes to pad operands to multiples of VECTOR channels.

    ShuffleNet's convolutions of 116 channels and 64 x 14 x 14 places took some 18 us on an H200;
    the model has 9.
    """
    x = graph.node(str(node.args[0]))
    padded = [n for n in (x, node) if n.shape[1] % VECTOR]
    moved = (2 * n.size * ITEM_BYTES[n.dtype] for n in padded)
    return sum(rates.LAUNCH + _passes(size) for size in moved)


def _passes(moved: int) -> float:
    """Return the seconds in which an elementwise kernel reads and writes `moved` bytes."""
    return moved / (rates.CACHED_BANDWIDTH if moved <= rates.CACHE else rates.BANDWIDTH)


def _moved(graph: Graph, node: Node) -> int:
    """Return the bytes of a convolution's operands and result."""
    tensors = (node, *(graph.node(str(arg)) for arg in node.args[:2]))
    return sum(n.size * ITEM_BYTES[n.dtype] for n in tensors)
