"""Write the CUDA schedule `sliced rows`: rows that exceed a cluster's memory, or few long rows.

A block per row would read its row once in each pass, from DRAM if the rows in flight exceed the L2
cache. Here a first kernel reads each slice of a row into registers and reduces it, with the slice's
own mean or maximum where the second reduction needs that of the row (`slice_joins`). A second one
joins the results of the slices. A third one reads the slices again and stores the elements. So a
row is read twice. Few rows are sliced too, because a block for each would leave multiprocessors
idle. Not covered: three levels of reductions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuagent.expert.graph.graph import FLOATS
from cuagent.expert.streaming.cuda_rows import MAX_SAVED
from cuagent.expert.streaming.cuda_text import JOIN, CudaText
from cuagent.expert.streaming.expressions import computed_type, identifier
from cuagent.expert.streaming.group import FEW_ROWS, LONG_ROW
from cuagent.expert.streaming.nest import Access
from cuagent.expert.streaming.slice_joins import CENTRED, SliceJoin, slice_joins
from cuagent.expert.streaming.stages import Plan, Stage

LEAST_COLUMNS = 1 << 18
"""Number of elements from which on rows are sliced. For fewer than FEW_ROWS rows it is LONG_ROW."""
SLICE_THREADS, ELEMENTS = 512, 16
"""Number of threads of a block, and of elements of its slice that each thread keeps."""
BUSY_BLOCKS = 264
"""Number of slices, two for each of 132 multiprocessors, below which a thread keeps fewer elements.
"""
LAST_THREADS, LAST_ELEMENTS = 256, 8
"""Number of threads of a block of the last kernel, and of elements of a row for each."""
TOGETHER = 8
"""Number of rows that a block of the last kernel computes if they share operands.

A layer norm over 4 M elements would otherwise read its weight and bias, from the L2 cache, as often
as there are rows: twice the bytes of the rows.
"""
MOST_SLICES = 1 << 14
"""Number of slices of one of few rows up to which one block joins their results.

A row with more is reduced by `split rows`, and another kernel computes its elements.
"""
JOIN_THREADS = (256, 1024)
"""Numbers of threads of a block that joins the results of a row's slices: up to 8 for each thread,
and of more.
"""


class SlicedRowSchedule(CudaText):
    """Generates CUDA kernels in which the blocks of a row compute its slices (`sliced rows`)."""

    sliced = False
    joins: dict[str, SliceJoin]

    def _slice(self) -> None:
        """Choose this schedule, if rows are long and their reductions follow from those of slices.

        Rows without a stored element need no third kernel, and one block reads them only once.
        """
        plan = Plan(self.nest, may_save=False)
        group = self.nest.group
        least = min(LONG_ROW, LEAST_COLUMNS) if group.rows < FEW_ROWS else LEAST_COLUMNS
        long = group.columns >= least and not self.places
        most = MOST_SLICES * SLICE_THREADS * ELEMENTS
        long &= group.rows >= FEW_ROWS or group.columns <= most
        if not long or plan.levels not in (1, 2) or not plan.stages[-1].stores:
            return
        joins = slice_joins(plan) if plan.levels == 2 else {}
        if joins is not None:
            self.plan, self.sliced, self.joins = plan, True, joins

    def _sliced_rows(self) -> None:
        """Write the kernels of slices, of joins and of elements, and their launcher."""
        group, threads = self.nest.group, SLICE_THREADS
        elements = ELEMENTS
        while elements > self.vector and group.size < threads * elements * BUSY_BLOCKS:
            elements //= 2
        self.items = elements // self.vector
        length = threads * elements
        slices = math.ceil(group.columns / length)
        reduces = [node for stage in self.plan.stages for node in stage.reduces]
        self.workspace = group.rows * (slices + 1) * len(reduces)
        constants = {"ROWS": group.rows, "COLUMNS": group.columns}
        constants |= {"SLICE": length, "SLICES": slices}
        joining = JOIN_THREADS[slices > 8 * JOIN_THREADS[0]]
        self._slice_kernel(constants)
        self.w()
        self._slice_join_kernel(constants, joining)
        self.w()
        last = self._element_kernel(constants)
        grid = str(group.rows * slices)
        self._launcher(
            [
                self._launch(grid, str(threads), "_slices", workspace=True),
                self._launch(str(group.rows), str(joining), "_join", workspace=True),
                last,
            ],
            workspace=True,
        )

    def _place_of(self, name: str, part: str = "") -> str:
        """Return the scratch element with a slice's result of a reduction; without `part` with that
        of the row.
        """
        rows = self.nest.group.rows
        names = [node.name for stage in self.plan.stages for node in stage.reduces]
        k = names.index(name)
        if part:
            return f"workspace[({k} * {rows}L + row) * SLICES + {part}]"
        return f"workspace[{len(names)} * {rows}L * SLICES + {k} * {rows} + row]"

    def _slice_kernel(self, constants: dict[str, int]) -> None:
        """Write the kernel that reduces each slice, in one or two passes over its registers."""
        w = self.w
        self._open_kernel("_slices", "float* workspace", SLICE_THREADS)
        self._constexpr(**constants, THREADS=SLICE_THREADS, VECTOR=self.vector, ITEMS=self.items)
        w("const int block = blockIdx.x;")
        w(f"const {self.integer} row = block / SLICES;")
        w("const int slice = block % SLICES;")
        self._decode("row", self.row_dims)
        first, *second = self.plan.stages[:-1]
        self._row_values(first)
        self._preload(self._registers((first, *second)))
        self._slice_pass(first)
        if second:
            w("const int length = slice == SLICES - 1 ? COLUMNS - slice * SLICE : SLICE;")
            self._slice_means("")
            self._slice_pass(second[0])
        w.open("if (threadIdx.x == 0)")
        for stage in (first, *second):
            for node in stage.reduces:
                w(f"{self._place_of(node.name, 'slice')} = {identifier(node.name)};")
        w.close(2)
        self.cached = {}

    def _slice_means(self, prefix: str) -> None:
        """Declare the mean of a slice, which takes the place of the row's, from its sum."""
        for value, first in self._means().items():
            word = identifier(value)
            self.w(f"const float {prefix}{word} = {prefix}{identifier(first)} / length;")

    def _means(self) -> dict[str, str]:
        return {join.value: join.first for join in self.joins.values() if join.kind == CENTRED}

    def _slice_join_kernel(self, constants: dict[str, int], threads: int) -> None:
        """Write the kernel that joins the results of each row's slices, and stores row outputs."""
        w = self.w
        self._open_kernel("_join", "float* workspace", threads)
        self._constexpr(**constants, THREADS=threads, VECTOR=1)
        w(f"const {self.integer} row = blockIdx.x;")
        self._decode("row", self.row_dims)
        for stage in self.plan.stages[:-1]:
            self._row_values(stage)
            self._identities(stage)
            w.open("for (int part = threadIdx.x; part < SLICES; part += THREADS)")
            if stage.level == 1:
                w("const int length = part == SLICES - 1 ? COLUMNS - part * SLICE : SLICE;")
                for first in dict.fromkeys(join.first for join in self.joins.values()):
                    w(f"const float part_{identifier(first)} = {self._place_of(first, 'part')};")
                self._slice_means("part_")
            for node in stage.reduces:
                word, part = identifier(node.name), self._joined_part(node.name)
                w(f"{word} = {JOIN[node.op]}::join({word}, {part});")
            w.close()
            self._join_threads(stage, "reduce_block", "THREADS")
        w.open("if (threadIdx.x == 0)")
        for stage in self.plan.stages[:-1]:
            for node in stage.reduces:
                w(f"{self._place_of(node.name)} = {identifier(node.name)};")
        w.close()
        if self._row_outputs():
            self._row_values(self.plan.stages[-1])
            self._row_stores()
        w.close()

    def _joined_part(self, name: str) -> str:
        """Return the C++ expression of a slice's part of a reduction of the row."""
        part, join = self._place_of(name, "part"), self.joins.get(name)
        if join is None:
            return part
        function = "centred_part" if join.kind == CENTRED else "powers_part"
        value = identifier(join.value)
        length = ", length" if join.kind == CENTRED else ""
        return f"{function}({part}, part_{value}, {value}{length})"

    def _element_kernel(self, constants: dict[str, int]) -> str:
        """Write the kernel that computes and stores the elements from the rows' reductions; return
        its launch.

        It begins with the last slices, which the first kernel has left in the L2 cache.
        """
        w, group, together = self.w, self.nest.group, TOGETHER
        shared = self._registers(self.plan.stages[-1:], of_rows=False)
        elements = max(self.vector, LAST_ELEMENTS)
        self.items = elements // self.vector
        length = LAST_THREADS * elements
        parts = math.ceil(group.columns / length)
        while together > 1 and (
            not shared or parts * math.ceil(group.rows / together) < BUSY_BLOCKS
        ):
            together //= 2
        blocks = parts * math.ceil(group.rows / together)
        self._open_kernel("_elements", "const float* workspace", LAST_THREADS)
        self._constexpr(**constants | {"SLICE": length}, PARTS=parts, TOGETHER=together)
        self._constexpr(THREADS=LAST_THREADS, VECTOR=self.vector, ITEMS=self.items)
        w(f"const int block = {blocks - 1} - blockIdx.x;")
        w("const int slice = block % PARTS;")
        if together > 1:
            w("const int first = block / PARTS * TOGETHER;")
            w("const int end = first + TOGETHER < ROWS ? first + TOGETHER : ROWS;")
            self._preload(shared)
            w.pragma("unroll 1")
            w.open(f"for ({self.integer} row = first; row < end; ++row)")
        else:
            w(f"const {self.integer} row = block / PARTS;")
        self._decode("row", self.row_dims)
        self._elements()
        w.close(1 + (together > 1))
        self.cached = {}
        return self._launch(str(blocks), str(LAST_THREADS), "_elements", workspace=True)

    def _elements(self) -> None:
        """Write the loads of a slice, the row's values, and the stores of the elements."""
        w, last = self.w, self.plan.stages[-1]
        own = self._registers((last,))
        self._preload({key: access for key, access in own.items() if key not in self.cached})
        for stage in self.plan.stages:
            self._row_values(stage)
            for node in stage.reduces:
                w(f"const float {identifier(node.name)} = {self._place_of(node.name)};")
        self._slice_pass(last)

    def _open_items(self) -> None:
        w = self.w
        w.pragma("unroll")
        w.open("for (int item = 0; item < ITEMS; ++item)")
        w("const int column = slice * SLICE + (item * THREADS + threadIdx.x) * VECTOR;")
        w.open("if (column < COLUMNS)")
        self._decode("column", self.column_dims)

    def _preload(self, found: dict[str, Access]) -> None:
        """Write the loads of a slice's elements into registers, all before the first is used."""
        w = self.w
        words = {key: f"slice_{len(self.cached) + k}_cached" for k, key in enumerate(found)}
        for word in words.values():
            w(f"{computed_type('float32')} {word}[ITEMS][VECTOR];")
        if found:
            self._open_items()
            for key, access in found.items():
                if self.vector > 1:
                    place = f"{self._pointer(access.tensor)} + {self._index(access)}"
                    w(f"load_vector({place}, {words[key]}[item]);")
                else:
                    w(f"{words[key]}[item][0] = {self._load(access)};")
            w.close(2)
        self.cached |= {key: (-1, word) for key, word in words.items()}

    def _registers(self, stages: Sequence[Stage], of_rows: bool = True) -> dict[str, Access]:
        """Return the elements that the stages load into registers, up to the number that fits.

        `of_rows`: those of each row; otherwise those that all rows share.
        """
        found: dict[str, Access] = {}
        for stage in stages:
            readers = {n.name for n in (*stage.compute, *stage.reduces)}
            for (reader, _), access in self.nest.reads.items():
                every = all(access.varies(k) for k in self.column_dims) and all(
                    access.varies(k) == of_rows for k in self.row_dims
                )
                plain = access.tensor and not access.guards and access.row is None
                if reader in readers and every and plain and access.dtype in FLOATS:
                    found.setdefault(self._element(access), access)
        return dict(list(found.items())[: MAX_SAVED // ELEMENTS])

    def _slice_pass(self, stage: Stage) -> None:
        self._identities(stage)
        self._open_items()
        self._element_block(stage, {})
        self.w.close(2)
        self._join_threads(stage, "reduce_block", "THREADS")
