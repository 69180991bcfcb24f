"""Write the CUDA schedules for few long rows: `split rows` and `split columns`.

Several blocks per row write partial values, and a second kernel joins them in a fixed order.
"""

from __future__ import annotations

import math

from cuagent.expert.streaming.cuda_text import CudaText
from cuagent.expert.streaming.expressions import identifier
from cuagent.expert.streaming.group import LONG_ROW
from cuagent.expert.streaming.stages import Stage

SPLIT_ROWS = 512
"""Number of long rows below which each row is split over several blocks.

One block for each row would leave multiprocessors idle.
"""
FEW_ADJACENT_ROWS = 2048
LONG_COLUMN = 2048
"""Least length of a row that is split over blocks if fewer than FEW_ADJACENT_ROWS rows are
adjacent.
"""
SPLIT_THREADS = 256
"""Number of threads per block in the kernels of `split rows`, and in all kernels that join."""


class SplitSchedules(CudaText):
    """Generates CUDA kernels in which several blocks reduce one row, and kernels that join their
    results.

    Schedules `split rows` and `split columns`, for groups that reduce in one pass, which may also
    store elements.
    """

    def _splits_rows(self) -> bool:
        """Return True if a kernel with one block per row would have too few blocks."""
        group = self.nest.group
        long = group.rows < SPLIT_ROWS and group.columns >= LONG_ROW
        return long and self.plan.reduces_at_end

    def _split_rows(self) -> None:
        """Write a kernel that computes `blocks` partial results per row, and a kernel that joins
        them.
        """
        w, group, stage = self.w, self.nest.group, self.plan.stages[0]
        per_block = SPLIT_THREADS * self.vector * 8
        blocks = max(1, min(1024, math.ceil(group.columns / per_block)))
        self.workspace = group.rows * blocks * len(stage.reduces)
        constants = {"THREADS": SPLIT_THREADS, "VECTOR": self.vector, "BLOCKS": blocks}
        self._open_kernel("_partial", "float* workspace", SPLIT_THREADS)
        self._constexpr(**constants)
        w("const int row = blockIdx.y;")
        self._decode("row", self.row_dims)
        self._row_values(stage)
        self._identities(stage)
        w("const long first = (blockIdx.x * (long)THREADS + threadIdx.x) * VECTOR;")
        step = "(long)BLOCKS * THREADS * VECTOR"
        w.pragma("unroll 4")
        w.open(f"for (long column = first; column < {group.columns}; column += {step})")
        self._decode("column", self.column_dims)
        self._element_block(stage, {})
        w.close()
        self._join_threads(stage, "reduce_block", "THREADS")
        for k, node in enumerate(stage.reduces):
            word = identifier(node.name)
            slot = f"({k} * {group.rows} + row) * BLOCKS + blockIdx.x"
            w(f"if (threadIdx.x == 0) workspace[{slot}] = {word};")
        w.close()
        w()
        self._join(constants, stage)
        self._launch_both(f"dim3({blocks}, {group.rows})", str(SPLIT_THREADS))

    def _splits_columns(self) -> bool:
        """Return True if a kernel with one block per 32 rows would have too few blocks."""
        group = self.nest.group
        long = group.rows < FEW_ADJACENT_ROWS and group.columns >= LONG_COLUMN
        return long and self.plan.reduces_at_end

    def _split_columns(self) -> None:
        """Write the schedule for few adjacent rows: each block reduces a part of the elements of
        each row.
        """
        w, group, stage = self.w, self.nest.group, self.plan.stages[0]
        lanes, tiles = 8, math.ceil(group.rows / 32)
        blocks = max(1, min(256, 1024 // tiles, group.columns // (8 * lanes)))
        self.workspace = group.rows * blocks * len(stage.reduces)
        self._open_kernel("_partial", "float* workspace", 32 * lanes)
        self._constexpr(COLUMNS=group.columns, LANES=lanes, BLOCKS=blocks, VECTOR=1)
        self._constexpr(WIDTH=32)
        w(f"const {self.integer} flat_row = blockIdx.x * 32 + threadIdx.x;")
        w(f"const {self.integer} row = flat_row < {group.rows} ? flat_row : {group.rows - 1};")
        self._decode("row", self.row_dims)
        self._row_values(stage)
        self._identities(stage)
        w.pragma("unroll 4")
        w.open(
            f"for ({self.integer} column = blockIdx.y * LANES + threadIdx.y; column < COLUMNS; "
            "column += BLOCKS * LANES)"
        )
        self._decode("column", self.column_dims)
        self._element_block(stage, {})
        w.close()
        self._join_threads(stage, "reduce_lanes", "LANES")
        for k, node in enumerate(stage.reduces):
            word = identifier(node.name)
            slot = f"({k} * {group.rows} + row) * BLOCKS + blockIdx.y"
            inside = f"threadIdx.y == 0 && flat_row < {group.rows}"
            w(f"if ({inside}) workspace[{slot}] = {word};")
        w.close()
        w()
        self._join({"THREADS": SPLIT_THREADS, "VECTOR": 1, "BLOCKS": blocks}, stage)
        self._launch_both(f"dim3({tiles}, {blocks})", f"dim3(32, {lanes})")

    def _join(self, constants: dict[str, int], stage: Stage) -> None:
        """Write the kernel that joins the partial results of each row and stores the row's
        values.
        """
        w, group = self.w, self.nest.group
        self._open_kernel("_join", "const float* workspace", SPLIT_THREADS)
        self._constexpr(**constants)
        w("const int row = blockIdx.x;")
        self._decode("row", self.row_dims)
        self._row_values(stage)
        self._identities(stage)
        w.open("for (int part = threadIdx.x; part < BLOCKS; part += THREADS)")
        parts = {
            node.name: f"workspace[({k} * {group.rows} + row) * BLOCKS + part]"
            for k, node in enumerate(stage.reduces)
        }
        self._join_values(stage, parts)
        w.close()
        self._join_threads(stage, "reduce_block", "THREADS")
        self._row_values(self.plan.stages[1])
        self._row_stores()
        w.close()

    def _launch_both(self, grid: str, block: str) -> None:
        """Write the launcher of both kernels; `grid` and `block` are the dimensions of the first
        one.
        """
        first = self._launch(grid, block, "_partial", workspace=True)
        rows = str(self.nest.group.rows)
        second = self._launch(rows, str(SPLIT_THREADS), "_join", workspace=True)
        self._launcher([first, second], workspace=True)
