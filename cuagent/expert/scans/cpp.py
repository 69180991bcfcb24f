"""Generate C++ kernels of scans (cumulative sums, products and extremes) for the CPU.

Sums are accumulated in double, as in torch. A row is a line along the scanned dimension. If this is
the innermost dimension, some rows advance together, because each addition waits for the one before
it; elementwise work is done in blocks before and after, where it can be vectorized. Along another
dimension vectors run over adjacent rows.
"""

from __future__ import annotations

from cuagent.expert.kernel import KernelCall, Request, cpp_call
from cuagent.expert.scans.loops import IDENTITY, ScanText

JOIN = {
    "sum": "{0} += {1};", "prod": "{0} *= {1};",
    "max": "{0} = maximum({0}, {1});", "min": "{0} = minimum({0}, {1});",
}  # fmt: skip
"""Statement that joins the carry {0} with a value {1}, by operation."""
TOGETHER = 8
"""Number of rows that one loop scans at the same time."""
BLOCK = 256
"""Number of elements of a row in one block."""
TILE = 256
"""Number of adjacent rows in one tile."""
PARALLEL_ELEMENTS = 1 << 14
"""Number of elements below which a parallel region costs more than it saves."""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group with a scan."""
    scan = _Scan(request)
    return cpp_call(request, scan.text(), scan.values.tensors_read)


class _Scan(ScanText):
    @property
    def carry(self) -> str:
        """Type of the joined elements. Extremes are exact in float."""
        return "double" if self.op in ("sum", "prod") else "float"

    def text(self) -> str:
        self.head("pointwise.h")
        parameters = ", ".join(self.values.parameters())
        self.w.open(f'extern "C" void {self.request.name}({parameters})')
        self._rows() if self.innermost else self._columns()
        self.w.close()
        return "\n".join(self.w.lines) + "\n"

    def _parallel(self, loops: int) -> None:
        if self.rows * self.length > PARALLEL_ELEMENTS:
            collapse = f" collapse({loops})" if loops > 1 else ""
            self.w.pragma(f"omp parallel for schedule(static){collapse}")

    def _rows(self) -> None:
        w, together, block = self.w, min(TOGETHER, self.rows), min(BLOCK, self.length)
        self._parallel(1)
        w.open(f"for (long start = 0; start < {self.rows}; start += {together})")
        w(f"const long rows = start + {together} < {self.rows} ? {together} : {self.rows} - start;")
        w(f"{self.carry} carry[{together}];")
        w(f"for (long r = 0; r < {together}; ++r) carry[r] = {IDENTITY[self.op]};")
        if len(self.request.group.nodes) == 1:
            self._plain_rows(together)
            return w.close()
        w(f"alignas(64) float buffer[{together}][{block}] = {{}};")
        w.open(f"for (long block = 0; block < {self.length}; block += {block})")
        length = self.length
        w(f"const long count = block + {block} < {length} ? {block} : {length} - block;")
        self._open_block()
        value = self.argument()
        w(f"buffer[r][k] = {value};")
        w.close(2)
        w.open("for (long k = 0; k < count; ++k)")
        w.pragma(f"GCC unroll {together}")
        w.open(f"for (long r = 0; r < {together}; ++r)")
        w(JOIN[self.op].format("carry[r]", "buffer[r][k]"))
        w("buffer[r][k] = carry[r];")
        w.close(2)
        self._open_block()
        w("const float result = buffer[r][k];")
        self.values.stores(self.index())
        w.close(4)
        return None

    def _plain_rows(self, together: int) -> None:
        """Write the loops of a scan without elementwise operations, which needs no blocks."""
        w = self.w
        for count in (str(together), "rows"):
            test = f"if (rows == {together})" if count != "rows" else "else"
            w.open(f"{test} for (long k = 0; k < {self.length}; ++k)")
            if count != "rows":
                w.pragma(f"GCC unroll {together}")
            w.open(f"for (long r = 0; r < {count}; ++r)")
            w("const long row = start + r;")
            self.decode("row", "long", self.others)
            self._position("k")
            self.values.fresh()
            w(JOIN[self.op].format("carry[r]", self.argument()))
            w("const float result = carry[r];")
            self.values.stores(self.index())
            w.close(2)

    def _open_block(self) -> None:
        """Open the C++ loops over the rows and the elements of a block.

        A reversed scan begins at the end of the row.
        """
        w = self.w
        w.open("for (long r = 0; r < rows; ++r)")
        w("const long row = start + r;")
        self.decode("row", "long", self.others)
        w.pragma("omp simd")
        w.open("for (long k = 0; k < count; ++k)")
        self._position("block + k")
        self.values.fresh()

    def _position(self, step: str) -> None:
        place = f"{self.length - 1} - ({step})" if self.reverse else step
        self.w(f"const long i{self.dim} = {place};")

    def _columns(self) -> None:
        w = self.w
        *outer, inner = self.others
        width = self.shape[inner]
        tile = min(TILE, width)
        self._parallel(len(outer) + 1)
        for k in outer:
            w.open(f"for (long i{k} = 0; i{k} < {self.shape[k]}; ++i{k})")
        w.open(f"for (long start = 0; start < {width}; start += {tile})")
        w(f"const long count = start + {tile} < {width} ? {tile} : {width} - start;")
        w(f"alignas(64) {self.carry} carry[{tile}];")
        w(f"for (long k = 0; k < {tile}; ++k) carry[k] = {IDENTITY[self.op]};")
        w.open(f"for (long step = 0; step < {self.length}; ++step)")
        self._position("step")
        w.pragma("omp simd")
        w.open("for (long k = 0; k < count; ++k)")
        w(f"const long i{inner} = start + k;")
        self.values.fresh()
        w(JOIN[self.op].format("carry[k]", self.argument()))
        w("const float result = carry[k];")
        self.values.stores(self.index())
        w.close(3 + len(outer))
