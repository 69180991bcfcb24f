"""Write the CUDA schedule `map` of elementwise kernels."""

from __future__ import annotations

import math

from cuagent.expert.streaming.cuda_text import CudaText
from cuagent.expert.streaming.expressions import computed_type
from cuagent.expert.streaming.nest import Access

MAP_THREADS = 256
"""Threads per block of the `map` schedule."""
AHEAD = 4
"""Number of elements that a thread loads before any arithmetic, if aligned vectors are
impossible.
"""
AHEAD_ROW = 8192
"""Innermost extent from which on each block of the `map` schedule stays in one row.

The indices of the other dimensions then cost one division per block.
"""
AHEAD_SIZE = 1 << 20
"""Least number of elements of a group for which threads load AHEAD elements first.

Only then do the bytes in flight bound the speed.
"""


class MapSchedule(CudaText):
    """Generates CUDA kernels without reductions: a thread computes a few elements (schedule `map`).

    A variant is for elements that cannot be accessed as aligned vectors.
    """

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
        """Return True if the variant that loads AHEAD elements before all arithmetic should be
        used.
        """
        plain = (
            a.tensor and not (a.guards or a.row or a.is_index) for a in self.nest.reads.values()
        )
        return self.nest.group.size >= AHEAD_SIZE and all(plain)

    def _map_ahead(self) -> None:
        """Write the kernel in which a thread loads AHEAD elements before it computes and stores the
        first.

        An output may overwrite an input's memory, so that the compiler cannot move a load before a
        store.
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
