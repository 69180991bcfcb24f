"""Generate CUDA C++ kernels: one file per group, one `extern "C"` launcher on the current stream.

Schedules: `map` (a thread computes VECTOR adjacent elements), `rows` (a warp or a block per row; a
short row stays in registers between passes), `split rows` (few long rows: several blocks per row
write partial values, and a second kernel joins them in a fixed order), `columns` (the reduction is
not innermost: 32 adjacent rows per block, so that a warp reads adjacent elements), `split columns`
(the same with partial values, for few rows), `staged rows` (elements of a row are far apart, but
adjacent to those of the next row: a block reads 8 to 32 rows through shared memory). Reduced and
kept dimensions may alternate. Not covered: other transpositions; strided reads stay strided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuagent.expert.graph.graph import FLOATS, ITEM_BYTES
from cuagent.expert.kernel import KernelCall, Request
from cuagent.expert.streaming.cuda_text import JOIN, CudaText, headers
from cuagent.expert.streaming.expressions import TYPES, computed_type, identifier, widened
from cuagent.expert.streaming.fuse import LONG_ROW
from cuagent.expert.streaming.nest import Access, Nest, NestError, nest_of
from cuagent.expert.streaming.stages import Plan, Stage
from cuagent.expert.streaming.text import without_unused

MAP_THREADS = 256
"""Threads per block of the `map` schedule."""
AHEAD = 4
"""Elements that a thread of the `map` schedule loads before any arithmetic if no aligned vectors
fit."""
AHEAD_ROW = 8192
"""Innermost extent from which each block of that schedule stays in one row. The indices of the
other dimensions then cost one division per block."""
AHEAD_SIZE = 1 << 20
"""Fewest elements of a group for which threads load ahead: bytes in flight then bound the speed."""
STAGED_BYTES, STAGED_THREADS = 48 << 10, 256
"""Largest shared memory in bytes, and threads, of a block that reads adjacent rows through it."""
MAX_SAVED = 48
"""Largest number of registers per thread for saved values of its row."""
MAX_CACHED = 16
"""Largest number of registers per thread for input elements that a later pass reads again.

On an H200, 32 registers slowed a cross-entropy over 32000 columns by 30 % (fewer resident blocks);
16 registers made a softmax over 4096 columns 6 % faster.
"""
L1_BYTES = 128 << 10
"""Bytes of a tensor below which its strided reads are assumed to hit the L1 cache."""
SPLIT_ROWS = 512
"""Long rows are split over several blocks if there are fewer than this: one block for each row
would leave multiprocessors idle."""
FEW_ADJACENT_ROWS = 2048
LONG_COLUMN = 2048
"""If there are fewer than FEW_ADJACENT_ROWS adjacent rows, rows of at least LONG_COLUMN elements
are split over blocks."""
SPLIT_THREADS = 256
"""Threads per block of both kernels of the `split rows` schedule."""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group. Raises NestError if no schedule fits."""
    nest = nest_of(request.group, request.graph)
    kernel = _Kernel(request.name, nest, request.title, request.threads, request.vector)
    text = kernel.text()
    return KernelCall(
        request.name,
        f"kernels/{request.name}.cu",
        text,
        request.group,
        nest.tensors_read,
        headers(a.dtype for a in (*nest.reads.values(), *nest.writes.values())),
        kernel.plan.in_place(),
        workspace=kernel.workspace,
    )


def render(
    name: str, nest: Nest, title: str, threads: int = 0, vector: bool = True
) -> tuple[str, int]:
    """Return the source of one kernel file and the floats of workspace that it needs.

    `threads` is per row; 0 chooses it from the row length. Raises NestError if no schedule fits.
    """
    kernel = _Kernel(name, nest, title, threads, vector)
    return kernel.text(), kernel.workspace


def threads_for(columns: int, vector: int) -> int:
    """Return the threads per row: one warp, which needs no barrier, for up to 256 vectors.

    For longer rows each thread has two to four vectors, within 64 to 1024 threads.
    """
    if columns <= 256 * vector:
        return 32
    count = columns // (4 * vector)
    return max(64, min(1024, 1 << (count - 1).bit_length()))


class _Kernel(CudaText):
    def __init__(self, name: str, nest: Nest, title: str, threads: int, vector: bool) -> None:
        inner = nest.dimensions[-1]
        accesses = [*nest.reads.values(), *nest.writes.values()]
        column_rows = bool(nest.group.reduced) and not inner.reduced
        usable = vector and not column_rows
        width = vector_width(inner.extent, accesses) if usable else 1
        self.threads = threads or threads_for(nest.group.columns, width)
        self.items = math.ceil(nest.group.columns / (self.threads * width))
        plan = Plan(nest)
        saved = sum(len(stage.save) for stage in plan.stages) * self.items * width
        may_save = saved <= MAX_SAVED and bool(nest.group.reduced) and not column_rows
        super().__init__(name, nest, title, plan if may_save else Plan(nest, may_save=False))
        self.vector, self.column_rows = width, column_rows
        self.staged: dict[str, tuple[str, Access]] = {}
        if any(_is_scattered(a, nest) for a in accesses):
            self._stage(name)
        self.workspace = 0
        self.blocks = 0
        self.long = max(a.offset + nest.group.size for a in accesses) >= 1 << 30
        self.integer = "long" if self.long else "int"

    def text(self) -> str:
        w, dims = self.w, self.nest.dimensions
        for line in self.title.splitlines():
            w(f"// {line}")
        shape = " x ".join(f"{d.extent}{' (reduced)' if d.reduced else ''}" for d in dims)
        w(f"// Loop nest: {shape}. About {self.plan.operations / 1e6:.3g} M weighted operations.")
        accesses = (*self.nest.reads.values(), *self.nest.writes.values())
        for header in headers(a.dtype for a in accesses):
            w(f'#include "{header}"')
        w()
        group = self.nest.group
        if not group.reduced:
            self._map()
        elif self.column_rows and self._splits_columns():
            self._split_columns()
        elif self.column_rows:
            self._columns()
        elif self.staged:
            self._staged_rows()
        elif self._splits_rows():
            self._split_rows()
        else:
            self._rows()
        return "\n".join(without_unused(w.lines)) + "\n"

    def _splits_rows(self) -> bool:
        group = self.nest.group
        long = group.rows < SPLIT_ROWS and group.columns >= LONG_ROW
        return long and self.plan.only_reduces

    def _map(self) -> None:
        if self.vector == 1 and self._loads_ahead():
            self._map_ahead()
            return
        w, total = self.w, self.nest.group.size // self.vector
        self._open_kernel(threads=MAP_THREADS)
        self._constexpr(VECTOR=self.vector)
        w("const long position = blockIdx.x * (long)blockDim.x + threadIdx.x;")
        w(f"if (position >= {total}) return;")
        self._decode("position", list(range(len(self.nest.dimensions))), vector=True)
        self._element_block(self.plan.stages[0], {})
        w.close()
        self._launcher([self._launch(str(math.ceil(total / MAP_THREADS)), str(MAP_THREADS))])

    def _loads_ahead(self) -> bool:
        """Return True if the loads of several elements may be written before all arithmetic."""
        plain = (
            a.tensor and not (a.guards or a.row or a.is_index) for a in self.nest.reads.values()
        )
        return self.nest.group.size >= AHEAD_SIZE and all(plain)

    def _map_ahead(self) -> None:
        """Write the `map` schedule of elements that have no aligned vectors.

        A thread loads AHEAD elements before it computes and stores the first one: an output may be
        the memory of an input, so that the compiler cannot move a load before a store.
        """
        w, stage, dims = self.w, self.plan.stages[0], self.nest.dimensions
        by_row = dims[-1].extent >= AHEAD_ROW and len(dims) > 1
        extent = dims[-1].extent if by_row else self.nest.group.size
        blocks = math.ceil(extent / (MAP_THREADS * AHEAD))
        self._open_kernel(threads=MAP_THREADS)
        self._constexpr(AHEAD=AHEAD, THREADS=MAP_THREADS)
        chunk = "blockIdx.x"
        if by_row:
            w(f"const {self.integer} row = blockIdx.x / {blocks};")
            self._decode("row", list(range(len(dims) - 1)))
            chunk = f"(blockIdx.x % {blocks})"
        w(f"const {self.integer} first = {chunk} * (AHEAD * THREADS) + threadIdx.x;")
        loads: dict[str, tuple[str, Access]] = {}
        for access in self.nest.reads.values():
            word = f"{self._pointer(access.tensor)}_e{len(loads)}"
            loads.setdefault(self._element(access), (word, access))
        for word, access in loads.values():
            w(f"{computed_type(access.dtype)} {word}[AHEAD];")
        for last in (False, True):
            w.pragma("unroll")
            w.open("for (int v = 0; v < AHEAD; ++v)")
            w(f"const {self.integer} position = first + v * THREADS;")
            w.open(f"if (position < {extent})")
            self._decode("position", [len(dims) - 1] if by_row else list(range(len(dims))))
            if not last:
                for word, access in loads.values():
                    w(f"{word}[v] = {self._load(access)};")
            else:
                self.stage = stage
                self.defined = {key: f"{word}[v]" for key, (word, _) in loads.items()}
                for node in stage.compute:
                    self._declare(node, "_v")
                for name in stage.stores:
                    w(self._assign(name, self._variable(self.plan.source(name))))
                self.defined = {}
            w.close(2)
        w.close()
        count = blocks * (self.nest.group.size // extent if by_row else 1)
        self._launcher([self._launch(str(count), str(MAP_THREADS))])

    def _rows(self) -> None:
        w, group = self.w, self.nest.group
        per_block = 4 if self.threads == 32 else 1
        self._open_kernel(threads=self.threads * per_block)
        self._constexpr(COLUMNS=group.columns, THREADS=self.threads)
        self._constexpr(VECTOR=self.vector, ITEMS=self.items)
        if per_block == 1:
            w("const int row = blockIdx.x;")
        else:
            w(f"const int row = blockIdx.x * {per_block} + threadIdx.y;")
            w(f"if (row >= {group.rows}) return;")
        self._decode("row", self.row_dims)
        self._row_passes()
        w.close()
        grid = math.ceil(group.rows / per_block)
        block = f"dim3({self.threads}, {per_block})" if per_block > 1 else str(self.threads)
        self._launcher([self._launch(str(grid), block)])

    def _row_passes(self) -> None:
        """Write all passes over one row, and its stores."""
        for stage in self.plan.stages:
            for name in stage.save:
                self.w(f"float {identifier(name)}_cached[ITEMS][VECTOR];")
        self._cache_elements()
        for stage in self.plan.stages:
            self._row_values(stage)
            if stage.loops:
                self._pass(stage)
        self._row_stores()

    def _stage(self, name: str) -> None:
        """Choose the tensors whose rows are read through shared memory.

        Raises NestError if adjacent rows are not adjacent in memory, or do not fit.
        """
        nest, reads = self.nest, self.nest.reads.values()
        scattered = [a for a in reads if _is_scattered(a, nest)]
        for access in scattered:
            word = f"{self._pointer(access.tensor)}_rows{len(self.staged)}"
            self.staged.setdefault(self._element(access), (word, access))
        sizes = sum(ITEM_BYTES[a.dtype] for _, a in self.staged.values()) * nest.group.columns
        self.adjacent = next((n for n in (32, 16, 8) if sizes * (n + 1) <= STAGED_BYTES), 0)
        adjacent = [
            k
            for k in self.row_dims
            if nest.dimensions[k].extent >= 8 and all(_is_transposed(a, k) for a in scattered)
        ]
        fits = nest.dimensions[-1].reduced and adjacent and self.adjacent
        if not fits or any(_is_scattered(a, nest) for a in nest.writes.values()):
            raise NestError(f"{name}: adjacent threads would read elements far apart")
        # Rows are counted along the dimension in which the tensor's elements are adjacent.
        self.row_dims = [*(k for k in self.row_dims if k != adjacent[0]), adjacent[0]]
        self.threads = 32
        self.items = math.ceil(nest.group.columns / 32)
        if self.items > MAX_SAVED:
            raise NestError(f"{name}: a row is too long for one warp")

    def _load(self, access: Access) -> str:
        if self.staged and (found := self.staged.get(self._element(access))):
            return widened(f"{found[0]}[column * {self.adjacent + 1} + local]", access.dtype)
        return super()._load(access)

    def _staged_rows(self) -> None:
        """Write the schedule of rows whose elements are far apart, but next to those of other rows.

        A block copies adjacent rows to shared memory. Then each of its warps computes some of these
        rows.
        """
        w, group, adjacent = self.w, self.nest.group, self.adjacent
        self._open_kernel(threads=STAGED_THREADS)
        self._constexpr(COLUMNS=group.columns, THREADS=32, VECTOR=1, ITEMS=self.items)
        for word, access in self.staged.values():
            w(f"__shared__ {TYPES[access.dtype]} {word}[COLUMNS * {adjacent + 1}];")
        w(f"const int first = blockIdx.x * {adjacent};")
        w.open("")
        w("const int thread = threadIdx.y * 32 + threadIdx.x;")
        w(f"const int local = thread % {adjacent};")
        w(f"const int row = first + local < {group.rows} ? first + local : {group.rows - 1};")
        self._decode("row", self.row_dims)
        w.pragma("unroll 8")
        step = STAGED_THREADS // adjacent
        w.open(f"for (int column = thread / {adjacent}; column < COLUMNS; column += {step})")
        self._decode("column", self.column_dims)
        for word, access in self.staged.values():
            element = f"{self._pointer(access.tensor)}[{self._index(access)}]"
            w(f"{word}[column * {adjacent + 1} + local] = {element};")
        w.close(2)
        w("__syncthreads();")
        w.open(
            f"for (int local = threadIdx.y; local < {adjacent}; local += {STAGED_THREADS // 32})"
        )
        w("const int row = first + local;")
        w(f"if (row >= {group.rows}) break;")
        self._decode("row", self.row_dims)
        self._row_passes()
        w.close(2)
        blocks = math.ceil(group.rows / adjacent)
        self._launcher([self._launch(str(blocks), f"dim3(32, {STAGED_THREADS // 32})")])

    def _cache_elements(self) -> None:
        """Declare register arrays for the elements that several passes read, if they fit."""
        free = MAX_SAVED - len(self._saved()) * self.items * self.vector
        passes: dict[str, list[int]] = {}
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
        for key, levels in passes.items():
            size = self.items * self.vector
            if len(set(levels)) > 1 and size <= min(free, MAX_CACHED):
                free -= size
                word = f"row_{len(self.cached)}_cached"
                self.cached[key] = (min(levels), word)
                self.w(f"float {word}[ITEMS][VECTOR];")

    def _pass(self, stage: Stage) -> None:
        """Write one pass of a row's threads over its elements, and the reductions at its end."""
        w = self.w
        for node in stage.reduces:
            w(f"float {identifier(node.name)} = {JOIN[node.op]}::identity();")
        w.pragma("unroll" if self.items <= 16 else "unroll 4")
        w.open("for (int item = 0; item < ITEMS; ++item)")
        w("const int column = (item * THREADS + threadIdx.x) * VECTOR;")
        w.open("if (column < COLUMNS)")
        self._decode("column", self.column_dims)
        self._element_block(stage, {n: f"{identifier(n)}_cached[item][v]" for n in self._saved()})
        w.close(2)
        for node in stage.reduces:
            word = identifier(node.name)
            w(f"{word} = reduce_block<{JOIN[node.op]}, THREADS>({word});")

    def _saved(self) -> list[str]:
        return [name for stage in self.plan.stages for name in stage.save]

    def _split_rows(self) -> None:
        """Write a kernel with `blocks` partial values per row, and one that joins them."""
        w, group, stage = self.w, self.nest.group, self.plan.stages[0]
        per_block = SPLIT_THREADS * self.vector * 8
        self.blocks = max(1, min(1024, math.ceil(group.columns / per_block)))
        self.workspace = group.rows * self.blocks * len(stage.reduces)
        constants = {"THREADS": SPLIT_THREADS, "VECTOR": self.vector, "BLOCKS": self.blocks}
        self._open_kernel("_partial", "float* workspace", SPLIT_THREADS)
        self._constexpr(**constants)
        w("const int row = blockIdx.y;")
        self._decode("row", self.row_dims)
        self._row_values(stage)
        for node in stage.reduces:
            w(f"float {identifier(node.name)} = {JOIN[node.op]}::identity();")
        w("const long first = (blockIdx.x * (long)THREADS + threadIdx.x) * VECTOR;")
        step = "(long)BLOCKS * THREADS * VECTOR"
        w.pragma("unroll 4")
        w.open(f"for (long column = first; column < {group.columns}; column += {step})")
        self._decode("column", self.column_dims)
        self._element_block(stage, {})
        w.close()
        for k, node in enumerate(stage.reduces):
            word = identifier(node.name)
            w(f"{word} = reduce_block<{JOIN[node.op]}, THREADS>({word});")
            slot = f"({k} * {group.rows} + row) * BLOCKS + blockIdx.x"
            w(f"if (threadIdx.x == 0) workspace[{slot}] = {word};")
        w.close()
        w()
        self._join(constants, stage)
        self._launcher(
            [
                self._launch(
                    f"dim3({self.blocks}, {group.rows})", str(SPLIT_THREADS), "_partial", True
                ),
                self._launch(str(group.rows), str(SPLIT_THREADS), "_join", True),
            ],
            workspace=True,
        )

    def _join(self, constants: dict[str, int], stage: Stage) -> None:
        """Write the kernel that joins the partial values of each row, and stores its results."""
        w, group = self.w, self.nest.group
        self._open_kernel("_join", "const float* workspace", SPLIT_THREADS)
        self._constexpr(**constants)
        w("const int row = blockIdx.x;")
        self._decode("row", self.row_dims)
        self._row_values(stage)
        for k, node in enumerate(stage.reduces):
            word = identifier(node.name)
            w(f"float {word} = {JOIN[node.op]}::identity();")
            w("for (int part = threadIdx.x; part < BLOCKS; part += THREADS)")
            slot = f"({k} * {group.rows} + row) * BLOCKS + part"
            w(f"  {word} = {JOIN[node.op]}::join({word}, workspace[{slot}]);")
            w(f"{word} = reduce_block<{JOIN[node.op]}, THREADS>({word});")
        self._row_values(self.plan.stages[1])
        self._row_stores()
        w.close()

    def _splits_columns(self) -> bool:
        group = self.nest.group
        long = group.rows < FEW_ADJACENT_ROWS and group.columns >= LONG_COLUMN
        return long and self.plan.only_reduces

    def _split_columns(self) -> None:
        """Write the schedule for few adjacent rows: each block reads a part of their elements."""
        w, group, stage = self.w, self.nest.group, self.plan.stages[0]
        lanes, tiles = 8, math.ceil(group.rows / 32)
        self.blocks = max(1, min(256, 1024 // tiles, group.columns // (8 * lanes)))
        self.workspace = group.rows * self.blocks * len(stage.reduces)
        self._open_kernel("_partial", "float* workspace", 32 * lanes)
        self._constexpr(COLUMNS=group.columns, LANES=lanes, BLOCKS=self.blocks, VECTOR=1)
        w(f"const {self.integer} flat_row = blockIdx.x * 32 + threadIdx.x;")
        w(f"const {self.integer} row = flat_row < {group.rows} ? flat_row : {group.rows - 1};")
        self._decode("row", self.row_dims)
        self._row_values(stage)
        for node in stage.reduces:
            w(f"float {identifier(node.name)} = {JOIN[node.op]}::identity();")
        w.pragma("unroll 4")
        w.open(
            f"for ({self.integer} column = blockIdx.y * LANES + threadIdx.y; column < COLUMNS; "
            "column += BLOCKS * LANES)"
        )
        self._decode("column", self.column_dims)
        self._element_block(stage, {})
        w.close()
        for k, node in enumerate(stage.reduces):
            word = identifier(node.name)
            w(f"{word} = reduce_lanes<{JOIN[node.op]}, LANES>({word});")
            slot = f"({k} * {group.rows} + row) * BLOCKS + blockIdx.y"
            inside = f"threadIdx.y == 0 && flat_row < {group.rows}"
            w(f"if ({inside}) workspace[{slot}] = {word};")
        w.close()
        w()
        self._join({"THREADS": SPLIT_THREADS, "VECTOR": 1, "BLOCKS": self.blocks}, stage)
        self._launcher(
            [
                self._launch(
                    f"dim3({tiles}, {self.blocks})", f"dim3(32, {lanes})", "_partial", True
                ),
                self._launch(str(group.rows), str(SPLIT_THREADS), "_join", True),
            ],
            workspace=True,
        )

    def _columns(self) -> None:
        """Write the schedule with 32 adjacent rows per block and LANES threads per row."""
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
            for node in stage.reduces:
                w(f"float {identifier(node.name)} = {JOIN[node.op]}::identity();")
            w.pragma("unroll" if items <= 16 else "unroll 4")
            w.open("for (int column = threadIdx.y; column < COLUMNS; column += LANES)")
            self._decode("column", self.column_dims)
            self._element_block(stage, {})
            w.close()
            for node in stage.reduces:
                word = identifier(node.name)
                w(f"{word} = reduce_lanes<{JOIN[node.op]}, LANES>({word});")
        row_outputs = self._row_outputs()
        if row_outputs:
            w.open(f"if (threadIdx.y == 0 && flat_row < {group.rows})")
            for name in row_outputs:
                self._store(name)
            w.close()
        w.close()
        grid = math.ceil(group.rows / 32)
        self._launcher([self._launch(str(grid), f"dim3(32, {lanes})")])


def _is_scattered(access: Access, nest: Nest) -> bool:
    """Return True if a warp reads one element of each cache line, in a tensor beyond the L1 cache.

    torch transposes such a tensor through shared memory; here only `staged rows` does.
    """
    if not access.tensor:
        return False
    bytes_read = ITEM_BYTES[access.dtype] * math.prod(
        d.extent for d, stride in zip(nest.dimensions, access.strides, strict=True) if stride
    )
    return access.strides[-1] * ITEM_BYTES[access.dtype] > 32 and bytes_read > L1_BYTES


def _is_transposed(access: Access, adjacent: int) -> bool:
    """Return True for a plain read whose elements of adjacent rows are adjacent."""
    plain = not (access.guards or access.row or access.is_index)
    return plain and access.strides[adjacent] == 1


def vector_width(extent: int, accesses: Sequence[Access]) -> int:
    """Return the number of adjacent innermost elements per thread: 8 (half types) or 4; 1 if unfit.

    The address of each vector access is then a multiple of its size, which is up to 16 bytes.
    """
    widest = max((16 // ITEM_BYTES[a.dtype] for a in accesses if a.dtype in FLOATS), default=4)
    for width in (8, 4):
        if width <= widest and extent % width == 0 and all(_vectorizes(a, width) for a in accesses):
            return width
    return 1


def _vectorizes(access: Access, width: int) -> bool:
    """Return True if `width` adjacent innermost elements are one aligned run, or one element."""
    for guard in access.guards:
        edges = (guard.low, guard.high, *guard.steps[:-1])
        if guard.steps[-1] and any(edge % width for edge in edges):
            return False
    if access.is_index:
        return True
    if access.row and access.row.index.strides[-1]:
        return False
    *outer, inner = access.strides
    if inner == 0:
        return True
    steps = (*outer, access.offset, access.row.stride if access.row else 0)
    aligned = all(step % width == 0 for step in steps)
    return inner == 1 and aligned
