"""Write the CUDA schedule `tiled map`, for elementwise kernels whose operands lie in memory in
different orders, such as images with channels last and with channels first.

A block copies tiles of the operands in the other order to shared memory, where adjacent threads
read adjacent elements, and computes its elements in the order of the results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cuagent.expert.graph.graph import ITEM_BYTES
from cuagent.expert.streaming.cuda_map import MapSchedule
from cuagent.expert.streaming.cuda_staged import STAGED_BYTES, STAGED_THREADS, is_scattered
from cuagent.expert.streaming.expressions import TYPES, widened
from cuagent.expert.streaming.nest import Access, Nest

SIDE, PADDING = 64, 2
"""Largest number of elements along each side of a tile, and elements between two of its rows.

With 32 elements along a side a warp would read half of a cache line of a half type.
"""
LEAST_SIDE = 8
"""Least extent of a dimension along which a tile has adjacent elements of the other order."""


@dataclass(frozen=True)
class Tile:
    """Sides of the tiles of a kernel: `other` is the dimension of the nest in which the operands of
    the other order have adjacent elements, with `height` elements in a tile. `width` is the number
    of elements along the innermost dimension."""

    other: int
    height: int
    width: int
    accesses: tuple[Access, ...]
    """Accesses in the other order; each is read once."""


def tile_of(nest: Nest) -> Tile | None:
    """Return the tile of an elementwise kernel with operands in another order; None if no operand
    or result has another order, or if not all of these have the same one."""
    reads = dict.fromkeys(a for a in nest.reads.values() if is_scattered(a, nest))
    if not reads or nest.group.reduced or any(is_scattered(a, nest) for a in nest.writes.values()):
        return None
    for other, dimension in enumerate(nest.dimensions[:-1]):
        if dimension.extent >= LEAST_SIDE and all(_is_adjacent(a, other) for a in reads):
            height, width = _side(nest, other), _side(nest, -1)
            items = sum(ITEM_BYTES[a.dtype] for a in reads)
            while height * width * items * 2 > STAGED_BYTES and height > LEAST_SIDE:
                height //= 2
            fits = (height + PADDING) * width * items <= STAGED_BYTES
            return Tile(other, height, width, tuple(reads)) if fits else None
    return None


def _side(nest: Nest, dimension: int) -> int:
    extent = nest.dimensions[dimension].extent
    return min(SIDE, 1 << (extent - 1).bit_length())


def _is_adjacent(access: Access, dimension: int) -> bool:
    """Return True if adjacent elements along `dimension` are read from adjacent memory, without
    conditions."""
    plain = not (access.guards or access.row or access.is_index)
    return plain and access.strides[dimension] == 1


class TiledMapSchedule(MapSchedule):
    """Generates elementwise CUDA kernels that read operands in another order through shared memory
    (`tiled map`), and the kernels of `map` if there are no such operands."""

    tile: Tile | None = None
    tiles: dict[str, str]
    """C++ expression of each element that is read from shared memory; the key is the text that
    identifies the element (`KernelText._element`)."""

    def _use_tile(self, tile: Tile) -> None:
        self.tile, self.tiles = tile, {}
        inner = len(self.nest.dimensions) - 1
        step = tile.height + PADDING
        for access in tile.accesses:
            word = f"{self._pointer(access.tensor)}_tile{len(self.tiles)}"
            place = f"(i{inner} - first_inner) * {step} + i{tile.other} - first_other"
            value = widened(f"{word}[{place}]", access.dtype)
            self.tiles.setdefault(self._element(access), value)
        if self.vector > 1:
            self.loose = {*self.tiles}

    def _load(self, access: Access) -> str:
        if self.tile and (found := self.tiles.get(self._element(access))):
            return found
        return super()._load(access)

    def _map(self) -> None:
        if self.tile is None:
            super()._map()
            return
        w, tile, dims = self.w, self.tile, self.nest.dimensions
        inner = len(dims) - 1
        columns = math.ceil(dims[inner].extent / tile.width)
        rows = math.ceil(dims[tile.other].extent / tile.height)
        rest = [k for k in range(inner) if k != tile.other]
        self._open_kernel(threads=STAGED_THREADS)
        self._constexpr(VECTOR=self.vector, HEIGHT=tile.height, WIDTH=tile.width)
        self._constexpr(STEP=tile.height + PADDING)
        for access, value in zip(tile.accesses, self.tiles.values(), strict=True):
            w(f"__shared__ {TYPES[access.dtype]} {_array(value)}[WIDTH * STEP];")
        w(f"const int first_inner = blockIdx.x % {columns} * WIDTH;")
        w(f"const int first_other = blockIdx.x / {columns} % {rows} * HEIGHT;")
        if rest:
            w(f"const {self.integer} outer = blockIdx.x / {columns * rows};")
            self._decode("outer", rest)
        self._copies(inner)
        w("__syncthreads();")
        vectors = tile.width // self.vector
        self._tile_loop(vectors * tile.height, unroll=2)
        w(f"const {self.integer} i{inner} = first_inner + element % {vectors} * VECTOR;")
        w(f"const {self.integer} i{tile.other} = first_other + element / {vectors};")
        w.open(f"if ({self._inside(inner, vectors * tile.height)})")
        self._element_block(self.plan.stages[0], {})
        w.close(3)
        count = columns * rows * math.prod(dims[k].extent for k in rest)
        self._launcher([self._launch(str(count), str(STAGED_THREADS))])

    def _copies(self, inner: int) -> None:
        """Write the copies of all tiles; adjacent threads read adjacent elements of memory.

        Elements of two bytes are copied in pairs if these are aligned.
        """
        assert self.tile is not None
        w, tile = self.w, self.tile
        pair = 2 if all(map(self._has_pairs, tile.accesses)) else 1
        total = tile.width * tile.height // pair
        self._tile_loop(total, unroll=16)
        down = f"element % {tile.height // pair}" + (f" * {pair}" if pair > 1 else "")
        w(f"const int row = element / {tile.height // pair}, column = {down};")
        w(f"const {self.integer} i{inner} = first_inner + row;")
        w(f"const {self.integer} i{tile.other} = first_other + column;")
        w.open(f"if ({self._inside(inner, total)})")
        for access, value in zip(tile.accesses, self.tiles.values(), strict=True):
            target = f"{_array(value)}[row * STEP + column]"
            source = f"{self._pointer(access.tensor)}[{self._index(access)}]"
            if pair > 1:
                target = f"*reinterpret_cast<uint32_t*>(&{target})"
                source = f"*reinterpret_cast<const uint32_t*>(&{source})"
            w(f"{target} = {source};")
        w.close(2)

    def _has_pairs(self, access: Access) -> bool:
        """Return True if two elements of an access that are adjacent in memory are four aligned
        bytes, and both inside of the tensor or both outside."""
        assert self.tile is not None
        steps = [s for k, s in enumerate(access.strides) if k != self.tile.other]
        even = [*steps, access.offset, self.nest.dimensions[self.tile.other].extent]
        return ITEM_BYTES[access.dtype] == 2 and not any(n % 2 for n in even)

    def _tile_loop(self, count: int, unroll: int) -> None:
        """Open a loop over `count` elements of a tile, of which each thread takes some."""
        rounds = math.ceil(count / STAGED_THREADS)
        self.w.pragma(f"unroll {min(unroll, rounds)}")
        self.w.open(f"for (int part = 0; part < {rounds}; ++part)")
        self.w(f"const int element = part * {STAGED_THREADS} + threadIdx.x;")

    def _inside(self, inner: int, count: int) -> str:
        """Return the C++ condition that an element is inside of the tensor and of the tile, which
        has `count` elements."""
        assert self.tile is not None
        sides = ((inner, self.tile.width), (self.tile.other, self.tile.height))
        extents = {k: self.nest.dimensions[k].extent for k, _ in sides}
        tests = [f"i{k} < {extents[k]}" for k, side in sides if extents[k] % side]
        tests += [f"element < {count}"] if count % STAGED_THREADS else []
        return " && ".join(tests) or "true"


def _array(value: str) -> str:
    """Return the name of the shared array in the expression of one of its elements."""
    return value[: value.index("[")].rpartition("(")[2]
