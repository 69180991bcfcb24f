"""Generate C++ kernels of depthwise convolutions that copy a plane into the cache first.

The copy has zeros around it and, for a stride along rows, every stride-th element side by side. So
each loop runs over whole vectors without conditions, and a row that was loaded serves several rows
of results, whose sums stay in registers. A large plane is copied in bands of rows.
"""

from __future__ import annotations

import math

from cuagent.expert.depthwise.match import DepthwiseText
from cuagent.expert.graph.graph import Window
from cuagent.expert.graph.storage import NestError
from cuagent.expert.kernel import KernelCall, Request, cpp_call

VECTOR = 8
"""Number of elements of a vector; rows of results are rounded up to whole vectors."""
ROWS = 4
"""Number of rows of results whose sums are in registers at the same time."""
BAND_BYTES = 48 << 10
"""Largest size in bytes of the copy of a band, which stays in the cache with its results."""
MAX_BYTES = 256 << 10
"""Largest size in bytes of the copied input rows for `ROWS` rows of results."""
MAX_PRODUCTS = 256
"""Largest number of products in the unrolled body of the innermost loop."""
PARALLEL_OPERATIONS = 1 << 14
"""Number of products below which a parallel region costs more than it saves."""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group.

    Raises NestError for 3-D planes and for rows that do not fit the cache.
    """
    kernel = _Planes(request)
    return cpp_call(request, kernel.text(), kernel.values.tensors_read)


class _Planes(DepthwiseText):
    def __init__(self, request: Request) -> None:
        super().__init__(request)
        *outer, self.across = self.sides.values()
        if len(outer) > 1:
            raise NestError(f"{request.name}: planes of three dimensions")
        self.down = outer[0] if outer else Window(1, 1, 1)
        self.rows = min(ROWS, self.down.count)
        while self.rows * self.taps > MAX_PRODUCTS and self.rows > 1:
            self.rows //= 2
        side = self.across
        self.width = -(-side.count // VECTOR) * VECTOR
        """Number of results of a row, rounded up to whole vectors."""
        self.shifts = [divmod(t * side.dilation, side.stride) for t in range(side.kernel)]
        """(quotient, remainder) of each weight's input offset divided by the stride."""
        reach = self.width + max(shift for shift, _ in self.shifts)
        self.pitch = -(-reach // VECTOR) * VECTOR
        """Number of elements in the copy for one input row and one remainder."""
        self.remainders = sorted({remainder for _, remainder in self.shifts})
        self.row_size = self.pitch * len(self.remainders)
        if self._rows_read(self.rows) * self.row_size * 4 > MAX_BYTES:
            raise NestError(f"{request.name}: rows do not fit the cache")
        self.band = self._band()

    @property
    def taps(self) -> int:
        return self.down.kernel * self.across.kernel

    def _rows_read(self, count: int) -> int:
        """Return the number of input rows that `count` adjacent rows of results read."""
        side = self.down
        return (count - 1) * side.stride + (side.kernel - 1) * side.dilation + 1

    def _band(self) -> int:
        """Return the number of rows of results of a band, a multiple of `rows`."""
        whole = -(-self.down.count // self.rows) * self.rows
        band = self.rows
        while band < whole and self._rows_read(band * 2) * self.row_size * 4 <= BAND_BYTES:
            band *= 2
        return min(band, whole)

    def text(self) -> str:
        w = self.w
        self.head("pointwise.h")
        w.open(f'extern "C" void {self.request.name}({", ".join(self.values.parameters())})')
        bands = math.ceil(self.down.count / self.band)
        if self.anchor.size * self.taps > PARALLEL_OPERATIONS:
            w.pragma(f"omp parallel for schedule(static) collapse({2 + (bands > 1)})")
        for d in range(2):
            w.open(f"for (long i{d} = 0; i{d} < {self.shape[d]}; ++i{d})")
        if bands > 1:
            w.open(f"for (long first = 0; first < {self.down.count}; first += {self.band})")
        else:
            w.open("")
            w("const long first = 0;")
        self._copy()
        self._weights()
        w.open(f"for (long row = 0; row < {self.band}; row += {self.rows})")
        if self.down.count % self.band:
            w(f"if (first + row >= {self.down.count}) break;")
        w(f"alignas(64) float row_sums[{self.rows * self.width}];")
        self._sums()
        self._results()
        w.close(5)
        return "\n".join(w.lines) + "\n"

    def _copy(self) -> None:
        """Write the copy of a band's input rows, with zeros around them."""
        w, k, side, down = self.w, self.inner, self.across, self.down
        count = self._rows_read(self.band)
        w(f"alignas(64) float plane[{count * self.row_size}] = {{}};")
        w.open(f"for (long r = 0; r < {count}; ++r)")
        w(f"const long p = first * {down.stride} + r - {down.padding};")
        w(f"if (p < 0 || p >= {down.extent}) continue;")
        for place, remainder in enumerate(self.remainders):
            # Element j of the copy is element j * stride + remainder - padding of the row.
            start = max(0, -(-(side.padding - remainder) // side.stride))
            end = (side.extent - 1 + side.padding - remainder) // side.stride + 1
            end = min(self.pitch, max(start, end))
            w.pragma("omp simd")
            w.open(f"for (long j = {start}; j < {end}; ++j)")
            self.values.fresh()
            moved = remainder - side.padding
            scaled = f"j * {side.stride}" if side.stride > 1 else "j"
            where = f"{scaled} {'+' if moved >= 0 else '-'} {abs(moved)}" if moved else scaled
            places = {k: where} if k == 2 else {k - 1: "p", k: where}
            base = f"r * {self.row_size} + {place * self.pitch}"
            w(f"plane[{base} + j] = {self.element(places)};")
            w.close()
        w.close()

    def _weights(self) -> None:
        w, k = self.w, self.inner
        self.values.fresh()
        for a in range(self.down.kernel):
            for b in range(self.across.kernel):
                taps = {k: str(b)} if k == 2 else {k - 1: str(a), k: str(b)}
                w(f"const float weight_{a}_{b} = {self.weight(taps)};")
        w(f"const float channel_bias = {self.bias()};")

    def _sums(self) -> None:
        """Write the loop over columns; each step computes one column of `rows` rows of results."""
        w, down = self.w, self.down
        w(f"const float* const start = plane + row * {down.stride * self.row_size};")
        w.pragma("omp simd")
        w.open(f"for (long column = 0; column < {self.width}; ++column)")
        for q in range(self.rows):
            w(f"float sum_{q} = channel_bias;")
        for r in range(self._rows_read(self.rows)):
            for b, (shift, remainder) in enumerate(self.shifts):
                uses = [
                    (q, step // down.dilation)
                    for q in range(self.rows)
                    if (step := r - q * down.stride) % down.dilation == 0
                    and 0 <= step // down.dilation < down.kernel
                ]
                if not uses:
                    continue
                at = r * self.row_size + self.remainders.index(remainder) * self.pitch + shift
                w(f"const float e_{r}_{b} = start[column + {at}];")
                for q, a in uses:
                    w(f"sum_{q} += weight_{a}_{b} * e_{r}_{b};")
        for q in range(self.rows):
            w(f"row_sums[{q * self.width} + column] = sum_{q};")
        w.close()

    def _results(self) -> None:
        w, k = self.w, self.inner
        w.open(f"for (long q = 0; q < {self.rows}; ++q)")
        if k > 2:
            w(f"const long i{k - 1} = first + row + q;")
            if self.down.count % self.rows:
                w(f"if (i{k - 1} >= {self.down.count}) break;")
        w.pragma("omp simd")
        w.open(f"for (long i{k} = 0; i{k} < {self.across.count}; ++i{k})")
        self.values.fresh()
        w(f"const float result = row_sums[q * {self.width} + i{k}];")
        self.values.stores(self.index())
        w.close(2)
