"""Plan the passes (stages) of a kernel over its rows, for the C++ and the CUDA generator.

A group with L levels of reductions takes at most L + 1 passes. Pass k computes the reductions and
outputs that depend on k earlier reductions. A value that a later pass needs again is saved if it is
expensive, and computed again if it is cheap. An output that is computed again is stored by the last
pass that computes it, so that it may overwrite a tensor from which it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cuagent.expert.graph.graph import INTEGERS, ITEM_BYTES, Kind, Node, Operand
from cuagent.expert.streaming.nest import Access, Nest

COST = {
    "exp": 12, "exp_nonpositive": 9, "expm1": 14, "log": 14,
    "log1p": 16, "tanh": 18, "erf": 22, "sigmoid": 14,
    "silu": 14, "gelu": 24, "gelu_tanh": 20, "softplus": 30, "mish": 20, "elu": 16, "selu": 16,
    "log_sigmoid": 30, "xlogx": 16, "sin": 30, "cos": 30, "div": 4, "sqrt": 4, "rsqrt": 6,
    "reciprocal": 4, "asin": 20, "acos": 20, "atan": 24, "atan2": 30, "exp2": 12, "pow": 60,
    "remainder": 20,
}  # fmt: skip
"""Approximate cost of an operation on one element, in additions; 1 for operations not listed."""
HALVES = ("bfloat16", "float16")
HALF_LOAD = 3
"""Cost of a load of a half type on a CPU, in loads of float32."""
EXPENSIVE = 8
"""Least cost, in additions, of a value that is saved for a later pass instead of computed again."""
REGISTER_BYTES = 4
"""Bytes of a saved value of one element."""


@dataclass(frozen=True)
class Stage:
    """One pass over a row.

    It computes `row_nodes` once. Then it loops over the row's elements. For each it loads saved
    values (`reload`), computes nodes, saves values, updates reductions (`reduces`) and stores
    outputs.
    """

    level: int
    row_nodes: tuple[Node, ...]
    reload: tuple[str, ...]
    compute: tuple[Node, ...]
    save: tuple[str, ...]
    reduces: tuple[Node, ...]
    stores: tuple[str, ...]

    @property
    def loops(self) -> bool:
        """True if the pass has a loop over the elements of a row."""
        return bool(self.reduces or self.stores)


class Plan:
    """The stages of a loop nest's kernel, and the values that each of them computes and saves.

    With `may_save` a value is saved for later stages if its cost is at least `expensive`. `load` is
    the cost of loading an element. `joint`: cheap values are saved too if they need no more
    registers than the elements from which they are computed, which then no later stage reads.
    """

    def __init__(
        self,
        nest: Nest,
        *,
        may_save: bool = True,
        expensive: int = EXPENSIVE,
        load: int = 0,
        joint: bool = False,
    ) -> None:
        self.nest, self.expensive, self.joint = nest, expensive, joint
        self.nodes = {node.name: node for node in nest.group.nodes}
        self.cost: dict[str, int] = {}
        for node in nest.group.nodes:
            inner = 0
            if node.kind is not Kind.REDUCE and node.name not in nest.by_row:
                inner = sum(self._cost_of(node, a, load) for a in node.inputs)
            self.cost[node.name] = inner + (
                COST.get(node.op, 1) if node.kind is Kind.POINTWISE else 0
            )
        self.stages = self._stages(may_save)

    def _cost_of(self, node: Node, arg: str, load: int) -> int:
        """Return the cost of computing or loading the argument `arg` of `node` for one element."""
        access = self.nest.reads.get((node.name, arg))
        halves = access is not None and access.dtype in HALVES
        return self.cost.get(str(self.source(arg)), load * (HALF_LOAD if halves else 1))

    def source(self, name: Operand) -> Operand:
        """Return the value that `name` is a view of, inside the group; `name` itself for other
        values.
        """
        while isinstance(name, str) and name in self.nodes:
            node = self.nodes[name]
            if node.kind is not Kind.VIEW or node.inputs[0] not in self.nodes:
                break
            name = node.inputs[0]
        return name

    def is_element(self, name: Operand) -> bool:
        """Return True if the group computes the value `name` once per element, not once per row."""
        if not isinstance(name, str) or name not in self.nodes:
            return False
        node = self.nodes[name]
        return node.kind is Kind.POINTWISE and name not in self.nest.by_row

    @property
    def levels(self) -> int:
        """Length of the longest chain of reductions in the group that depend on one another."""
        return max(self.nest.levels.values(), default=0)

    @property
    def most_saved(self) -> int:
        """Largest number of values that are saved at a time for each element."""
        last = {name: stage.level for stage in self.stages for name in stage.reload}
        return max(
            sum(last[n] > end.level for s in self.stages[: end.level + 1] for n in s.save)
            for end in self.stages
        )

    @property
    def only_reduces(self) -> bool:
        """True if the kernel writes only one value per row, after a single level of reductions."""
        return self.levels == 1 and not any(stage.stores for stage in self.stages)

    @property
    def reduces_at_end(self) -> bool:
        """True if no element depends on a reduction, and there is a single level of reductions.

        Elements that do not may be stored.
        """
        return self.levels == 1 and not self.stages[1].stores

    @property
    def operations(self) -> int:
        """Number of operations of the whole kernel, weighted with `COST`."""
        group = self.nest.group
        return sum(
            COST.get(n.op, 1) * (group.rows if n.name in self.nest.by_row else group.size)
            for n in group.nodes
            if n.kind is not Kind.VIEW
        )

    def _targets(self, level: int) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        levels, group = self.nest.levels, self.nest.group
        reduces = tuple(
            n for n in group.nodes if n.kind is Kind.REDUCE and levels[n.name] == level + 1
        )
        stores = tuple(
            name
            for name in group.outputs
            if self.is_element(self.source(name)) and levels[name] == level
        )
        return reduces, stores

    def _closure(self, names: list[Operand], stop: set[str]) -> tuple[list[str], list[str]]:
        """Return the values to compute for each element to get `names`, and the values to load
        instead.

        The former are in order. The latter are values in `stop`, which earlier stages have saved.
        """
        needed: set[str] = set()
        reload: list[str] = []
        stack = [self.source(name) for name in names]
        while stack:
            name = str(stack.pop())
            if not self.is_element(name) or name in needed or name in reload:
                continue
            if name in stop:
                reload.append(name)
                continue
            needed.add(name)
            stack += [self.source(a) for a in self.nodes[name].args]
        return [n for n in self.nodes if n in needed], sorted(reload)

    def _stages(self, may_save: bool) -> tuple[Stage, ...]:
        targets = []
        for level in range(self.levels + 1):
            reduces, stores = self._targets(level)
            names: list[Operand] = [a for r in reduces for a in r.args] + list(stores)
            targets.append((reduces, stores, names))
        saved: set[str] = set()
        stages = []
        for level, (reduces, stores, names) in enumerate(targets):
            compute, reload = self._closure(names, saved)
            later_operands = [operands for _, _, operands in targets[level + 1 :]]
            later = {n for operands in later_operands for n in self._closure(operands, set())[0]}
            save = [n for n in compute if may_save and n in later and self._is_expensive(n)]
            # In a chain of expensive values save only the last, which alone is read later.
            save = [n for n in save if self._read_later(n, targets, level, set(save) - {n})]
            if self.joint and not save:
                save = self._joint_values(compute, later_operands, saved)
            saved |= set(save)
            stages.append(
                Stage(
                    level,
                    self._row_nodes(level),
                    tuple(reload),
                    tuple(self.nodes[n] for n in compute),
                    tuple(save),
                    reduces,
                    stores,
                )
            )
        return self._store_late(stages)

    def _joint_values(
        self, compute: list[str], later: list[list[Operand]], saved: set[str]
    ) -> list[str]:
        """Return the values that later stages need and that replace the elements of two tensors or
        more in registers.

        `later`: the operands of each later stage. `saved`: values that earlier stages have saved.
        """
        needed = {n for names in later for n in self._closure(names, saved)[0]}

        def _is_read(name: str, others: list[str]) -> bool:
            stop = {*others} - {name}
            return any(name in self._closure(names, stop)[0] for names in later)

        found = [n for n in compute if n in needed and self.nodes[n].dtype not in INTEGERS]
        found = [n for n in found if len(self.elements([n], saved)) > 1]
        found = [n for n in found if _is_read(n, found)]
        # The others are computed again from the first ones.
        first = [n for n in found if not set(self._closure([n], saved)[0]) & (set(found) - {n})]
        replaced = self.elements(list(first), saved)
        kept = {e for names in later for e in self.elements(names, saved | set(first))}
        if replaced.keys() & kept or sum(replaced.values()) < REGISTER_BYTES * len(first):
            return []
        return first

    def elements(self, names: list[Operand], stop: set[str]) -> dict[Access, int]:
        """Return the elements of rows that are loaded to compute `names`, with their bytes."""
        readers = {*self._closure(names, stop)[0]}
        return {
            replace(access, dtype=""): ITEM_BYTES[access.dtype]
            for (reader, _), access in self.nest.reads.items()
            if reader in readers
            and access.tensor
            and all(access.varies(k) for k in range(len(self.nest.dimensions)))
        }

    def _store_late(self, stages: list[Stage]) -> tuple[Stage, ...]:
        """Move the store of each output to the last stage that computes its value."""
        last: dict[str, int] = {}
        for stage in stages:
            last |= dict.fromkeys(stage.stores, stage.level)
            computed = {node.name for node in stage.compute}
            last |= {name: stage.level for name in last if self.source(name) in computed}
        return tuple(
            replace(stage, stores=tuple(n for n in last if last[n] == stage.level))
            for stage in stages
        )

    def in_place(self, *, row_values: bool = True) -> frozenset[tuple[str, str]]:
        """Return the (output, input) pairs for which the output may overwrite the input's memory.

        The kernel reads the input only at the element that it writes, and no later stage reads the
        input. Values of rows are among the outputs if `row_values`: on a GPU other threads, and
        later kernels of the same call, may read an input of the row after one thread has stored the
        value.
        """
        nest, end = self.nest, len(self.stages)
        stored = {name: stage.level for stage in self.stages for name in stage.stores}
        last_read: dict[str, int] = {}
        for stage in self.stages:
            names = {n.name for n in (*stage.row_nodes, *stage.compute, *stage.reduces)}
            read = (a.tensor for (name, _), a in nest.reads.items() if name in names)
            last_read |= dict.fromkeys(read, stage.level)
        return frozenset(
            (output, tensor)
            for output, write in nest.writes.items()
            if row_values or not nest.group.reduced or output not in nest.by_row
            for tensor in nest.tensors_read
            if last_read.get(tensor, end) <= stored.get(output, end)
            and all(
                access.strides == write.strides and access.offset == 0 and access.row is None
                for access in nest.reads.values()
                if access.tensor == tensor
            )
        )

    def _is_expensive(self, name: str) -> bool:
        # Saved values are floats.
        return self.cost[name] >= self.expensive and self.nodes[name].dtype not in INTEGERS

    def _read_later(self, name: str, targets: list, level: int, stop: set[str]) -> bool:
        return any(name in self._closure(names, stop)[0] for _, _, names in targets[level + 1 :])

    def _row_nodes(self, level: int) -> tuple[Node, ...]:
        return tuple(
            n
            for n in self.nest.group.nodes
            if n.name in self.nest.by_row
            and n.kind is Kind.POINTWISE
            and self.nest.levels[n.name] == level
        )
