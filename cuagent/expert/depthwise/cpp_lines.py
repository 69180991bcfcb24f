"""Generate C++ kernels of depthwise convolutions that read the input without a copy.

The sums of one row of results are in the cache. One loop applies all weights of a window row to the
results that need all of them. For results at the borders each weight has a loop. So the vector
loops have no conditions.
"""

from __future__ import annotations

import math

from cuagent.expert.depthwise.match import DepthwiseText, place
from cuagent.expert.graph.graph import Window
from cuagent.expert.graph.storage import NestError
from cuagent.expert.kernel import KernelCall, Request, cpp_call
from cuagent.expert.pooling.cpp import results_of

MAX_ROW = 1 << 14
"""Number of elements of the longest row whose sums are held in the cache."""
PARALLEL_OPERATIONS = 1 << 14
"""Number of products below which a parallel region costs more than it saves."""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group with a depthwise convolution. Raises NestError for long rows."""
    kernel = _Depthwise(request)
    return cpp_call(request, kernel.text(), kernel.values.tensors_read)


class _Depthwise(DepthwiseText):
    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.side = self.sides[self.inner]
        if max(self.side.count, self.side.extent) > MAX_ROW:
            raise NestError(f"{request.name}: rows do not fit the cache")
        name = str(self.anchor.args[0])
        self.computed = name in self.values.nodes or self.anchor.dtype != "float32"
        """True if an input element needs arithmetic or a conversion, not only a load."""

    def text(self) -> str:
        w, k = self.w, self.inner
        self.head("pointwise.h")
        w.open(f'extern "C" void {self.request.name}({", ".join(self.values.parameters())})')
        taps = math.prod(side.kernel for side in self.sides.values())
        if self.anchor.size * taps > PARALLEL_OPERATIONS:
            w.pragma(f"omp parallel for schedule(static) collapse({k})")
        for d in range(k):
            w.open(f"for (long i{d} = 0; i{d} < {self.shape[d]}; ++i{d})")
        w(f"alignas(64) float row_sums[{self.side.count}];")
        w(f"const float channel_bias = {self.bias()};")
        self._vector_loop(0, self.side.count)
        w(f"row_sums[i{k}] = channel_bias;")
        w.close()
        rows = [d for d in self.sides if d != k]
        for d in rows:
            self._window(d, self.sides[d])
        self._row({d: f"p{d}" for d in rows}, {d: f"t{d}" for d in rows})
        w.close(len(rows))
        self._vector_loop(0, self.side.count)
        w(f"const float result = row_sums[i{k}];")
        self.values.stores(self.index())
        w.close(2 + k)
        return "\n".join(w.lines) + "\n"

    def _window(self, k: int, side: Window) -> None:
        w = self.w
        w.open(f"for (long t{k} = 0; t{k} < {side.kernel}; ++t{k})")
        w(f"const long p{k} = {place(k, side, f't{k}')};")
        w(f"if (p{k} < 0 || p{k} >= {side.extent}) continue;")

    def _vector_loop(self, first: int, end: int) -> None:
        self.w.pragma("omp simd")
        self.w.open(f"for (long i{self.inner} = {first}; i{self.inner} < {end}; ++i{self.inner})")
        self.values.fresh()

    def _row(self, places: dict[int, str], taps: dict[int, str]) -> None:
        """Write the products of one input row with one window row, added to the sums."""
        w, k, side = self.w, self.inner, self.side
        self.values.fresh()
        for tap in range(side.kernel):
            w(f"const float tap_weight{tap} = {self.weight({**taps, k: str(tap)})};")
        self.values.fresh()
        if self.computed:
            w(f"alignas(64) float input_row[{side.extent}];")
            w.pragma("omp simd")
            w.open(f"for (long j0 = 0; j0 < {side.extent}; ++j0)")
            w(f"input_row[j0] = {self.element({**places, k: 'j0'})};")
            w.close()
        ranges = [results_of(side, tap) for tap in range(side.kernel)]
        low, high = max(a for a, _ in ranges), min(b for _, b in ranges)
        low, high = (low, high) if low < high else (side.count, side.count)
        for tap, (start, end) in enumerate(ranges):
            self._add(places, [tap], start, min(low, end))
        self._add(places, list(range(side.kernel)), low, high)
        for tap, (start, end) in enumerate(ranges):
            self._add(places, [tap], max(high, start), end)

    def _add(self, places: dict[int, str], taps: list[int], start: int, end: int) -> None:
        """Write the loop that adds the products of the weights `taps` to the results `start` to
        `end`.
        """
        if start >= end:
            return
        w, k, side = self.w, self.inner, self.side
        self._vector_loop(start, end)
        terms = [f"row_sums[i{k}]"]
        for tap in taps:
            scaled = f"i{k} * {side.stride}" if side.stride > 1 else f"i{k}"
            moved = tap * side.dilation - side.padding
            where = scaled if moved == 0 else f"{scaled} {'+' if moved > 0 else '-'} {abs(moved)}"
            element = f"input_row[{where}]" if self.computed else self.element({**places, k: where})
            terms.append(f"tap_weight{tap} * {element}")
        w(f"row_sums[i{k}] = {' + '.join(terms)};")
        w.close()
