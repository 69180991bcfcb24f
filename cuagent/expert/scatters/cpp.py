"""Generate C++ kernels of scatters for the CPU.

Each thread has a range of destination rows: it reads all indices, and adds the source rows of its
own destinations in the order of the source. So no two threads write one element, and results do not
depend on the number of threads. Elementwise operations on the source are computed where it is read,
those on the result when all rows are added. A row with an index out of range is left out.
"""

from __future__ import annotations

import math

from cuagent.expert.anchored.values import Index, Values
from cuagent.expert.graph.graph import Kind, Node
from cuagent.expert.graph.storage import NestError
from cuagent.expert.kernel import KernelCall, Request, cpp_call
from cuagent.expert.streaming.expressions import identifier, number
from cuagent.expert.streaming.text import Writer

PARALLEL_ELEMENTS = 1 << 14
"""Number of elements below which a parallel region costs more than it saves."""
JOINED = {
    "sum": "{0} += {1};", "amax": "{0} = maximum({0}, {1});", "amin": "{0} = minimum({0}, {1});"
}  # fmt: skip


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group with a scatter. Raises NestError without a float32 result."""
    scatter = _Scatter(request)
    return cpp_call(request, scatter.text(), scatter.values.tensors_read)


class _Scatter:
    def __init__(self, request: Request) -> None:
        self.request, self.w = request, Writer()
        self.anchor = next(n for n in request.group.nodes if n.kind is Kind.SCATTER)
        self.values = Values(request.graph, request.group, self.anchor, self.w)
        self.shape, self.count = self.anchor.shape, self.anchor.spec.source[0]
        self.width = math.prod(self.shape[1:])
        stores = [request.graph.node(name) for name in request.group.outputs]
        sums = next((node for node in stores if node.dtype == "float32"), None)
        if sums is None:
            raise NestError(f"{self.anchor.name} has no float32 result to add into")
        self.sums = f"{identifier(sums.name)}_out"

    def text(self) -> str:
        w = self.w
        for line in self.request.title.splitlines():
            w(f"// {line}")
        w(f"// {self.count} rows of {self.width} elements to {self.shape[0]} destinations.")
        w('#include "pointwise.h"')
        w("#include <omp.h>")
        w()
        parameters = ", ".join(self.values.parameters())
        w.open(f'extern "C" void {self.request.name}({parameters})')
        if self.count * self.width > PARALLEL_ELEMENTS:
            w.pragma("omp parallel")
            w.open("")
            w("const long parts = omp_get_num_threads(), part = omp_get_thread_num();")
        else:
            w.open("")
            w("const long parts = 1, part = 0;")
        w(f"const long first = {self.shape[0]} * part / parts;")
        w(f"const long last = {self.shape[0]} * (part + 1) / parts;")
        self._begin()
        self._add()
        if self.values.group.outputs != (self.anchor.name,):
            self._end()
        w.close(2)
        return "\n".join(w.lines) + "\n"

    def _inner(self, row: str, before: Node | None = None) -> Index:
        """Open the C++ loops over the elements of row `row`; return the index of an element.

        `before` is the value that the loops will compute. Its operands that are constant along the
        innermost dimension are declared in front of the innermost loop.
        """
        w, rank = self.w, len(self.shape)
        index = (row, *(f"i{k}" for k in range(1, rank)))
        for k in range(1, rank):
            if k == rank - 1:
                if before is not None:
                    self._declare_constant(before, index)
                w.pragma("omp simd")
            w.open(f"for (long i{k} = 0; i{k} < {self.shape[k]}; ++i{k})")
        return index

    def _declare_constant(self, node: Node, index: Index) -> None:
        """Declare variables for the operands of a value that are constant along the innermost
        dimension.
        """
        if node.name not in self.values.nodes or node.kind is not Kind.POINTWISE:
            return
        for name in node.inputs:
            arg = self.request.graph.node(name)
            if arg.shape and arg.shape[-1] == 1 and len(arg.shape) > 1:
                self.values.at(name, index)
            else:
                self._declare_constant(arg, index)

    def _sum(self, row: str, index: Index) -> str:
        """Return the C++ expression of the output element with the running sum or extreme of a
        row.
        """
        terms = [f"{row} * {self.width}" if self.width > 1 else row]
        for k in range(1, len(self.shape)):
            step = math.prod(self.shape[k + 1 :])
            terms.append(f"{index[k]} * {step}" if step > 1 else index[k])
        return f"{self.sums}[{' + '.join(terms)}]"

    def _begin(self) -> None:
        """Write the initial values of the thread's destination rows."""
        base = self.anchor.args[0]
        self.w.open("for (long i0 = first; i0 < last; ++i0)")
        index = self._inner("i0")
        value = self.values.at(base, index) if isinstance(base, str) else number(base)
        self.w(f"{self._sum('i0', index)} = {value};")
        self.w.close(len(self.shape))
        self.values.fresh()

    def _add(self) -> None:
        w, (_, places, source) = self.w, self.anchor.args
        node = self.request.graph.node(str(places))
        w.open(f"for (long i0 = 0; i0 < {self.count}; ++i0)")
        place = self.values.at(places, ("i0", *("0" for _ in node.shape[1:])))
        wraps = "true" if self.anchor.spec.wraps else "false"
        w(f"const long slot = checked_slice<{self.anchor.spec.extent}, {wraps}>({place});")
        w("if (slot < first || slot >= last) continue;")
        before = self.request.graph.node(source) if isinstance(source, str) else None
        index = self._inner("i0", before)
        value = self.values.at(source, index)
        w(JOINED[self.anchor.op].format(self._sum("slot", index), value))
        w.close(len(self.shape))
        self.values.fresh()

    def _end(self) -> None:
        """Write the elementwise operations on the results, each element in place."""
        self.w.open("for (long i0 = first; i0 < last; ++i0)")
        index = self._inner("i0")
        self.w(f"const float result = {self._sum('i0', index)};")
        self.values.stores(index)
        self.w.close(len(self.shape))
        self.values.fresh()
