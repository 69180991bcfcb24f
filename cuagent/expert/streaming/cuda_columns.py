"""Write the CUDA schedule `columns`, for reductions over other dimensions than the innermost.

Adjacent threads compute adjacent rows. Where the rows are aligned, a thread computes several of
them by vector accesses; otherwise a block is wider, because each of its reads shares a sector of
memory with those of its neighbours. Elements that a later pass reads again stay in registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cuagent.expert.streaming.cuda_rows import MAX_CACHED, SMALL_BLOCK, RowSchedule
from cuagent.expert.streaming.cuda_text import JOIN
from cuagent.expert.streaming.expressions import computed_type, identifier
from cuagent.expert.streaming.stages import Stage

MANY_ROWS = 1 << 17
"""Number of rows from which on a block has at most 8 threads for each row, otherwise 32."""
BUSY_BLOCKS = 264
"""Number of blocks, two for each of 132 multiprocessors, that must remain if each is wider."""
WIDE, WIDE_LANES = 128, 4
"""Number of adjacent rows of a block that reads them without alignment, and of a row's threads.

A warp reads 32 of them, which are 128 bytes in float32, from five sectors of 32 bytes.
"""


@dataclass(frozen=True)
class ColumnLayout:
    """Shape of a block: `width` threads for adjacent rows, `lanes` for the elements of each row."""

    vector: int
    """Number of adjacent rows of a thread."""
    width: int
    lanes: int
    keeps: bool
    """True if elements that several passes read stay in registers."""


def layout(
    rows: int, columns: int, vector: int, arrays: int, *, one_pass: bool, narrow: bool
) -> ColumnLayout:
    """Return the shape of the blocks.

    `vector`: number of adjacent rows that an aligned access covers. `arrays`: number of elements
    of each place that several passes read. `narrow`: True if a block computes at most 32 rows.
    """
    most = 8 if rows >= MANY_ROWS else 32
    lanes = max(1, min(most, 1 << max(0, (columns // 4).bit_length() - 1)))
    found = []
    size = 1 if narrow else vector
    while size >= 1:
        kept = lanes
        while arrays and kept < 32 and not _fits(kept, columns, size * arrays):
            kept *= 2
        keeps = arrays > 0 and _fits(kept, columns, size * arrays)
        if size == 1 or math.ceil(rows / (32 * size)) >= BUSY_BLOCKS:
            found.append(ColumnLayout(size, 32, kept if keeps else lanes, keeps))
        size //= 2
    chosen = next((shape for shape in found if shape.keeps), found[0])
    blocks = math.ceil(rows / WIDE)
    if one_pass and not narrow and chosen.vector == 1 and blocks >= BUSY_BLOCKS:
        return ColumnLayout(1, WIDE, min(lanes, WIDE_LANES), keeps=False)
    return chosen


def _fits(lanes: int, columns: int, values: int) -> bool:
    """Return True if a thread can keep its elements, `values` for each of a row's, in registers."""
    most = MAX_CACHED if 32 * lanes > SMALL_BLOCK else 2 * MAX_CACHED
    return math.ceil(columns / lanes) * values <= most


class ColumnSchedule(RowSchedule):
    """Generates CUDA kernels in which a block computes adjacent rows (schedule `columns`)."""

    adjacent_rows = 1
    """Number of adjacent rows that an aligned access covers."""

    def _columns(self) -> None:
        """Write the kernel: WIDTH * VECTOR adjacent rows per block and LANES threads per row."""
        w, group = self.w, self.nest.group
        passes = [stage for stage in self.plan.stages if stage.loops]
        shape = layout(
            group.rows,
            group.columns,
            self.adjacent_rows,
            len(self._read_again()),
            one_pass=len(passes) == 1,
            narrow=bool(self.places),
        )
        lanes, self.vector = shape.lanes, shape.vector
        self.items = math.ceil(group.columns / lanes)
        self._open_kernel(threads=shape.width * lanes)
        self._constexpr(COLUMNS=group.columns, LANES=lanes, ITEMS=self.items)
        self._constexpr(WIDTH=shape.width, VECTOR=self.vector)
        first = "blockIdx.x * WIDTH + threadIdx.x"
        first = f"({first}) * VECTOR" if self.vector > 1 else first
        w(f"const {self.integer} flat_row = {first};")
        # Threads past the end compute the last rows too, because all threads must reach barriers.
        last = group.rows - self.vector
        w(f"const {self.integer} row = flat_row < {group.rows} ? flat_row : {last};")
        self._decode("row", self.row_dims)
        if self.vector > 1:
            self.row_suffix = "[v]"
            w(f"const {self.integer} first_row = i{self.row_dims[-1]};")
        if shape.keeps:
            self._cache_elements(2 * MAX_CACHED)
        for stage in self.plan.stages:
            self._row_values(stage)
            if stage.loops:
                self._column_pass(stage, lanes)
        if self._row_outputs():
            w.open(f"if (threadIdx.y == 0 && flat_row < {group.rows})")
            self._open_rows()
            for name in self._row_outputs():
                self._store(name)
            w.close(1 + (self.vector > 1))
        w.close()
        self.row_suffix, self.cached = "", {}
        grid = math.ceil(group.rows / (shape.width * self.vector))
        self._launcher([self._launch(str(grid), f"dim3({shape.width}, {lanes})")])

    def _column_pass(self, stage: Stage, lanes: int) -> None:
        w, columns = self.w, self.nest.group.columns
        self._identities(stage)
        w.pragma("unroll" if self.items <= 16 else "unroll 8")
        w.open("for (int item = 0; item < ITEMS; ++item)")
        w("const int column = item * LANES + threadIdx.y;")
        if columns % lanes:
            w.open("if (column < COLUMNS)")
        self._decode("column", self.column_dims)
        self._element_block(stage, {})
        w.close(1 + (columns % lanes > 0))
        self._join_threads(stage, "reduce_lanes", "LANES")

    def _open_rows(self) -> None:
        """Open a loop over the rows of a thread, if there are several."""
        if self.vector > 1:
            self.w.pragma("unroll")
            self.w.open("for (int v = 0; v < VECTOR; ++v)")
            self.w(f"const {self.integer} i{self.row_dims[-1]} = first_row + v;")

    def _row_values(self, stage: Stage) -> None:
        if not self.row_suffix:
            super()._row_values(stage)
            return
        if stage.row_nodes:
            for node in stage.row_nodes:
                self.w(f"{computed_type(node.dtype)} {identifier(node.name)}[VECTOR];")
            self._open_rows()
            for node in stage.row_nodes:
                self.w(f"{identifier(node.name)}[v] = {self._value(node)};")
            self.w.close()

    def _identities(self, stage: Stage) -> None:
        if not self.row_suffix:
            super()._identities(stage)
            return
        for node in stage.reduces:
            self.w(f"float {identifier(node.name)}[VECTOR];")
            self.w.pragma("unroll")
            value = f"{identifier(node.name)}[v] = {JOIN[node.op]}::identity();"
            self.w(f"for (int v = 0; v < VECTOR; ++v) {value}")

    def _join_threads(self, stage: Stage, function: str, count: str) -> None:
        if function != "reduce_lanes":
            super()._join_threads(stage, function, count)
        elif self.row_suffix and not self.places:
            for node in stage.reduces:
                self.w(f"join_lanes<{JOIN[node.op]}, {count}>({identifier(node.name)});")
        else:
            super()._join_threads(stage, function, f"{count}, WIDTH")
