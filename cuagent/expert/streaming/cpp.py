"""Generate C++ kernels for the CPU: one `extern "C"` launcher per group, with constant shapes.

Schedules: `map` (no reduction), `rows` (the reduction is innermost; one row per iteration, in
several passes), `columns` (the reduction is not innermost; a tile of adjacent rows is processed
together), `blocks` (few long rows: partial sums per block, added in order, so that results do not
depend on the number of threads), and chunks for very short loops (`cpp_flat`).
Invariant: every output element is written exactly once, after all reads of the same element, so an
output may use the buffer of an input that is read element by element.
"""

from __future__ import annotations

from dataclasses import replace

from cuagent.expert.kernel import KernelCall, Request
from cuagent.expert.streaming.cpp_columns import ColumnSchedules
from cuagent.expert.streaming.cpp_map import MapSchedule
from cuagent.expert.streaming.cpp_rows import RowSchedules
from cuagent.expert.streaming.expressions import TYPES, identifier
from cuagent.expert.streaming.group import FEW_ROWS, LONG_ROW
from cuagent.expert.streaming.nest import Access, Nest, nest_of
from cuagent.expert.streaming.text import without_unused


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group. Raises NestError if it has no common loop nest."""
    nest, offsets = nest_of(request.group, request.graph), dict[str, int]()
    if request.rebased:
        nest, offsets = _rebased(nest)
    kernel = _Kernel(request.name, nest, request.title, request.tile)
    text = kernel.text()
    return KernelCall(
        request.name,
        f"kernels/{request.name}.cpp",
        text,
        request.group,
        nest.tensors_read,
        ("pointwise.h",),
        frozenset() if kernel.overlaps else kernel.plan.in_place(),
        offsets,
    )


def _rebased(nest: Nest) -> tuple[Nest, dict[str, int]]:
    """Return a copy of the nest for tensors that begin at the first element that the kernel reads.

    Also return the index of this first element for each tensor where it is not 0.
    """
    accesses = [part for a in nest.reads.values() for part in (a, a.row.index if a.row else None)]
    read = [a for a in accesses if a is not None and a.tensor]
    first = {a.tensor: min(b.offset for b in read if b.tensor == a.tensor) for a in read}
    first = {tensor: offset for tensor, offset in first.items() if offset > 0}

    def moved(access: Access) -> Access:
        row = access.row and replace(access.row, index=moved(access.row.index))
        return replace(access, offset=access.offset - first.get(access.tensor, 0), row=row)

    return replace(nest, reads={key: moved(a) for key, a in nest.reads.items()}), first


class _Kernel(MapSchedule, RowSchedules, ColumnSchedules):
    """Chooses the schedule for one C++ kernel and generates its text."""

    def text(self) -> str:
        w = self.w
        self._header()
        if not self.column_dims:
            self._map()
        elif self._sums_flat():
            self._flat_sums()
        elif self.columns_schedule and self._few_long_columns():
            self._column_blocks()
        elif self.columns_schedule:
            self._columns()
        elif self.nest.group.rows < FEW_ROWS and self.nest.group.columns >= LONG_ROW:
            self._blocks()
        elif self._has_short_rows():
            self._row_tiles()
        else:
            self._rows()
        w.close()
        return "\n".join(without_unused(w.lines)) + "\n"

    def _header(self) -> None:
        w, group = self.w, self.nest.group
        outputs = {n: self.nest.writes[n].dtype for n in group.outputs}
        inputs = self.nest.tensors_read
        for line in self.title.splitlines():
            w(f"// {line}")
        shape = " x ".join(
            f"{d.extent}{' (reduced)' if d.reduced else ''}" for d in self.nest.dimensions
        )
        w(f"// Loop nest: {shape}. About {self.plan.operations / 1e6:.3g} M weighted operations.")
        w('#include "pointwise.h"')
        w()
        arrays = [("", t, f"{identifier(n)}_out") for n, t in outputs.items()]
        arrays += [("const ", t, self._pointer(n)) for n, t in inputs.items()]
        parameters = [
            f"{const}{TYPES[t]}* {word}{'_bool' if t == 'bool' else ''}"
            for const, t, word in arrays
        ]
        w.open(f'extern "C" void {self.name}({", ".join(parameters)})')
        for const, dtype, word in arrays:
            if dtype == "bool":  # gcc does not vectorize a loop that reads or writes bool
                byte = f"{const}uint8_t*"
                w(f"{byte} {word} = reinterpret_cast<{byte}>({word}_bool);")
