"""The floor of a task: the bytes it must move and the operations it does, over the ceilings.

Counted by running the reference under a dispatch mode on fake tensors (real ones where it looks at
values). Compulsory traffic is every input and weight read once and every output written once,
whatever the implementation moves in between. Not covered: caches (see `Roofline.firm`), special
functions, launch overhead. Invariant: what is counted as compulsory never exceeds what a right
implementation must move; the operations are those of the reference's own algorithm, which another
algorithm (Winograd, folding) may undercut, so only the memory floor is a bound.
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
from cuagent.task.task import Precision, TaskError
from cuagent.task.tree import flatten
from cuagent.timing import Floor

if TYPE_CHECKING:
    import torch

SUSPECT = 0.9
"""A time under this share of the memory floor is not believed; the rest is noise of the ceiling."""


@dataclass(frozen=True)
class OperatorWork:
    """All calls of one operator; bytes are of its arguments and results, as eager moves them."""

    calls: int
    bytes: int
    flops: int
    """Of the matrix kind."""


@dataclass(frozen=True)
class Work:
    """What one call of the reference asks for."""

    bytes_in: int
    """Inputs and weights that are read, each once."""
    bytes_out: int
    """Outputs that are not views of inputs."""
    matrix_flops: int
    """Multiply-adds of products, convolutions and attention, two each."""
    other_flops: int
    """One for each element that any other operator makes, reduces or both: a rough count."""
    operators: dict[str, OperatorWork] = field(default_factory=dict)
    """By name, views left out: what eager launches."""
    uncounted: tuple[str, ...] = ()
    """Operators whose arithmetic is not counted: a floor by compute is too low by it."""

    @property
    def bytes(self) -> int:
        return self.bytes_in + self.bytes_out

    @property
    def bytes_eager(self) -> int:
        """What moves where every operator runs alone."""
        return sum(operator.bytes for operator in self.operators.values())

    @staticmethod
    def from_json(data: dict[str, Any]) -> Work:
        operators = {name: OperatorWork(**fields) for name, fields in data["operators"].items()}
        return Work(**(data | {"operators": operators, "uncounted": tuple(data["uncounted"])}))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Roofline:
    """Work against the ceilings of one device. Seconds."""

    work: Work
    ceilings: Ceilings
    unit: str
    """The matrix rate that applies: fp32, tf32, bf16, fp16."""

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
        """Whether the memory floor holds even where data may stay in the last-level cache."""
        return self.work.bytes > 2 * self.ceilings.cache_bytes

    def share(self, seconds: float) -> float:
        """Of the roofline: 1 is at the floor."""
        return self.floor / seconds

    def suspect(self, seconds: float) -> bool:
        """Faster than memory allows: somebody did not do the work."""
        return self.firm and self.ceilings.calm and seconds < SUSPECT * self.memory_seconds

    @property
    def timing_floor(self) -> Floor:
        """What a timing needs of this."""
        memory = SUSPECT * self.memory_seconds if self.firm and self.ceilings.calm else 0.0
        return Floor(self.floor, self.bound, memory)

    def beaten(self, seconds: float) -> bool:
        """Faster than the ceilings allow, for whatever reason: they are to be measured again."""
        return seconds < self.floor

    def line(self, seconds: float | None = None) -> str:
        """One line for a person or an agent."""
        if not self.floor and not self.work.uncounted:
            return "no floor: nothing has to be moved or computed"
        rate = amount(self.ceilings.rate(self.unit))
        other = self.work.other_flops
        others = (
            f" and {amount(rest)}FLOP of other kinds" if other and self.bound == "compute" else ""
        )
        text = (
            f"floor {seconds_text(self.floor)} ({self.bound}: "
            f"{amount(self.work.bytes)}B compulsory at {amount(self.ceilings.copy)}B/s, "
            f"{amount(self.work.matrix_flops)}FLOP at {rate}FLOP/s {self.unit}{others})"
        )
        if self.work.uncounted:
            text += f", arithmetic of {', '.join(self.work.uncounted)} not counted"
        return text if seconds is None else f"{self.share(seconds):.0%} of the roofline; {said}"


def roofline(reference: Reference, ceilings: Ceilings) -> Roofline:
    """Count the reference's work on inputs of seed 0. Raises TaskError where it does not run."""
    return Roofline(count_work(reference), ceilings, matrix_unit(reference))


def count_work(reference: Reference) -> Work:
    """Run the reference once, without arithmetic where it allows that, and count."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    model, inputs = reference.model(0), reference.inputs(0)
    # What a module may do with its values (branch on them, index by them) has no common error
    # type; the run on real tensors below then tells what is wrong, if anything is.
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
    """What indices may be among, by the storage of its fake."""
    pairs = zip(_tensors(real), _tensors(fake), strict=True)
    return {f.untyped_storage()._cdata: r for r, f in pairs if not r.is_floating_point()}


def count_calls(
    model: Callable[..., Any], inputs: list[Any], values: Values = MappingProxyType({})
) -> Work:
    """Call `model` once under the dispatch mode; its tensors may be fake, with `values` known."""
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
"""Whole layers of an LSTM, GRU or RNN: every weight matrix meets every position once."""
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
UNCOUNTED = ("linalg_", "_linalg_", "_fft_", "_cdist", "miopen_rnn", "_int_mm", "_weight_int")
"""Beginnings of operators whose arithmetic nobody here counts."""
FREE = ("empty", "detach", "alias", "lift_fresh", "_unsafe_view", "sym_", "is_")


class _Traffic:
    """What operators read and write, and what of it the outputs of a call hang on."""

    def __init__(self) -> None:
        self.storages_in_use: list[torch.Tensor] = []
        """Storages are told apart by identity, so none may be freed and its place reused."""
        self.created: set[int] = set()
        self.operators_run: list[tuple[set[int], list[tuple[torch.Tensor, int]]]] = []
        """What each operator writes, by storage, and reads; it is needed if it writes none."""

    def add_created(self, fresh: list[torch.Tensor]) -> None:
        """These were not there before the call."""
        self.created.update(t.untyped_storage()._cdata for t in fresh)

    def log(
        self,
        reads: list[tuple[torch.Tensor, int]],
        outs: list[torch.Tensor],
        *,
        changing: bool,
    ) -> None:
        """One operator, with the bytes that it needs of each tensor; `changing` some of them."""
        self.storages_in_use += [tensor for tensor, _ in reads]
        changed = [tensor for tensor, _ in reads] if changing else []
        writes = {t.untyped_storage()._cdata for t in [*outs, *changed]}
        # What was there before the call and is changed is wanted, whoever looks at it.
        self.operators_run.append((writes if writes <= self.created else set(), reads))

    def compulsory(self, outputs: list[torch.Tensor]) -> int:
        """Bytes of what was there before the call and the outputs hang on."""
        needed_storages = {leaf.untyped_storage()._cdata for leaf in outputs}
        needed: list[tuple[torch.Tensor, int]] = []
        for writes, reads in reversed(self.operators_run):
            if writes and not writes & needed_storages:
                continue
            needed_storages |= {tensor.untyped_storage()._cdata for tensor, _ in reads}
            needed += [(t, n) for t, n in reads if t.untyped_storage()._cdata not in self.created]
        return _distinct(needed)

    def written(self, outputs: list[torch.Tensor]) -> int:
        """Bytes of results that were not there before the call."""
        created = [x for x in outputs if x.untyped_storage()._cdata in self.created]
        return _distinct([(leaf, _bytes_behind(leaf)) for leaf in created])


def _distinct(parts: Iterable[tuple[torch.Tensor, int]]) -> int:
    """Bytes of distinct views, of each the most that is needed, together at most their storage."""
    views: dict[int, dict[tuple[Any, ...], int]] = {}
    size: dict[int, int] = {}
    for tensor, needed in parts:
        storage = tensor.untyped_storage()
        known = views.setdefault(storage._cdata, {})
        known[_view(tensor)] = max(known.get(_view(tensor), 0), needed)
        size[storage._cdata] = storage.nbytes()
    return sum(min(sum(v.values()), size[key]) for key, v in views.items())


def _counting_mode(values: Values) -> Any:
    """A dispatch mode that notes what every operator reads and makes (torch is imported late)."""
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
            # Else the first operator imports torch._dynamo, which takes seconds; nor does torch's
            # own FlopCounterMode do without it.
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
            self.traffic.add_created([t for t in outs if not any(_share_storage(t, i) for i in ins)])
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
    """Multiply-adds of operators that torch's own registry does not know, two each."""
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
    """Bytes behind a view; what is only expanded counts once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= 1 if stride == 0 else size
    return (0 if tensor.numel() == 0 else count) * tensor.element_size()


def matrix_unit(reference: Reference) -> str:
    """The matrix rate that the task's precision admits."""
    import torch

    half = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    tensors = _tensors(reference.inputs(0)) + list(reference.model(0).parameters())
    admitted = reference.task.precision
    if admitted in (Precision.BF16, Precision.FP16):
        return admitted.value
    names = {half[t.dtype] for t in tensors if t.dtype in half}
    if names:
        return sorted(names)[0]
    return "tf32" if admitted is Precision.TF32 else "fp32"


def amount(value: float) -> str:
    """A number with a decimal prefix: 4.3 T, 12 M."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def seconds_text(seconds: float) -> str:
    """A time in the unit that reads best: 1.23 s, 4.5 ms, 67 us."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
