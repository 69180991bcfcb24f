"""Compute the floor of a task: its compulsory bytes and operations over the device's ceilings.

The work is counted by running the reference under a dispatch mode on fake tensors, or on real ones
if the module reads values. Compulsory traffic is every input and weight read once and every output
written once; the traffic of an implementation in between does not count. Not covered: caches (see
`Roofline.firm`), special functions, launch overhead.

Invariant: compulsory traffic never exceeds what a correct implementation must move. The operations
are those of the reference's algorithm. Another algorithm (Winograd, folding) may need fewer, so
only the memory floor is a bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from cuagent.measure.roofline.ceilings import Ceilings
from cuagent.measure.roofline.reads import Values, part_read
from cuagent.task.reference import Reference
from cuagent.task.settings import baseline_settings, read_settings
from cuagent.task.task import Precision, TaskError
from cuagent.task.tree import flatten
from cuagent.timing import Floor
from cuagent.verify.trace.reductions import product_kind

if TYPE_CHECKING:
    import torch

SUSPECT = 0.9
"""Share of the memory floor below which a time is suspect. The rest is noise of the ceiling."""


@dataclass(frozen=True)
class OperatorWork:
    """Work of all calls of one operator.

    `bytes` is the size of its arguments and results, which eager mode moves.
    """

    calls: int
    bytes: int
    flops: int
    """Operations of products, convolutions and attention."""


@dataclass(frozen=True)
class Work:
    """Work of one call of the reference."""

    bytes_in: int
    """Bytes of the inputs and weights that are read, each once."""
    bytes_out: int
    """Bytes of the outputs that are not views of inputs."""
    matrix_flops: int
    """Operations of products, convolutions and attention: two for each multiply-add."""
    other_flops: int
    """Estimated operations of all other operators: one for each element of an operator's largest
    argument or result."""
    operators: dict[str, OperatorWork] = field(default_factory=dict)
    """Work of each operator that eager launches, by name; views are left out."""
    uncounted: tuple[str, ...] = ()
    """Operators whose arithmetic is not counted, which makes the compute floor too low."""

    @property
    def bytes(self) -> int:
        return self.bytes_in + self.bytes_out

    @property
    def bytes_eager(self) -> int:
        """Return the bytes that eager mode moves, where every operator runs alone."""
        return sum(operator.bytes for operator in self.operators.values())

    @staticmethod
    def from_json(data: dict[str, Any]) -> Work:
        operators = {name: OperatorWork(**fields) for name, fields in data["operators"].items()}
        return Work(**(data | {"operators": operators, "uncounted": tuple(data["uncounted"])}))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Roofline:
    """Work of a task and the ceilings of one device. Times are in seconds."""

    work: Work
    ceilings: Ceilings
    unit: str
    """Matrix rate of the task: fp32, tf32, bf16 or fp16."""

    @property
    def memory_seconds(self) -> float:
        return self.work.bytes / self.ceilings.copy

    @property
    def compute_seconds(self) -> float:
        flops = self.work.matrix_flops / self.ceilings.rate(self.unit)
        return flops + self.work.other_flops / self.ceilings.fp32

    @property
    def floor(self) -> float:
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def bound(self) -> Literal["memory", "compute"]:
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"

    @property
    def firm(self) -> bool:
        """Return True if the memory floor holds even if data may stay in the last-level cache."""
        return self.work.bytes > 2 * self.ceilings.cache_bytes

    def share(self, seconds: float) -> float:
        """Return the floor divided by a measured time; 1 means that the time equals the floor."""
        return self.floor / seconds

    def suspect(self, seconds: float) -> bool:
        """Return True if a time is faster than memory allows: some work was probably skipped."""
        return self.firm and self.ceilings.calm and seconds < SUSPECT * self.memory_seconds

    @property
    def timing_floor(self) -> Floor:
        """Return the floor in the form that a timing holds."""
        memory = SUSPECT * self.memory_seconds if self.firm and self.ceilings.calm else 0.0
        return Floor(self.floor, self.bound, memory)

    def beaten(self, seconds: float) -> bool:
        """Return True if a time is faster than the ceilings allow: they must be measured again."""
        return seconds < self.floor

    def line(self, seconds: float | None = None) -> str:
        """Return the floor, and the share of it that `seconds` reaches, as one line."""
        if not self.floor and not self.work.uncounted:
            return "no floor: nothing has to be moved or computed"
        rate = amount(self.ceilings.rate(self.unit))
        other = self.work.other_flops
        products = self.work.matrix_flops
        flops = [f"{amount(products)}FLOP at {rate}FLOP/s {self.unit}"]
        if other and self.bound == "compute":
            flops = [*(flops if products else []), f"{amount(other)}FLOP of other kinds"]
        text = (
            f"floor {seconds_text(self.floor)} ({self.bound}: "
            f"{amount(self.work.bytes)}B compulsory at {amount(self.ceilings.copy)}B/s, "
            f"{' and '.join(flops)})"
        )
        if self.work.uncounted:
            text += f", arithmetic of {', '.join(self.work.uncounted)} not counted"
        return text if seconds is None else f"{self.share(seconds):.0%} of the roofline; {text}"


def roofline(reference: Reference, ceilings: Ceilings) -> Roofline:
    """Count the reference's work on the inputs of seed 0. Raises TaskError if it does not run."""
    work = count_work(reference)
    return Roofline(work, ceilings, matrix_unit(reference, work))


def count_work(reference: Reference) -> Work:
    """Run the reference once and count its work, without arithmetic if the module allows it."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    model, inputs = reference.model(0), reference.inputs(0)
    # A module may branch on values or use them as indices, which has no common error type. If the
    # module is broken, the run on real tensors below raises.
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            state, faked = torch.utils._pytree.tree_map_only(
                torch.Tensor, fake.from_tensor, (dict(_state(model)), inputs)
            )
            values = _values((dict(_state(model)), inputs), (state, faked))
            return count_calls(
                lambda *args: torch.func.functional_call(model, state, args), faked, values
            )
    except Exception:  # noqa: BLE001 - the user's code under fake tensors, see above
        pass
    try:
        return count_calls(model, inputs)
    except RuntimeError as error:
        raise TaskError(f"{reference.task.path}: cannot count its work: {error}") from error


def _state(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _values(real: Any, fake: Any) -> Values:
    """Return the real tensors that may hold indices, by the storage of their fake tensors."""
    pairs = zip(_tensors(real), _tensors(fake), strict=True)
    return {f.untyped_storage()._cdata: r for r, f in pairs if not r.is_floating_point()}


def count_calls(
    model: Callable[..., Any], inputs: list[Any], values: Values = MappingProxyType({})
) -> Work:
    """Call `model` once under the dispatch mode and return its work.

    `inputs` may be fake tensors; `values` then has the real tensors that may hold indices.
    """
    import torch

    counter = _counting_mode(values)
    with torch.no_grad(), counter:
        outputs, _ = flatten(model(*inputs), "output")
    return Work(
        bytes_in=counter.traffic.compulsory(outputs),
        bytes_out=counter.traffic.written(outputs),
        matrix_flops=counter.flops.total(),
        other_flops=counter.elementwise,
        operators={
            name: OperatorWork(calls, counter.moved[name], counter.flops[name])
            for name, calls in counter.calls.items()
        },
        uncounted=tuple(sorted(name for name in counter.calls if name.startswith(UNCOUNTED))),
    )


RECURRENT = ("mkldnn_rnn_layer", "_cudnn_rnn")
"""Operators that are a whole layer of an LSTM, GRU or RNN. Every weight matrix is applied once at
every position."""
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
UNCOUNTED = ("linalg_", "_linalg_", "_fft_", "_cdist", "miopen_rnn", "_int_mm", "_weight_int")
"""Prefixes of operators whose arithmetic is not counted."""
FREE = ("empty", "detach", "alias", "lift_fresh", "_unsafe_view", "sym_", "is_")
"""Prefixes of operators that neither move data nor compute."""


class _Traffic:
    """Reads and writes of all operators, from which the compulsory traffic is computed."""

    def __init__(self) -> None:
        self.storages_in_use: list[torch.Tensor] = []
        """Tensors whose storage must not be freed, because storages are compared by address."""
        self.created: set[int] = set()
        """Storages that did not exist before the call."""
        self.operators_run: list[tuple[set[int], list[tuple[torch.Tensor, int]]]] = []
        """Storages that each operator writes, and the tensors that it reads, with the bytes read.
        An empty set of storages marks an operator that is always needed."""

    def add_created(self, fresh: list[torch.Tensor]) -> None:
        """Add storages that did not exist before the call."""
        self.created.update(t.untyped_storage()._cdata for t in fresh)

    def log(
        self,
        reads: list[tuple[torch.Tensor, int]],
        outs: list[torch.Tensor],
        *,
        changing: bool,
    ) -> None:
        """Log an operator: the tensors it reads with the bytes read, and its results.

        `changing`: True if it writes to some of the tensors it reads.
        """
        self.storages_in_use += [tensor for tensor, _ in reads]
        changed = [tensor for tensor, _ in reads] if changing else []
        writes = {t.untyped_storage()._cdata for t in [*outs, *changed]}
        # A change to a tensor that existed before the call is always needed.
        self.operators_run.append((writes if writes <= self.created else set(), reads))

    def compulsory(self, outputs: list[torch.Tensor]) -> int:
        """Return the bytes read of tensors that existed before the call and that the outputs depend
        on."""
        needed_storages = {leaf.untyped_storage()._cdata for leaf in outputs}
        needed: list[tuple[torch.Tensor, int]] = []
        for writes, reads in reversed(self.operators_run):
            if writes and not writes & needed_storages:
                continue
            needed_storages |= {tensor.untyped_storage()._cdata for tensor, _ in reads}
            needed += [(t, n) for t, n in reads if t.untyped_storage()._cdata not in self.created]
        return _distinct(needed)

    def written(self, outputs: list[torch.Tensor]) -> int:
        """Return the bytes of outputs that did not exist before the call."""
        created = [x for x in outputs if x.untyped_storage()._cdata in self.created]
        return _distinct([(leaf, _bytes_behind(leaf)) for leaf in created])


def _distinct(parts: Iterable[tuple[torch.Tensor, int]]) -> int:
    """Return the bytes of the parts, each a tensor and the bytes needed of it.

    Equal views count once, with the largest need; a storage counts at most with its size.
    """
    views: dict[int, dict[tuple[Any, ...], int]] = {}
    size: dict[int, int] = {}
    for tensor, needed in parts:
        storage = tensor.untyped_storage()
        known = views.setdefault(storage._cdata, {})
        known[_view(tensor)] = max(known.get(_view(tensor), 0), needed)
        size[storage._cdata] = storage.nbytes()
    return sum(min(sum(v.values()), size[key]) for key, v in views.items())


def _counting_mode(values: Values) -> Any:
    """Return a dispatch mode that logs reads and writes of operators. torch is imported late."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class CountingMode(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls: Counter[str] = Counter()
            self.elementwise = 0
            self.flops: Counter[str] = Counter()
            self.moved: Counter[str] = Counter()
            self.traffic = _Traffic()

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # Otherwise the first operator imports torch._dynamo, which takes seconds. torch's own
            # FlopCounterMode has that cost.
            return False

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            outs, ins = _tensors(out), _tensors((args, kwargs or {}))
            self.traffic.storages_in_use += outs
            if func.is_view:
                return out
            self.traffic.add_created(
                [t for t in outs if not any(_share_storage(t, i) for i in ins)]
            )
            if func.namespace == "prim" or name.startswith(FREE):
                return out
            self.calls[name] += 1
            is_aten = bool(outs) and func.namespace == "aten"
            partial = part_read(name, args, outs[0], values) if is_aten else None
            sizes, reads = [t.numel() for t in outs], []
            self.moved[name] += sum(map(_bytes_behind, outs))
            for tensor in ins:
                needed = asked = _bytes_behind(tensor)
                if partial is not None and tensor is partial.tensor:
                    needed = min(needed, partial.needed * tensor.element_size())
                    asked = partial.asked * tensor.element_size()
                self.moved[name] += asked
                sizes.append(asked // tensor.element_size())
                reads.append((tensor, needed))
            self.traffic.log(reads, outs, changing=func._schema.is_mutable)
            if formula := flop_registry.get(func.overloadpacket):
                self.flops[name] += int(formula(*args, **(kwargs or {}), out_val=out))
            elif (flops := _known_flops(name, args)) is not None:
                self.flops[name] += flops
            else:
                self.elementwise += max(sizes, default=0)
            return out

    return CountingMode()


def _known_flops(name: str, args: Any) -> int | None:
    """Return the operations of operators that torch's own registry lacks, two for each
    multiply-add."""
    if name in RECURRENT:
        inputs = args[0]
        weights = args[1:3] if name == "mkldnn_rnn_layer" else args[1]
        positions = inputs.numel() // inputs.shape[-1]
        return int(2 * positions * sum(w.numel() for w in weights if w.dim() == 2))
    if name == ATTENTION:
        query, key, value = args[:3]
        rows = query.numel() // query.shape[-1]
        return int(2 * rows * key.shape[-2] * (query.shape[-1] + value.shape[-1]))
    return None


def _tensors(tree: Any) -> list[torch.Tensor]:
    import torch

    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _share_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _view(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())


def _bytes_behind(tensor: torch.Tensor) -> int:
    """Return the bytes that a view reads; a dimension with stride 0 counts once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= 1 if stride == 0 else size
    return (0 if tensor.numel() == 0 else count) * tensor.element_size()


def matrix_unit(reference: Reference, work: Work) -> str:
    """Return the name of the fastest matrix rate that settings and precision admit.

    Call it after a run of the reference: the task's file or its constructor may change settings.
    """
    import torch

    half = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    tensors = _tensors(reference.inputs(0)) + list(reference.model(0).parameters())
    admitted = reference.task.precision
    if admitted in (Precision.BF16, Precision.FP16):
        return admitted.value
    names = {half[t.dtype] for t in tensors if t.dtype in half}
    if names:
        return sorted(names)[0]
    own = baseline_settings(read_settings(), admitted)
    kinds = {product_kind(name) for name in work.operators} - {""}
    tf32 = any(own.arithmetic(kind, reference.task.device) == "tf32" for kind in kinds)
    return "tf32" if tf32 or admitted is Precision.TF32 else "fp32"


def amount(value: float) -> str:
    """Return a number with a decimal prefix: 4.3 T, 12 M."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def seconds_text(seconds: float) -> str:
    """Return a time in the unit that reads best: 1.23 s, 4.5 ms, 67 us."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
