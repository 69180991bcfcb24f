"""Write the parts of C++ kernels that all schedules use: loops, loads, loop bodies and stores."""

from __future__ import annotations

from cuagent.expert.graph.graph import ITEM_BYTES, Kind, Node
from cuagent.expert.streaming.expressions import computed_type, identifier
from cuagent.expert.streaming.nest import Access, Nest
from cuagent.expert.streaming.stages import COST, Plan, Stage
from cuagent.expert.streaming.text import KernelText

PARALLEL_WORK = 60_000
"""Number of weighted operations below which a parallel region costs more than it saves (about 10
us).
"""
SAVED_BYTES = 192 << 10
"""Largest size in bytes of a row's saved values; in longer rows values are computed again."""
EXPENSIVE = 4
"""Least cost, in operations and loads per element, of a value that is saved instead of
recomputed.
"""
KEEPS_NAN = ("amax", "amin")
"""Reductions whose result is NaN if an element is NaN."""
BLOCK = 4096
"""Number of elements in one block of a long dimension."""
CHEAP = 8
"""Cost of an element, in additions, up to which the latency of a reduction's additions matters.

Above it, the element's own arithmetic takes longer than that latency.
"""
FEW_COLUMNS = 16
"""Longest row, in elements, for which a tile is vectorized across rows. A row may be up to twice as
long if its length is no multiple of VECTOR.

This applies only to expensive elements: see `FEW_COLUMNS_WORK`."""
FEW_COLUMNS_WORK = 4
"""Least number of operations on each element for which tiles of short rows are vectorized over
rows.
"""
VECTOR = 8
"""Number of elements of a vector; the remainder of a loop is computed one by one."""
SHORT_TILE = 64
"""Number of adjacent rows below which tiles of expensive elements overlap if VECTOR does not divide
it.

The single elements at the end of each tile otherwise take longer than the vectors.
"""
PREFETCH_AHEAD = 8
"""Number of slices of a gather by which the prefetch is ahead of the read."""
PREFETCHED_TABLE = 1 << 18
"""Size in bytes of the smallest gathered table whose slices are prefetched: it does not fit into
the cache."""
PREFETCHED_BYTES = 512
"""Largest number of bytes of a slice that are prefetched.

After them the processor's own prefetcher takes over.
"""


class CppText(KernelText):
    """Generates the parts of a C++ kernel that all schedules use: loops, loads, reductions,
    stores.
    """

    def __init__(self, name: str, nest: Nest, title: str, tile: int) -> None:
        self.tile = min(tile, nest.dimensions[-1].extent)
        across = _reads_across(nest)
        self.columns_schedule = bool(nest.group.reduced) and (
            not nest.dimensions[-1].reduced or _has_few_columns(nest) or across
        )
        self.transposes = self.columns_schedule and nest.dimensions[-1].reduced and not across
        """True if the rows of a tile are copied in such a way that adjacent rows are adjacent in
        memory.
        """
        self.staged: dict[str, str] = {}
        """Names of the arrays with copies of a tile's elements.

        The key is the text that identifies the copied element (`KernelText._element`).
        """
        if self.columns_schedule and nest.dimensions[-1].reduced:
            self.tile = min(tile, [d.extent for d in nest.dimensions if not d.reduced][-1])
        self.overlapping_tiles = self.columns_schedule and _overlaps(nest, self.tile)
        """True if the last tile of rows begins before the end of the one before it."""
        if self.overlapping_tiles:
            self.tile = VECTOR if self.tile < 4 * VECTOR else 2 * VECTOR
        saved = nest.group.columns * (self.tile if self.columns_schedule else 1) * 4
        may_save = bool(nest.group.reduced) and saved <= SAVED_BYTES
        plan = Plan(nest, may_save=may_save, expensive=EXPENSIVE, load=1)
        super().__init__(name, nest, title, plan)
        self.row_suffix = "[k]" if self.columns_schedule else ""
        self.parallel = plan.operations > PARALLEL_WORK
        self.constants = 0
        self.overlaps = False
        """True if some elements are computed twice, so that no output may overwrite an input."""
        self.part = ""
        """Suffix of the variables with the partial results of the current part of a row."""
        self.scratch = self._scratch()

    def _parallel(self, loops: int) -> None:
        """Write an OpenMP pragma that divides the next `loops` nested loops among threads."""
        if self.parallel and loops:
            collapse = f" collapse({loops})" if loops > 1 else ""
            self.w.pragma(f"omp parallel for schedule(static){collapse}")

    def _loop(self, k: int) -> None:
        extent = self.nest.dimensions[k].extent
        self.w.open(f"for (long i{k} = 0; i{k} < {extent}; ++i{k})")

    def _block_loop(self, k: int) -> None:
        self.w.open(f"for (long i{k} = start; i{k} < end; ++i{k})")

    def _scratch(self) -> dict[str, str]:
        """Return the name of the array for each saved value.

        Two values share an array if the first is no longer needed when the second is computed.
        """
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

    def _constants(self, stage: Stage, inner: int) -> None:
        """Declare variables in front of the innermost loop for the loads that are constant in
        it.
        """
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
        """Write the prefetch of the slice that the loop over a gather's indices reads some steps
        later.

        A processor cannot predict the order of the slices, and would wait for memory at each of
        them.
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
        """Clear the variables that are only valid inside a loop that has ended."""
        self.defined, self.slices, self.starts = {}, {}, {}

    def _start(self, access: Access, inner: int) -> None:
        """Declare the index of a conditional access's first element, in front of the innermost
        loop.

        The loop then loads without a condition, which can be vectorized. Where the conditions are
        false, the index is 0, so that it is inside the tensor.
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

    def _column_stores(self, inner: int) -> None:
        row_outputs = self._row_outputs()
        if row_outputs:
            self.w.open("for (long k = 0; k < width; ++k)")
            self.w(f"const long i{inner} = start + k;")
            for name in row_outputs:
                self._store(name)
            self.w.close()

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
            w(joined(node.op, word, value))
            if node.op in KEEPS_NAN and not self.columns_schedule:
                w(f"{word}_nan |= {value} != {value};")
        for name in stage.stores:
            self._store(name)

    def _reduced(self, node: Node) -> str:
        """Return the variable with the result of a reduction over the current part of a row."""
        return identifier(node.name) + self.part

    def _slot(self, name: str) -> str:
        return f"{self.scratch[name]}[{self._position()}]"

    def _position(self) -> str:
        """Return the index expression of the current element in an array over a row or a tile of
        rows.
        """
        position, step = [], 1
        for k in reversed(self.column_dims):
            position.append(f"i{k}" if step == 1 else f"i{k} * {step}")
            step *= self.nest.dimensions[k].extent
        text = " + ".join(reversed(position))
        return f"({text}) * {self.tile} + k" if self.columns_schedule else text

    def _load(self, access: Access) -> str:
        array = self.staged.get(self._element(access)) if self.staged else None
        return f"{array}[{self._position()}]" if array else super()._load(access)

    def _store(self, name: str) -> None:
        value = self._variable(self.plan.source(name))
        if self.transposes and name not in self._row_outputs():
            self.w(f"{identifier(name)}_tile[{self._position()}] = {value};")
        else:
            self.w(self._assign(name, value))


def _reads_across(nest: Nest) -> bool:
    """Return True if adjacent rows are adjacent in memory, and the elements of a row are not.

    Vectors should then run over rows: the cross-entropy of transposed logits reads whole cache
    lines.
    """
    rows = [k for k, d in enumerate(nest.dimensions) if not d.reduced]
    if not rows or not nest.dimensions[-1].reduced or nest.dimensions[rows[-1]].extent < VECTOR:
        return False
    varying = [a for a in nest.reads.values() if a.tensor and a.strides[-1]]
    adjacent = all(a.strides[rows[-1]] == 1 and not a.guards and not a.row for a in varying)
    by_row = not any(access.strides[-1] for access in nest.writes.values())
    return bool(varying) and adjacent and by_row


def _has_few_columns(nest: Nest) -> bool:
    """Return True if the rows are short and many, and their elements are expensive.

    Vectors should then run over rows: joining the lanes of a vector for each reduction of a row
    would take longer than the reductions.
    """
    rows = [d.extent for d in nest.dimensions if not d.reduced]
    columns, work = nest.group.columns, _work(nest)
    short = columns <= FEW_COLUMNS or (columns < 2 * FEW_COLUMNS and columns % VECTOR)
    least = VECTOR if work >= CHEAP else FEW_COLUMNS
    return bool(short and rows and rows[-1] >= least and work >= FEW_COLUMNS_WORK)


def _work(nest: Nest) -> int:
    """Return the cost of the operations on one element of a row, in additions."""
    nodes = [n for n in nest.group.nodes if n.kind is not Kind.VIEW and n.name not in nest.by_row]
    return sum(COST.get(n.op, 1) for n in nodes)


def _overlaps(nest: Nest, tile: int) -> bool:
    """Return True if a tile of `tile` adjacent rows, which are all, should be divided into vectors.

    The last vector overlaps the one before it, and some rows are computed twice.
    """
    extent = [d.extent for d in nest.dimensions if not d.reduced][-1:] == [tile]
    return extent and VECTOR < tile < SHORT_TILE and tile % VECTOR > 0 and _work(nest) >= CHEAP


def joined(op: str, word: str, value: str) -> str:
    """Return the C++ statement that joins `value` to the result `word` of the reduction `op`."""
    if op == "sum":
        return f"{word} += {value};"
    better = f"{value} {'>' if 'max' in op else '<'} {word}"
    if op in KEEPS_NAN:
        better = f"({better}) | ({value} != {value})"
    return f"{word} = {better} ? {value} : {word};"


def tile_width(tile: int, extent: int) -> str:
    """Return the C++ expression of the number of rows in the current tile.

    It is a constant if `tile` divides `extent`, the number of rows.
    """
    if extent % tile == 0:
        return str(tile)
    return f"start + {tile} < {extent} ? {tile} : {extent} - start"
