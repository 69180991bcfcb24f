"""Generate CUDA kernels of pools and interpolations: one thread for each result, or for a few.

Adjacent threads compute adjacent results, so that a warp reads adjacent windows; the cache serves
elements that several windows share. Where windows overlap along a dimension other than the
innermost one, a thread computes BLOCK results along it. It joins each row of elements once, for all
windows that contain the row.
"""

from __future__ import annotations

import itertools
import math

from cuagent.expert.graph.graph import Kind, Window
from cuagent.expert.kernel import KernelCall, Request, cuda_call
from cuagent.expert.pooling.positions import START, PoolText, adaptive_bounds
from cuagent.expert.streaming.cuda_text import headers_of

THREADS = 256
MAX_UNROLLED = 32
"""Largest number of elements of a window whose loops are unrolled."""
BLOCK = 4
"""Number of results of a thread where windows overlap."""
LEAST_THREADS = 1 << 18
"""Least number of threads with which a thread computes several results."""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group with a pool or a resample."""
    pool = _Pool(request)
    return cuda_call(request, pool.text(), pool.values.tensors_read, pool.includes)


class _Pool(PoolText):
    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.includes = headers_of(request.group, self.values.tensors_read)
        given = math.prod(
            self.sides[k].extent if k in self.sides else n for k, n in enumerate(self.shape)
        )
        reach = max(given, self.anchor.size, *map(self._reach, request.group.outputs))
        self.integer = "long" if reach >= 1 << 30 else "int"
        self.blocked = self._blocked()
        """Dimension along which a thread computes several results; None without one."""

    def _reach(self, name: str) -> int:
        """Return the largest index at which an output is written."""
        graph = self.request.graph
        pairs = zip(graph.node(name).shape, graph.strides(name), strict=True)
        return sum((n - 1) * s for n, s in pairs)

    def _blocked(self) -> int | None:
        """Return the outermost dimension along which windows overlap, except the innermost one of
        the tensor; None without one, and if there were too few threads."""
        if self.anchor.kind is not Kind.POOL or self.anchor.size < BLOCK * LEAST_THREADS:
            return None
        taps = math.prod(side.kernel or MAX_UNROLLED + 1 for side in self.sides.values())
        for k, side in self.sides.items():
            overlaps = side.stride < side.kernel and side.dilation == 1 and side.count >= BLOCK
            if overlaps and k < len(self.shape) - 1 and taps <= MAX_UNROLLED:
                return k
        return None

    def text(self) -> str:
        w, total, name = self.w, self.anchor.size, self.request.name
        if self.blocked is not None:
            count = self.shape[self.blocked]
            total = total // count * math.ceil(count / BLOCK)
        self.head(*self.includes)
        parameters = self.values.parameters()
        bounds = f"__launch_bounds__({THREADS})"
        w.open(f"static __global__ void {bounds} {name}_device({', '.join(parameters)})")
        w("const long position = blockIdx.x * (long)blockDim.x + threadIdx.x;")
        w(f"if (position >= {total}) return;")
        self._decode()
        self.values.fresh()
        if self.blocked is not None:
            self._pool_of_block(self.blocked)
        elif self.anchor.kind is Kind.POOL:
            self._pool()
        elif self.op == "nearest":
            places = {k: self.nearest(k) for k in self.sides}
            self.values.result = self.element(places)
        else:
            self._linear()
        self.values.stores(self.index())
        w.close(1 if self.blocked is None else 2)
        w()
        arguments = ", ".join(p.split()[-1] for p in parameters)
        w.open(f'extern "C" void {name}({", ".join(parameters)}, cudaStream_t stream)')
        w(f"{name}_device<<<{math.ceil(total / THREADS)}, {THREADS}, 0, stream>>>({arguments});")
        w.close()
        return "\n".join(w.lines) + "\n"

    def _decode(self) -> None:
        w = self.w
        w(f"{self.integer} remainder = position;")
        for k in reversed(range(len(self.shape))):
            word, count, times = f"i{k}", self.shape[k], ""
            if k == self.blocked:
                word, count, times = f"q{k}", math.ceil(count / BLOCK), f" * {BLOCK}"
            if k == 0:
                w(f"const {self.integer} {word} = remainder{times};")
            else:
                w(f"const {self.integer} {word} = remainder % {count}{times};")
                w(f"remainder /= {count};")

    def _pool_of_block(self, k: int) -> None:
        """Write the pools of BLOCK results along dimension `k`; the loop over them stays open."""
        w, side = self.w, self.sides[k]
        w(f"float joined[{BLOCK}];")
        w.pragma("unroll")
        w(f"for (int j = 0; j < {BLOCK}; ++j) joined[j] = {START[self.op]};")
        rows = (BLOCK - 1) * side.stride + side.kernel
        w.pragma("unroll")
        w.open(f"for (int t{k} = 0; t{k} < {rows}; ++t{k})")
        w(f"const int p{k} = q{k} * {side.stride} + t{k} - {side.padding};")
        w(f"if (p{k} < 0 || p{k} >= {side.extent}) continue;")
        w(f"float row = {START[self.op]};")
        others = {d: other for d, other in self.sides.items() if d != k}
        for d, other in others.items():
            w.pragma("unroll")
            self._open_window(d, other)
        self.values.fresh()
        w(self.joined("row", self.element({d: f"p{d}" for d in self.sides})))
        w.close(len(others))
        w.pragma("unroll")
        w.open(f"for (int j = 0; j < {BLOCK}; ++j)")
        first = f"j * {side.stride}"
        w(f"if (t{k} < {first} || t{k} >= {first} + {side.kernel}) continue;")
        w(self.joined("joined[j]", "row"))
        w.close(2)
        w.pragma("unroll")
        w.open(f"for (int j = 0; j < {BLOCK}; ++j)")
        w(f"const {self.integer} i{k} = q{k} + j;")
        w(f"if (i{k} >= {self.shape[k]}) break;")
        self.values.fresh()
        w(f"const float result = {self.divided('joined[j]')};")

    def _pool(self) -> None:
        w = self.w
        w(f"float joined = {START[self.op]};")
        taps = math.prod(side.kernel or MAX_UNROLLED + 1 for side in self.sides.values())
        for k, side in self.sides.items():
            if taps <= MAX_UNROLLED:
                w.pragma("unroll")
            self._open_window(k, side)
        self.values.fresh()
        w(self.joined("joined", self.element({k: f"p{k}" for k in self.sides})))
        w.close(len(self.sides))
        self.values.fresh()
        w(f"const float result = {self.divided('joined')};")

    def joined(self, word: str, value: str) -> str:
        return f"{word} = larger({word}, {value});" if self.op == "max" else f"{word} += {value};"

    def _open_window(self, k: int, side: Window) -> None:
        w = self.w
        if side.adaptive:
            start, end = adaptive_bounds(f"i{k}", side)
            w.open(f"for (int p{k} = {start}; p{k} < {end}; ++p{k})")
            return
        w.open(f"for (int t{k} = 0; t{k} < {side.kernel}; ++t{k})")
        w(f"const int p{k} = i{k} * {side.stride} + t{k} * {side.dilation} - {side.padding};")
        last = (side.count - 1) * side.stride + (side.kernel - 1) * side.dilation - side.padding
        tests = [f"p{k} < 0"] if side.padding else []
        tests += [f"p{k} >= {side.extent}"] if last >= side.extent else []
        if tests:
            w(f"if ({' || '.join(tests)}) continue;")

    def _linear(self) -> None:
        blends = {k: self.linear(k) for k in self.sides}
        terms = []
        for corner in itertools.product((0, 1), repeat=len(self.sides)):
            chosen = dict(zip(self.sides, corner, strict=True))
            weights = [blends[k][2] if c else f"(1.f - {blends[k][2]})" for k, c in chosen.items()]
            element = self.element({k: blends[k][c] for k, c in chosen.items()})
            terms.append(" * ".join([*weights, element]))
        self.w(f"const float result = {' + '.join(terms)};")
