"""Write the CUDA schedule `staged rows`, for rows whose elements are far apart in memory.

The elements of adjacent rows must be adjacent in memory. A block copies 8 to 32 such rows to shared
memory, from which its warps read them.
"""

from __future__ import annotations

import math

from cuagent.expert.graph.graph import ITEM_BYTES
from cuagent.expert.graph.storage import NestError
from cuagent.expert.streaming.cuda_rows import MAX_SAVED, RowSchedule
from cuagent.expert.streaming.expressions import TYPES, widened
from cuagent.expert.streaming.nest import Access, Nest
from cuagent.expert.streaming.stages import Plan

STAGED_BYTES, STAGED_THREADS = 48 << 10, 256
"""Shared memory in bytes (largest), and threads, of a block in the schedule `staged rows`."""
L1_BYTES = 128 << 10
"""Size in bytes of a tensor below which its strided reads are assumed to hit the L1 cache."""


class StagedRowSchedule(RowSchedule):
    """Generates CUDA kernels that copy rows to shared memory before they reduce (`staged rows`).

    Elements of adjacent rows are adjacent in memory, so that the copy reads whole cache lines.
    """

    def __init__(self, name: str, nest: Nest, title: str, plan: Plan) -> None:
        super().__init__(name, nest, title, plan)
        self.staged: dict[str, tuple[str, Access]] = {}
        """(shared array, access) of each element that is read through shared memory.

        The key is the text that identifies the element (`KernelText._element`).
        """
        self.adjacent = 0
        """Number of adjacent rows that a block copies together."""

    def _stage(self) -> None:
        """Choose the tensors that are read through shared memory, if any.

        Raises NestError if adjacent rows are not adjacent in memory, or if they do not fit into
        shared memory.
        """
        nest = self.nest
        scattered = [a for a in nest.reads.values() if is_scattered(a, nest)]
        writes_scattered = any(is_scattered(a, nest) for a in nest.writes.values())
        if not scattered and not writes_scattered:
            return
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
        if not fits or writes_scattered:
            raise NestError(f"{self.name}: adjacent threads would read elements far apart")
        # Rows are counted along the dimension in which the tensor's elements are adjacent.
        self.row_dims = [*(k for k in self.row_dims if k != adjacent[0]), adjacent[0]]
        self.threads = 32
        self.items = math.ceil(nest.group.columns / 32)
        if self.items > MAX_SAVED:
            raise NestError(f"{self.name}: a row is too long for one warp")

    def _load(self, access: Access) -> str:
        if self.staged and (found := self.staged.get(self._element(access))):
            return widened(f"{found[0]}[column * {self.adjacent + 1} + local]", access.dtype)
        return super()._load(access)

    def _staged_rows(self) -> None:
        """Write the kernel: a block copies adjacent rows to shared memory, then each warp computes
        some rows.
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


def is_scattered(access: Access, nest: Nest) -> bool:
    """Return True if a warp would read one element from each cache line of a large tensor.

    torch transposes such a tensor through shared memory; of the schedules here, `staged rows` does.
    """
    if not access.tensor:
        return False
    bytes_read = ITEM_BYTES[access.dtype] * math.prod(
        d.extent for d, stride in zip(nest.dimensions, access.strides, strict=True) if stride
    )
    return access.strides[-1] * ITEM_BYTES[access.dtype] > 32 and bytes_read > L1_BYTES


def _is_transposed(access: Access, adjacent: int) -> bool:
    """Return True if this access reads adjacent elements for `adjacent` adjacent rows,
    unconditionally.
    """
    plain = not (access.guards or access.row or access.is_index)
    return plain and access.strides[adjacent] == 1
