"""Write the CUDA schedule `columns`, for reductions over other dimensions than the innermost."""

from __future__ import annotations

import math

from cuagent.expert.streaming.cuda_text import CudaText


class ColumnSchedule(CudaText):
    """Generates CUDA kernels in which a block computes 32 adjacent rows (schedule `columns`)."""

    def _columns(self) -> None:
        """Write the kernel: 32 adjacent rows per block and LANES threads per row."""
        w, group = self.w, self.nest.group
        max_lanes = 8 if group.rows >= 1 << 17 else 32
        lanes = max(1, min(max_lanes, 1 << max(0, (group.columns // 4).bit_length() - 1)))
        items = math.ceil(group.columns / lanes)
        self._open_kernel(threads=32 * lanes)
        self._constexpr(COLUMNS=group.columns, LANES=lanes, VECTOR=1)
        w(f"const {self.integer} flat_row = blockIdx.x * 32 + threadIdx.x;")
        # Threads past the end compute the last row too, because all threads must reach barriers.
        w(f"const {self.integer} row = flat_row < {group.rows} ? flat_row : {group.rows - 1};")
        self._decode("row", self.row_dims)
        for stage in self.plan.stages:
            self._row_values(stage)
            if not stage.loops:
                continue
            self._identities(stage)
            w.pragma("unroll" if items <= 16 else "unroll 8")
            w.open("for (int column = threadIdx.y; column < COLUMNS; column += LANES)")
            self._decode("column", self.column_dims)
            self._element_block(stage, {})
            w.close()
            self._join_threads(stage, "reduce_lanes", "LANES")
        row_outputs = self._row_outputs()
        if row_outputs:
            w.open(f"if (threadIdx.y == 0 && flat_row < {group.rows})")
            for name in row_outputs:
                self._store(name)
            w.close()
        w.close()
        grid = math.ceil(group.rows / 32)
        self._launcher([self._launch(str(grid), f"dim3(32, {lanes})")])
