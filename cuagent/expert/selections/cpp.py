"""Generate C++ kernels of selections (topk) for the CPU.

A row is read once, in chunks that are in the cache. An element becomes a 64-bit key: the upper half
orders the values, the lower half puts the smaller index first among equal values. Keys that exceed
a threshold are collected; when the collection is full, its k largest keys remain, and the smallest
of them is the new threshold. So the work does not depend on the order of the elements by more than
a constant factor. NaN counts as the largest value, as in torch.
"""

from __future__ import annotations

import math

from cuagent.expert.anchored.values import Values
from cuagent.expert.graph.graph import Kind
from cuagent.expert.kernel import KernelCall, Request, cpp_call
from cuagent.expert.selections.groups import PLACES
from cuagent.expert.streaming.expressions import identifier, narrowed
from cuagent.expert.streaming.text import Writer

CHUNK = 1024
"""Largest number of elements of a row that are computed before they are compared."""
RUN = 64
"""Number of elements that are compared with the threshold by vectors before single ones are."""
LEAST_SLOTS = 64
"""Least number of keys that are collected in addition to the k largest ones."""
PARALLEL_ELEMENTS = 1 << 14
"""Number of elements below which a parallel region costs more than it saves."""

KEY = """\
// The order of the results is that of the integers, and -0 equals 0.
static inline __attribute__((always_inline)) int32_t ordered(float x) {
  const int32_t bits = as_bits(x + 0.f);
  return x != x ? INT32_MAX : bits ^ ((bits >> 31) & INT32_MAX);
}
static inline float unordered(int32_t key) {
  return key == INT32_MAX ? NAN : as_float(key ^ ((key >> 31) & INT32_MAX));
}"""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group with a selection."""
    selection = _Selection(request)
    return cpp_call(request, selection.text(), selection.values.tensors_read)


class _Selection:
    def __init__(self, request: Request) -> None:
        self.request, self.w = request, Writer()
        group, graph = request.group, request.graph
        self.anchor = next(n for n in group.nodes if n.kind is Kind.SELECTION and n.op != PLACES)
        self.values = Values(graph, group, self.anchor, self.w)
        self.shape = graph.node(str(self.anchor.args[0])).shape
        self.length, self.count = self.shape[-1], self.anchor.shape[-1]

    def text(self) -> str:
        w, rows = self.w, math.prod(self.shape[:-1])
        for line in self.request.title.splitlines():
            w(f"// {line}")
        w(f"// The {self.anchor.op} {self.count} of {self.length} elements in each of {rows} rows.")
        w('#include "pointwise.h"')
        w("#include <algorithm>")
        w("#include <functional>")
        w()
        for line in KEY.splitlines():
            w(line)
        w()
        w.open(f'extern "C" void {self.request.name}({", ".join(self.values.parameters())})')
        if rows > 1 and rows * self.length > PARALLEL_ELEMENTS:
            w.pragma("omp parallel for schedule(static)")
        w.open(f"for (long row = 0; row < {rows}; ++row)")
        self._indices()
        self._collect()
        self._store()
        w.close(2)
        return "\n".join(w.lines) + "\n"

    def _indices(self) -> None:
        """Declare the index of the row along each outer dimension."""
        step = math.prod(self.shape[:-1])
        for k, extent in enumerate(self.shape[:-1]):
            step //= extent
            place = f"row / {step}" if step > 1 else "row"
            self.w(f"const long i{k} = {place} % {extent};")

    def _collect(self) -> None:
        w, chunk = self.w, min(CHUNK, -(-self.length // RUN) * RUN)
        slots = max(2 * self.count, self.count + LEAST_SLOTS) + RUN
        w(f"int64_t keys[{slots}];")
        w("long held = 0;")
        w("int32_t least = INT32_MIN;")
        w(f"alignas(64) int32_t part[{chunk}];")
        w.open(f"for (long begin = 0; begin < {self.length}; begin += {chunk})")
        w(f"const long end = begin + {chunk} < {self.length} ? begin + {chunk} : {self.length};")
        w.pragma("omp simd")
        w.open("for (long j = begin; j < end; ++j)")
        index = (*(f"i{k}" for k in range(len(self.shape) - 1)), "j")
        self.values.fresh()
        value = self.values.at(self.anchor.args[0], index)
        sign = "" if self.anchor.op == "largest" else "~"
        w(f"part[j - begin] = {sign}ordered({value});")
        w.close()
        w.open(f"for (long first = begin; first < end; first += {RUN})")
        w(f"const long last = first + {RUN} < end ? first + {RUN} : end;")
        w("int some = 0;")
        w.pragma("omp simd reduction(|:some)")
        w("for (long j = first; j < last; ++j) some |= part[j - begin] > least;")
        w(f"if (!some && held >= {self.count}) continue;")
        w.open("for (long j = first; j < last; ++j)")
        # The lower half of the key is larger for smaller indices.
        key = f"(static_cast<int64_t>(part[j - begin]) << 32) | ({self.length - 1} - j)"
        w(f"keys[held] = {key};")
        w(f"held += part[j - begin] > least || held < {self.count};")
        w.close()
        w(f"if (held <= {slots - RUN}) continue;")
        self._select("std::nth_element", f"keys + {self.count - 1}, ")
        w(f"held = {self.count};")
        w(f"least = keys[{self.count - 1}] >> 32;")
        w.close(2)

    def _select(self, function: str, middle: str = "") -> None:
        self.w(f"{function}(keys, {middle}keys + held, std::greater<int64_t>());")

    def _store(self) -> None:
        w, count, group = self.w, self.count, self.request.group
        self._select("std::partial_sort", f"keys + {count}, ")
        w.open(f"for (long k = 0; k < {count}; ++k)")
        for name in group.outputs:
            node = self.request.graph.node(name)
            sign = "" if self.anchor.op == "largest" else "~"
            if node.op == PLACES:
                value = f"{self.length - 1} - (keys[k] & INT32_MAX)"
            else:
                key = "static_cast<int32_t>(keys[k] >> 32)"
                value = narrowed(f"unordered({sign}{key})", node.dtype)
            w(f"{identifier(name)}_out[row * {count} + k] = {value};")
        w.close()
