"""Generate CUDA kernels of scans (cumulative sums, products and extremes).

A row is a line along the scanned dimension. If this is the innermost dimension, a warp or a block
scans a row in chunks; the lanes of a warp read adjacent elements. Along another dimension a thread
scans a row, and adjacent threads scan adjacent rows. Not covered: few long rows, which torch splits
over many blocks.
"""

from __future__ import annotations

import math

from cuagent.expert.graph.storage import NestError
from cuagent.expert.kernel import KernelCall, Request, cuda_call
from cuagent.expert.scans.loops import ScanText
from cuagent.expert.streaming.cuda_text import headers_of

JOIN = {"sum": "Sum", "prod": "Product", "max": "Max", "min": "Min"}
ITEMS = 4
"""Number of elements that one thread scans in each chunk of a row."""
BATCH = 8
"""Number of elements that a thread loads before it adds the first, for rows that are not
innermost.
"""
ROW_THREADS = 128
"""Number of threads in a block, for rows that are not innermost."""
FEW_ROWS, LONG_ROW = 32, 1 << 16


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group with a scan. Raises NestError for few long rows."""
    scan = _Scan(request)
    return cuda_call(request, scan.text(), scan.values.tensors_read, scan.includes)


class _Scan(ScanText):
    def __init__(self, request: Request) -> None:
        super().__init__(request)
        if self.rows < FEW_ROWS and self.length >= LONG_ROW:
            raise NestError(f"{request.name}: few long rows")
        self.includes = headers_of(request.group, self.values.tensors_read)
        self.integer = "long" if self.rows * self.length >= 1 << 30 else "int"

    def text(self) -> str:
        self.head(*self.includes)
        grid, block = self._rows() if self.innermost else self._columns()
        w, parameters = self.w, self.values.parameters()
        arguments = ", ".join(p.split()[-1] for p in parameters)
        w()
        w.open(f'extern "C" void {self.request.name}({", ".join(parameters)}, cudaStream_t stream)')
        w(f"{self.request.name}_device<<<{grid}, {block}, 0, stream>>>({arguments});")
        w.close()
        return "\n".join(w.lines) + "\n"

    def _open_kernel(self, threads: int) -> None:
        parameters = ", ".join(self.values.parameters())
        bounds = f"__launch_bounds__({threads})"
        self.w.open(f"static __global__ void {bounds} {self.request.name}_device({parameters})")

    def _position(self, step: str) -> None:
        place = f"{self.length - 1} - ({step})" if self.reverse else step
        self.w(f"const {self.integer} i{self.dim} = {place};")

    def _threads(self) -> int:
        """Return the number of threads per row: a warp for a short row, else enough for one
        chunk.
        """
        if self.request.threads:
            return self.request.threads
        if self.length <= 32 * ITEMS * 2:
            return 32
        return max(64, min(512, 1 << (math.ceil(self.length / ITEMS) - 1).bit_length()))

    def _rows(self) -> tuple[str, str]:
        w, join, threads = self.w, JOIN[self.op], self._threads()
        per_block = 4 if threads == 32 else 1
        self._open_kernel(threads * per_block)
        w(f"constexpr int LENGTH = {self.length}, THREADS = {threads}, ITEMS = {ITEMS};")
        if per_block > 1:
            w(f"const {self.integer} row = blockIdx.x * {per_block} + threadIdx.y;")
            w(f"if (row >= {self.rows}) return;")
        else:
            w(f"const {self.integer} row = blockIdx.x;")
        self.decode("row", self.integer, self.others)
        w("const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;")
        w(f"float carry = {join}::identity();")
        w.open("for (int chunk = 0; chunk < LENGTH; chunk += THREADS * ITEMS)")
        w("const int first = chunk + warp * 32 * ITEMS + lane;")
        w("float value[ITEMS];")
        self._each_item()
        w(f"value[item] = {join}::identity();")
        w.open("if (step < LENGTH)")
        self._position("step")
        self.values.fresh()
        w(f"value[item] = {self.argument()};")
        w.close(2)
        w(f"float total = {join}::identity();")
        w.pragma("unroll")
        w.open("for (int item = 0; item < ITEMS; ++item)")
        w(f"value[item] = {join}::join(total, scan_warp<{join}>(value[item]));")
        w("total = __shfl_sync(0xffffffffu, value[item], 31);")
        w.close()
        w("float before, all;")
        w(f"scan_warps<{join}, THREADS>(total, before, all);")
        w(f"before = {join}::join(carry, before);")
        w(f"carry = {join}::join(carry, all);")
        self._each_item()
        w.open("if (step < LENGTH)")
        self._position("step")
        w(f"const float result = {join}::join(before, value[item]);")
        self.values.fresh()
        self.values.stores(self.index())
        w.close(4)
        block = f"dim3(32, {per_block})" if per_block > 1 else str(threads)
        return str(math.ceil(self.rows / per_block)), block

    def _each_item(self) -> None:
        self.w.pragma("unroll")
        self.w.open("for (int item = 0; item < ITEMS; ++item)")
        self.w("const int step = first + item * 32;")

    def _columns(self) -> tuple[str, str]:
        w, join = self.w, JOIN[self.op]
        self._open_kernel(ROW_THREADS)
        w(f"const {self.integer} row = blockIdx.x * {ROW_THREADS} + threadIdx.x;")
        w(f"if (row >= {self.rows}) return;")
        self.decode("row", self.integer, self.others)
        w(f"float carry = {join}::identity();")
        w.open(f"for (int batch = 0; batch < {self.length}; batch += {BATCH})")
        w(f"float value[{BATCH}];")
        for part in ("load", "add"):
            w.pragma("unroll")
            w.open(f"for (int k = 0; k < {BATCH}; ++k)")
            w.open(f"if (batch + k < {self.length})")
            self._position("batch + k")
            self.values.fresh()
            if part == "load":
                w(f"value[k] = {self.argument()};")
            else:
                w(f"carry = {join}::join(carry, value[k]);")
                w("const float result = carry;")
                self.values.stores(self.index())
            w.close(2)
        w.close(2)
        return str(math.ceil(self.rows / ROW_THREADS)), str(ROW_THREADS)
