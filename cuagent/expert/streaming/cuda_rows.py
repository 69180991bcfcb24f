"""Write the CUDA schedule `rows`, for reductions over the innermost dimension.

A row consists of the elements that are reduced to one value.
"""

from __future__ import annotations

import math

from cuagent.expert.graph.graph import FLOATS, ITEM_BYTES
from cuagent.expert.streaming.cuda_text import CudaText
from cuagent.expert.streaming.expressions import identifier
from cuagent.expert.streaming.nest import Access
from cuagent.expert.streaming.stages import Stage

MAX_SAVED = 48
"""Largest number of registers per thread for values of a row that later passes need."""
MAX_CACHED = 16
"""Largest number of registers per thread for input elements that a later pass reads again.

On an H200, 32 registers slowed a cross-entropy over 32000 columns by 30 % (fewer resident blocks);
16 registers made a softmax over 4096 columns 6 % faster.
"""


SMALL_BLOCK = 512
"""Largest number of threads of a block whose threads keep 2 * MAX_CACHED registers of an input.

With more threads, 32 more registers leave room for one block of a multiprocessor instead of two.
"""
ROWS_THREADS = 128
"""Number of threads of a block that computes several rows."""


class RowSchedule(CudaText):
    """Generates CUDA kernels in which a warp or a block computes a row in several passes
    (`rows`).
    """

    def _rows(self) -> None:
        w, group = self.w, self.nest.group
        per_block = ROWS_THREADS // self.threads if self.threads <= 32 else 1
        self._open_kernel(threads=self.threads * per_block)
        self._constexpr(COLUMNS=group.columns, THREADS=self.threads)
        self._constexpr(VECTOR=self.vector, ITEMS=self.items)
        if per_block == 1:
            w("const int row = blockIdx.x;")
        else:
            w(f"const int row = blockIdx.x * {per_block} + threadIdx.y;")
            w(f"if (row >= {group.rows}) return;")
        self._decode("row", self.row_dims)
        self._row_passes(MAX_CACHED if self.threads > SMALL_BLOCK else 2 * MAX_CACHED)
        w.close()
        grid = math.ceil(group.rows / per_block)
        block = f"dim3({self.threads}, {per_block})" if per_block > 1 else str(self.threads)
        self._launcher([self._launch(str(grid), block)])

    def _row_passes(self, most: int = MAX_CACHED) -> None:
        """Write all passes over one row, and the stores of its row values.

        `most`: largest number of registers for each input that several passes read.
        """
        for stage in self.plan.stages:
            for name in stage.save:
                self.w(f"float {identifier(name)}_cached[ITEMS][VECTOR];")
        self._cache_elements(most)
        for stage in self.plan.stages:
            self._row_values(stage)
            if stage.loops:
                self._pass(stage)
        self._row_stores()

    def _cache_elements(self, most: int) -> None:
        """Declare register arrays for input elements that several passes read.

        `most`: largest number of registers for each.
        """
        free = MAX_SAVED - len(self._saved()) * self.items * self.vector
        for key, (first, access) in self._read_again().items():
            packed = self._is_packed(access)
            size = self.items * self.vector // (2 if packed else 1)
            if size <= min(free, most):
                free -= size
                word = f"row_{len(self.cached)}_cached"
                self.cached[key] = (first, word)
                if packed:
                    self.packed.add(word)
                kind, length = ("uint32_t", "VECTOR / 2") if packed else ("float", "VECTOR")
                self.w(f"{kind} {word}[ITEMS][{length}];")

    def _is_packed(self, access: Access) -> bool:
        """Return True if the kept elements of an access stay in half precision, two a register."""
        halves = ITEM_BYTES[access.dtype] == 2 and access.row is None
        rows = not self.column_rows and self.threads <= SMALL_BLOCK
        return halves and rows and self.vector > 1 and access.strides[-1] == 1

    def _read_again(self) -> dict[str, tuple[int, Access]]:
        """Return the input elements that several passes read, with the first of these passes."""
        passes: dict[str, list[int]] = {}
        accesses: dict[str, Access] = {}
        for stage in self.plan.stages:
            readers = {n.name for n in (*stage.compute, *stage.reduces)}
            for (reader, _), access in self.nest.reads.items():
                varies = all(access.varies(k) for k in (*self.row_dims, *self.column_dims))
                if (
                    reader in readers
                    and varies
                    and access.tensor
                    and not access.guards
                    and access.dtype in FLOATS
                ):
                    passes.setdefault(self._element(access), []).append(stage.level)
                    accesses[self._element(access)] = access
        again = {key: min(levels) for key, levels in passes.items() if len(set(levels)) > 1}
        return {key: (first, accesses[key]) for key, first in again.items()}

    def _pass(self, stage: Stage) -> None:
        """Write one pass of a row's threads over its elements, then the joins of their partial
        results.
        """
        w = self.w
        self._identities(stage)
        w.pragma("unroll" if self.items <= 16 else "unroll 4")
        w.open("for (int item = 0; item < ITEMS; ++item)")
        w("const int column = (item * THREADS + threadIdx.x) * VECTOR;")
        w.open("if (column < COLUMNS)")
        self._decode("column", self.column_dims)
        self._element_block(stage, {n: f"{identifier(n)}_cached[item][v]" for n in self._saved()})
        w.close(2)
        self._join_threads(stage, "reduce_block", "THREADS")

    def _saved(self) -> list[str]:
        return [name for stage in self.plan.stages for name in stage.save]
