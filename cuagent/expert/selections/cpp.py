"""Generate C++ kernels of selections (topk) for the CPU.

A row is read once, in chunks that are in the cache. The selected elements are in a heap; vectors
compare the next elements with its worst one, and most runs of elements have none that is better.
The heap is the one of `std::partial_sort`, which torch uses where the row has at least 64 elements
for each selected one. So of several equal elements the same are selected, in the same order. NaN
counts as the largest value.
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
PARALLEL_ELEMENTS = 1 << 14
"""Number of elements below which a parallel region costs more than it saves."""

BETTER = {
    "largest": "(a.first != a.first && b.first == b.first) || a.first > b.first",
    "smallest": "(a.first == a.first && b.first != b.first) || a.first < b.first",
}
"""C++ expression that is true if element a comes before element b, as in torch."""
MAYBE_BETTER = {
    "largest": "(part[j - begin] > worst) | (part[j - begin] != part[j - begin])",
    "smallest": "(part[j - begin] < worst) | (worst != worst)",
}
"""C++ expression that is true if an element may come before one with the value `worst`."""


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
        w("#include <utility>")
        w()
        w("typedef std::pair<float, int64_t> Element;")
        w.open("static inline bool is_better(const Element& a, const Element& b)")
        w(f"return {BETTER[self.anchor.op]};")
        w.close()
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
        w, count, chunk = self.w, self.count, min(CHUNK, -(-self.length // RUN) * RUN)
        w(f"Element heap[{count + 1}];")
        w("long held = 0;")
        w(f"alignas(64) float part[{chunk}];")
        w.open(f"for (long begin = 0; begin < {self.length}; begin += {chunk})")
        w(f"const long end = begin + {chunk} < {self.length} ? begin + {chunk} : {self.length};")
        w.pragma("omp simd")
        w.open("for (long j = begin; j < end; ++j)")
        index = (*(f"i{k}" for k in range(len(self.shape) - 1)), "j")
        self.values.fresh()
        w(f"part[j - begin] = {self.values.at(self.anchor.args[0], index)};")
        w.close()
        w.open(f"for (long first = begin; first < end; first += {RUN})")
        w(f"const long last = first + {RUN} < end ? first + {RUN} : end;")
        w.open(f"if (held == {count})")
        w("const float worst = heap[0].first;")
        w("int some = 0;")
        w.pragma("omp simd reduction(|:some)")
        w("for (long j = first; j < last; ++j)")
        w(f"  some |= {MAYBE_BETTER[self.anchor.op]};")
        w("if (!some) continue;")
        w.close()
        w.open("for (long j = first; j < last; ++j)")
        w("const Element next(part[j - begin], j);")
        w.open(f"if (held < {count})")
        w("heap[held++] = next;")
        w(f"if (held == {count}) std::make_heap(heap, heap + {count}, is_better);")
        w.close()
        w.open("else if (is_better(next, heap[0]))")
        w(f"heap[{count}] = next;")
        w(f"std::pop_heap(heap, heap + {count + 1}, is_better);")
        w.close(4)

    def _store(self) -> None:
        w, count, group = self.w, self.count, self.request.group
        w(f"std::sort_heap(heap, heap + {count}, is_better);")
        w.open(f"for (long k = 0; k < {count}; ++k)")
        for name in group.outputs:
            node = self.request.graph.node(name)
            member = "second" if node.op == PLACES else "first"
            value = narrowed(f"heap[k].{member}", node.dtype)
            w(f"{identifier(name)}_out[row * {count} + k] = {value};")
        w.close()
