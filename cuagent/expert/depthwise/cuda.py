"""Generate CUDA kernels of depthwise convolutions.

A thread computes VECTOR adjacent results of ROWS adjacent rows of one plane. It reads each row of
the input once, and adds it to all results whose windows contain it; weights and sums stay in
registers. Adjacent threads have adjacent columns, so that every access of a warp is contiguous. On
one-dimensional inputs a thread computes ITEMS positions instead of rows, far from each other.

In the generated text `j0` is a row of results, `j1` and `j2` row and column of the window, `j3` an
element of a vector, `j4` a row of the input, `j5` a vector of that row, and `j6` an item.
"""

from __future__ import annotations

import math

from cuagent.expert.anchored.launcher import write_launcher
from cuagent.expert.anchored.values import address
from cuagent.expert.depthwise import cuda_last
from cuagent.expert.depthwise.match import DepthwiseText, place
from cuagent.expert.graph.graph import ITEM_BYTES, Kind, Window
from cuagent.expert.graph.storage import NestError, storage
from cuagent.expert.kernel import KernelCall, Request, cuda_call
from cuagent.expert.streaming.cuda_text import headers_of
from cuagent.expert.streaming.expressions import computed_type, identifier

THREADS = 256
ROWS, RESULTS = 8, 32
"""Largest number of rows and of results that one thread computes.

On an H200 8 rows were best in float32, and with vectors of 8 half-precision elements 4 were 1.3
times as fast.
"""
ITEMS = 4
MOST_VECTOR_BYTES = 16
LEAST_THREADS = 1 << 17
"""Number of threads that fill a large GPU; if there are fewer, a thread gets fewer rows."""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group with a depthwise convolution."""
    anchor = next(n for n in request.group.nodes if n.kind is Kind.DEPTHWISE)
    if anchor.dims[0] == 1:
        return cuda_last.generate(request)
    kernel = _Depthwise(request)
    return cuda_call(request, kernel.text(), kernel.values.tensors_read, kernel.includes)


class _Depthwise(DepthwiseText):
    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.includes = headers_of(request.group, self.values.tensors_read)
        source = request.graph.node(str(self.anchor.args[0]))
        self.source = source
        self.integer = "long" if max(source.size, self.anchor.size) >= 1 << 30 else "int"
        self.vector = self._vector() if request.vector else 1
        self.columns = math.ceil(self.sides[self.inner].count / self.vector)
        self.rows, self.strips = self._rows()
        self.items = min(ITEMS, self.columns) if len(self.sides) == 1 else 1
        self.slots = math.ceil(self.columns / self.items)
        self.threads = request.threads or THREADS

    def _vector(self) -> int:
        """Return the number of elements of the widest vector that fits the rows of input and
        results.
        """
        if self.source.name in self.values.nodes or self.source.kind in (Kind.WINDOW, Kind.GATHER):
            return 1
        try:
            base, strides, offset = storage(self.request.graph, self.source)
        except NestError:
            return 1
        side = self.sides[self.inner]
        extents = (*strides[:-1], offset, side.extent, side.count)
        width = MOST_VECTOR_BYTES // ITEM_BYTES[base.dtype]
        while width > 1 and (strides[-1] != 1 or any(n % width for n in extents)):
            width //= 2
        return width

    def _rows(self) -> tuple[int, int]:
        """Return the number of rows of results in a thread's strip, and the number of strips in a
        plane.
        """
        if len(self.sides) == 1:
            return 1, 1
        count = self.sides[self.inner - 1].count
        others = self.anchor.size // (count * self.vector)
        rows = min(ROWS, RESULTS // self.vector, count)
        while rows > 1 and others * count // rows < LEAST_THREADS:
            rows //= 2
        strips = math.ceil(count / rows)
        return math.ceil(count / strips), strips

    def text(self) -> str:
        w, name = self.w, self.request.name
        self.head(*self.includes)
        parameters = self.values.parameters()
        bounds = f"__launch_bounds__({self.threads})"
        w.open(f"static __global__ void {bounds} {name}_device({', '.join(parameters)})")
        total = math.prod(self.shape[: self.inner - (len(self.sides) > 1)])
        total *= self.strips * self.slots
        side = self.sides[self.inner]
        w(f"constexpr int VECTOR = {self.vector}, ROWS = {self.rows}, COLUMNS = {side.kernel};")
        w(f"const long position = blockIdx.x * (long){self.threads} + threadIdx.x;")
        w(f"if (position >= {total}) return;")
        self._decode()
        self._body()
        w.close()
        w()
        write_launcher(w, name, parameters, total, self.threads)
        return "\n".join(w.lines) + "\n"

    def _decode(self) -> None:
        w = self.w
        w(f"{self.integer} remainder = position;")
        w(f"const int thread_slot = remainder % {self.slots};")
        w(f"remainder /= {self.slots};")
        if len(self.sides) > 1:
            w(f"const int first_row = remainder % {self.strips} * ROWS;")
            w(f"remainder /= {self.strips};")
        if len(self.sides) == 3:
            w(f"const int i2 = remainder % {self.shape[2]};")
            w(f"remainder /= {self.shape[2]};")
        w(f"const {self.integer} i1 = remainder % {self.shape[1]};")
        w(f"const {self.integer} i0 = remainder / {self.shape[1]};")

    def _body(self) -> None:
        w, k = self.w, self.inner
        w(f"const float channel_bias = {self.bias()};")
        if len(self.sides) == 1:
            self._weights({})
            self._unrolled("j6", self.items)
            w(f"const int i{k} = (thread_slot + j6 * {self.slots}) * VECTOR;")
            w(f"if (i{k} >= {self.shape[k]}) continue;")
            self._sums()
            self._row({}, "0", [])
            self._store("0")
            w.close()
            return
        w(f"const int i{k} = thread_slot * VECTOR;")
        self._sums()
        if len(self.sides) == 3:
            side = self.sides[2]
            w.open(f"for (int t2 = 0; t2 < {side.kernel}; ++t2)")
            w(f"const int p2 = {place(2, side, 't2')};")
            w(f"if (p2 < 0 || p2 >= {side.extent}) continue;")
        self._weights({2: "t2"})
        self._strip()
        if len(self.sides) == 3:
            w.close()
        self._unrolled("j0", "ROWS")
        w(f"const int i{k - 1} = first_row + j0;")
        w(f"if (i{k - 1} >= {self.shape[k - 1]}) break;")
        self._store("j0")
        w.close()

    def _unrolled(self, name: str, count: int | str) -> None:
        self.w.pragma("unroll")
        self.w.open(f"for (int {name} = 0; {name} < {count}; ++{name})")

    def _sums(self) -> None:
        self.w("float thread_sums[ROWS][VECTOR] = {};")

    def _weights(self, taps: dict[int, str]) -> None:
        """Write the loads of the weights of one plane of the window into registers."""
        w, k = self.w, self.inner
        height = self.sides[k - 1].kernel if len(self.sides) > 1 else 1
        w(f"float tap_weights[{height}][COLUMNS];")
        self._unrolled("j1", height)
        self._unrolled("j2", "COLUMNS")
        self.values.fresh()
        places = {**taps, k - 1: "j1", k: "j2"}
        w(f"tap_weights[j1][j2] = {self.weight(places)};")
        w.close(2)
        self.values.fresh()

    def _strip(self) -> None:
        """Write the loop over the input rows that the thread's results need."""
        w, k = self.w, self.inner - 1
        side = self.sides[k]
        span = _span(side)
        self._unrolled("j4", (self.rows - 1) * side.stride + span)
        start = "first_row" if side.stride == 1 else f"first_row * {side.stride}"
        w(f"const int p{k} = {start} + j4{f' - {side.padding}' if side.padding else ''};")
        last = (self.strips * self.rows - 1) * side.stride + span - 1 - side.padding
        tests = [f"p{k} >= 0"] if side.padding else []
        tests += [f"p{k} < {side.extent}"] if last >= side.extent else []
        self._row({2: "p2"} | {k: f"p{k}"}, "j0", tests, side)
        w.close()

    def _row(
        self, places: dict[int, str], row: str, tests: list[str], side: Window | None = None
    ) -> None:
        """Write the loads of one input row, and their products with the weights.

        `tests` are the C++ conditions that the row is inside of the plane. With a condition
        in each load instead of a branch around them, the compiler issues the loads of all rows
        together.
        """
        w, window_row = self.w, "0"
        element = self._vectors(places, tests) if self.vector > 1 else self._scalars(places, tests)
        if side:
            self._unrolled("j0", "ROWS")
            w(f"const int window_row = j4 - {_times('j0', side.stride)};")
            step = f" || window_row % {side.dilation}" if side.dilation > 1 else ""
            w(f"if (window_row < 0 || window_row >= {_span(side)}{step}) continue;")
            window_row = "window_row" + (f" / {side.dilation}" if side.dilation > 1 else "")
        self._unrolled("j2", "COLUMNS")
        self._unrolled("j3", "VECTOR")
        w(f"const int place_in_row = {element};")
        w("const float given = input_row[place_in_row / VECTOR][place_in_row % VECTOR];")
        w(f"thread_sums[{row}][j3] += tap_weights[{window_row}][j2] * given;")
        w.close(3 if side else 2)

    def _scalars(self, places: dict[int, str], tests: list[str]) -> str:
        """Write the loads of single elements; return the C++ expression of the window column of tap
        j2.
        """
        w, k = self.w, self.inner
        side = self.sides[k]
        w("float input_row[COLUMNS][1] = {};")
        self._unrolled("j2", "COLUMNS")
        w(f"const int p{k} = {place(k, side, 'j2')};")
        test = " && ".join([*tests, *self._inside(f"p{k}", 1)])
        w.open(f"if ({test})" if test else "")
        self.values.fresh()
        w(f"input_row[j2][0] = {self.element({**places, k: f'p{k}'})};")
        w.close(2)
        self.values.fresh()
        return "j2"

    def _vectors(self, places: dict[int, str], tests: list[str]) -> str:
        """Write the loads of aligned vectors; return the C++ expression of a tap's window column.

        `j2` is the tap, `j3` the result within the thread's vector.
        """
        w, k = self.w, self.inner
        side = self.sides[k]
        lead = -side.padding % self.vector
        width = (self.vector - 1) * side.stride + _span(side)
        parts = math.ceil((lead + width) / self.vector)
        w(f"float input_row[{parts}][VECTOR] = {{}};")
        self._unrolled("j5", parts)
        start = f"i{k} * {side.stride}" if side.stride > 1 else f"i{k}"
        before = side.padding + lead
        w(f"const int p{k} = {start} + j5 * VECTOR{f' - {before}' if before else ''};")
        test = " && ".join([*tests, *self._inside(f"p{k}", self.vector)])
        w.open(f"if ({test})" if test else "")
        base, strides, offset = storage(self.request.graph, self.source)
        channel = "i1" if self.multiplier == 1 else f"i1 / {self.multiplier}"
        index = ("i0", channel, *({**places, k: f"p{k}"}[d] for d in self.sides))
        pointer = f"{identifier(base.name)} + {address(index, strides, offset)}"
        w(f"load_vector({pointer}, input_row[j5]);")
        w.close(2)
        return " + ".join(
            [*([str(lead)] if lead else []), _times("j3", side.stride), _times("j2", side.dilation)]
        )

    def _inside(self, word: str, vector: int) -> list[str]:
        """Return the C++ conditions that position `word` is inside of a row; [] if it always is."""
        side = self.sides[self.inner]
        last = (side.count - 1) * side.stride + _span(side) - 1 - side.padding
        tests = [f"{word} >= 0"] if side.padding else []
        tests += [f"{word} < {side.extent}"] if last >= side.extent or vector > 1 else []
        return tests

    def _store(self, row: str) -> None:
        """Write the operations after the convolution and the stores of VECTOR results."""
        w, k = self.w, self.inner
        self.values.fresh()
        if self.vector == 1:
            w(f"const float result = thread_sums[{row}][0] + channel_bias;")
            self.values.stores(self.index())
            return
        outputs = self.request.group.outputs
        for name in outputs:
            kind = computed_type(self.values.nodes[name].dtype)
            w(f"{kind} {identifier(name)}_vector[VECTOR];")
        self._unrolled("j3", "VECTOR")
        w(f"const float result = thread_sums[{row}][j3] + channel_bias;")
        index = (*self.index()[:-1], f"i{k} + j3")
        for name in outputs:
            w(f"{identifier(name)}_vector[j3] = {self.values.at(name, index)};")
        w.close()
        self.values.fresh()
        for name in outputs:
            target = address(self.index(), self.request.graph.strides(name), 0)
            w(f"store_vector({identifier(name)}_out + {target}, {identifier(name)}_vector);")


def _span(side: Window) -> int:
    """Return the number of elements from the first to the last element of a window."""
    return (side.kernel - 1) * side.dilation + 1


def _times(word: str, factor: int) -> str:
    return word if factor == 1 else f"{word} * {factor}"
