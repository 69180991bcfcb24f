"""Generate C++ kernels of loops whose states are multiplied by matrices, for the CPU.

Each thread computes some rows for all steps, so that no step waits for another thread. A step
alternates between elementwise loops over the units of each row, and products of all rows of the
thread with a matrix in panels of 16 columns (`recurrences.cpp`). Not covered: more threads than
rows.
"""

from __future__ import annotations

import math

from cuagent.expert.graph.storage import NestError
from cuagent.expert.kernel import Request
from cuagent.expert.loops.rows_cpp import LoopWriter, RowsKernel
from cuagent.expert.recurrences.cpp import PARALLEL_OPERATIONS, PRODUCT, UNITS


class ProductsKernel(RowsKernel):
    """Generates the C++ kernel of a loop with products of states; a block of channels is one whole
    row.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.products = self._products()

    def _vector_axis(self) -> int | None:
        (axis,) = {t.index[-1].axis for t in self.elements.states}
        return axis

    def _set_blocks(self, extent: int) -> None:
        self.block, self.blocks = extent, 1
        rows = self.outer
        if len(rows) > 1:
            raise NestError("products of states with several dimensions of rows")

    def _products(self) -> dict[str, tuple[int, int]]:
        """Return for each product, by its node's name, the element that it multiplies and its
        stage.

        The element is a position in `Elements.elements`; the stage is `Element.stage` of the
        result.
        """
        found: dict[str, tuple[int, int]] = {}
        for k in self.needed:
            element = self.elements.elements[k]
            if element.kind == "product":
                found[element.node.name] = (int(element.args[0]), element.stage)
        return found

    def text(self) -> str:
        w = self.w
        self.head("pointwise.h", "algorithm", "vector", "omp.h")
        w()
        w.lines += PRODUCT.splitlines()
        w()
        w.open(f'extern "C" void {self.request.name}({", ".join(self.parameters("__restrict__"))})')
        work = sum(
            math.prod(self._weight(name)) for name in self.products
        ) * self.loop.steps * self.tasks  # fmt: skip
        if work > PARALLEL_OPERATIONS and self.tasks > 1:
            w.pragma("omp parallel")
        w.open("")
        self._thread()
        w.close(2)
        return "\n".join(w.lines) + "\n"

    def _weight(self, product: str) -> tuple[int, int]:
        """Return the shape of the matrix of a product as (rows, columns); the product sums over the
        rows.
        """
        node = self.elements.graph.node(product)
        return self.elements.graph.node(str(node.args[0])).shape[1], node.shape[1]

    def _columns(self, product: str) -> int:
        return -(-self._weight(product)[1] // UNITS) * UNITS

    def _arrays_of_rows(self) -> list[tuple[str, str, int]]:
        """Return the name, the C++ type and the number of elements per row of each array of the
        kernel.
        """
        found = []
        for k in range(len(self.elements.states)):
            found += [(f"state_{k}", "float", self.block), (f"next_{k}", "float", self.block)]
        found += [(self.name(k), self.declared(k), self.block) for k in sorted(self.arrays)]
        return found + [(self.buffer(p), "float", self._columns(p)) for p in self.products]

    def buffer(self, product: str) -> str:
        """Return the name of the array with the results of a product."""
        return f"product_{list(self.products).index(product)}"

    def is_late(self, state: int) -> bool:
        return True

    def _thread(self) -> None:
        w = self.w
        w("const long threads = omp_get_num_threads(), thread = omp_get_thread_num();")
        w(f"const long begin = {self.tasks} * thread / threads;")
        w(f"const long rows = {self.tasks} * (thread + 1) / threads - begin;")
        w(f"const long start = 0, count = {self.extent};")
        for name, kind, size in self._arrays_of_rows():
            if kind != "float":
                raise NestError("a value of another type between loops")
            w(f"std::vector<float> memory_{name}(rows * {size});")
            w(f"float* all_{name} = memory_{name}.data();")
        self._open_rows()
        for k in range(len(self.elements.states)):
            self._open(False)
            w(f"{self.state(k)} = {self.first_value(k)};")
            self._close(False)
        self._compute_all(timed=False)
        w.close()
        w.open(f"for (long t = 0; t < {self.loop.steps}; ++t)")
        for stage in range(self.stages):
            self._open_rows()
            LoopWriter(self, (stage, False), True).write()
            w.close()
            for product, (operand, result) in self.products.items():
                if result == stage + 1:
                    self._multiply(product, operand)
        for k in range(len(self.elements.states)):
            w(f"std::swap(all_state_{k}, all_next_{k});")
        w.close()
        self._last_states()

    def _last_states(self) -> None:
        last = [(n, t, r) for n, t, r in self.outputs() if r.dim is None]
        found = [(n, t, r, k) for n, t, r in last if (k := self.state_with(t)) is not None]
        if found:
            self._open_rows()
            for node, target, result, k in found:
                self._open(False)
                self.write(node, target, result, self.state(k))
                self._close(False)
            self.w.close()

    def _open_rows(self) -> None:
        """Open the C++ loop over the thread's rows, with pointers to the row's part of each
        array.
        """
        w = self.w
        w.open("for (long row = 0; row < rows; ++row)")
        for axis in self.outer:
            w(f"const long {self.axis(axis)} = begin + row;")
        for name, _, size in self._arrays_of_rows():
            w(f"float* {name} = all_{name} + row * {size};")

    def _multiply(self, product: str, operand: int) -> None:
        """Write the product of all rows of the thread with the product's matrix."""
        w, element = self.w, self.elements.elements[operand]
        depth, columns = self._weight(product)[0], self._columns(product)
        source = f"all_{self.name(operand)}"
        if element.kind == "state":
            source = f"all_state_{self.loop.states.index(element.node.name)}"
        node = self.elements.graph.node(product)
        leaf = self.loop.slots[str(node.args[1])].leaf
        assert leaf is not None
        panels = self.parameters_of[self.leaves[leaf][0].name]
        w.open(f"for (long unit = 0; unit < {columns}; unit += {UNITS})")
        w.open("for (long first = 0; first < rows; first += equal_part(rows))")
        w("const long together = std::min(equal_part(rows), rows - first);")
        w(f"const float* panel = {panels} + unit * {depth};")
        w(f"float* sums = all_{self.buffer(product)} + first * {columns} + unit;")
        w(f"const float* values = {source} + first * {depth};")
        w(f"multiply(together, values, panel, nullptr, {depth}, sums, {columns});")
        w.close(2)

    def product_value(self, position: int) -> str:
        """Return the C++ expression of the product's element at `position`."""
        element = self.elements.elements[position]
        place = element.index[1]
        index = "k" if place.scale == 1 else f"k * {place.scale}"
        index = str(place.offset) if place.axis is None else f"{index} + {place.offset}"
        return f"{self.buffer(element.node.name)}[{index}]"
