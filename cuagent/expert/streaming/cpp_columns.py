"""Write the C++ schedule `columns`, which reduces a tile of adjacent rows together.

A row consists of the elements that are reduced to one value.
"""

from __future__ import annotations

from cuagent.expert.streaming.cpp_text import CppText, joined, tile_width
from cuagent.expert.streaming.expressions import IDENTITY, computed_type, identifier
from cuagent.expert.streaming.group import LONG_ROW
from cuagent.expert.streaming.nest import Access
from cuagent.expert.streaming.stages import Stage

FEW_TILES = 8
"""Number of row tiles below which threads share the work along a reduced dimension, not by
tiles.
"""
FEW_UNROLLED = 8
"""Longest reduced dimension whose loop is unrolled.

gcc then keeps the results of a tile in registers: bags of 4 rows of 32 elements took 112 us and
take 15.
"""
COLUMN_BLOCK = 1 << 15
"""Number of elements of a tile in one block, if the reduced dimension is divided into blocks."""
MAX_PARTS = 256
"""Largest number of blocks of a reduced dimension; each has one partial result per row on the
stack.
"""


class ColumnSchedules(CppText):
    """Generates C++ kernels that reduce rows whose elements are not adjacent (schedule `columns`).

    Vectors run over adjacent rows. A variant is for few tiles of rows.
    """

    def _columns(self) -> None:
        """Write the schedule `columns`: each step of its outer loop processes `tile` adjacent
        rows.
        """
        w, dims = self.w, self.nest.dimensions
        *outer, inner = self.row_dims
        extent, tile = dims[inner].extent, self.tile
        self._parallel(len(outer) + 1)
        for k in outer:
            self._loop(k)
        if self.overlapping_tiles:
            self.overlaps = True
            w.open(f"for (long next = 0; next < {extent}; next += {tile})")
            w(f"const long start = next + {tile} <= {extent} ? next : {extent - tile};")
            w(f"const long width = {tile};")
        else:
            w.open(f"for (long start = 0; start < {extent}; start += {tile})")
            w(f"const long width = {tile_width(tile, extent)};")
        self._open_scratch(self.nest.group.columns * tile)
        if self.transposes:
            self._stage_rows(inner)
        for stage in self.plan.stages:
            self._column_rows(stage, inner, tile)
            if not stage.loops:
                continue
            self._column_identities(stage)
            if self.nest.group.columns <= FEW_UNROLLED and len(self.column_dims) == 1:
                w.pragma(f"GCC unroll {self.nest.group.columns}")
            for k in self.column_dims:
                self._loop(k)
            self._constants(stage, inner)
            w.pragma("omp simd")
            w.open("for (long k = 0; k < width; ++k)")
            w(f"const long i{inner} = start + k;")
            self._body(stage)
            w.close(len(self.column_dims) + 1)
        if self.transposes:
            self._store_staged(inner)
        self._column_stores(inner)
        w.close(len(outer) + 1)

    def _stage_rows(self, inner: int) -> None:
        """Write the copy of a tile of short rows into arrays, transposed, and declare arrays for
        its results.
        """
        w, size = self.w, self.nest.group.columns * self.tile
        found: dict[str, Access] = {}
        for access in self.nest.reads.values():
            plain = access.tensor and not access.guards and access.row is None
            varies = any(access.strides[k] for k in self.column_dims)
            if plain and varies and access.strides[inner] not in (0, 1):
                found.setdefault(self._element(access), access)
        for n, access in enumerate(found.values()):
            w(f"alignas(64) {computed_type(access.dtype)} staged_{n}[{size}];")
        if found:
            self._open_elements(inner)
            for n, access in enumerate(found.values()):
                w(f"staged_{n}[{self._position()}] = {self._load(access)};")
            w.close(len(self.column_dims) + 1)
        self.staged = {key: f"staged_{n}" for n, key in enumerate(found)}
        for name in self._element_outputs():
            dtype = computed_type(self.nest.writes[name].dtype)
            w(f"alignas(64) {dtype} {identifier(name)}_tile[{size}];")

    def _store_staged(self, inner: int) -> None:
        names = self._element_outputs()
        if names:
            self._open_elements(inner)
            for name in names:
                value = f"{identifier(name)}_tile[{self._position()}]"
                self.w(self._assign(name, value))
            self.w.close(len(self.column_dims) + 1)

    def _element_outputs(self) -> list[str]:
        rows = self._row_outputs()
        return [name for name in self.nest.group.outputs if name not in rows]

    def _open_elements(self, inner: int) -> None:
        """Open the loops over all elements of a tile, row by row."""
        self.w.open("for (long k = 0; k < width; ++k)")
        self.w(f"const long i{inner} = start + k;")
        for k in self.column_dims:
            self._loop(k)

    def _few_long_columns(self) -> bool:
        """Return True if the kernel only reduces, in few tiles of long rows."""
        group, plan = self.nest.group, self.plan
        tiles = group.rows // self.tile
        simple = plan.only_reduces and not plan.stages[0].row_nodes
        return tiles < FEW_TILES and group.columns * self.tile >= LONG_ROW and simple

    def _column_blocks(self) -> None:
        """Write the schedule for few tiles: threads share blocks of the outermost reduced
        dimension.

        The partial results of the blocks are joined in order, so that the result does not depend on
        the number of threads.
        """
        w, stage = self.w, self.plan.stages[0]
        *outer, inner = self.row_dims
        split, *rest = self.column_dims
        width, extent = self.nest.dimensions[inner].extent, self.nest.dimensions[split].extent
        size = self.nest.group.columns // extent * self.tile
        block = max(-(-COLUMN_BLOCK // size), -(-extent // MAX_PARTS))
        blocks = -(-extent // block)
        for k in outer:
            self._loop(k)
        w.open(f"for (long start = 0; start < {width}; start += {self.tile})")
        w(f"const long width = {tile_width(self.tile, width)};")
        for node in stage.reduces:
            w(f"float {identifier(node.name)}_part[{blocks}][{self.tile}];")
        self._parallel(1)
        w.open(f"for (long block = 0; block < {blocks}; ++block)")
        w(f"const long first = block * {block};")
        w(f"const long last = first + {block} < {extent} ? first + {block} : {extent};")
        self._column_identities(stage)
        w.open(f"for (long i{split} = first; i{split} < last; ++i{split})")
        for k in rest:
            self._loop(k)
        self._constants(stage, inner)
        w.pragma("omp simd")
        w.open("for (long k = 0; k < width; ++k)")
        w(f"const long i{inner} = start + k;")
        self._body(stage)
        w.close(len(rest) + 2)
        for node in stage.reduces:
            word = identifier(node.name)
            w(f"for (long k = 0; k < width; ++k) {word}_part[block][k] = {word}[k];")
        w.close()
        self._join_column_blocks(stage, blocks)
        self._column_rows(self.plan.stages[1], inner, self.tile)
        self._column_stores(inner)
        w.close(len(outer) + 1)

    def _join_column_blocks(self, stage: Stage, blocks: int) -> None:
        w = self.w
        for node in stage.reduces:
            word, part = identifier(node.name), f"{identifier(node.name)}_part[block][k]"
            w(f"alignas(64) float {word}[{self.tile}];")
            w.open("for (long k = 0; k < width; ++k)")
            w(f"double all = {IDENTITY[node.op]};")
            w(f"for (long block = 0; block < {blocks}; ++block) {joined(node.op, 'all', part)}")
            w(f"{word}[k] = all;")
            w.close()

    def _column_identities(self, stage: Stage) -> None:
        for node in stage.reduces:
            word = identifier(node.name)
            self.w(f"alignas(64) float {word}[{self.tile}];")
            self.w(f"for (long k = 0; k < {self.tile}; ++k) {word}[k] = {IDENTITY[node.op]};")
