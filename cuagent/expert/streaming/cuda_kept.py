"""Write the CUDA schedule `kept rows`: a cluster of blocks reads each row once.

Each thread stores the elements that it loads in shared memory, and reads them there in later
passes. The blocks of a cluster exchange their partial results through shared memory. So a row of
1.5 MB is read once, which a block would read again in each pass, from DRAM if many rows are in
flight. Only GPUs from compute capability 9.0 on have clusters. Not covered: rows that exceed the
shared memory of a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cuagent.expert.graph.graph import FLOATS, ITEM_BYTES
from cuagent.expert.streaming.cuda_rows import MAX_CACHED
from cuagent.expert.streaming.cuda_text import JOIN, CudaText
from cuagent.expert.streaming.expressions import TYPES, computed_type, identifier
from cuagent.expert.streaming.extreme_places import PLACE
from cuagent.expert.streaming.group import FEW_ROWS, LONG_ROW
from cuagent.expert.streaming.nest import Access, Nest
from cuagent.expert.streaming.stages import Plan, Stage

CLUSTERS = (1, 2, 4, 8, 16)
PORTABLE = 8
"""Largest cluster, in blocks, that every GPU with clusters runs without a special permission."""
BLOCK_THREADS = (256, 512, 1024)
SHARED_OF_SM, SHARED_OF_BLOCK = 228 << 10, 226 << 10
"""Shared memory in bytes of a multiprocessor, and the largest dynamic part of a block's."""
RESERVED = 2 << 10
"""Shared memory in bytes of a block besides its rows: what CUDA reserves, and partial results."""
THREADS_OF_SM = 1536
"""Number of threads of a multiprocessor that leaves 40 registers to each."""
LEAST_COLUMNS = MAX_CACHED * 1024
"""Number of elements of a row up to which a block keeps it in registers (`cuda_rows`)."""
BUSY_BLOCKS = 256
"""Number of blocks that fewer than FEW_ROWS long rows must have; else multiprocessors would be
idle.
"""
AHEAD = 8
"""Number of vectors that a thread may load before it uses the first."""


@dataclass(frozen=True)
class KeptLayout:
    """Division of a row among the blocks of a cluster and their threads."""

    cluster: int
    """Number of blocks in a cluster."""
    threads: int
    """Number of threads in a block."""
    resident: int
    """Number of blocks that a multiprocessor runs together."""
    full: int
    """Number of rounds in which every thread of the cluster has a vector."""
    items: int
    """Number of rounds, with one in which some threads have none."""


@dataclass(frozen=True)
class KeptValue:
    """A value of each element that stays in shared memory from its first pass to its last."""

    key: str
    """Text of a loaded element (`KernelText._element`), or the name of a computed value."""
    dtype: str
    first: int
    last: int
    place: int = 0
    """Bytes of a vector's other values that precede it; equal for values that share memory."""


def layout(vectors: int, least: int, bytes_of_vector: int) -> KeptLayout | None:
    """Return the layout for rows of up to `vectors` and at least `least` vectors; None if a row
    does not fit into a cluster.

    Several blocks on a multiprocessor are better, because one then computes while another waits
    for memory. A larger cluster waits longer at its barriers. The weights were fitted to times of
    10 layouts on an H200 (docs/research/log.md). A cluster of 16 blocks needs no more than the 8
    multiprocessors of a portable one, because at least two of its blocks run on each.
    """
    found = []
    for cluster in CLUSTERS:
        for threads in BLOCK_THREADS:
            items = math.ceil(vectors / (cluster * threads))
            size = items * threads * bytes_of_vector + RESERVED
            if size > SHARED_OF_BLOCK:
                continue
            resident = min(SHARED_OF_SM // size, THREADS_OF_SM // threads)
            if cluster > PORTABLE and resident < 2:
                continue
            waste = items * cluster * threads / vectors
            cost = waste * (1 + 0.7 / resident + 0.18 * math.log2(cluster))
            cost *= 1 + (192 / (resident * threads)) ** 2
            full = least // (cluster * threads)
            found.append((cost, KeptLayout(cluster, threads, resident, full, items)))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def placed(values: list[KeptValue]) -> tuple[list[KeptValue], int]:
    """Return the values with places in which values of disjoint passes share memory, and the sum
    of their bytes for one element.
    """
    done: list[KeptValue] = []
    free: dict[int, tuple[int, int]] = {}
    total = 0
    for value in sorted(values, key=lambda v: (v.first, v.last)):
        size = ITEM_BYTES[value.dtype]
        place = next(
            (at for at, (last, n) in free.items() if n == size and last <= value.first), total
        )
        total = max(total, place + size)
        free[place] = value.last, size
        done.append(KeptValue(value.key, value.dtype, value.first, value.last, place))
    return done, total


class KeptRowSchedule(CudaText):
    """Generates CUDA kernels in which a cluster keeps a row in shared memory (`kept rows`)."""

    def __init__(self, name: str, nest: Nest, title: str, plan: Plan) -> None:
        super().__init__(name, nest, title, plan)
        self.kept: KeptLayout | None = None
        self.kept_values: list[KeptValue] = []
        self.kept_bytes = 0
        """Bytes of shared memory for one element."""
        self.shift: Access | None = None
        """Access that decides where the vectors of a row begin, if rows begin anywhere; else
        None.
        """
        self.slot = ""
        """C++ expression of the index in shared memory of the current vector."""

    def _keep(self, width: int) -> None:
        """Choose the layout of this schedule, if rows are long enough and fit into a cluster.

        `width` is the number of elements of a vector whose accesses are all aligned, or 1.
        """
        columns = self.nest.group.columns
        if columns <= LEAST_COLUMNS:
            return
        plans = [self.plan, Plan(self.nest), Plan(self.nest, may_save=False)]
        for plan in plans[1:]:
            self.plan = plan
            found, self.kept_bytes = placed(list(self._kept_values()))
            self.shift = self._shifted() if width == 1 else None
            wide = self._widest() if self.shift else width
            least = (columns - wide + 1) // wide if self.shift else columns // wide
            if any(value.key.endswith("]") for value in found) and (
                chosen := layout(math.ceil(columns / wide), least, wide * self.kept_bytes)
            ):
                few = columns >= LONG_ROW and self.nest.group.rows < FEW_ROWS
                if few and self.nest.group.rows * chosen.cluster < BUSY_BLOCKS:
                    break
                self.kept, self.kept_values, self.vector = chosen, found, wide
                self.threads = chosen.threads
                return
        self.plan, self.shift = plans[0], None

    def _kept_values(self) -> Iterator[KeptValue]:
        """Yield the loaded elements that several passes read, and the values that passes save."""
        levels: dict[str, list[int]] = {}
        accesses: dict[str, Access] = {}
        for stage in self.plan.stages:
            readers = {n.name for n in (*stage.compute, *stage.reduces)}
            for (reader, _), access in self.nest.reads.items():
                every = all(access.varies(k) for k in (*self.row_dims, *self.column_dims))
                plain = access.tensor and not access.guards and access.dtype in FLOATS
                if reader in readers and every and plain and access.row is None:
                    key = self._element(access)
                    levels.setdefault(key, []).append(stage.level)
                    accesses[key] = access
            for name in stage.save:
                last = max(s.level for s in self.plan.stages if name in s.reload)
                yield KeptValue(name, "float32", stage.level, last)
        for key, read in levels.items():
            if len(set(read)) > 1:
                yield KeptValue(key, accesses[key].dtype, min(read), max(read))

    def _widest(self) -> int:
        accesses = (*self.nest.reads.values(), *self.nest.writes.values())
        return min((16 // ITEM_BYTES[a.dtype] for a in accesses if a.dtype in FLOATS), default=4)

    def _shifted(self) -> Access | None:
        """Return an access to a row whose first aligned vector begins vectors for all large
        tensors; None if there is none.
        """
        written = [a for a in self.nest.writes.values() if a.strides[-1]]
        reads = [a for a in self.nest.reads.values() if a.strides[-1] == 1 and a.tensor]
        large = [a for a in reads if all(a.varies(k) for k in self.row_dims)]
        given = (*self.nest.reads.values(), *self.nest.writes.values())
        plain = not any((a.guards or a.row) and a.strides[-1] for a in given)
        if len(self.column_dims) != 1 or not large or not plain or self._widest() == 1:
            return None
        if any(a.strides[-1] not in (0, 1) for a in given if a.tensor):
            return None
        self.shift = (written or large)[0]
        return self.shift if not any(map(self._is_loose, written)) else None

    def _is_loose(self, access: Access) -> bool:
        if self.shift is None or access.is_index:
            return False
        width, pairs = self._widest(), zip(access.strides, self.shift.strides, strict=True)
        return any((a - b) % width for a, b in pairs) or bool(
            (access.offset - self.shift.offset) % width
        )

    def _kept_rows(self) -> None:
        """Write the kernel: a cluster of blocks computes a row, in passes with a barrier each."""
        w, group, kept = self.w, self.nest.group, self.kept
        assert kept is not None
        self._open_kernel(threads=kept.threads, cluster=kept.cluster, resident=kept.resident)
        self._constexpr(COLUMNS=group.columns, THREADS=kept.threads, VECTOR=self.vector)
        self._constexpr(CLUSTER=kept.cluster, ROUNDS=kept.full)
        w(f"extern __shared__ Elements<float, 4> {self.name}_memory[];")
        slots = self._kept_arrays()
        count = sum(len(stage.reduces) for stage in self.plan.stages)
        w("const int rank = blockIdx.x % CLUSTER;")
        w(f"const {self.integer} row = blockIdx.x / CLUSTER;")
        if kept.cluster > 1:
            w(f"__shared__ float shares[{count}][CLUSTER];")
            w("cluster_arrive();")
        self._decode("row", self.row_dims)
        self._head()
        done = 0
        for stage in self.plan.stages:
            self._row_values(stage)
            if stage.loops:
                self._kept_pass(stage)
                self._join_in_cluster(stage, done)
                done += len(stage.reduces)
        row_outputs = self._row_outputs()
        if row_outputs:
            w.open("if (rank == 0 && threadIdx.x == 0)")
            for name in row_outputs:
                self._store(name)
            w.close()
        w.close()
        size = _units_of_16_bytes(self.kept_bytes * slots) * 16
        launch = self._launch(str(group.rows * kept.cluster), str(kept.threads), shared=size)
        larger = [f"allow_cluster({self.name}_device);"] if kept.cluster > PORTABLE else []
        self._launcher([*larger, f"allow_shared({self.name}_device, {size});", launch])

    def _kept_arrays(self) -> int:
        """Declare the arrays of a block's elements in shared memory; return their lengths."""
        assert self.kept is not None
        slots = self.kept.items * self.kept.threads * self.vector + self._most_edges()
        sizes: dict[int, int] = {}
        for value in self.kept_values:
            if value.place not in sizes:
                sizes[value.place] = ITEM_BYTES[value.dtype]
                kind = TYPES[value.dtype]
                start = f"{self.name}_memory + {_units_of_16_bytes(value.place * slots)}"
                self.w(f"{kind}* kept_{value.place} = reinterpret_cast<{kind}*>({start});")
        return slots

    def _head(self) -> None:
        """Declare the number of elements of a row before its first aligned vector."""
        if self.shift:
            pairs = zip(self.shift.strides, self.nest.dimensions, strict=True)
            steps = tuple(0 if d.reduced else s for s, d in pairs)
            first = self._sum(steps, self.shift.offset)
            self.w(f"const int head = static_cast<int>(-({first})) & {self.vector - 1};")

    def _most_edges(self) -> int:
        """Return the number of elements for which a row has room before and behind its vectors."""
        return 2 * self.vector if self.shift else 0

    def _kept_pass(self, stage: Stage) -> None:
        """Write one pass: the rounds of all threads, the rest, and elements outside of vectors."""
        w, kept = self.w, self.kept
        assert kept is not None
        start = "head + " if self.shift else ""
        self._identities(stage)

        def block(item: str) -> None:
            w(f"const int slot = {item} * THREADS + threadIdx.x;")
            w(
                f"const int column = {start}"
                f"(({item} * CLUSTER + rank) * THREADS + threadIdx.x) * VECTOR;"
            )
            if item == "ROUNDS":
                w.open("if (column + VECTOR <= COLUMNS)")
            self.slot = "slot * VECTOR" if self.vector > 1 else "slot"
            self._decode("column", self.column_dims)
            self._element_block(stage, {})
            w.close(1 + (item == "ROUNDS"))

        if kept.full:
            turns = math.ceil(kept.full / AHEAD)
            w.pragma("unroll" if turns == 1 else f"unroll {math.ceil(kept.full / turns)}")
            w.open("for (int item = 0; item < ROUNDS; ++item)")
            block("item")
        if kept.items > kept.full:
            w.open("")
            block("ROUNDS")
        if self.shift:
            self._kept_edges(stage, kept.items * kept.threads)

    def _kept_edges(self, stage: Stage, vectors: int) -> None:
        """Write a pass over the elements outside of vectors, which are behind `vectors` vectors."""
        w, width = self.w, self.vector
        w.open("if (rank == 0)")
        w(f"const int behind = (COLUMNS - head) % {width};")
        w.open("if (threadIdx.x < head + behind)")
        w("const int column = threadIdx.x < head ? threadIdx.x")
        w("                                      : COLUMNS - behind + threadIdx.x - head;")
        self.slot, self.vector = f"{vectors * width} + threadIdx.x", 1
        self._decode("column", self.column_dims)
        self._element_block(stage, {})
        self.vector = width
        w.close(2)

    def _join_in_cluster(self, stage: Stage, done: int) -> None:
        """Write the joins of the threads' partial results, then of the blocks'."""
        w, kept = self.w, self.kept
        assert kept is not None
        self._join_threads(stage, "reduce_block", "THREADS")
        if kept.cluster == 1 or not stage.reduces:
            return
        if done == 0:
            # The other blocks may not have begun.
            w("cluster_wait();")
        w.open("if (threadIdx.x < CLUSTER)")
        for k, node in enumerate(stage.reduces):
            w(f"store_remote(&shares[{done + k}][rank], threadIdx.x, {identifier(node.name)});")
        w.close()
        w("cluster_arrive();")
        w("cluster_wait();")
        shares = {node.name: f"shares[{done + k}]" for k, node in enumerate(stage.reduces)}
        for node in stage.reduces:
            word, place = identifier(node.name), self.places.get(node.name)
            if place:
                parts = f"{shares[node.name]}, {shares[place.name]}"
                w(f"join_all_places<{JOIN[node.op]}>({word}, {identifier(place.name)}, {parts});")
            elif node.op != PLACE:
                w(f"{word} = join_all<{JOIN[node.op]}>({shares[node.name]});")

    def _element_block(self, stage: Stage, slots: dict[str, str]) -> None:
        if self.kept is None:
            super()._element_block(stage, slots)
            return
        kept = {value.key: value for value in self.kept_values}
        words = {name: f"{identifier(name)}_kept" for name in (*stage.reload, *stage.save)}
        for name, word in words.items():
            if name in stage.save:
                self.w(f"float {word}{self._array()};")
            else:
                self._from_kept(kept[name], word)
        element = "[v]" if self.vector > 1 else ""
        super()._element_block(stage, {name: word + element for name, word in words.items()})
        for name in stage.save:
            self._to_kept(kept[name], words[name])

    def _load_elements(self, stage: Stage) -> None:
        element = "[v]" if self.vector > 1 else ""
        readers = {n.name for n in (*stage.compute, *stage.reduces)}
        kept = {value.key: value for value in self.kept_values}
        read = dict.fromkeys(
            self._element(access) for (reader, _), access in self.nest.reads.items()
            if reader in readers
        )  # fmt: skip
        for key in read:
            if (value := kept.get(key)) and value.first < stage.level:
                word = f"kept_e{len(self.defined)}"
                self._from_kept(value, word)
                self.defined[key] = word + element
        super()._load_elements(stage)
        for key in read:
            if (value := kept.get(key)) and value.first == stage.level:
                self._to_kept(value, self.defined[key].removesuffix("[v]"))

    def _array(self) -> str:
        return "[VECTOR]" if self.vector > 1 else ""

    def _from_kept(self, value: KeptValue, word: str) -> None:
        place, kind = f"kept_{value.place} + {self.slot}", computed_type(value.dtype)
        if self.vector > 1:
            self.w(f"{kind} {word}[VECTOR];")
            self.w(f"load_vector({place}, {word});")
        else:
            self.w(f"{kind} {word};")
            self.w(f"assign({word}, *({place}));")

    def _to_kept(self, value: KeptValue, word: str) -> None:
        place = f"kept_{value.place} + {self.slot}"
        if self.vector > 1:
            self.w(f"store_shared({place}, {word});")
        else:
            self.w(f"assign(*({place}), {word});")


def _units_of_16_bytes(size: int) -> int:
    """Return the number of 16-byte units that contain `size` bytes."""
    return math.ceil(size / 16)
