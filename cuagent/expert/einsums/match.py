"""Find the einsums that one generated Triton kernel computes.

torch computes an einsum as a sequence of batched products of two operands, with a copy of each
operand whose dimensions are not in the right order. If the matrices are small, these copies and the
results in between take nearly all of the time. A kernel reads each operand once in its own layout:
the letters that all operands and the result have become the grid, and each block computes one tile
over the other letters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from cuagent.expert.capture.subject import Target
from cuagent.expert.einsums.contraction import Einsum, TileOperation, tile_operations
from cuagent.expert.graph.graph import Graph, Kind, Node, contiguous_strides
from cuagent.expert.graph.storage import NestError, storage
from cuagent.expert.products.expressions import EXPRESSIONS
from cuagent.expert.products.match import only_reader
from cuagent.expert.products.qualify import SPLIT_CAPABILITIES
from cuagent.expert.streaming.group import Group

LEAST_BLOCKS = 1.0
"""Least number of blocks for each multiprocessor; with fewer, torch's calls are as fast."""
MOST_SUMMED = 128
"""Largest size of a dimension that is summed over. Larger sums are products for cuBLAS."""
TILE = 64 * 64
"""Largest number of elements of the result's tile."""
MOST_REPEATED = 1 << 17
"""Largest number of elements of an operand that blocks read again along a letter that it lacks."""
LEAST_SIDE, MOST_SIDE = 16, 256
"""Least side of a tile, the tensor cores' least size, and the largest side of the result's tile."""


@dataclass(frozen=True)
class LetterPlace:
    """Memory location of a tensor that a kernel reads, indexed by letters."""

    tensor: str
    dtype: str
    strides: tuple[tuple[str, int], ...]
    """(letter, stride in elements) of each dimension along which the tensor is not broadcast."""
    offset: int

    @property
    def letters(self) -> str:
        return "".join(letter for letter, _ in self.strides)


@dataclass(frozen=True)
class EinsumStep:
    """An einsum that one kernel computes, with the elementwise nodes that follow it."""

    node: Node
    sizes: dict[str, int]
    """Number of elements along each letter."""
    grid: str
    """Letters of which each block computes one index, the fastest one last."""
    result: LetterPlace
    """Location of the result."""
    operands: tuple[LetterPlace, ...]
    operations: tuple[TileOperation, ...]
    precision: str
    """Triton's `input_precision` of products of float32 operands."""
    epilogue: tuple[Node, ...] = ()
    reads: dict[tuple[str, str], LetterPlace] | None = None
    """Tensors that the epilogue reads, by (name of the reading node, name of its argument)."""
    outputs: tuple[str, ...] = ()

    @property
    def tile(self) -> str:
        """Letters of the result's tile."""
        return "".join(c for c in self.result.letters if c not in self.grid)

    @property
    def blocks(self) -> dict[str, int]:
        """Side of the tiles along each letter that is not in the grid: a power of two."""
        inner = {c: n for c, n in self.sizes.items() if c not in self.grid}
        whole = {c: max(LEAST_SIDE, 1 << (n - 1).bit_length()) for c, n in inner.items()}
        least = min((whole[c] for c in self.tile), default=1)
        most = min(MOST_SIDE, max(math.isqrt(TILE), TILE // least))
        return {c: min(n, most) if c in self.tile else n for c, n in whole.items()}

    @property
    def programs(self) -> int:
        """Number of blocks of a launch."""
        tiles = math.prod(math.ceil(self.sizes[c] / self.blocks[c]) for c in self.tile)
        return tiles * math.prod(self.sizes[c] for c in self.grid)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the kernel computes."""
        return (self.node, *self.epilogue)

    @property
    def places(self) -> dict[str, tuple[int, ...]]:
        """Mapping with the names of the computed nodes as keys, as in `Group.places`; the values
        are unused."""
        return {node.name: () for node in self.nodes}

    @property
    def tensors(self) -> dict[str, str]:
        """dtype of each tensor that the kernel reads, by name, in order of first use."""
        return {p.tensor: p.dtype for p in (*self.operands, *(self.reads or {}).values())}


def with_einsums(
    steps: Sequence[Any], graph: Graph, target: Target, keep: frozenset[str]
) -> tuple[Any, ...]:
    """Return the steps with each qualifying einsum, and the elementwise group that is its only
    reader, replaced by one `EinsumStep`.

    Nodes whose origin is in `keep` stay calls of torch.
    """
    found: dict[str, EinsumStep] = {}
    absorbed: dict[int, EinsumStep] = {}
    for step in steps:
        made = _einsum_step(step, graph, target, keep)
        if made is None:
            continue
        group = only_reader(made.node, steps, graph)
        joined = None if group is None or id(group) in absorbed else _joined(made, group, graph)
        if joined is not None:
            absorbed[id(group)] = joined
        found[made.node.name] = joined or made
    result: list[Any] = []
    for step in steps:
        if isinstance(step, Node) and step.name in found:
            if not found[step.name].epilogue:
                result.append(found[step.name])
        else:
            result.append(absorbed.get(id(step), step))
    return tuple(result)


def _einsum_step(
    step: Any, graph: Graph, target: Target, keep: frozenset[str]
) -> EinsumStep | None:
    if not isinstance(step, Node) or not isinstance(step.spec, Einsum) or step.origin in keep:
        return None
    if not _can_multiply(target, step.dtype):
        return None
    words = step.spec.words
    try:
        operands = [
            _place(graph, graph.node(name), word)
            for name, word in zip(step.inputs, words, strict=True)
        ]
    except NestError:
        return None
    sizes: dict[str, int] = {}
    for name, word in zip(step.inputs, words, strict=True):
        for letter, count in zip(word, graph.node(name).shape, strict=True):
            sizes[letter] = max(count, sizes.get(letter, 1))
    letters = zip(step.spec.result, contiguous_strides(step.shape), strict=True)
    result = LetterPlace(step.name, step.dtype, tuple(letters), 0)
    result, operands, sizes = _merged(result, operands, sizes)
    largest = max(operands, key=lambda place: math.prod(sizes[c] for c in place.letters))
    shared = [c for c in result.letters if all(c in p.letters for p in operands)]
    shared += _repeated(largest, result, operands, sizes, shared)
    grid = "".join(sorted(shared, key=lambda c: -dict(largest.strides)[c]))
    tiles = ["".join(c for c in p.letters if c not in grid) for p in operands]
    summed = set(sizes) - set(result.letters)
    if any(sizes[c] > MOST_SUMMED for c in summed):
        return None
    made = EinsumStep(
        step, sizes, grid, result, tuple(operands), (),
        "tf32" if target.tf32 else "tf32x3", outputs=(step.name,),
    )  # fmt: skip
    operations = tile_operations(tiles, made.tile, made.blocks)
    if not operations or made.programs < LEAST_BLOCKS * target.processors:
        return None
    return replace(made, operations=operations)


def _repeated(
    largest: LetterPlace,
    result: LetterPlace,
    operands: Sequence[LetterPlace],
    sizes: Mapping[str, int],
    shared: Sequence[str],
) -> list[str]:
    """Return letters of the largest operand that become part of the grid, because its tiles would
    have more than two dimensions: the outermost ones of the result.

    The blocks along such a letter read the other operands again. These must be so small that they
    stay in the cache, and that the reading takes no longer than that of the largest operand.
    """
    steps = dict(largest.strides)
    tile = [c for c in largest.letters if c not in shared]
    free = sorted((c for c in tile if c in result.letters), key=lambda c: -steps[c])
    found = free[: max(0, len(tile) - 2)]
    again = math.prod(sizes[c] for c in found)
    others = [
        math.prod(sizes[c] for c in p.letters)
        for p in operands
        if p is not largest and not set(found) & set(p.letters)
    ]
    size = math.prod(sizes[c] for c in largest.letters)
    few = all(n <= MOST_REPEATED and n * again <= 2 * size for n in others)
    return found if few else []


def _can_multiply(target: Target, dtype: str) -> bool:
    """Return True if tensor cores multiply operands of this dtype as precisely as torch."""
    if dtype == "float32":
        return target.capability in SPLIT_CAPABILITIES
    return target.capability >= (8, 0) and dtype in ("float16", "bfloat16")


def _place(graph: Graph, node: Node, word: str) -> LetterPlace:
    """Return the location of a node's value; `word` has the letters of its dimensions. Raises
    NestError if strides do not give it."""
    base, strides, offset = storage(graph, node)
    pairs = zip(word, strides, node.shape, strict=True)
    return LetterPlace(base.name, base.dtype, tuple((c, s) for c, s, n in pairs if n > 1), offset)


def _merged(
    result: LetterPlace, operands: list[LetterPlace], sizes: dict[str, int]
) -> tuple[LetterPlace, list[LetterPlace], dict[str, int]]:
    """Return the places and sizes with neighbouring letters joined to one where all tensors that
    have one of them store both as one dimension.

    Letters of size 1 are dropped.
    """
    sizes = {c: n for c, n in sizes.items() if n > 1}
    result = replace(result, strides=tuple(p for p in result.strides if p[0] in sizes))
    places = [result, *operands]
    for first, second in pairwise(result.letters):
        if not all(_are_one(place, first, second, sizes[second]) for place in places):
            continue
        sizes = {c: n for c, n in sizes.items() if c != first} | {
            second: sizes[first] * sizes[second]
        }
        places = [
            replace(p, strides=tuple(pair for pair in p.strides if pair[0] != first))
            for p in places
        ]
    return places[0], places[1:], sizes


def _are_one(place: LetterPlace, first: str, second: str, size: int) -> bool:
    """Return True if a tensor stores two letters as one dimension, or has none of them; `size` is
    that of `second`."""
    strides = dict(place.strides)
    if first not in strides and second not in strides:
        return True
    if first not in strides or second not in strides:
        return False
    return strides[first] == strides[second] * size


def _joined(step: EinsumStep, group: Group, graph: Graph) -> EinsumStep | None:
    """Return the einsum with the group as its epilogue; None if the kernel cannot compute it."""
    inner = {step.node.name, *(node.name for node in group.nodes)}
    if not all(_is_computed(node, step, inner) for node in group.nodes):
        return None
    try:
        reads = {
            (node.name, arg): _read(graph, arg, step)
            for node in group.nodes
            for arg in node.inputs
            if arg not in inner
        }
    except NestError:
        return None
    return replace(step, epilogue=tuple(group.nodes), reads=reads, outputs=group.outputs)


def _is_computed(node: Node, step: EinsumStep, inner: set[str]) -> bool:
    """Return True if a node of an epilogue has the result's elements and a Triton expression.

    After a view the letters do not locate the elements of other tensors.
    """
    if node.size != step.node.size:
        return False
    if node.kind is Kind.VIEW:
        return True
    same = node.shape == step.node.shape or inner.issuperset(node.inputs)
    return node.kind is Kind.POINTWISE and node.op in EXPRESSIONS and same


def _read(graph: Graph, name: str, step: EinsumStep) -> LetterPlace:
    """Return the location of a tensor that is broadcast to the result. Raises NestError."""
    node, letters = graph.node(name), step.node.spec.result
    place = _place(graph, node, letters[len(letters) - len(node.shape) :])
    sizes = {c: n for c, n in zip(letters, step.node.shape, strict=True) if n > 1}
    for first, second in pairwise(sizes):
        joined = first not in step.sizes
        if joined and not _are_one(place, first, second, sizes[second]):
            raise NestError(f"{name} has no single stride along {first}{second}")
    strides = tuple(pair for pair in place.strides if pair[0] in step.sizes)
    return replace(place, strides=strides)
