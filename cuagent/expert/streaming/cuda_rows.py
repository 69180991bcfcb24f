"""Write the CUDA schedule `rows`, for reductions over the innermost dimension.

A row consists of the elements that are reduced to one value.
"""

from __future__ import annotations

import math

from cuagent.expert.graph.graph import FLOATS, ITEM_BYTES
from cuagent.expert.streaming.cuda_text import CudaText
from cuagent.expert.streaming.expressions import identifier
from cuagent.expert.streaming.nest import Access
from cuagent.expert.streaming.stages import REGISTER_BYTES, Plan, Stage

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
MAX_JOINT = 64
"""Largest number of registers per thread for values that replace the elements of several tensors,
and for these elements. 0 to keep the elements instead.
"""
LOADS_FIRST = True
"""True if a thread loads all its elements of a row, if they fit into registers, before it uses one.
"""
ROWS_THREADS = 128
"""Number of threads of a block that computes several rows."""


class RowSchedule(CudaText):
    """Generates CUDA kernels in which a warp or a block computes a row in several passes
    (`rows`).
    """

    def _save_joint_values(self, threads_are_given: bool) -> None:
        """Save values that are computed from several tensors instead of the tensors' elements, if
        enough threads for each row may be used.
        """
        plan = Plan(self.nest, joint=True)
        if not MAX_JOINT or plan.stages == Plan(self.nest).stages:
            return
        first = next(stage for stage in plan.stages if stage.loops)
        loaded = plan.elements([node.name for node in first.compute], set())
        saved = plan.most_saved + math.ceil(sum(loaded.values()) / REGISTER_BYTES)
        threads = self.threads
        while saved * self._items_of(threads) * self.vector > MAX_JOINT and threads < SMALL_BLOCK:
            threads *= 2
        if threads_are_given and threads != self.threads:
            return
        if saved * self._items_of(threads) * self.vector <= MAX_JOINT:
            self.plan, self.threads, self.items = plan, threads, self._items_of(threads)

    def _items_of(self, threads: int) -> int:
        return math.ceil(self.nest.group.columns / (threads * self.vector))

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
        self._load_first()
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
                    and self._element(access) not in self.loose
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

    def _load_first(self) -> None:
        """Write the loads of a row's elements that the first pass uses, all before it uses one.

        Otherwise a thread would wait for the elements of each item before it loads those of the
        next, because the compiler moves few loads before other instructions.
        """
        stage = next(stage for stage in self.plan.stages if stage.loops)
        if not LOADS_FIRST or self.items < 2 or self.threads > SMALL_BLOCK:
            return
        w, found = self.w, self._first_elements(stage)
        for key, (word, access) in found.items():
            if key not in self.cached:
                halves = ITEM_BYTES[access.dtype] == 2
                kind, length = ("uint32_t", "VECTOR / 2") if halves else ("float", "VECTOR")
                w(f"{kind} {word}[ITEMS][{length}];")
                self.packed |= {word} if halves else set()
        if found:
            w.pragma("unroll")
            w.open("for (int item = 0; item < ITEMS; ++item)")
            w("const int column = (item * THREADS + threadIdx.x) * VECTOR;")
            w.open("if (column < COLUMNS)")
            self._decode("column", self.column_dims)
        for key, (word, access) in found.items():
            pointer = f"{self._pointer(access.tensor)} + {self._index(access)}"
            if word in self.packed:
                pointer = f"reinterpret_cast<const uint32_t*>({pointer})"
            w(f"load_vector({pointer}, {word}[item]);")
            self.cached[key] = (-1, word)
        w.close(2 if found else 0)

    def _first_elements(self, stage: Stage) -> dict[str, tuple[str, Access]]:
        """Return the vectors of a row that a pass reads and that fit into registers together.

        The values are (register array, access).
        """
        found: dict[str, tuple[str, Access]] = {}
        free = MAX_SAVED
        readers = {n.name for n in (*stage.compute, *stage.reduces)}
        for (reader, _), access in self.nest.reads.items():
            key = self._element(access)
            every = all(access.varies(k) for k in (*self.row_dims, *self.column_dims))
            plain = access.tensor and not access.guards and access.row is None
            plain = plain and key not in self.loose
            vectors = self.vector > 1 and access.strides[-1] == 1 and access.dtype in FLOATS
            if reader in readers and every and plain and vectors and key not in found:
                word = self.cached[key][1] if key in self.cached else f"first_{len(found)}_cached"
                halves = (
                    word in self.packed if key in self.cached else ITEM_BYTES[access.dtype] == 2
                )
                size = self.items * self.vector // (2 if halves else 1)
                if size <= free:
                    free -= size
                    found[key] = (word, access)
        return found

    def _saved(self) -> list[str]:
        return [name for stage in self.plan.stages for name in stage.save]
