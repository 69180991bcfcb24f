"""Write the CUDA schedule `wide columns`, for many long rows that are adjacent but not aligned.

A block's segment of adjacent rows then begins inside a sector of memory that its neighbour reads
too. If neighbours are apart in time, DRAM delivers the sector twice. So a block is wide, which
makes such sectors rare, and short, which keeps neighbours together: several blocks reduce parts of
a row, and a second kernel joins their results in a fixed order.
"""

from __future__ import annotations

import math

from cuagent.expert.streaming.cuda_text import CudaText
from cuagent.expert.streaming.expressions import identifier
from cuagent.expert.streaming.stages import Stage

WIDTH, LANES = 256, 4
"""Number of adjacent rows of a block, and of threads for each of them."""
PART = 512
"""Number of elements of a row that a block reduces."""
UNROLL = 8
"""Number of elements that a thread loads before it uses the first."""
LEAST_ROWS = 128 * 264
"""Number of rows from which on they fill a GPU of 132 multiprocessors."""
JOIN_THREADS = 256
MOST_PARTS = 1 << 15
"""Largest number of parts of a row; a grid has at most 65,535 blocks in its second dimension."""


class WideColumnSchedule(CudaText):
    """Generates CUDA kernels in which wide blocks reduce parts of unaligned adjacent rows."""

    adjacent_rows: int

    def _is_wide(self) -> bool:
        """Return True if rows are many, long and not aligned, and are reduced in one pass."""
        group = self.nest.group
        many = group.rows >= LEAST_ROWS and group.columns >= 2 * PART
        return many and self.adjacent_rows == 1 and self.plan.reduces_at_end

    def _wide_columns(self) -> None:
        """Write the kernel of parts, the kernel that joins them, and their launcher."""
        w, group, stage = self.w, self.nest.group, self.plan.stages[0]
        parts = min(group.columns // PART, MOST_PARTS)
        length = math.ceil(group.columns / (parts * LANES)) * LANES
        parts = math.ceil(group.columns / length)
        self.workspace = group.rows * parts * len(stage.reduces)
        constants = {"ROWS": group.rows, "PARTS": parts}
        self._open_kernel("_parts", "float* workspace", WIDTH * LANES)
        self._constexpr(**constants, COLUMNS=group.columns, PART=length)
        self._constexpr(WIDTH=WIDTH, LANES=LANES, VECTOR=1)
        w(f"const {self.integer} flat_row = blockIdx.x * WIDTH + threadIdx.x;")
        # Threads past the end compute the last row too, because all threads must reach barriers.
        w(f"const {self.integer} row = flat_row < ROWS ? flat_row : ROWS - 1;")
        self._decode("row", self.row_dims)
        self._row_values(stage)
        self._identities(stage)
        w("const int first = blockIdx.y * PART;")
        w("const int end = first + PART < COLUMNS ? first + PART : COLUMNS;")
        w.pragma(f"unroll {UNROLL}")
        w.open("for (int column = first + threadIdx.y; column < end; column += LANES)")
        self._decode("column", self.column_dims)
        self._element_block(stage, {})
        w.close()
        self._join_threads(stage, "reduce_lanes", "LANES")
        w.open("if (threadIdx.y == 0 && flat_row < ROWS)")
        for k, node in enumerate(stage.reduces):
            w(f"{self._part(k, 'blockIdx.y')} = {identifier(node.name)};")
        w.close(2)
        w()
        self._join_parts(stage, constants)
        grid = f"dim3({math.ceil(group.rows / WIDTH)}, {parts})"
        self._launcher(
            [
                self._launch(grid, f"dim3({WIDTH}, {LANES})", "_parts", workspace=True),
                self._launch(
                    str(math.ceil(group.rows / JOIN_THREADS)),
                    str(JOIN_THREADS),
                    "_join",
                    workspace=True,
                ),
            ],
            workspace=True,
        )

    def _part(self, k: int, part: str) -> str:
        """Return the scratch element with the result of a part of the current row."""
        row = "flat_row" if part == "blockIdx.y" else "row"
        return f"workspace[({k}L * PARTS + {part}) * ROWS + {row}]"

    def _join_parts(self, stage: Stage, constants: dict[str, int]) -> None:
        """Write the kernel in which a thread joins the parts of a row and stores its values."""
        w = self.w
        self._open_kernel("_join", "const float* workspace", JOIN_THREADS)
        self._constexpr(**constants)
        w(f"const {self.integer} row = blockIdx.x * {JOIN_THREADS} + threadIdx.x;")
        w("if (row >= ROWS) return;")
        self._decode("row", self.row_dims)
        self._row_values(stage)
        self._identities(stage)
        w.pragma("unroll 8")
        w.open("for (int part = 0; part < PARTS; ++part)")
        parts = {node.name: self._part(k, "part") for k, node in enumerate(stage.reduces)}
        self._join_values(stage, parts)
        w.close()
        self._row_values(self.plan.stages[1])
        for name in self._row_outputs():
            self._store(name)
        w.close()
