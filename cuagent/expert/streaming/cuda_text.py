"""Write the parts of CUDA kernels that all schedules use: signatures, launches, blocks of elements.

The schedules (`cuda_map`, `cuda_rows` and others) decide which threads and loops run these parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from cuagent.expert.streaming.expressions import TYPES, computed_type, identifier
from cuagent.expert.streaming.extreme_places import PLACE
from cuagent.expert.streaming.group import Group
from cuagent.expert.streaming.nest import Access, Nest
from cuagent.expert.streaming.stages import Plan, Stage
from cuagent.expert.streaming.text import KernelText

JOIN = {"sum": "Sum", "max": "Max", "min": "Min", "amax": "Max", "amin": "Min"}
"""Class in `pointwise_cuda.h` that joins two partial results; the key is the reduction."""


def headers(dtypes: Iterable[str]) -> tuple[str, ...]:
    """Return the headers for tensors of these dtypes.

    The header for half types is included only if needed, because it compiles slowly.
    """
    half = {"float16", "bfloat16"} & set(dtypes)
    return ("half_cuda.h", "pointwise_cuda.h") if half else ("pointwise_cuda.h",)


def headers_of(group: Group, tensors_read: Mapping[str, str]) -> tuple[str, ...]:
    """Return the headers for the tensors that a kernel reads and the values that it computes."""
    return headers([*tensors_read.values(), *(node.dtype for node in group.nodes)])


class CudaText(KernelText):
    """Generates the parts of a CUDA kernel that all schedules use: indices, loads, reductions,
    stores.
    """

    def __init__(self, name: str, nest: Nest, title: str, plan: Plan) -> None:
        super().__init__(name, nest, title, plan)
        self.vector = 1
        """Number of adjacent elements that a thread computes together."""
        self.column_rows = False
        """True if adjacent threads compute adjacent rows."""
        self.integer = "int"
        """C++ type of index variables."""
        self.threads = 0
        """Number of threads per row."""
        self.items = 0
        """Number of vectors of a row that each thread computes."""
        self.workspace = 0
        """Number of float32 elements of scratch memory that the launcher needs."""
        self.places = {n.spec: n for n in nest.group.nodes if n.op == PLACE}
        """Reduction to the index of the first extreme, by the name of that to the extreme."""
        self.cached: dict[str, tuple[int, str]] = {}
        """(first pass that loads it, register array) of each input element that stays in
        registers.
        """
        self.loose: set[str] = set()
        """Elements that a thread loads one by one, though it computes VECTOR of them together."""
        self.packed: set[str] = set()
        """Register arrays with the elements as they are in memory; the others have floats."""

    def _parameters(self) -> list[str]:
        group = self.nest.group
        outputs = [
            f"{TYPES[self.nest.writes[n].dtype]}* {identifier(n)}_out" for n in group.outputs
        ]
        reads = self.nest.tensors_read.items()
        return outputs + [f"const {TYPES[t]}* {self._pointer(n)}" for n, t in reads]

    def _arguments(self) -> list[str]:
        return [p.split()[-1] for p in self._parameters()]

    def _open_kernel(
        self,
        suffix: str = "",
        extra: str = "",
        threads: int = 0,
        cluster: int = 1,
        resident: int = 0,
    ) -> None:
        """Write the head of a kernel. `resident`: blocks for which a multiprocessor must have
        registers; 0 for any number.
        """
        parameters = ", ".join([*self._parameters(), *([extra] if extra else [])])
        least = f", {resident}" if resident else ""
        bounds = f" __launch_bounds__({threads}{least})" if threads else ""
        bounds = f" __cluster_dims__({cluster}, 1, 1){bounds}" if cluster > 1 else bounds
        self.w.open(f"static __global__ void{bounds} {self.name}_device{suffix}({parameters})")

    def _constexpr(self, **values: int) -> None:
        for name, value in values.items():
            self.w(f"constexpr int {name} = {value};")

    def _launcher(self, launches: list[str], workspace: bool = False) -> None:
        extra = ["float* workspace"] if workspace else []
        parameters = ", ".join([*self._parameters(), *extra, "cudaStream_t stream"])
        self.w()
        self.w.open(f'extern "C" void {self.name}({parameters})')
        for launch in launches:
            self.w(launch)
        self.w.close()

    def _launch(
        self, grid: str, block: str, suffix: str = "", workspace: bool = False, shared: int = 0
    ) -> str:
        """Return the C++ launch of a kernel; `shared` is its dynamic shared memory in bytes."""
        arguments = ", ".join([*self._arguments(), *(["workspace"] if workspace else [])])
        return f"{self.name}_device{suffix}<<<{grid}, {block}, {shared}, stream>>>({arguments});"

    def _decode(self, flat: str, dims: list[int], vector: bool = False) -> None:
        """Write the C++ that declares the index of each dimension in `dims` from a flat index."""
        w, remainder = self.w, flat
        if len(dims) > 1:
            # A division of 64-bit integers takes several times as long.
            counted = math.prod(self.nest.dimensions[k].extent for k in dims) < 1 << 31
            w(f"{'int' if counted else self.integer} {flat}_remainder = {flat};")
            remainder = f"{flat}_remainder"
        for n, k in enumerate(reversed(dims)):
            extent = self.nest.dimensions[k].extent
            scale = " * VECTOR" if vector and n == 0 and self.vector > 1 else ""
            count = extent // self.vector if scale else extent
            if n == len(dims) - 1:
                w(f"const {self.integer} i{k} = {remainder}{scale};")
            else:
                w(f"const {self.integer} i{k} = {remainder} % {count}{scale};")
                w(f"{remainder} /= {count};")

    def _element_block(self, stage: Stage, slots: dict[str, str]) -> None:
        """Write the loads, arithmetic and stores of one block: VECTOR adjacent elements."""
        w, self.stage, self.defined = self.w, stage, {}
        self._load_elements(stage)
        vector_stores = [n for n in stage.stores if self.vector > 1]
        for name in vector_stores:
            w(f"{computed_type(self.nest.writes[name].dtype)} {identifier(name)}_vector[VECTOR];")
        if self.vector > 1:
            w.pragma("unroll")
            w.open("for (int v = 0; v < VECTOR; ++v)")
        else:
            w.open("")
            if slots or self.cached:
                w("constexpr int v = 0;")
        for name in stage.reload:
            w(f"const float {identifier(name)}_saved = {slots[name]};")
        for node in stage.compute:
            self._declare(node, "_v")
        for name in stage.save:
            w(f"{slots[name]} = {identifier(name)}_v;")
        for node in stage.reduces:
            word, value = self._variable(node.name), self._operand(node, node.args[0])
            if place := self.places.get(node.name):
                at = self._operand(place, place.args[1])
                words = f"{word}, {identifier(place.name)}, {value}, {at}"
                w(f"join_place<{JOIN[node.op]}>({words});")
            elif node.op != PLACE:
                w(f"{word} = {JOIN[node.op]}::join({word}, {value});")
        for name in stage.stores:
            value = self._variable(self.plan.source(name))
            if self.vector > 1:
                w(f"{identifier(name)}_vector[v] = {value};")
            else:
                inside = f"if (flat_row < {self.nest.group.rows}) " if self.column_rows else ""
                w(inside + self._assign(name, value))
        w.close()
        for name in vector_stores:
            index = self._index(self.nest.writes[name])
            inside = f"if (flat_row < {self.nest.group.rows}) " if self.column_rows else ""
            w(f"{inside}store_vector({identifier(name)}_out + {index}, {identifier(name)}_vector);")
        self.defined = {}

    def _load_elements(self, stage: Stage) -> None:
        """Write the loads of one block of elements, as vector loads where the elements are
        adjacent.
        """
        w = self.w
        inner = len(self.nest.dimensions) - 1
        readers = {n.name for n in stage.compute} | {n.name for n in stage.reduces}
        for (reader, _), access in self.nest.reads.items():
            key = self._element(access)
            if reader not in readers or key in self.defined:
                continue
            word = f"{self._pointer(access.tensor or 'place')}_e{len(self.defined)}"
            cached = self.cached.get(key)
            if cached and stage.level > cached[0]:
                self.defined[key] = f"{cached[1]}[item][v]"
                if cached[1] in self.packed:
                    self._unpack(access, cached[1], word)
                    self.defined[key] = f"{word}[v]"
                continue
            if key in self.loose:
                self._load_one_by_one(access, word)
                self.defined[key] = f"{word}[v]"
            elif self.vector > 1 and access.is_index and access.strides[inner]:
                value = f"{self._index(access)} + v * {access.strides[inner]}"
                w(f"float {word}[VECTOR];")
                w.pragma("unroll")
                w(f"for (int v = 0; v < VECTOR; ++v) {word}[v] = static_cast<float>({value});")
                self.defined[key] = f"{word}[v]"
            elif self.vector > 1 and access.strides[inner] and self._is_loose(access):
                element = f"{self._pointer(access.tensor)}[{self._index(access)} + v]"
                w(f"{computed_type(access.dtype)} {word}[VECTOR];")
                w.pragma("unroll")
                w(f"for (int v = 0; v < VECTOR; ++v) assign({word}[v], {element});")
                self.defined[key] = f"{word}[v]"
            elif self.vector > 1 and access.strides[inner] == 1:
                pointer = f"{self._pointer(access.tensor)} + {self._index(access)}"
                if cached and cached[1] in self.packed:
                    pairs = f"reinterpret_cast<const uint32_t*>({pointer})"
                    w(f"load_vector({pairs}, {cached[1]}[item]);")
                    self._unpack(access, cached[1], word)
                    self.defined[key] = f"{word}[v]"
                    continue
                condition = self._condition(access)
                always, never = condition in ("", "true"), condition == "false"
                zero, test = ("", "") if always else (" = {}", f"if {condition} ")
                row = self._row(access) if access.row else ""
                if access.row:
                    pointer += f" + slice_or_first({row}) * {access.row.stride}"
                w(f"{computed_type(access.dtype)} {word}[VECTOR]{zero};")
                within = bool(test and row and not never)
                if within:  # a thread skips all of a part that it does not read
                    w.open(test.strip())
                if not never:
                    w(f"{'' if within else test}load_vector({pointer}, {word});")
                if row:
                    w.pragma("unroll")
                    w(f"for (int v = 0; v < VECTOR; ++v) {word}[v] = {row} < 0 ? NAN : {word}[v];")
                if within:
                    w.close(1)
                self.defined[key] = f"{word}[v]"
                if cached:
                    w.pragma("unroll")
                    w(f"for (int v = 0; v < VECTOR; ++v) {cached[1]}[item][v] = {word}[v];")
            else:
                w(f"const {computed_type(access.dtype)} {word} = {self._load(access)};")
                self.defined[key] = word
                if cached:
                    w(f"{cached[1]}[item][0] = {word};")

    def _load_one_by_one(self, access: Access, word: str) -> None:
        """Write the loads of a vector's elements to the array `word`, with their conditions."""
        w, inner = self.w, f"i{len(self.nest.dimensions) - 1}"
        w(f"{computed_type(access.dtype)} {word}[VECTOR];")
        w.open("")
        w(f"const {self.integer} first_element = {inner};")
        w.pragma("unroll")
        w.open("for (int v = 0; v < VECTOR; ++v)")
        w(f"const {self.integer} {inner} = first_element + v;")
        w(f"{word}[v] = {self._load(access)};")
        w.close(2)

    def _unpack(self, access: Access, pairs: str, word: str) -> None:
        """Write the conversion of the kept pairs of elements of an access to the array `word`."""
        self.w(f"float {word}[VECTOR];")
        self.w(f"unpack<{TYPES[access.dtype]}>({pairs}[item], {word});")

    def _is_loose(self, access: Access) -> bool:
        """Return True if elements that a thread computes together are not one aligned vector."""
        del access
        return False

    def _identities(self, stage: Stage) -> None:
        """Declare the variables of the stage's reductions, with their initial values."""
        for node in stage.reduces:
            identity = "INFINITY" if node.op == PLACE else f"{JOIN[node.op]}::identity()"
            self.w(f"float {identifier(node.name)} = {identity};")

    def _join_threads(self, stage: Stage, function: str, count: str) -> None:
        """Write the joins of the partial results of `count` threads by a function of
        `pointwise_cuda.h`.
        """
        for node in stage.reduces:
            word = identifier(node.name)
            if place := self.places.get(node.name):
                words = f"{word}, {identifier(place.name)}"
                self.w(f"{function}_place<{JOIN[node.op]}, {count}>({words});")
            elif node.op != PLACE:
                self.w(f"{word} = {function}<{JOIN[node.op]}, {count}>({word});")

    def _join_values(self, stage: Stage, parts: Mapping[str, str]) -> None:
        """Write the joins of the results so far with one part of each; `parts` has the C++
        expressions of the parts by the reductions' names."""
        for node in stage.reduces:
            word, part = identifier(node.name), parts[node.name]
            if place := self.places.get(node.name):
                words = f"{word}, {identifier(place.name)}, {part}, {parts[place.name]}"
                self.w(f"join_place<{JOIN[node.op]}>({words});")
            elif node.op != PLACE:
                self.w(f"{word} = {JOIN[node.op]}::join({word}, {part});")

    def _row_values(self, stage: Stage) -> None:
        for node in stage.row_nodes:
            self._declare(node, "")

    def _row_stores(self) -> None:
        row_outputs = self._row_outputs()
        if row_outputs:
            self.w.open("if (threadIdx.x == 0)")
            for name in row_outputs:
                self._store(name)
            self.w.close()

    def _store(self, name: str) -> None:
        self.w(self._assign(name, self._variable(self.plan.source(name))))
