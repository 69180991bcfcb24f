"""Generate C++ kernels of pools and interpolations for the CPU.

A row of results is in the cache. For each element of the window along the innermost dimension, the
results whose windows contain it are a constant range, so the vector loops have no conditions.
Interpolation blends rows first, then elements of the blended row.
"""

from __future__ import annotations

import itertools
import math

from cuagent.expert.graph.graph import Kind, Window
from cuagent.expert.graph.storage import NestError
from cuagent.expert.kernel import KernelCall, Request, cpp_call
from cuagent.expert.pooling.cpp_planes import Planes
from cuagent.expert.pooling.positions import START, adaptive_bounds, whole_repeats

LONG_ROW = 4096
"""Largest number of results of a row that are computed together; longer rows are divided."""
MAX_TOGETHER = 16
"""Largest number of window elements along the innermost dimension that one loop step adds or
compares.
"""
MAX_SOURCE = 1 << 14
"""Number of elements of the longest input row that is computed into an array in the cache."""
PARALLEL_OPERATIONS = 1 << 14
"""Number of elements read below which a parallel region costs more than it saves."""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group with a pool or a resample. Raises NestError for long rows."""
    pool = _Pool(request)
    return cpp_call(request, pool.text(), pool.values.tensors_read)


class _Pool(Planes):
    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.inner = len(self.shape) - 1
        self.width = self.shape[self.inner]
        self.rows = [k for k, n in enumerate(self.shape[:-1]) if k in self.sides]
        """Pooled dimensions except the innermost."""
        self.first, self.end = "0", str(self.width)
        self.in_source = False
        """True if the current row of the argument was computed into the array `source`."""

    def text(self) -> str:
        w = self.w
        self.head("pointwise.h")
        w.open(f'extern "C" void {self.request.name}({", ".join(self.values.parameters())})')
        taps = math.prod(s.kernel or 2 for s in self.sides.values() if isinstance(s, Window))
        by_plane = self.has_planes()
        outer = len(self.shape) - len(self.sides) if by_plane else self.inner
        if self.anchor.size * taps > PARALLEL_OPERATIONS and outer:
            collapse = f" collapse({outer})" if outer > 1 else ""
            w.pragma(f"omp parallel for schedule(static){collapse}")
        for k in range(outer):
            w.open(f"for (long i{k} = 0; i{k} < {self.shape[k]}; ++i{k})")
        if by_plane:
            self.planes()
        elif self.anchor.kind is Kind.POOL:
            self._pool()
        elif self.op == "nearest":
            self._nearest()
        else:
            self._linear()
        w.close(outer + 1)
        return "\n".join(w.lines) + "\n"

    def _vector_loop(self, first: str, end: str) -> None:
        self.w.pragma("omp simd")
        self.w.open(f"for (long i{self.inner} = {first}; i{self.inner} < {end}; ++i{self.inner})")
        self.values.fresh()

    # Pools.

    def _pool(self) -> None:
        w, parts = self.w, self.width > LONG_ROW
        if self.inner not in self.sides:
            return self._channels()
        side = self.sides[self.inner]
        if not self.rows and not side.adaptive and side.kernel <= MAX_TOGETHER:
            return self._line(side)
        if parts:
            w.open(f"for (long start = 0; start < {self.width}; start += {LONG_ROW})")
            stop = f"start + {LONG_ROW}"
            w(f"const long end = {stop} < {self.width} ? {stop} : {self.width};")
            self.first, self.end = "start", "end"
        w(f"alignas(64) float joined[{min(self.width, LONG_ROW)}];")
        self._vector_loop(self.first, self.end)
        w(f"joined[{self._slot()}] = {START[self.op]};")
        w.close()
        places: dict[int, str] = {}
        for k in self.rows:
            self._open_window(k, self.sides[k])
            places[k] = f"p{k}"
        if self._computed() and side.extent <= MAX_SOURCE:
            self._source_row(side, places)
        if side.adaptive:
            self._adaptive_row(side, places)
        else:
            self._window_row(side, places)
        w.close(len(self.rows))
        self._vector_loop(self.first, self.end)
        result = self.divided(f"joined[{self._slot()}]")
        w(f"const float result = {result};")
        self.values.stores(self.index())
        w.close(2 if parts else 1)
        return None

    def _channels(self) -> None:
        """Write the loops of a pool over other dimensions than the innermost (channels-last)."""
        w = self.w
        w(f"alignas(64) float joined[{self.width}];")
        self._vector_loop("0", str(self.width))
        w(f"joined[{self._slot()}] = {START[self.op]};")
        w.close()
        for k in self.rows:
            self._open_window(k, self.sides[k])
        self._vector_loop("0", str(self.width))
        element = self.element({k: f"p{k}" for k in self.rows})
        w(self.joined(f"joined[{self._slot()}]", element))
        w.close(1 + len(self.rows))
        self._vector_loop("0", str(self.width))
        w(f"const float result = {self.divided(f'joined[{self._slot()}]')};")
        self.values.stores(self.index())
        w.close()

    def _computed(self) -> bool:
        """Return True if an element of the argument needs arithmetic or a conversion, not only a
        load.
        """
        name = str(self.anchor.args[0])
        return name in self.values.nodes or self.anchor.dtype != "float32"

    def _source_row(self, side: Window, places: dict[int, str]) -> None:
        """Write the computation of a row of the argument, whose elements belong to several
        windows.
        """
        w = self.w
        w(f"alignas(64) float source[{side.extent}];")
        w.pragma("omp simd")
        w.open(f"for (long p = 0; p < {side.extent}; ++p)")
        self.values.fresh()
        w(f"source[p] = {self.element({**places, self.inner: 'p'})};")
        w.close()
        self.in_source = True

    def element(self, places: dict[int, str]) -> str:
        return f"source[{places[self.inner]}]" if self.in_source else super().element(places)

    def _line(self, side: Window) -> None:
        """Write the loops of a pool along one dimension; loops at the borders have conditions."""
        ranges = [results_of(side, tap) for tap in range(side.kernel)]
        low, high = max(a for a, _ in ranges), min(b for _, b in ranges)
        low, high = (low, high) if low < high else (side.count, side.count)
        for start, end in ((0, low), (low, high), (high, side.count)):
            if start < end:
                self._line_part(
                    side, start, end, [r for r in ranges if (start, end) != (low, high)]
                )

    def _line_part(self, side: Window, start: int, end: int, ranges: list[tuple[int, int]]) -> None:
        """Write the loop over the results `start` to `end`.

        `ranges` has, for each window element, the range of results for which it is inside the
        argument. Empty if it is inside for all.
        """
        w, k = self.w, self.inner
        if ranges:
            w.open(f"for (long i{k} = {start}; i{k} < {end}; ++i{k})")
            self.values.fresh()
        else:
            self._vector_loop(str(start), str(end))
        w(f"float value = {START[self.op]};")
        for tap in range(side.kernel):
            if ranges:
                first, last = ranges[tap]
                w.open(f"if (i{k} >= {first} && i{k} < {last})")
                self.values.fresh()
            w(self.joined("value", self.element({k: self._tap(side, tap)})))
            if ranges:
                w.close()
                self.values.fresh()
        w(f"const float result = {self.divided('value')};")
        self.values.stores(self.index())
        w.close()

    def _tap(self, side: Window, tap: int) -> str:
        """Return the C++ expression of the input index of window element `tap` in the innermost
        dimension.
        """
        k, offset = self.inner, tap * side.dilation - side.padding
        scaled = f"i{k} * {side.stride}" if side.stride > 1 else f"i{k}"
        return f"{scaled} {'-' if offset < 0 else '+'} {abs(offset)}" if offset else scaled

    def _slot(self) -> str:
        return f"i{self.inner} - start" if self.first == "start" else f"i{self.inner}"

    def _open_window(self, k: int, side: Window) -> None:
        """Open the C++ loop over the elements of a window along dimension `k`."""
        w = self.w
        if side.adaptive:
            start, end = adaptive_bounds(f"i{k}", side)
            w.open(f"for (long p{k} = {start}; p{k} < {end}; ++p{k})")
            return
        w.open(f"for (long t{k} = 0; t{k} < {side.kernel}; ++t{k})")
        step = f"t{k} * {side.dilation}" if side.dilation > 1 else f"t{k}"
        moved = f" - {side.padding}" if side.padding else ""
        w(f"const long p{k} = i{k} * {side.stride} + {step}{moved};")
        last = (side.count - 1) * side.stride + (side.kernel - 1) * side.dilation - side.padding
        tests = [f"p{k} < 0"] if side.padding else []
        tests += [f"p{k} >= {side.extent}"] if last >= side.extent else []
        if tests:
            w(f"if ({' || '.join(tests)}) continue;")

    def _adaptive_row(self, side: Window, places: dict[int, str]) -> None:
        w, k = self.w, self.inner
        w.open(f"for (long i{k} = {self.first}; i{k} < {self.end}; ++i{k})")
        start, end = adaptive_bounds(f"i{k}", side)
        w.open(f"for (long p{k} = {start}; p{k} < {end}; ++p{k})")
        self.values.fresh()
        w(self.joined(f"joined[{self._slot()}]", self.element({**places, k: f"p{k}"})))
        w.close(2)

    def _window_row(self, side: Window, places: dict[int, str]) -> None:
        """Write the loops that join the window elements of one input row to the results of a
        row.
        """
        ranges = [results_of(side, tap) for tap in range(side.kernel)]
        low, high = max(a for a, _ in ranges), min(b for _, b in ranges)
        if side.kernel > MAX_TOGETHER or low >= high:
            for tap, (start, end) in enumerate(ranges):
                self._join(side, places, [tap], start, end)
            return
        for tap, (start, end) in enumerate(ranges):
            self._join(side, places, [tap], start, min(low, end))
        self._join(side, places, list(range(side.kernel)), low, high)
        for tap, (start, end) in enumerate(ranges):
            self._join(side, places, [tap], max(high, start), end)

    def _join(
        self, side: Window, places: dict[int, str], taps: list[int], start: int, end: int
    ) -> None:
        """Write the loop that joins the window elements `taps` to the results `start` to `end`."""
        if start >= end:
            return
        w, k = self.w, self.inner
        first, last = str(start), str(end)
        if self.first == "start":
            first = f"(start > {start} ? start : {start})"
            last = f"(end < {end} ? end : {end})"
        self._vector_loop(first, last)
        w(f"float value = joined[{self._slot()}];")
        for tap in taps:
            w(self.joined("value", self.element({**places, k: self._tap(side, tap)})))
        w(f"joined[{self._slot()}] = value;")
        w.close()

    # Interpolation.

    def _nearest(self) -> None:
        w, k = self.w, self.inner
        places = {d: self.nearest(d) for d in self.rows}
        if k not in self.sides:
            self._vector_loop("0", str(self.width))
            self.values.result = self.element(places)
            self.values.stores(self.index())
            w.close()
            return
        repeats = whole_repeats(self.sides[k])
        if not repeats:
            self._vector_loop("0", str(self.width))
            self.values.result = self.element({**places, k: self.nearest(k)})
            self.values.stores(self.index())
            w.close()
            return
        w.pragma("omp simd")
        w.open(f"for (long p = 0; p < {self.sides[k].extent}; ++p)")
        self.values.fresh()
        self.values.result = self.element({**places, k: "p"})
        for repeat in range(repeats):
            place = f"p * {repeats} + {repeat}" if repeats > 1 else "p"
            self.values.stores((*self.index()[:-1], place))
        w.close()

    def _linear(self) -> None:
        """Write a linear interpolation: blend the adjacent rows, then adjacent elements of the
        blended row.
        """
        if self.inner not in self.sides:
            return self._linear_channels()
        w, k, extent = self.w, self.inner, self.sides[self.inner].extent
        if extent > MAX_SOURCE:
            raise NestError(f"{self.request.name}: rows of {extent} elements do not fit the cache")
        blends = {d: self.linear(d) for d in self.rows}
        w(f"alignas(64) float blended[{extent}];")
        w.pragma("omp simd")
        w.open(f"for (long p = 0; p < {extent}; ++p)")
        self.values.fresh()
        w(f"blended[p] = {self._blend(blends, {k: 'p'})};")
        w.close()
        self._vector_loop("0", str(self.width))
        left, right, weight = self.linear(k)
        blend = f"(1.f - {weight}) * blended[{left}] + {weight} * blended[{right}]"
        w(f"const float result = {blend};")
        self.values.stores(self.index())
        w.close()
        return None

    def _linear_channels(self) -> None:
        """Write a linear interpolation over other dimensions than the innermost."""
        blends = {d: self.linear(d) for d in self.rows}
        self._vector_loop("0", str(self.width))
        self.w(f"const float result = {self._blend(blends, {})};")
        self.values.stores(self.index())
        self.w.close()

    def _blend(self, blends: dict[int, tuple[str, str, str]], inner: dict[int, str]) -> str:
        """Return the C++ expression of the weighted sum of the elements around a position.

        `blends` has (lower index, upper index, weight) of each outer dimension.
        """
        terms = []
        for corner in itertools.product((0, 1), repeat=len(self.rows)):
            places = {d: blends[d][c] for d, c in zip(self.rows, corner, strict=True)}
            weights = [
                blends[d][2] if c else f"(1.f - {blends[d][2]})"
                for d, c in zip(self.rows, corner, strict=True)
            ]
            terms.append(" * ".join([*weights, self.element({**places, **inner})]))
        return " + ".join(terms)


def results_of(side: Window, tap: int) -> tuple[int, int]:
    """Return the (first, end) of the results for which window element `tap` is inside the
    argument.
    """
    offset = tap * side.dilation - side.padding
    first = max(0, -(offset // side.stride)) if offset < 0 else 0
    end = min(side.count, (side.extent - 1 - offset) // side.stride + 1)
    return first, max(first, end)
