"""Write the C++ schedules that reduce the innermost dimension: `rows`, `blocks` and row tiles.

A row consists of the elements that are reduced to one value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuagent.expert.streaming.cpp_text import (
    BLOCK,
    CHEAP,
    EXPENSIVE,
    KEEPS_NAN,
    CppText,
    joined,
    tile_width,
)
from cuagent.expert.streaming.expressions import IDENTITY, identifier
from cuagent.expert.streaming.stages import COST, Stage

MAX_BLOCKS = 8192
"""Largest number of blocks of one row; each has one partial sum on the stack."""
PARTS = (4, 2)
"""Numbers of parts into which a row may be divided, the largest first.

Each part has its own partial result. With a single result, each addition waits for the one before.
"""
PART_ELEMENTS = 64
"""Least number of elements of a part into which a row is divided."""
SHORT_ROW = 128
"""Longest row, in elements, for which expensive row values are vectorized over several rows."""
MANY_TURNS = 16
"""Least number of innermost loops per row from which on their sums are added in double."""
ROW_TILE = 64
"""Number of short rows in one tile."""


class RowSchedules(CppText):
    """Generates C++ kernels that reduce rows whose elements are adjacent in memory.

    In schedule `rows` a thread computes whole rows, in tiles if they are short; in `blocks` threads
    share a row.
    """

    def _rows(self) -> None:
        w = self.w
        self._parallel(len(self.row_dims))
        for k in self.row_dims:
            self._loop(k)
        columns = self.nest.group.columns
        self._open_scratch(columns)
        for stage in self.plan.stages:
            self._row_values(stage)
            if stage.loops:
                self._pass(stage)
        self._row_stores()
        w.close(len(self.row_dims))

    def _has_short_rows(self) -> bool:
        """Return True if rows are short and each row value needs expensive operations.

        These then take as long as the reduction, unless they are vectorized over rows.
        """
        plan, stages = self.plan, self.plan.stages
        if not plan.only_reduces or stages[0].row_nodes or not self.row_dims:
            return False
        adjacent = self.nest.dimensions[self.row_dims[-1]].extent
        cost = sum(COST.get(node.op, 1) for node in stages[1].row_nodes)
        return self.nest.group.columns <= SHORT_ROW and adjacent >= 8 and cost >= EXPENSIVE

    def _row_tiles(self) -> None:
        """Write the schedule for short rows: reduce each row of a tile, then compute all its row
        values.
        """
        w, stage = self.w, self.plan.stages[0]
        *outer, inner = self.row_dims
        extent = self.nest.dimensions[inner].extent
        tile = min(ROW_TILE, extent)
        self._parallel(len(outer) + 1)
        for k in outer:
            self._loop(k)
        w.open(f"for (long start = 0; start < {extent}; start += {tile})")
        w(f"const long width = {tile_width(tile, extent)};")
        for node in stage.reduces:
            w(f"alignas(64) float {identifier(node.name)}[{tile}];")
        w.open("for (long k = 0; k < width; ++k)")
        w(f"const long i{inner} = start + k;")
        self.part = "_row"
        self._pass(stage)
        for node in stage.reduces:
            w(f"{identifier(node.name)}[k] = {self._reduced(node)};")
        self.part, self.row_suffix = "", "[k]"
        w.close()
        self._column_rows(self.plan.stages[1], inner, tile)
        self._column_stores(inner)
        w.close(len(outer) + 1)

    def _pass(self, stage: Stage) -> None:
        """Write the loops of one pass over a row, with the stage's reductions and stores."""
        w, parts = self.w, self._parts_of(stage)
        suffixes = ["", *(f"_{k}" for k in range(1, parts))]
        self._identities(stage, suffixes)
        *outer, inner = self.column_dims
        totals = self._totals(stage, outer)
        for word in totals:
            w(f"double {word}_total = 0;")
        for k in outer:
            self._loop(k)
        for word in totals:
            w(" ".join(f"{word}{suffix} = 0.f;" for suffix in suffixes))
        self._constants(stage, inner)
        w.pragma("omp simd" + self._clauses(stage, suffixes))
        if parts == 1:
            self._loop(inner)
            self._body(stage)
        else:
            self._parts(stage, inner, suffixes)
        w.close()
        for word in totals:
            w(f"{word}_total += {' + '.join(word + suffix for suffix in suffixes)};")
        w.close(len(outer))
        for word in totals:
            w(f"{word} = {word}_total;")
        for node in stage.reduces:
            word = self._reduced(node)
            for suffix in suffixes[1:] if word not in totals else ():
                w(joined(node.op, word, word + suffix))
                if node.op in KEEPS_NAN:
                    w(f"{word}_nan |= {word}{suffix}_nan;")
        self._restore_nan(stage)

    def _totals(self, stage: Stage, outer: Sequence[int]) -> list[str]:
        """Return the names of the sums that outer loops of a row add in double.

        The sum of 2,000 times 20 elements had an error of 2e-6 in float.
        """
        turns = math.prod(self.nest.dimensions[k].extent for k in outer)
        return [self._reduced(n) for n in stage.reduces if n.op == "sum" and turns >= MANY_TURNS]

    def _parts_of(self, stage: Stage) -> int:
        """Return the number of parts into which the innermost loop of a pass is divided."""
        extent = self.nest.dimensions[self.column_dims[-1]].extent
        cost = sum(COST.get(node.op, 1) for node in stage.compute)
        if not stage.reduces or cost > CHEAP:
            return 1
        return next((n for n in PARTS if extent % n == 0 and extent >= n * PART_ELEMENTS), 1)

    def _parts(self, stage: Stage, inner: int, suffixes: Sequence[str]) -> None:
        """Write a loop that computes one element of each part in each step."""
        w, before = self.w, self.part
        size = self.nest.dimensions[inner].extent // len(suffixes)
        w.open(f"for (long j{inner} = 0; j{inner} < {size}; ++j{inner})")
        for k, suffix in enumerate(suffixes):
            self.part = before + suffix
            w.open("")
            w(f"const long i{inner} = j{inner}" + (f" + {k * size};" if k else ";"))
            self._body(stage)
            w.close()
        self.part = before

    def _clauses(self, stage: Stage, suffixes: Sequence[str] = ("",)) -> str:
        text = ""
        for sign, ops in (("+", ("sum",)), ("max", ("max", "amax")), ("min", ("min", "amin"))):
            names = [self._reduced(n) + s for n in stage.reduces if n.op in ops for s in suffixes]
            if names:
                text += f" reduction({sign} : {', '.join(names)})"
        keeps = [n for n in stage.reduces if n.op in KEEPS_NAN]
        flags = [f"{self._reduced(n)}{s}_nan" for n in keeps for s in suffixes]
        return text + (f" reduction(| : {', '.join(flags)})" if flags else "")

    def _identities(self, stage: Stage, suffixes: Sequence[str] = ("",)) -> None:
        """Declare the variables of a stage's reductions, with their initial values."""
        for node in stage.reduces:
            for suffix in suffixes:
                word = self._reduced(node) + suffix
                self.w(f"float {word} = {IDENTITY[node.op]};")
                if node.op in KEEPS_NAN:
                    self.w(f"int {word}_nan = 0;")

    def _restore_nan(self, stage: Stage) -> None:
        """Write the lines that set extremes to NaN in rows that contain a NaN.

        The vectorized loop loses a NaN where the lanes of a vector are joined.
        """
        for node in stage.reduces:
            if node.op in KEEPS_NAN:
                word = self._reduced(node)
                self.w(f"{word} = {word}_nan ? NAN : {word};")

    def _blocks(self) -> None:
        """Write the schedule for few long rows: a partial result per block of a row, added in
        order.
        """
        w, plan = self.w, self.plan
        if not plan.only_reduces:
            return self._rows()
        split, *rest = self.column_dims
        extent = self.nest.dimensions[split].extent
        inner_size = self.nest.group.columns // extent
        block = max(-(-BLOCK // inner_size), -(-extent // MAX_BLOCKS))
        blocks = -(-extent // block)
        stage = plan.stages[0]
        for k in self.row_dims:
            self._loop(k)
        self._row_values(stage)
        for node in stage.reduces:
            w(f"double {identifier(node.name)}_part[{blocks}];")
        self._parallel(1)
        w.open(f"for (long block = 0; block < {blocks}; ++block)")
        w(f"const long start = block * {block};")
        w(f"const long end = start + {block} < {extent} ? start + {block} : {extent};")
        self._identities(stage)
        for k in self.column_dims[:-1]:
            self._block_loop(k) if k == split else self._loop(k)
        inner = self.column_dims[-1]
        self._constants(stage, inner)
        w.pragma("omp simd" + self._clauses(stage))
        self._loop(inner) if rest else self._block_loop(inner)
        self._body(stage)
        w.close(len(self.column_dims))
        self._restore_nan(stage)
        for node in stage.reduces:
            w(f"{identifier(node.name)}_part[block] = {identifier(node.name)};")
        w.close()
        for node in stage.reduces:
            word = identifier(node.name)
            w(f"double {word}_all = {IDENTITY[node.op]};")
            w.open(f"for (long block = 0; block < {blocks}; ++block)")
            part = f"{word}_part[block]"
            w(joined(node.op, f"{word}_all", part))
            w.close()
            w(f"const float {word} = {word}_all;")
        self._row_values(plan.stages[1])
        self._row_stores()
        w.close(len(self.row_dims))
        return None
