"""Generate CUDA C++ kernels: one file per group, one `extern "C"` launcher on the current stream.

Schedules: `map` (a thread computes VECTOR adjacent elements), `rows` (a warp or a block per row; a
short row stays in registers between passes), `split rows` (few long rows: several blocks per row
write partial values, and a second kernel joins them in a fixed order), `columns` (the reduction is
not innermost: adjacent rows per block, so that a warp reads adjacent elements), `split columns`
(the same with partial values, for few rows), `staged rows` (elements of a row are far apart, but
adjacent to those of the next row: a block reads 8 to 32 rows through shared memory), `kept rows`
(a cluster of blocks keeps a long row in shared memory), `sliced rows` (several blocks for each
row, if rows are longer or few), `wide columns` (many long rows that are not aligned: several blocks
for parts of each), `tiled map` (elementwise with operands in another order, which blocks read
through shared memory). Reduced and kept dimensions may alternate. Not covered: other
transpositions; strided reads stay strided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuagent.expert.graph.graph import FLOATS, ITEM_BYTES, Graph
from cuagent.expert.graph.storage import NestError
from cuagent.expert.kernel import KernelCall, Request
from cuagent.expert.streaming.cuda_columns import ColumnSchedule
from cuagent.expert.streaming.cuda_kept import KeptRowSchedule
from cuagent.expert.streaming.cuda_rows import MAX_SAVED
from cuagent.expert.streaming.cuda_sliced import SlicedRowSchedule
from cuagent.expert.streaming.cuda_split import SplitSchedules
from cuagent.expert.streaming.cuda_staged import StagedRowSchedule
from cuagent.expert.streaming.cuda_text import headers
from cuagent.expert.streaming.cuda_tiles import TiledMapSchedule, tile_of
from cuagent.expert.streaming.cuda_wide import WideColumnSchedule
from cuagent.expert.streaming.extreme_places import with_places
from cuagent.expert.streaming.group import Group
from cuagent.expert.streaming.nest import Access, Nest, nest_of
from cuagent.expert.streaming.stages import Plan
from cuagent.expert.streaming.text import without_unused

MOST_INDICES = 1 << 31
"""Number of rows, or of elements of a row, from which on an `int` does not count them."""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group. Raises NestError if no schedule fits."""
    nest = nest_of(with_places(request.group), request.graph)
    kernel = _Kernel(request, nest)
    return KernelCall(
        request.name,
        f"kernels/{request.name}.cu",
        kernel.text(),
        request.group,
        nest.tensors_read,
        kernel.headers(),
        kernel.plan.in_place(row_values=False),
        workspace=kernel.workspace,
    )


def fills_gpu(group: Group, graph: Graph, *, clusters: bool) -> bool:
    """Return True if a schedule computes each of few long rows with several blocks, though
    elements depend on reductions of their row.
    """
    try:
        kernel = _Kernel(
            Request(group.outputs[0], group, graph, "", clusters=clusters),
            nest_of(with_places(group), graph),
        )
    except NestError:
        return False
    return kernel.sliced or kernel.kept is not None


SHORT_ROW, MANY_ROWS = 4, 1 << 17
"""A row of at most SHORT_ROW elements that are not accessed as vectors is read by one thread, if
there are at least MANY_ROWS rows, half of the threads of a large GPU. The arithmetic for each row
is then done once, and the elements that other threads of the warp need are in the same lines."""


SHORT_VECTORS = True
"""True if a thread stores a short row as one vector, even where it loads single elements."""
WHOLE_SECTORS = True
"""True if vectors are short enough that each access of a warp reads or writes whole sectors."""


def threads_for(columns: int, vector: int, tensors: int = 1) -> int:
    """Return the number of threads per row of `columns` elements, in vectors of `vector` elements.

    Up to 256 vectors it is one warp, which needs no barrier, or a part of a warp if the others
    would have no vector. If `tensors` of these rows are read, a warp would need several vectors of
    each, so each thread gets one vector of up to 128. For longer rows each thread gets two to four
    vectors, within 64 to 1024 threads.
    """
    if columns <= 16 * vector:
        return 1 << (math.ceil(columns / vector) - 1).bit_length()
    if columns <= 256 * vector:
        vectors = 1 << (math.ceil(columns / vector) - 1).bit_length()
        return 32 if tensors == 1 else min(128, vectors)
    count = columns // (4 * vector)
    return max(64, min(1024, 1 << (count - 1).bit_length()))


class _Kernel(
    TiledMapSchedule,
    StagedRowSchedule,
    ColumnSchedule,
    SplitSchedules,
    KeptRowSchedule,
    SlicedRowSchedule,
    WideColumnSchedule,
):
    """Chooses the schedule for one CUDA kernel and generates its text."""

    def __init__(self, request: Request, nest: Nest) -> None:
        inner, group = nest.dimensions[-1], nest.group
        if group.reduced and max(group.columns, group.rows) >= MOST_INDICES:
            raise NestError(f"{request.name}: rows and columns have indices of 32 bits")
        tile = tile_of(nest)
        whole = (a for a in nest.reads.values() if not (tile and a in tile.accesses))
        accesses = [*whole, *nest.writes.values()]
        column_rows = bool(group.reduced) and not inner.reduced
        usable = request.vector and not column_rows
        width = vector_width(inner.extent, accesses) if usable else 1
        threads = request.threads or threads_for(group.columns, width, _tensors_of_rows(nest))
        if not request.threads and width == 1 and group.columns <= SHORT_ROW:
            threads = threads if group.rows < MANY_ROWS else 1
            if usable and threads == 1 and SHORT_VECTORS and _writes_vectors(nest):
                width = group.columns
        items = math.ceil(group.columns / (threads * width))
        plan = Plan(nest)
        saved = sum(len(stage.save) for stage in plan.stages) * items * width
        if saved > MAX_SAVED or not group.reduced or column_rows:
            plan = Plan(nest, may_save=False)
        super().__init__(request.name, nest, request.title, plan)
        self.vector, self.column_rows = width, column_rows
        self.threads, self.items = threads, items
        if threads == 1 and width > 1:
            loose = (a for a in nest.reads.values() if not _vectorizes(a, width))
            self.loose = {self._element(access) for access in loose}
        if column_rows and request.vector:
            self.adjacent_rows = vector_width(inner.extent, accesses)
        accesses += tile.accesses if tile else ()
        if max(max(a.offset + group.size, _reach(nest, a)) for a in accesses) >= 1 << 30:
            self.integer = "long"
        if tile:
            self._use_tile(tile)
        else:
            self._stage()
        innermost = group.reduced and not column_rows and not self.staged
        if innermost and request.vector and not request.threads:
            if request.clusters:
                self._keep(width)
            if not self.kept:
                self._slice()
        if innermost and not self.kept and not self.sliced and not self._splits_rows():
            self._save_joint_values(bool(request.threads))

    def headers(self) -> tuple[str, ...]:
        """Return the names of the headers that the source includes."""
        accesses = (*self.nest.reads.values(), *self.nest.writes.values())
        own = ("cluster_cuda.h",) if self.kept else ("slices_cuda.h",) if self.sliced else ()
        return (*headers(a.dtype for a in accesses), *own)

    def text(self) -> str:
        """Return the source of the kernel file."""
        w, dims = self.w, self.nest.dimensions
        for line in self.title.splitlines():
            w(f"// {line}")
        shape = " x ".join(f"{d.extent}{' (reduced)' if d.reduced else ''}" for d in dims)
        w(f"// Loop nest: {shape}. About {self.plan.operations / 1e6:.3g} M weighted operations.")
        for header in self.headers():
            w(f'#include "{header}"')
        w()
        group = self.nest.group
        if not group.reduced:
            self._map()
        elif self.column_rows and self._splits_columns():
            self._split_columns()
        elif self.column_rows and self._is_wide():
            self._wide_columns()
        elif self.column_rows:
            self._columns()
        elif self.staged:
            self._staged_rows()
        elif self._splits_rows():
            self._split_rows()
        elif self.kept:
            self._kept_rows()
        elif self.sliced:
            self._sliced_rows()
        else:
            self._rows()
        return "\n".join(without_unused(w.lines)) + "\n"


def _writes_vectors(nest: Nest) -> bool:
    """Return True if short rows are stored, each as an aligned vector, and no slice that is read
    varies within a row.
    """
    columns = nest.group.columns
    stored = [a for a in nest.writes.values() if a.strides[-1]]
    fits = nest.dimensions[-1].extent == columns and columns in (2, 4)
    gathers = any(a.row and not _vectorizes(a, columns) for a in nest.reads.values())
    return fits and bool(stored) and not gathers and all(_vectorizes(a, columns) for a in stored)


def _tensors_of_rows(nest: Nest) -> int:
    """Return the number of tensors, at least 1, whose elements are read once by the rows of a
    nest, and not again by other rows."""
    many = [
        [d for d, n in enumerate(nest.dimensions) if n.extent > 1 and n.reduced == reduced]
        for reduced in (False, True)
    ]
    read = [
        a
        for a in nest.reads.values()
        if all(any(a.varies(d) for d in dimensions) for dimensions in many)
    ]
    return max(1, len(read))


def _reach(nest: Nest, access: Access) -> int:
    """Return the largest index that an access without a gather reads or writes."""
    ends = (d.extent - 1 for d in nest.dimensions)
    return access.offset + sum(n * s for n, s in zip(ends, access.strides, strict=True))


def vector_width(extent: int, accesses: Sequence[Access]) -> int:
    """Return the number of adjacent innermost elements per thread: 8 (half types), 4 or 1.

    The address of each vector access must be a multiple of its size, which is up to 16 bytes. Where
    most bytes are those of four-byte elements, threads compute 4: with 8, each of two accesses of a
    warp would use half of its sectors of memory.
    """
    widest = max((16 // ITEM_BYTES[a.dtype] for a in accesses if a.dtype in FLOATS), default=4)
    streamed = [ITEM_BYTES[a.dtype] for a in {*accesses} if a.tensor and all(a.strides)]
    if WHOLE_SECTORS and 2 * sum(n for n in streamed if n >= 4) > sum(streamed):
        widest = min(widest, 4)
    for width in (8, 4):
        if width <= widest and extent % width == 0 and all(_vectorizes(a, width) for a in accesses):
            return width
    return 1


def _vectorizes(access: Access, width: int) -> bool:
    """Return True if `width` adjacent innermost elements are one aligned vector, or the same
    element.
    """
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
