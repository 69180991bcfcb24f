"""Generate CUDA kernels of depthwise convolutions of images in channels-last layout.

A thread computes VECTOR adjacent channels of COLUMNS x ROWS adjacent places. It reads each row of
the input once, and adds it to all results whose windows contain it. Adjacent threads have adjacent
channels, so that every access of a warp is contiguous. The warps of a block have adjacent places:
their windows overlap, and the overlaps are in the L1 cache.

In the generated text `j0` is a row of results, `j6` a column, and `j3` an element of a vector. `j2`
is a column of the window, `j4` a row of the input and `j5` an element of that row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cuagent.expert.anchored.launcher import write_launcher
from cuagent.expert.anchored.values import Values, address
from cuagent.expert.graph.graph import Kind, Window
from cuagent.expert.graph.storage import NestError, storage
from cuagent.expert.kernel import KernelCall, Request, cuda_call
from cuagent.expert.streaming.cuda_text import headers_of
from cuagent.expert.streaming.expressions import computed_type, identifier
from cuagent.expert.streaming.text import Writer

THREADS = 256
WIDE = 3
"""Largest width of a window for which a thread computes four channels instead of two: memory bounds
the time of small windows, and arithmetic that of larger ones."""
RESULTS, ROWS = 16, 4
"""Largest number of results in one row of a thread, and largest number of its rows."""
MOST_SUMS = 32
"""Largest number of results of a thread, which are sums in registers."""
LEAST_THREADS = 1 << 17
"""Number of threads that fill a large GPU; if there are fewer, a thread gets fewer rows."""


@dataclass(frozen=True)
class Strip:
    """The results of a thread along one dimension, and the elements of the input that they read."""

    side: Window
    results: int
    """Number of adjacent results of a thread."""

    @property
    def count(self) -> int:
        """Number of strips along the dimension."""
        return math.ceil(self.side.count / self.results)

    @property
    def step(self) -> int:
        """Distance between two elements that a thread reads."""
        return self.side.dilation if self.results == 1 else 1

    @property
    def reads(self) -> int:
        """Number of elements that a thread reads."""
        if self.results == 1:
            return self.side.kernel
        return (self.results - 1) * self.side.stride + self.side.kernel

    def place(self, first: str, element: str) -> str:
        """Return the C++ expression of the index of `element` in the input."""
        start = f"{first} * {self.side.stride}" if self.side.stride > 1 else first
        moved = f"{element} * {self.step}" if self.step > 1 else element
        return f"{start} + {moved}" + (f" - {self.side.padding}" if self.side.padding else "")

    def tests(self, place: str) -> list[str]:
        """Return the C++ conditions that the index `place` is inside of the input."""
        side = self.side
        last = (self.count - 1) * self.results * side.stride - side.padding
        last += (self.reads - 1) * self.step
        tests = [f"{place} >= 0"] if side.padding else []
        return tests + ([f"{place} < {side.extent}"] if last >= side.extent else [])


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group with a depthwise convolution in channels-last layout."""
    kernel = _Last(request)
    return cuda_call(request, kernel.text(), kernel.values.tensors_read, kernel.includes)


class _Last:
    def __init__(self, request: Request) -> None:
        self.request, self.w = request, Writer()
        self.anchor = next(n for n in request.group.nodes if n.kind is Kind.DEPTHWISE)
        self.values = Values(request.graph, request.group, self.anchor, self.w)
        self.source = request.graph.node(str(self.anchor.args[0]))
        self.includes = headers_of(request.group, self.values.tensors_read)
        self.integer = "long" if max(self.source.size, self.anchor.size) >= 1 << 30 else "int"
        self.channels = self.anchor.shape[-1]
        self.vector = self._vector() if request.vector else 1
        self.chunks = self.channels // self.vector
        # Lanes of a warp beyond the last channel have no work.
        self.lanes = min((32, 16, 8), key=lambda n: math.ceil(self.chunks / n) * n)
        self.down, self.across = self._strips()
        self.threads = request.threads or THREADS

    @property
    def blocks(self) -> int:
        """Number of groups of LANES vectors of channels."""
        return math.ceil(self.chunks / self.lanes)

    def _vector(self) -> int:
        """Return the number of channels of a thread; 1 if vectors do not fit the memory."""
        graph = self.request.graph
        if self.source.name in self.values.nodes:
            return 1
        try:
            _, strides, offset = storage(graph, self.source)
        except NestError:
            return 1
        sizes, inner = [self.channels, *strides[:-1], offset], [strides[-1]]
        for name in self.request.group.outputs:
            part = graph.parts.get(name)
            *outer, last = graph.strides(name)
            sizes += [*outer, part.offset if part else 0]
            inner.append(last)
        width = 4 if self.anchor.spec.sides[1].kernel <= WIDE else 2
        while width > 1 and (set(inner) != {1} or any(n % width for n in sizes)):
            width //= 2
        return width

    def _strips(self) -> tuple[Strip, Strip]:
        """Return the results of a thread along rows and columns."""
        rows, columns = self.anchor.spec.sides
        most = 1 if columns.dilation > 1 else min(RESULTS // max(self.vector, 2), columns.count)
        count = math.ceil(columns.count / math.ceil(columns.count / most))
        across = Strip(columns, count)
        others = self.anchor.shape[0] * self.blocks * self.lanes * across.count
        height = 1 if rows.dilation > 1 else min(ROWS, rows.count)
        while height > 1 and (
            height * count * self.vector > MOST_SUMS
            or others * math.ceil(rows.count / height) < LEAST_THREADS
        ):
            height -= 1
        return Strip(rows, height), across

    def text(self) -> str:
        w, name = self.w, self.request.name
        for line in self.request.title.splitlines():
            w(f"// {line}")
        samples, height, width, channels = self.anchor.shape
        rows, columns = self.anchor.spec.sides
        w(
            f"// {samples} images of {height} x {width} places and {channels} channels, windows of "
            f"{rows.kernel} x {columns.kernel}."
        )
        for header in self.includes:
            w(f'#include "{header}"')
        w()
        parameters = self.values.parameters()
        bounds = f"__launch_bounds__({self.threads})"
        w.open(f"static __global__ void {bounds} {name}_device({', '.join(parameters)})")
        total = samples * self.blocks * self.down.count * self.across.count * self.lanes
        self._decode(total)
        self._bias()
        w("float thread_sums[ROWS][COLUMNS][VECTOR] = {};")
        self._rows()
        self._store()
        w.close()
        w()
        write_launcher(w, name, parameters, total, self.threads)
        return "\n".join(w.lines) + "\n"

    def _decode(self, total: int) -> None:
        """Write the first row, column and channel of a thread, and its sample."""
        w = self.w
        w(
            f"constexpr int VECTOR = {self.vector}, ROWS = {self.down.results}, "
            f"COLUMNS = {self.across.results}, LANES = {self.lanes};"
        )
        w(f"const long position = blockIdx.x * (long){self.threads} + threadIdx.x;")
        w(f"if (position >= {total}) return;")
        w(f"{self.integer} remainder = position / LANES;")
        w(f"const int first_column = remainder % {self.across.count} * COLUMNS;")
        w(f"remainder /= {self.across.count};")
        w(f"const int first_row = remainder % {self.down.count} * ROWS;")
        w(f"remainder /= {self.down.count};")
        w(f"const int i3 = (remainder % {self.blocks} * LANES + position % LANES) * VECTOR;")
        w(f"const {self.integer} i0 = remainder / {self.blocks};")
        if self.chunks % self.lanes:
            w(f"if (i3 >= {self.channels}) return;")

    def _unrolled(self, name: str, count: int | str) -> None:
        self.w.pragma("unroll")
        self.w.open(f"for (int {name} = 0; {name} < {count}; ++{name})")

    def _bias(self) -> None:
        if len(self.anchor.args) < 3:
            return
        w = self.w
        w("float channel_bias[VECTOR];")
        self._unrolled("j3", "VECTOR")
        w(f"channel_bias[j3] = {self.values.at(self.anchor.args[2], ('i3 + j3',))};")
        w.close()
        self.values.fresh()

    def _rows(self) -> None:
        """Write the loop over the input rows that the thread's results need.

        With conditions in the loads instead of a branch around them, the compiler issues the loads
        of all rows together.
        """
        w, down, across = self.w, self.down, self.across
        self._unrolled("j4", down.reads)
        w(f"const int p1 = {down.place('first_row', 'j4')};")
        w(f"float input_row[{across.reads}][VECTOR] = {{}};")
        self._unrolled("j5", across.reads)
        w(f"const int p2 = {across.place('first_column', 'j5')};")
        test = " && ".join([*down.tests("p1"), *across.tests("p2")])
        w.open(f"if ({test})" if test else "")
        self._load(self.source.name, ("i0", "p1", "p2", "i3"), "input_row[j5]")
        w.close(2)
        self._products()
        w.close()

    def _load(self, name: str, index: tuple[str, ...], to: str) -> None:
        """Write the load of VECTOR adjacent values at `index` into the array `to`."""
        self.values.fresh()
        if self.vector == 1:
            self.w(f"{to}[0] = {self.values.at(name, index)};")
        else:
            base, strides, offset = storage(self.request.graph, self.request.graph.node(name))
            self.w(
                f"load_vector({identifier(base.name)} + {address(index, strides, offset)}, {to});"
            )
        self.values.fresh()

    def _products(self) -> None:
        """Write the products of one input row with the rows of the window."""
        w, (rows, columns) = self.w, self.anchor.spec.sides
        self._unrolled("j0", "ROWS")
        w(f"const int window_row = j4 - j0 * {rows.stride};")
        w(f"if (window_row < 0 || window_row >= {rows.kernel}) continue;")
        self._unrolled("j2", columns.kernel)
        w("float tap_weights[VECTOR];")
        tap = f"window_row * {columns.kernel} + j2"
        self._load(str(self.anchor.args[1]), (tap, "i3"), "tap_weights")
        self._unrolled("j6", "COLUMNS")
        self._unrolled("j3", "VECTOR")
        step = f"j6 * {columns.stride} + j2"
        w(f"thread_sums[j0][j6][j3] += tap_weights[j3] * input_row[{step}][j3];")
        w.close(4)

    def _store(self) -> None:
        """Write the operations after the convolution, and the stores of VECTOR results."""
        w, group = self.w, self.request.group
        self._unrolled("j0", "ROWS")
        w("const int i1 = first_row + j0;")
        if self.down.side.count % self.down.results:
            w(f"if (i1 >= {self.down.side.count}) break;")
        self._unrolled("j6", "COLUMNS")
        w("const int i2 = first_column + j6;")
        if self.across.side.count % self.across.results:
            w(f"if (i2 >= {self.across.side.count}) break;")
        for name in group.outputs:
            kind = computed_type(self.values.nodes[name].dtype)
            w(f"{kind} {identifier(name)}_vector[VECTOR];")
        self._unrolled("j3", "VECTOR")
        bias = " + channel_bias[j3]" if len(self.anchor.args) > 2 else ""
        w(f"const float result = thread_sums[j0][j6][j3]{bias};")
        self.values.fresh()
        for name in group.outputs:
            value = self.values.at(name, ("i0", "i1", "i2", "i3 + j3"))
            w(f"{identifier(name)}_vector[j3] = {value};")
        w.close()
        self.values.fresh()
        for name in group.outputs:
            target = address(("i0", "i1", "i2", "i3"), self.request.graph.strides(name), 0)
            w(f"store_vector({identifier(name)}_out + {target}, {identifier(name)}_vector);")
        w.close(2)
