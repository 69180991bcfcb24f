"""Generate C++ kernels for the CPU: one `extern "C"` launcher per group, with constant shapes.

Four schedules: `map` (no reduction), `rows` (the reduction is innermost; one row per iteration, in
several passes), `columns` (the reduction is not innermost; a tile of adjacent rows is processed
together), and `blocks` (few long rows: partial sums per block, added in order, so that results do
not depend on the number of threads).
Invariant: every output element is written exactly once, after all reads of the same element, so an
output may use the buffer of an input that is read element by element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from cuagent.expert.graph.graph import ITEM_BYTES, Kind, Node
from cuagent.expert.kernel import KernelCall, Request
from cuagent.expert.streaming.expressions import IDENTITY, TYPES, computed_type, identifier
from cuagent.expert.streaming.fuse import LONG_ROW
from cuagent.expert.streaming.nest import Access, Nest, nest_of
from cuagent.expert.streaming.stages import COST, Plan, Stage
from cuagent.expert.streaming.text import KernelText, without_unused

PARALLEL_WORK = 60_000
"""Weighted operations below which a parallel region costs more than it saves (about 10 us)."""
SAVED_BYTES = 192 << 10
"""Bytes of the largest scratch row; for longer rows expensive values are computed again."""
EXPENSIVE = 4
"""Operations and loads of a value from which it is saved in the cache for the next pass."""
KEEPS_NAN = ("amax", "amin")
BLOCK = 4096
"""Elements in one block of a long dimension."""
FEW_TILES = 8
"""Tiles of adjacent rows from which threads share tiles, not blocks of the reduced dimension."""
COLUMN_BLOCK = 1 << 15
"""Elements in one block of rows that are far apart."""
MAX_PARTS = 256
"""Largest number of blocks of such rows, each of which has one partial sum per row on the stack."""
MAX_BLOCKS = 8192
"""Largest number of blocks of one row, each of which has one partial sum on the stack."""
PARTS = (4, 2)
"""Parts of a row that are reduced side by side, because each addition waits for the one before."""
PART_ELEMENTS = 64
"""Fewest elements of such a part."""
CHEAP = 8
"""Cost of an element, in additions, above which the additions do not wait for one another."""
SHORT_ROW = 128
"""Elements of a row up to which expensive values of a row are computed for several rows at once."""
MAX_SEGMENTS = 10
"""Largest number of loops, and one more, that one dimension is cut into at the borders of
concatenated parts."""
ROW_TILE = 64
"""Such rows in one tile."""
FEW_COLUMNS = 16
"""Elements of a row up to which rows are the lanes of a vector, if elements are expensive; twice as
many if they fill no vectors."""
FEW_COLUMNS_WORK = 4
"""Operations on each element from which they are."""
VECTOR = 8
"""Elements of a vector; the rest of a loop is computed one by one."""
SHORT_LOOP = 256
"""Elements of a loop up to which that rest takes much of its time."""
PREFETCH_AHEAD = 8
"""Slices of a gather between the one that is read and the one that is fetched."""
PREFETCHED_TABLE = 1 << 18
"""Bytes of the smallest table whose slices are fetched in advance: one that leaves the cache."""
PREFETCHED_BYTES = 512
"""Most bytes of a slice that are fetched; then the processor foresees the rest."""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group. Raises NestError if it has no common loop nest."""
    nest = nest_of(request.group, request.graph)
    kernel = _Kernel(request.name, nest, request.title, request.tile, parallel=True)
    text = kernel.text()
    return KernelCall(
        request.name,
        f"kernels/{request.name}.cpp",
        text,
        request.group,
        nest.tensors_read,
        ("pointwise.h",),
        frozenset() if kernel.overlaps else kernel.plan.in_place(),
    )


def render(name: str, nest: Nest, title: str, *, tile: int = 64, parallel: bool = True) -> str:
    """Return the source of one kernel file."""
    return _Kernel(name, nest, title, tile, parallel).text()


class _Kernel(KernelText):
    def __init__(self, name: str, nest: Nest, title: str, tile: int, parallel: bool) -> None:
        self.tile = min(tile, nest.dimensions[-1].extent)
        self.columns_schedule = bool(nest.group.reduced) and (
            not nest.dimensions[-1].reduced or _has_few_columns(nest)
        )
        self.transposes = self.columns_schedule and nest.dimensions[-1].reduced
        """True if the rows of a tile are copied, so that adjacent rows are adjacent in memory."""
        self.staged: dict[str, str] = {}
        """Array with the copy of each element that is read from such rows."""
        if self.transposes:
            self.tile = min(tile, [d.extent for d in nest.dimensions if not d.reduced][-1])
        saved = nest.group.columns * (self.tile if self.columns_schedule else 1) * 4
        may_save = bool(nest.group.reduced) and saved <= SAVED_BYTES
        plan = Plan(nest, may_save=may_save, expensive=EXPENSIVE, load=1)
        super().__init__(name, nest, title, plan)
        self.row_suffix = "[k]" if self.columns_schedule else ""
        self.parallel = parallel and plan.operations > PARALLEL_WORK
        self.constants = 0
        self.overlaps = False
        """True if an element may be computed twice."""
        self.part = ""
        """Suffix of the results of reductions that are being computed."""
        self.scratch = self._scratch()

    def text(self) -> str:
        w = self.w
        self._header()
        if not self.column_dims:
            self._map()
        elif self.columns_schedule and self._few_long_columns():
            self._column_blocks()
        elif self.columns_schedule:
            self._columns()
        elif self.nest.group.rows < 64 and self.nest.group.columns >= LONG_ROW:
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

    # Loops.

    def _parallel(self, loops: int) -> None:
        """Write the pragma before `loops` nested loops that share the work."""
        if self.parallel and loops:
            collapse = f" collapse({loops})" if loops > 1 else ""
            self.w.pragma(f"omp parallel for schedule(static){collapse}")

    def _loop(self, k: int) -> None:
        extent = self.nest.dimensions[k].extent
        self.w.open(f"for (long i{k} = 0; i{k} < {extent}; ++i{k})")

    def _block_loop(self, k: int) -> None:
        self.w.open(f"for (long i{k} = start; i{k} < end; ++i{k})")

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

    def _vector_loops(self, stage: Stage, inner: int, first: int, last: int) -> None:
        """Write the innermost loop over elements that are stored and not reduced.

        In a short loop of expensive elements the last vector starts before the end of the others,
        and some elements are computed twice. So no element is read after it was written in place.
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
        """Return True if a value is expensive enough for a separate loop."""
        return any(COST.get(node.op, 1) >= CHEAP for node in stage.compute)

    def _segments(self, split: int) -> list[tuple[int, int]]:
        """Return the parts of a dimension in which each condition on it is constant."""
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
        """Write a loop for each part of `split`, so that only the values chosen there are computed.

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
        """Return True if rows are short and a reduction is followed by expensive row values.

        These take as long as the reduction then, unless they are vectorized too.
        """
        plan, stages = self.plan, self.plan.stages
        if not plan.only_reduces or stages[0].row_nodes or not self.row_dims:
            return False
        adjacent = self.nest.dimensions[self.row_dims[-1]].extent
        cost = sum(COST.get(node.op, 1) for node in stages[1].row_nodes)
        return self.nest.group.columns <= SHORT_ROW and adjacent >= 8 and cost >= EXPENSIVE

    def _row_tiles(self) -> None:
        """Write the schedule for short rows: reduce a tile of rows, then compute row values."""
        w, stage = self.w, self.plan.stages[0]
        *outer, inner = self.row_dims
        extent = self.nest.dimensions[inner].extent
        tile = min(ROW_TILE, extent)
        self._parallel(len(outer) + 1)
        for k in outer:
            self._loop(k)
        w.open(f"for (long start = 0; start < {extent}; start += {tile})")
        w(f"const long width = {_width(tile, extent)};")
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

    def _scratch(self) -> dict[str, str]:
        """Return the array of each saved value; values with separate lifetimes share an array."""
        stages, owner, arrays = self.plan.stages, dict[str, str](), dict[str, str]()
        for stage in stages:
            later = [name for other in stages[stage.level + 1 :] for name in other.reload]
            needed = {*stage.save, *later}
            for name in stage.save:
                free = [array for array, value in owner.items() if value not in needed]
                arrays[name] = free[0] if free else f"scratch_{len(owner)}"
                owner[arrays[name]] = name
        return arrays

    def _open_scratch(self, size: int) -> None:
        for array in dict.fromkeys(self.scratch.values()):
            self.w(f"alignas(64) float {array}[{size}];")

    def _pass(self, stage: Stage) -> None:
        """Write one pass over the row, with its reductions."""
        w, parts = self.w, self._parts_of(stage)
        suffixes = ["", *(f"_{k}" for k in range(1, parts))]
        self._identities(stage, suffixes)
        *outer, inner = self.column_dims
        for k in outer:
            self._loop(k)
        self._constants(stage, inner)
        w.pragma("omp simd" + self._clauses(stage, suffixes))
        if parts == 1:
            self._loop(inner)
            self._body(stage)
        else:
            self._parts(stage, inner, suffixes)
        w.close(len(self.column_dims))
        for node in stage.reduces:
            word = self._reduced(node)
            for suffix in suffixes[1:]:
                w(_joined(node.op, word, word + suffix))
                if node.op in KEEPS_NAN:
                    w(f"{word}_nan |= {word}{suffix}_nan;")
        self._restore_nan(stage)

    def _parts_of(self, stage: Stage) -> int:
        """Return the parts of the innermost loop of a pass that are reduced side by side."""
        extent = self.nest.dimensions[self.column_dims[-1]].extent
        cost = sum(COST.get(node.op, 1) for node in stage.compute)
        if not stage.reduces or cost > CHEAP:
            return 1
        return next((n for n in PARTS if extent % n == 0 and extent >= n * PART_ELEMENTS), 1)

    def _parts(self, stage: Stage, inner: int, suffixes: Sequence[str]) -> None:
        """Write a loop whose body is an element of each part, with its own partial results."""
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

    def _reduced(self, node: Node) -> str:
        """Return the variable in which the current part of a row is reduced."""
        return identifier(node.name) + self.part

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
        """Declare the results of a row's reductions."""
        for node in stage.reduces:
            for suffix in suffixes:
                word = self._reduced(node) + suffix
                self.w(f"float {word} = {IDENTITY[node.op]};")
                if node.op in KEEPS_NAN:
                    self.w(f"int {word}_nan = 0;")

    def _restore_nan(self, stage: Stage) -> None:
        """Write NaN to the extremes of rows that have one.

        A vectorized maximum drops it where its lanes are joined.
        """
        for node in stage.reduces:
            if node.op in KEEPS_NAN:
                word = self._reduced(node)
                self.w(f"{word} = {word}_nan ? NAN : {word};")

    def _blocks(self) -> None:
        """Write the schedule for few long rows: one partial value per block, added in order."""
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
            w(_joined(node.op, f"{word}_all", part))
            w.close()
            w(f"const float {word} = {word}_all;")
        self._row_values(plan.stages[1])
        self._row_stores()
        w.close(len(self.row_dims))
        return None

    def _columns(self) -> None:
        """Write the schedule that processes `tile` adjacent rows together."""
        w, dims = self.w, self.nest.dimensions
        *outer, inner = self.row_dims
        extent, tile = dims[inner].extent, self.tile
        self._parallel(len(outer) + 1)
        for k in outer:
            self._loop(k)
        w.open(f"for (long start = 0; start < {extent}; start += {tile})")
        w(f"const long width = {_width(tile, extent)};")
        self._open_scratch(self.nest.group.columns * tile)
        if self.transposes:
            self._stage_rows(inner)
        for stage in self.plan.stages:
            self._column_rows(stage, inner, tile)
            if not stage.loops:
                continue
            self._column_identities(stage)
            for k in self.column_dims:
                self._loop(k)
            self._constants(stage, inner)
            w.pragma("omp simd")
            w.open("for (long k = 0; k < width; ++k)")
            w(f"const long i{inner} = start + k;")
            self._body(stage)
            w.close(len(self.column_dims) + 1)
        if self.transposes:
            self._store_staged(inner)
        self._column_stores(inner)
        w.close(len(outer) + 1)

    def _stage_rows(self, inner: int) -> None:
        """Copy the elements of a tile of short rows, and declare arrays for those it stores."""
        w, size = self.w, self.nest.group.columns * self.tile
        found: dict[str, Access] = {}
        for access in self.nest.reads.values():
            plain = access.tensor and not access.guards and access.row is None
            varies = any(access.strides[k] for k in self.column_dims)
            if plain and varies and access.strides[inner] not in (0, 1):
                found.setdefault(self._element(access), access)
        for n, access in enumerate(found.values()):
            w(f"alignas(64) {computed_type(access.dtype)} staged_{n}[{size}];")
        if found:
            self._open_elements(inner)
            for n, access in enumerate(found.values()):
                w(f"staged_{n}[{self._position()}] = {self._load(access)};")
            w.close(len(self.column_dims) + 1)
        self.staged = {key: f"staged_{n}" for n, key in enumerate(found)}
        for name in self._element_outputs():
            dtype = computed_type(self.nest.writes[name].dtype)
            w(f"alignas(64) {dtype} {identifier(name)}_tile[{size}];")

    def _store_staged(self, inner: int) -> None:
        names = self._element_outputs()
        if names:
            self._open_elements(inner)
            for name in names:
                value = f"{identifier(name)}_tile[{self._position()}]"
                self.w(self._assign(name, value))
            self.w.close(len(self.column_dims) + 1)

    def _element_outputs(self) -> list[str]:
        rows = self._row_outputs()
        return [name for name in self.nest.group.outputs if name not in rows]

    def _open_elements(self, inner: int) -> None:
        """Open the loops over all elements of a tile, row by row."""
        self.w.open("for (long k = 0; k < width; ++k)")
        self.w(f"const long i{inner} = start + k;")
        for k in self.column_dims:
            self._loop(k)

    def _load(self, access: Access) -> str:
        array = self.staged.get(self._element(access)) if self.staged else None
        return f"{array}[{self._position()}]" if array else super()._load(access)

    def _few_long_columns(self) -> bool:
        """Return True if the tiles of adjacent rows are too few to share among threads."""
        group, plan = self.nest.group, self.plan
        tiles = group.rows // self.tile
        simple = plan.only_reduces and not plan.stages[0].row_nodes
        return tiles < FEW_TILES and group.columns * self.tile >= LONG_ROW and simple

    def _column_blocks(self) -> None:
        """Write the schedule for few rows that are far apart: partial values per block of columns.

        The partial values are added in order, so that results do not depend on the threads.
        """
        w, stage = self.w, self.plan.stages[0]
        *outer, inner = self.row_dims
        split, *rest = self.column_dims
        width, extent = self.nest.dimensions[inner].extent, self.nest.dimensions[split].extent
        size = self.nest.group.columns // extent * self.tile
        block = max(-(-COLUMN_BLOCK // size), -(-extent // MAX_PARTS))
        blocks = -(-extent // block)
        for k in outer:
            self._loop(k)
        w.open(f"for (long start = 0; start < {width}; start += {self.tile})")
        w(f"const long width = {_width(self.tile, width)};")
        for node in stage.reduces:
            w(f"float {identifier(node.name)}_part[{blocks}][{self.tile}];")
        self._parallel(1)
        w.open(f"for (long block = 0; block < {blocks}; ++block)")
        w(f"const long first = block * {block};")
        w(f"const long last = first + {block} < {extent} ? first + {block} : {extent};")
        self._column_identities(stage)
        w.open(f"for (long i{split} = first; i{split} < last; ++i{split})")
        for k in rest:
            self._loop(k)
        self._constants(stage, inner)
        w.pragma("omp simd")
        w.open("for (long k = 0; k < width; ++k)")
        w(f"const long i{inner} = start + k;")
        self._body(stage)
        w.close(len(rest) + 2)
        for node in stage.reduces:
            word = identifier(node.name)
            w(f"for (long k = 0; k < width; ++k) {word}_part[block][k] = {word}[k];")
        w.close()
        self._join_column_blocks(stage, blocks)
        self._column_rows(self.plan.stages[1], inner, self.tile)
        self._column_stores(inner)
        w.close(len(outer) + 1)

    def _join_column_blocks(self, stage: Stage, blocks: int) -> None:
        w = self.w
        for node in stage.reduces:
            word, part = identifier(node.name), f"{identifier(node.name)}_part[block][k]"
            w(f"alignas(64) float {word}[{self.tile}];")
            w.open("for (long k = 0; k < width; ++k)")
            w(f"double all = {IDENTITY[node.op]};")
            w(f"for (long block = 0; block < {blocks}; ++block) {_joined(node.op, 'all', part)}")
            w(f"{word}[k] = all;")
            w.close()

    def _column_identities(self, stage: Stage) -> None:
        for node in stage.reduces:
            word = identifier(node.name)
            self.w(f"alignas(64) float {word}[{self.tile}];")
            self.w(f"for (long k = 0; k < {self.tile}; ++k) {word}[k] = {IDENTITY[node.op]};")

    def _column_stores(self, inner: int) -> None:
        row_outputs = self._row_outputs()
        if row_outputs:
            self.w.open("for (long k = 0; k < width; ++k)")
            self.w(f"const long i{inner} = start + k;")
            for name in row_outputs:
                self._store(name)
            self.w.close()

    def _column_rows(self, stage: Stage, inner: int, tile: int) -> None:
        self._forget()
        if not stage.row_nodes:
            return
        for node in stage.row_nodes:
            self.w(f"alignas(64) {computed_type(node.dtype)} {identifier(node.name)}[{tile}];")
        self.w.pragma("omp simd")
        self.w.open("for (long k = 0; k < width; ++k)")
        self.w(f"const long i{inner} = start + k;")
        for node in stage.row_nodes:
            self.w(f"{identifier(node.name)}[k] = {self._value(node)};")
        self.w.close()

    # Bodies.

    def _constants(self, stage: Stage, inner: int) -> None:
        """Write the loads that do not change along the innermost loop in front of it."""
        self._forget()
        for node in (*stage.compute, *stage.reduces):
            for arg in node.inputs:
                access = self.nest.reads.get((node.name, arg))
                if access is None:
                    continue
                conditional = any(guard.steps[inner] for guard in access.guards)
                constant = access.row and not access.row.index.strides[inner]
                if constant and not conditional and self._element(access) not in self.slices:
                    self.slices[self._element(access)] = self._row(access)
                    self._prefetch(access, inner)
                if access.varies(inner) and not conditional:
                    self._start(access, inner)
                if access.varies(inner) or conditional:
                    continue
                key = self._element(access)
                if key not in self.defined:
                    word = f"{self._pointer(access.tensor or 'place')}_c{self.constants}"
                    self.constants += 1
                    self.w(f"const {computed_type(access.dtype)} {word} = {self._load(access)};")
                    self.defined[key] = word

    def _prefetch(self, access: Access, inner: int) -> None:
        """Fetch the slice that a loop over a gather's indices reads some steps later.

        A processor does not foresee slices in any order, and waits for memory at each of them.
        """
        row, dims = access.row, self.nest.dimensions
        assert row is not None
        at, item = row.index, ITEM_BYTES[access.dtype]
        steps = [step for step in at.strides if step]
        table = row.extent * row.stride * item
        if access.guards or at.guards or access.strides[inner] != 1 or table < PREFETCHED_TABLE:
            return
        if not steps or min(steps) < 0:
            return
        last = at.offset + self._last(at.strides)
        ahead = f"{self._index(at)} + {PREFETCH_AHEAD * min(steps)}"
        outer = tuple(0 if k == inner else step for k, step in enumerate(access.strides))
        place = self._sum(outer, access.offset)
        place += " + start" if self.columns_schedule else ""
        size = min(self.tile if self.columns_schedule else dims[inner].extent, row.stride) * item
        index = f"{self._pointer(at.tensor)}[{ahead} <= {last} ? {ahead} : {last}]"
        wraps = "true" if row.wraps else "false"
        slice_ = f"slice_or_first(checked_slice<{row.extent}, {wraps}>({index}))"
        element = f"{self._pointer(access.tensor)} + {slice_} * {row.stride} + {place}"
        self.w(f"prefetch<{min(size, PREFETCHED_BYTES)}>({element});")

    def _forget(self) -> None:
        """Forget the variables of a loop that has ended."""
        self.defined, self.slices, self.starts = {}, {}, {}

    def _start(self, access: Access, inner: int) -> None:
        """Declare where the run of elements starts that an access with conditions reads.

        Loads without a condition can be vectorized. Where the conditions do not hold, the run
        starts at the tensor's first element, so that it lies inside the tensor.
        """
        key, step = self._element(access), access.strides[inner]
        varies = access.row is not None and access.row.index.strides[inner]
        reached = all(g.high > 0 and g.low <= self._last(g.steps) for g in access.guards)
        if not access.guards or step <= 0 or varies or not reached or key in self.starts:
            return
        outer = tuple(0 if k == inner else s for k, s in enumerate(access.strides))
        place = self._sum(outer, access.offset)
        if access.row:
            place += f" + slice_or_first({self._row(access)}) * {access.row.stride}"
        word = f"start_{self.constants}"
        self.constants += 1
        self.w(f"const long {word} = {self._condition(access)} ? {place} : 0;")
        steps = tuple(step if k == inner else 0 for k in range(len(outer)))
        self.starts[key] = (word, self._sum(steps))

    def _row_values(self, stage: Stage) -> None:
        self._forget()
        for node in stage.row_nodes:
            self._declare(node, "")

    def _row_stores(self) -> None:
        for name in self._row_outputs():
            self._store(name)

    def _body(self, stage: Stage) -> None:
        w, self.stage = self.w, stage
        for name in stage.reload:
            w(f"const float {identifier(name)}_saved = {self._slot(name)};")
        for node in stage.compute:
            self._declare(node, "_v")
        for name in stage.save:
            w(f"{self._slot(name)} = {identifier(name)}_v;")
        for node in stage.reduces:
            value = self._operand(node, node.args[0])
            word = self._reduced(node) + self.row_suffix
            w(_joined(node.op, word, value))
            if node.op in KEEPS_NAN and not self.columns_schedule:
                w(f"{word}_nan |= {value} != {value};")
        for name in stage.stores:
            self._store(name)

    def _slot(self, name: str) -> str:
        return f"{self.scratch[name]}[{self._position()}]"

    def _position(self) -> str:
        """Return the place of an element in an array of the elements of a row or tile."""
        position, step = [], 1
        for k in reversed(self.column_dims):
            position.append(f"i{k}" if step == 1 else f"i{k} * {step}")
            step *= self.nest.dimensions[k].extent
        text = " + ".join(reversed(position))
        return f"({text}) * {self.tile} + k" if self.columns_schedule else text

    def _store(self, name: str) -> None:
        value = self._variable(self.plan.source(name))
        if self.transposes and name not in self._row_outputs():
            self.w(f"{identifier(name)}_tile[{self._position()}] = {value};")
        else:
            self.w(self._assign(name, value))


def _has_few_columns(nest: Nest) -> bool:
    """Return True if rows are shorter than some vectors and their elements are expensive.

    Adjacent rows are then the elements of a vector: joining the lanes of a vector for each
    reduction of a row would take longer than the reductions.
    """
    rows = [d.extent for d in nest.dimensions if not d.reduced]
    nodes = [n for n in nest.group.nodes if n.kind is not Kind.VIEW and n.name not in nest.by_row]
    work = sum(COST.get(n.op, 1) for n in nodes)
    columns = nest.group.columns
    short = columns <= FEW_COLUMNS or (columns < 2 * FEW_COLUMNS and columns % VECTOR)
    return bool(short and rows and rows[-1] >= FEW_COLUMNS and work >= FEW_COLUMNS_WORK)


def _joined(op: str, word: str, value: str) -> str:
    """Return the statement that adds a value to a reduction's result."""
    if op == "sum":
        return f"{word} += {value};"
    better = f"{value} {'>' if 'max' in op else '<'} {word}"
    if op in KEEPS_NAN:
        better = f"({better}) | ({value} != {value})"
    return f"{word} = {better} ? {value} : {word};"


def _width(tile: int, extent: int) -> str:
    """Return the rows of a tile, as a constant if all tiles are equal."""
    if extent % tile == 0:
        return str(tile)
    return f"start + {tile} < {extent} ? {tile} : {extent} - start"
