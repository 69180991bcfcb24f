"""Decide which attention nodes a generated Triton kernel computes, and choose the kernel's
tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.graph import Graph, Node
from cuagent.expert.graph.storage import NestError, storage
from cuagent.expert.products.qualify import SPLIT_CAPABILITIES

MOST_DEPTH = {"float32": 128, "float16": 256, "bfloat16": 256}
"""Largest head size for which a kernel is generated, by dtype. Larger ones spilled registers when
compiled for sm_90."""
SHARED = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}
"""Shared memory of one block in KiB, by compute capability."""
LEAST_SHARED = 99
"""Shared memory of one block in KiB, for a compute capability that is not in `SHARED`."""
BUSY = 0.8
"""Share of the GPU's multiprocessors that must have a block. If fewer have one, the keys are split
over more blocks. The value is FlashAttention's."""
MOST_PAIRS = 65535
"""Largest number of samples times heads: the second dimension of a CUDA grid."""
LIBRARY_TILE = 64
"""Number of queries and of keys in a tile of the library's float32 attention.

With 2 queries and 2 keys in each of 1576 heads a call took 50 us on an H200.
"""
LEAST_EMPTY = 4
"""Least ratio of the scores in the library's tiles to those in a generated kernel's for which the
kernel computes an attention that the library has a call for. An estimate."""


@dataclass(frozen=True)
class Scored:
    """Options of a `scored_attention` node: the operations on the scores, and the order of the
    result's dimensions."""

    steps: tuple[tuple[Any, ...], ...]
    heads_inside: bool
    """True if the result is (batch, rows, heads, head size); False if heads come before rows."""


@dataclass(frozen=True)
class Place:
    """Memory location of a tensor that a kernel reads with the four indices batch, head, row,
    column."""

    tensor: str
    dtype: str
    strides: tuple[int, ...]
    """Strides in elements along each index; 0 where the tensor is broadcast."""
    offset: int


@dataclass(frozen=True)
class AttentionStep:
    """One attention node that a generated kernel computes, with its sizes and the locations of its
    operands."""

    node: Node
    batch: int
    heads: int
    groups: int
    """Number of query heads for each head of keys and values."""
    rows: int
    """Number of queries per head."""
    columns: int
    """Number of keys per head."""
    depth: int
    """Head size of the queries and keys."""
    width: int
    """Head size of the values and of the result."""
    operands: tuple[Place, ...]
    """Locations of the queries, keys and values, and of the tensors that operations on the scores
    read."""

    @property
    def spec(self) -> Scored:
        """Options of the node: operations on the scores, and order of the result's dimensions."""
        found: Scored = self.node.spec
        return found

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that this kernel computes."""
        return (self.node,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.node.name,)

    @property
    def places(self) -> dict[str, tuple[int, ...]]:
        """Mapping with the names of the computed nodes as keys, as in `Group.places`; the values
        are unused."""
        return {self.node.name: ()}

    @property
    def tensors(self) -> dict[str, str]:
        """dtype of each tensor that the kernel reads, by name, in order of first use."""
        return {place.tensor: place.dtype for place in self.operands}

    @property
    def is_causal(self) -> bool:
        """True if an operation sets the scores of all keys after the query's position to -inf."""
        return any(step[0] == "causal" and step[1] == -math.inf for step in self.spec.steps)


@dataclass(frozen=True)
class Blocks:
    """Tile size and launch options of the kernel: a tile has `rows` queries and `columns` keys."""

    rows: int
    columns: int
    warps: int
    stages: int
    splits: int = 1
    """Number of parts into which the keys are split; each part is computed by separate blocks."""


def has_kernel(target: Target, dtype: str, depth: int, width: int) -> bool:
    """Return True if a kernel can be generated for these head sizes: `depth` of queries and keys,
    `width` of values.

    A float32 kernel splits its operands into TF32 parts, so it is generated only for GPUs on which
    three TF32 products are faster than float32 arithmetic.
    """
    if max(depth, width) > MOST_DEPTH[dtype]:
        return False
    if dtype == "float32":
        return target.capability in SPLIT_CAPABILITIES
    return target.capability >= (8, 0)


def fills_few_rows(target: Target, dtype: str, pairs: int, rows: int, columns: int) -> bool:
    """Return True if most scores in the library's tiles do not exist, and a kernel has fewer.

    `pairs`: number of samples times heads, which must fill the GPU without parts of the keys.
    """
    if dtype != "float32" or not target.processors <= pairs <= MOST_PAIRS:
        return False
    if max(rows, columns) > LIBRARY_TILE:
        return False
    own = _tile_rows(rows) * 32 * math.ceil(columns / 32)
    return LEAST_EMPTY * own <= LIBRARY_TILE * LIBRARY_TILE


def _tile_rows(rows: int) -> int:
    """Return the least number of rows of a tile that holds all rows."""
    return max(16, 1 << (rows - 1).bit_length())


def with_kernels(steps: Sequence[Any], graph: Graph, keep: frozenset[str]) -> tuple[Any, ...]:
    """Replace each `scored_attention` node by an `AttentionStep` if its operands have constant
    strides.

    Nodes whose origin is in `keep` stay calls of torch.
    """
    return tuple(_kernel(step, graph, keep) or step for step in steps)


def _kernel(step: Any, graph: Graph, keep: frozenset[str]) -> AttentionStep | None:
    if not isinstance(step, Node) or not isinstance(step.spec, Scored) or step.origin in keep:
        return None
    query, key, value = (graph.node(str(name)) for name in step.args[:3])
    batch, heads, rows, depth = query.shape
    if len(step.inputs) != len(step.args) or batch * heads > MOST_PAIRS:
        return None
    shape = (batch, heads, rows, key.shape[2])
    try:
        places = [_place(graph, node, node.shape) for node in (query, key, value)]
        places += [_place(graph, graph.node(str(name)), shape) for name in step.args[3:]]
    except NestError:
        return None
    return AttentionStep(
        step, batch, heads, heads // key.shape[1], rows, key.shape[2], depth, value.shape[3],
        tuple(places),
    )  # fmt: skip


def _place(graph: Graph, node: Node, shape: tuple[int, ...]) -> Place:
    base, strides, offset = storage(graph, node)
    steps = tuple(s if n > 1 else 0 for s, n in zip(strides, node.shape, strict=True))
    padded = (0,) * (len(shape) - len(steps)) + steps
    return Place(base.name, base.dtype, padded, offset)


def blocks(step: AttentionStep, target: Target, rank: int = 0) -> Blocks:
    """Return the tile and launch options of a kernel. `rank` 0: the best guess; 1, 2, ...:
    alternatives to measure.

    The guesses are from published kernels (FlashAttention for sm_80).
    """
    size = max(step.depth, step.width)
    half = step.node.dtype != "float32"
    if half:
        choices = [(128, 64, 8, 3), (64, 64, 4, 3), (128, 128, 8, 2), (64, 32, 4, 2)]
        if size > 128:
            choices = [(64, 32, 4, 2), (64, 64, 4, 2), (128, 32, 8, 2), (32, 32, 4, 1)]
    else:
        choices = [(64, 32, 4, 2), (128, 32, 8, 2), (32, 32, 4, 3), (32, 32, 4, 1)]
        if size > 64:
            choices = [(64, 32, 4, 2), (32, 32, 4, 2), (32, 16, 4, 2), (32, 16, 4, 1)]
    limit = 1024 * SHARED.get(target.capability, LEAST_SHARED)
    fitting = [c for c in choices if _shared(step, *c) <= limit] or choices[-1:]
    rows, columns, warps, stages = fitting[rank % len(fitting)]
    rows = min(rows, _tile_rows(step.rows))
    warps = min(warps, max(4, rows // 16))
    return Blocks(rows, columns, warps, stages, _splits(step, rows, columns, target.processors))


def _shared(step: AttentionStep, rows: int, columns: int, warps: int, stages: int) -> float:
    """Return the bytes of shared memory that a block needs: for the queries, and for keys and
    values of each pipeline stage.

    Triton took exactly this much for half types on sm_90, and up to 1.34 times as much for float32.
    """
    values = rows * step.depth + stages * columns * (step.depth + step.width)
    return values * (5.4 if step.node.dtype == "float32" else 2)


def _splits(step: AttentionStep, rows: int, columns: int, processors: int) -> int:
    """Return the number of parts into which to split the keys.

    It is the smallest number whose wave efficiency (busy share of the multiprocessors) is at least
    85 % of the best one.
    """
    count = step.batch * step.heads * math.ceil(step.rows / rows)
    most = min(processors // max(count, 1), step.columns // (4 * columns), 32)
    if count >= BUSY * processors or most < 2:
        return 1

    def efficiency(splits: int) -> float:
        waves = count * splits / processors
        return waves / math.ceil(waves)

    best = max(map(efficiency, range(1, most + 1)))
    return next(n for n in range(1, most + 1) if efficiency(n) >= 0.85 * best)
