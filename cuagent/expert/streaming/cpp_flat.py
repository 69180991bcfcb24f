"""Write C++ schedules for expensive elements in very short loops: one loop over a copied chunk.

A loop over 3 elements is not vectorized, and of a loop over 20 the last 4 are computed one by one.
So the inputs of a chunk of elements are copied into arrays, and one vectorized loop computes the
whole chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuagent.expert.streaming.cpp_text import CHEAP, VECTOR, CppText, tile_width
from cuagent.expert.streaming.expressions import computed_type, identifier, narrowed, widened
from cuagent.expert.streaming.nest import Access, Dimension
from cuagent.expert.streaming.stages import COST, Stage

CHUNK = 512
"""Number of elements of a chunk."""
FEWEST = 64
"""Least number of elements of a kernel that is computed in chunks."""
UNEVEN = 16
"""Number of elements of the widest vector; a loop's elements after its last vector are computed
singly.
"""
MOST_PARTS = 4096
"""Largest number of partial sums, one for each chunk, on the stack."""


class FlatSchedule(CppText):
    """Generates C++ kernels that process all elements in chunks, elementwise or as sums over all of
    them.
    """

    is_flat = False

    def _is_costly(self, stage: Stage) -> bool:
        cost = sum(COST.get(node.op, 1) for node in stage.compute)
        return cost >= CHEAP and math.prod(d.extent for d in self.nest.dimensions) >= FEWEST

    def _may_be_flat(self, stage: Stage) -> bool:
        """Return True if an elementwise kernel should be computed in chunks.

        Its innermost loop is shorter than a vector, its elements are expensive, and each chunk of
        its outputs is contiguous.
        """
        dims = self.nest.dimensions
        if len(dims) < 2 or dims[-1].extent >= VECTOR or not self._is_costly(stage):
            return False
        around, _ = self._chunk()
        return all(_is_whole(a, dims, around) for a in self.nest.writes.values())

    def _sums_flat(self) -> bool:
        """Return True if the kernel only sums over all elements, in short loops that fit vectors
        badly.
        """
        plan, dims, stage = self.plan, self.nest.dimensions, self.plan.stages[0]
        if self.row_dims or len(dims) < 2 or not plan.only_reduces or stage.row_nodes:
            return False
        if any(node.op != "sum" for node in stage.reduces) or not self._is_costly(stage):
            return False
        uneven = dims[-1].extent < 2 * UNEVEN and dims[-1].extent % UNEVEN != 0
        around, rows = self._chunk()
        return uneven and around == 0 and -(-dims[0].extent // rows) <= MOST_PARTS

    def _chunk(self) -> tuple[int, int]:
        """Return the dimension that is divided into chunks, and the number of its indices in one
        chunk.
        """
        dims, size = self.nest.dimensions, 1
        around = len(dims) - 1
        while around > 0 and size * dims[around].extent <= CHUNK // 2:
            size *= dims[around].extent
            around -= 1
        return around, min(max(1, CHUNK // size), dims[around].extent)

    def _flat(self, stage: Stage) -> None:
        """Write the schedule of an elementwise kernel in chunks."""
        w, dims = self.w, self.nest.dimensions
        around, rows = self._chunk()
        size = math.prod(d.extent for d in dims[around + 1 :])
        self._parallel(around + 1)
        for k in range(around):
            self._loop(k)
        extent = dims[around].extent
        w.open(f"for (long start = 0; start < {extent}; start += {rows})")
        w(f"const long width = {tile_width(rows, extent)};")
        self._copy(around, rows, size)
        for name in self.nest.group.outputs:
            access = self.nest.writes[name]
            steps = tuple(step if k < around else 0 for k, step in enumerate(access.strides))
            first = f"start * {access.strides[around]} + {self._sum(steps, access.offset)}"
            w(f"const long {identifier(name)}_first = {first};")
        w.pragma("omp simd")
        w.open(f"for (long flat = 0; flat < width * {size}; ++flat)")
        self.is_flat = True
        self._body(stage)
        self.is_flat = False
        w.close(around + 2)

    def _flat_sums(self) -> None:
        """Write the schedule of sums over all elements: one partial sum for each chunk."""
        w, dims, stage = self.w, self.nest.dimensions, self.plan.stages[0]
        _, rows = self._chunk()
        size, extent = math.prod(d.extent for d in dims[1:]), dims[0].extent
        chunks = -(-extent // rows)
        for node in stage.reduces:
            w(f"float {identifier(node.name)}_part[{chunks}];")
        self._parallel(1)
        w.open(f"for (long chunk = 0; chunk < {chunks}; ++chunk)")
        w(f"const long start = chunk * {rows};")
        w(f"const long width = {tile_width(rows, extent)};")
        self._copy(0, rows, size)
        names = [identifier(node.name) for node in stage.reduces]
        for name in names:
            w(f"float {name} = 0.f;")
        w.pragma(f"omp simd reduction(+ : {', '.join(names)})")
        w.open(f"for (long flat = 0; flat < width * {size}; ++flat)")
        self._body(stage)
        w.close()
        for name in names:
            w(f"{name}_part[chunk] = {name};")
        w.close()
        for name in names:
            w(f"double {name}_all = 0;")
            w(f"for (long k = 0; k < {chunks}; ++k) {name}_all += {name}_part[k];")
            w(f"const float {name} = {name}_all;")
        self._row_values(self.plan.stages[1])
        self._row_stores()

    def _copy(self, around: int, rows: int, size: int) -> None:
        """Write the copies of a chunk's inputs into arrays, and let `defined` map the inputs to the
        arrays.
        """
        w, dims = self.w, self.nest.dimensions
        found: dict[str, Access] = {self._element(a): a for a in self.nest.reads.values()}
        for n, access in enumerate(found.values()):
            w(f"alignas(64) {computed_type(access.dtype)} staged_{n}[{rows * size}];")
        self._forget()
        w.open("for (long turn = 0; turn < width; ++turn)")
        w(f"const long i{around} = start + turn;")
        place, step = [], 1
        for k in reversed(range(around + 1, len(dims))):
            place.append(f"i{k} * {step}" if step > 1 else f"i{k}")
            step *= dims[k].extent
        for k in range(around + 1, len(dims)):
            self._loop(k)
        w(f"const long flat = {' + '.join([f'turn * {size}', *reversed(place)])};")
        for n, access in enumerate(found.values()):
            w(f"staged_{n}[flat] = {self._copied(access)};")
        w.close(len(dims) - around)
        self._forget()
        self.defined = {key: f"staged_{n}[flat]" for n, key in enumerate(found)}

    def _copied(self, access: Access) -> str:
        """Return the C++ expression that loads an input element for the copy.

        Where the access's condition is false, another element is loaded, which no value uses. gcc
        12 compiled a conditional load wrongly: with -O3 it read other elements of bf16 tensors.
        """
        condition = self._condition(access)
        if not access.tensor or condition in ("", "true", "false"):
            return self._load(access)
        place, missing = self._index(access), ""
        if access.row:
            missing = self._row(access)
            place = f"slice_or_first({missing}) * {access.row.stride} + {place}"
        element = f"{self._pointer(access.tensor)}[{condition} ? {place} : 0]"
        value = widened(element, access.dtype)
        return f"or_bits({value}, {missing}_nan)" if missing else value

    def _assign(self, name: str, value: str) -> str:
        if not self.is_flat:
            return super()._assign(name, value)
        stored = narrowed(value, self.nest.writes[name].dtype)
        return f"{identifier(name)}_out[{identifier(name)}_first + flat] = {stored};"


def _is_whole(access: Access, dims: Sequence[Dimension], around: int) -> bool:
    """Return True if the elements of a chunk are contiguous in the tensor of this access."""
    step = 1
    for k in reversed(range(around, len(dims))):
        if access.strides[k] != step:
            return False
        step *= dims[k].extent
    return True
