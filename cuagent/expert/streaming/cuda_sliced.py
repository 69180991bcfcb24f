"""Write the CUDA schedule `sliced rows`, for rows that exceed the shared memory of a cluster.

A block per row would read its row once in each pass, from DRAM if the rows in flight exceed the L2
cache. Here a first kernel reads each slice of a row into registers and reduces it, with the slice's
own mean or maximum where the second reduction needs that of the row (`slice_joins`). A second one
joins the results of the slices. A third one reads the slices again and stores the elements. So a
row is read twice. Not covered: three levels of reductions; few rows whose groups are split.
"""

from __future__ import annotations

import math

from cuagent.expert.graph.graph import FLOATS
from cuagent.expert.streaming.cuda_rows import MAX_SAVED
from cuagent.expert.streaming.cuda_text import JOIN, CudaText
from cuagent.expert.streaming.expressions import computed_type, identifier
from cuagent.expert.streaming.nest import Access
from cuagent.expert.streaming.slice_joins import CENTRED, SliceJoin, slice_joins
from cuagent.expert.streaming.stages import Plan, Stage

LEAST_COLUMNS = 1 << 18
"""Number of elements from which on rows are sliced."""
SLICE_THREADS, ELEMENTS = 512, 16
"""Number of threads of a block, and of elements of its slice that each thread keeps."""
JOIN_THREADS = 256
"""Number of threads of a block that joins the results of a row's slices."""


class SlicedRowSchedule(CudaText):
    """Generates CUDA kernels in which the blocks of a row compute its slices (`sliced rows`)."""

    sliced = False
    joins: dict[str, SliceJoin]

    def _slice(self) -> None:
        """Choose this schedule, if rows are long and their reductions follow from those of slices.

        Rows without a stored element need no third kernel, and one block reads them only once.
        """
        plan = Plan(self.nest, may_save=False)
        long = self.nest.group.columns >= LEAST_COLUMNS and not self.places
        if not long or plan.levels not in (1, 2) or not plan.stages[-1].stores:
            return
        joins = slice_joins(plan) if plan.levels == 2 else {}
        if joins is not None:
            self.plan, self.sliced, self.joins = plan, True, joins

    def _sliced_rows(self) -> None:
        """Write the kernels of slices, of joins and of elements, and their launcher."""
        group, threads = self.nest.group, SLICE_THREADS
        self.items = ELEMENTS // self.vector
        length = threads * ELEMENTS
        slices = math.ceil(group.columns / length)
        reduces = [node for stage in self.plan.stages for node in stage.reduces]
        self.workspace = group.rows * (slices + 1) * len(reduces)
        constants = {"ROWS": group.rows, "COLUMNS": group.columns}
        constants |= {"SLICE": length, "SLICES": slices}
        self._slice_kernel(constants)
        self.w()
        self._slice_join_kernel(constants)
        self.w()
        self._element_kernel(constants)
        grid = str(group.rows * slices)
        self._launcher(
            [
                self._launch(grid, str(threads), "_slices", workspace=True),
                self._launch(str(group.rows), str(JOIN_THREADS), "_join", workspace=True),
                self._launch(grid, str(threads), "_elements", workspace=True),
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

    def _open_slice(self, suffix: str, constants: dict[str, int], block: str) -> None:
        w, kind = self.w, "const float*" if suffix == "_elements" else "float*"
        self._open_kernel(suffix, f"{kind} workspace", SLICE_THREADS)
        self._constexpr(**constants, THREADS=SLICE_THREADS, VECTOR=self.vector, ITEMS=self.items)
        w(f"const int block = {block};")
        w(f"const {self.integer} row = block / SLICES;")
        w("const int slice = block % SLICES;")
        self._decode("row", self.row_dims)

    def _slice_kernel(self, constants: dict[str, int]) -> None:
        """Write the kernel that reduces each slice, in one or two passes over its registers."""
        w = self.w
        self._open_slice("_slices", constants, "blockIdx.x")
        first, *second = self.plan.stages[:-1]
        self._row_values(first)
        self._preload((first, *second))
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

    def _slice_join_kernel(self, constants: dict[str, int]) -> None:
        """Write the kernel that joins the results of each row's slices, and stores row outputs."""
        w = self.w
        self._open_kernel("_join", "float* workspace", JOIN_THREADS)
        self._constexpr(**constants, THREADS=JOIN_THREADS, VECTOR=1)
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

    def _element_kernel(self, constants: dict[str, int]) -> None:
        """Write the kernel that computes and stores the elements from the rows' reductions.

        It begins with the last slices, which the first kernel has left in the L2 cache.
        """
        w, last = self.w, self.plan.stages[-1]
        self._open_slice("_elements", constants, "SLICES * ROWS - 1 - blockIdx.x")
        self._preload((last,))
        for stage in self.plan.stages:
            self._row_values(stage)
            for node in stage.reduces:
                w(f"const float {identifier(node.name)} = {self._place_of(node.name)};")
        self._slice_pass(last)
        w.close()
        self.cached = {}

    def _open_items(self) -> None:
        w = self.w
        w.pragma("unroll")
        w.open("for (int item = 0; item < ITEMS; ++item)")
        w("const int column = slice * SLICE + (item * THREADS + threadIdx.x) * VECTOR;")
        w.open("if (column < COLUMNS)")
        self._decode("column", self.column_dims)

    def _preload(self, stages: tuple[Stage, ...]) -> None:
        """Write the loads of a slice's elements into registers, all before the first is used."""
        w, found = self.w, self._registers(stages)
        for k in range(len(found)):
            w(f"{computed_type('float32')} slice_{k}_cached[ITEMS][VECTOR];")
        if found:
            self._open_items()
            for k, (key, access) in enumerate(found.items()):
                self.cached[key] = (-1, f"slice_{k}_cached")
                if self.vector > 1:
                    place = f"{self._pointer(access.tensor)} + {self._index(access)}"
                    w(f"load_vector({place}, slice_{k}_cached[item]);")
                else:
                    w(f"slice_{k}_cached[item][0] = {self._load(access)};")
            w.close(2)

    def _registers(self, stages: tuple[Stage, ...]) -> dict[str, Access]:
        """Return the elements that the stages load into registers, up to the number that fits."""
        found: dict[str, Access] = {}
        for stage in stages:
            readers = {n.name for n in (*stage.compute, *stage.reduces)}
            for (reader, _), access in self.nest.reads.items():
                every = all(access.varies(k) for k in (*self.row_dims, *self.column_dims))
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
