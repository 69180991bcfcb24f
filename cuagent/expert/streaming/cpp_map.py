"""Write the C++ schedule `map` of elementwise kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from cuagent.expert.streaming.cpp_flat import FlatSchedule
from cuagent.expert.streaming.cpp_text import BLOCK, CHEAP, VECTOR
from cuagent.expert.streaming.stages import COST, Stage

MAX_SEGMENTS = 10
"""Largest number of borders between concatenated parts at which a loop is divided into several."""
INTERLEAVED = (2, 3, 4)
"""Lengths of an innermost loop for which vectors run over the dimension around it.

Compilers can interleave groups of this many values in vectors.
"""
FEWEST_INTERLEAVED = 16
"""Least length of the dimension around a short innermost loop for which vectors run over it."""
SHORT_LOOP = 256
"""Length of an innermost loop below which the elements after its last whole vector cost much
time.
"""


class MapSchedule(FlatSchedule):
    """Generates C++ kernels without reductions: loops over all elements (schedule `map`)."""

    def _map(self) -> None:
        w, dims = self.w, list(range(len(self.nest.dimensions)))
        *outer, inner = dims
        extent = self.nest.dimensions[inner].extent
        stage = self.plan.stages[0]
        rows = math.prod(self.nest.dimensions[k].extent for k in outer)
        if rows < 256 and extent > 2 * BLOCK:
            # With few rows, threads share blocks of the long dimension.
            self._parallel(len(dims))
            for k in outer:
                self._loop(k)
            w.open(f"for (long start = 0; start < {extent}; start += {BLOCK})")
            w(f"const long end = start + {BLOCK} < {extent} ? start + {BLOCK} : {extent};")
            first, last, block_loops = "start", "end", 1
        elif outer and self._interleaves(outer[-1], inner):
            return self._interleaved(stage, outer, inner)
        elif outer and self._may_be_flat(stage):
            return self._flat(stage)
        elif outer and len(self._segments(inner)) > 1:
            return self._segmented(stage, outer, inner, inner)
        elif len(outer) > 1 and self._computes(stage) and len(self._segments(outer[-1])) > 1:
            return self._segmented(stage, outer[:-1], outer[-1], inner)
        else:
            self._parallel(len(outer))
            for k in outer:
                self._loop(k)
            first, last, block_loops = "0", str(extent), 0
        self._constants(stage, inner)
        if outer and not block_loops:
            self._vector_loops(stage, inner, 0, extent)
        else:
            threads = self.parallel and not outer and not block_loops
            w.pragma("omp parallel for simd schedule(static)" if threads else "omp simd")
            w.open(f"for (long i{inner} = {first}; i{inner} < {last}; ++i{inner})")
            self._body(stage)
            w.close()
        w.close(len(outer) + block_loops)
        return None

    def _interleaves(self, around: int, inner: int) -> bool:
        """Return True if vectors should run over the dimension `around` instead of the short
        `inner` one.
        """
        extent, width = (self.nest.dimensions[k].extent for k in (inner, around))
        plain = not any(a.guards or a.row or a.is_index for a in self.nest.reads.values())
        return extent in INTERLEAVED and width >= FEWEST_INTERLEAVED and plain

    def _interleaved(self, stage: Stage, outer: Sequence[int], inner: int) -> None:
        """Write a loop over `around` whose body computes a group of 2 to 4 elements.

        The compiler vectorizes over the groups. It does not vectorize a loop over 3 elements: a
        pixel shuffle took 226 us, and 6 us this way.
        """
        w, (*others, around) = self.w, outer
        extent = self.nest.dimensions[inner].extent
        self._parallel(len(others))
        for k in others:
            self._loop(k)
        threads = self.parallel and not others
        w.pragma("omp parallel for simd schedule(static)" if threads else "omp simd")
        self._loop(around)
        w.pragma(f"GCC unroll {extent}")
        self._loop(inner)
        self._forget()
        self._body(stage)
        w.close(len(outer) + 1)

    def _vector_loops(self, stage: Stage, inner: int, first: int, last: int) -> None:
        """Write the innermost loop over indices `first` to `last`.

        In a short loop of expensive elements the last vector overlaps the one before it, and some
        elements are computed twice. `overlaps` then forbids outputs in place: an element would be
        read after it was overwritten.
        """
        w, extent = self.w, last - first
        cost = sum(COST.get(node.op, 1) for node in stage.compute)
        ranges = [(first, last)]
        if VECTOR < extent < SHORT_LOOP and extent % VECTOR and cost >= CHEAP and not stage.save:
            ranges = [(first, last - extent % VECTOR), (last - VECTOR, last)]
            self.overlaps = True
        for start, end in ranges:
            w.pragma("omp simd")
            w.open(f"for (long i{inner} = {start}; i{inner} < {end}; ++i{inner})")
            self._body(stage)
            w.close()

    def _computes(self, stage: Stage) -> bool:
        """Return True if some value of the stage is expensive enough for a separate loop."""
        return any(COST.get(node.op, 1) >= CHEAP for node in stage.compute)

    def _segments(self, split: int) -> list[tuple[int, int]]:
        """Return the ranges of dimension `split` in which each condition on this dimension is
        constant.
        """
        extent = self.nest.dimensions[split].extent
        edges = {0, extent}
        for access in self.nest.reads.values():
            for guard in access.guards:
                step, *others = [s for s in guard.steps if s] or [0]
                if guard.steps[split] and not others:
                    edges |= {-(-edge // step) for edge in (guard.low, guard.high)}
        chain = sorted(edge for edge in edges if 0 <= edge <= extent)
        return list(pairwise(chain)) if len(chain) <= MAX_SEGMENTS else []

    def _segmented(self, stage: Stage, outer: Sequence[int], split: int, inner: int) -> None:
        """Write one loop for each range of `split`, so that each computes only the values selected
        there.

        `split` is the innermost dimension or the one around it.
        """
        w = self.w
        self._parallel(len(outer))
        for k in outer:
            self._loop(k)
        for start, end in self._segments(split):
            self.segment = (split, start, end)
            bounds = f"(long i{split} = {start}; i{split} < {end}; ++i{split})"
            w.open("" if split == inner else f"for {bounds}")
            self._constants(stage, inner)
            whole = (0, self.nest.dimensions[inner].extent)
            self._vector_loops(stage, inner, *((start, end) if split == inner else whole))
            w.close()
        self.segment = None
        w.close(len(outer))
