"""Generate CUDA kernels of pools and interpolations: one thread for each result, or for some.

Adjacent threads compute adjacent results, so that a warp reads adjacent windows; the cache serves
elements that windows of several threads share. In large pools a thread computes several results
(`cuda_strips`).
"""

from __future__ import annotations

import itertools
import math

from cuagent.expert.anchored.values import address
from cuagent.expert.graph.graph import Kind, Window
from cuagent.expert.kernel import KernelCall, Request, cuda_call
from cuagent.expert.pooling.cuda_strips import Strips, Vectors, strips_of, vectors_of
from cuagent.expert.pooling.positions import START, PoolText, adaptive_bounds
from cuagent.expert.streaming.cuda_text import headers_of
from cuagent.expert.streaming.expressions import identifier

THREADS = 256
MAX_UNROLLED = 32
"""Largest number of elements of a window whose loops are unrolled."""


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

    def _reach(self, name: str) -> int:
        """Return the largest index at which an output is written."""
        graph = self.request.graph
        pairs = zip(graph.node(name).shape, graph.strides(name), strict=True)
        return sum((n - 1) * s for n, s in pairs)

    def text(self) -> str:
        w, name = self.w, self.request.name
        self.head(*self.includes)
        parameters = self.values.parameters()
        members = {node.name for node in self.request.group.nodes}
        graph = self.request.graph
        strips = vectors = None
        if self.anchor.kind is Kind.POOL:
            vectors = vectors_of(graph, self.anchor, self.sides, members)
            strips = None if vectors else strips_of(self.anchor, self.sides)
        threads = vectors.threads if vectors else THREADS
        bounds = f"__launch_bounds__({threads})"
        w.open(f"static __global__ void {bounds} {name}_device({', '.join(parameters)})")
        if vectors:
            blocks = self._vectors(vectors)
        elif strips:
            blocks = self._strips(strips)
        else:
            self._position(self.anchor.size)
            self._decode("position", dict(enumerate(self.shape)))
            self._one()
            blocks = math.ceil(self.anchor.size / THREADS)
        w.close()
        w()
        arguments = ", ".join(p.split()[-1] for p in parameters)
        w.open(f'extern "C" void {name}({", ".join(parameters)}, cudaStream_t stream)')
        w(f"{name}_device<<<{blocks}, {threads}, 0, stream>>>({arguments});")
        w.close()
        return "\n".join(w.lines) + "\n"

    def _position(self, count: int) -> None:
        self.w("const long position = blockIdx.x * (long)blockDim.x + threadIdx.x;")
        self.w(f"if (position >= {count}) return;")

    def _one(self) -> None:
        """Write the computation of one result."""
        self.values.fresh()
        if self.anchor.kind is Kind.POOL:
            self._pool()
        elif self.op == "nearest":
            places = {k: self.nearest(k) for k in self.sides}
            self.values.result = self.element(places)
        else:
            self._linear()
        self.values.stores(self.index())

    def _decode(self, flat: str, extents: dict[int, int], strip: int = -1) -> None:
        """Declare the indices of the dimensions in `extents`, which has their extents, from a flat
        index. `strip`: the dimension whose index is that of a strip.
        """
        w = self.w
        w(f"{self.integer} remainder = {flat};")
        for k in reversed(extents):
            word = "strip" if k == strip else f"i{k}"
            if k == min(extents):
                w(f"const {self.integer} {word} = remainder;")
            else:
                w(f"const {self.integer} {word} = remainder % {extents[k]};")
                w(f"remainder /= {extents[k]};")

    def joined(self, word: str, value: str) -> str:
        if self.op == "max":
            return f"{word} = largest({word}, {value});"
        return super().joined(word, value)

    def _strips(self, strips: Strips) -> int:
        """Write the computation of adjacent results along a dimension; return the number of
        blocks.

        Elements at one place along it are joined first; each result joins some of these values.
        """
        w, k = self.w, strips.dim
        side: Window = self.sides[k]
        extents = dict(enumerate(self.shape)) | {k: math.ceil(side.count / strips.count)}
        count = math.prod(extents.values())
        self._position(count)
        self._decode("position", extents, k)
        w(f"float joined[{strips.count}];")
        w.pragma("unroll")
        w(f"for (int r = 0; r < {strips.count}; ++r) joined[r] = {START[self.op]};")
        w.pragma("unroll")
        w.open(f"for (int q = 0; q < {strips.lines}; ++q)")
        self._inside(k, f"strip * {strips.count * side.stride} + q - {side.padding}", side)
        w(f"float line = {START[self.op]};")
        others = {d: s for d, s in self.sides.items() if d != k}
        for d, other in others.items():
            w.pragma("unroll")
            w.open(f"for (int t{d} = 0; t{d} < {other.kernel}; ++t{d})")
            place = f"i{d} * {other.stride} + t{d} * {other.dilation} - {other.padding}"
            self._inside(d, place, other)
        self.values.fresh()
        value = self.element({d: f"p{d}" for d in self.sides})
        inside = " && ".join(f"inside{d}" for d in self.sides)
        w(f"const float chosen = {inside} ? {value} : {START[self.op]};")
        w(self.joined("line", "chosen"))
        w.close(len(others))
        w.pragma("unroll")
        w.open(f"for (int r = 0; r < {strips.count}; ++r)")
        w(f"const int tap = q - r * {side.stride};")
        inside = f"tap >= 0 && tap <= {(side.kernel - 1) * side.dilation}"
        w.open(f"if ({inside} && tap % {side.dilation} == 0)")
        w(self.joined("joined[r]", "line"))
        w.close(3)
        w.pragma("unroll")
        w.open(f"for (int r = 0; r < {strips.count}; ++r)")
        w(f"const {self.integer} i{k} = strip * {strips.count} + r;")
        w.open(f"if (i{k} < {side.count})")
        self._store("joined[r]")
        w.close(2)
        return math.ceil(count / THREADS)

    def _inside(self, k: int, place: str, side: Window) -> None:
        """Declare `p`, a place inside of the tensor, and whether it is equal to `place`.

        A load that no branch surrounds can begin before earlier loads end.
        """
        w = self.w
        w(f"const int place{k} = {place};")
        w(f"const bool inside{k} = place{k} >= 0 && place{k} < {side.extent};")
        w(f"const int p{k} = inside{k} ? place{k} : 0;")

    def _store(self, joined: str) -> None:
        """Write the stores of a result, from the joined elements of its window."""
        self.values.fresh()
        self.w(f"const float result = {self.divided(joined)};")
        self.values.stores(self.index())

    def _vectors(self, form: Vectors) -> int:
        """Write the computation of adjacent results of a line; return the number of blocks."""
        w, k, width = self.w, len(self.shape) - 1, form.width
        side: Window = self.sides[k]
        chunks = math.ceil(side.count / (form.threads * width))
        w(f"constexpr int THREADS = {form.threads}, VECTOR = {width}, RESULTS = {width};")
        w("alignas(16) __shared__ float results[THREADS * RESULTS];")
        w(f"const {self.integer} line = blockIdx.x / {chunks};")
        w(f"const int first = blockIdx.x % {chunks} * (THREADS * RESULTS);")
        if k > 0:
            self._decode("line", dict(enumerate(self.shape[:-1])))
        place = address((*self.index()[:-1], "0"), form.strides, form.offset)
        start = f"(first + threadIdx.x * RESULTS) * {side.stride} - {form.before + side.padding}"
        w(f"const int begin = {start};")
        self._given_vectors(form, side, place)
        w("float joined[RESULTS];")
        w.pragma("unroll")
        w.open("for (int r = 0; r < RESULTS; ++r)")
        w(f"joined[r] = {START[self.op]};")
        w.pragma("unroll")
        w.open(f"for (int tap = 0; tap < {side.kernel}; ++tap)")
        w(f"const int part = {form.before} + r * {side.stride} + tap * {side.dilation};")
        w(self.joined("joined[r]", "given[part / VECTOR][part % VECTOR]"))
        w.close(2)
        w("store_shared(results + threadIdx.x * RESULTS, joined);")
        w("__syncthreads();")
        w.pragma("unroll")
        w.open("for (int r = 0; r < RESULTS; ++r)")
        w("const int slot = r * THREADS + threadIdx.x;")
        w(f"const {self.integer} i{k} = first + slot;")
        w.open(f"if (i{k} < {side.count})")
        self._store("results[slot]")
        w.close(2)
        return chunks * math.prod(self.shape[:-1])

    def _given_vectors(self, form: Vectors, side: Window, place: str) -> None:
        """Write the loads of the vectors of a thread's windows, from the line that begins at
        `place`.
        """
        w = self.w
        w(f"float given[{form.vectors}][VECTOR];")
        w.pragma("unroll")
        w.open(f"for (int part = 0; part < {form.vectors}; ++part)")
        w("const int at = begin + part * VECTOR;")
        w.open(f"if (at >= 0 && at < {side.extent})")
        w(f"load_vector({identifier(form.base.name)} + ({place}) + at, given[part]);")
        w.close()
        w.open("else")
        w.pragma("unroll")
        w(f"for (int v = 0; v < VECTOR; ++v) given[part][v] = {START[self.op]};")
        w.close(2)

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
