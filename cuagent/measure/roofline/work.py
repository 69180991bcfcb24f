"""Count the work of a task: its compulsory bytes and its operations.

The work is counted by running the reference under a dispatch mode on fake tensors, or on real ones
if the module reads values. Compulsory traffic is every input and weight read once and every output
written once; an implementation's traffic for intermediate tensors does not count.

Not covered: special functions, operators in UNCOUNTED.

Invariant: the compulsory traffic of inputs and outputs never exceeds what a correct implementation
must move. The traffic of weights and the operations are those of the reference's algorithm. Another
algorithm (Winograd, folding, sums of weights that are computed once) may need fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cuagent.measure.roofline import recurrent
from cuagent.measure.roofline.model import OperatorWork, Work
from cuagent.measure.roofline.reads import Values, part_read
from cuagent.measure.roofline.traffic import Traffic, bytes_behind, share_storage
from cuagent.task.reference import Reference
from cuagent.task.settings import baseline_settings, read_settings
from cuagent.task.task import Precision, TaskError
from cuagent.task.tree import flatten
from cuagent.verify.trace.reductions import product_kind

if TYPE_CHECKING:
    import torch

RECURRENT = ("mkldnn_rnn_layer", "_cudnn_rnn")
"""Operators that compute a whole LSTM, GRU or RNN layer. Each weight matrix is multiplied once per
position of the sequence."""
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
UNCOUNTED = ("linalg_", "_linalg_", "_fft_", "_cdist", "miopen_rnn", "_int_mm", "_weight_int")
"""Prefixes of operators whose operations are not counted."""
FREE = ("empty", "detach", "alias", "lift_fresh", "_unsafe_view", "sym_", "is_")
"""Prefixes of operators that neither move data nor compute."""


def count_work(reference: Reference) -> Work:
    """Run the reference once and count its work; on fake tensors, without arithmetic, if
    possible."""
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
    """Return the real tensors of indices (all that are not floating), by the storage address of the
    fake tensors that stand for them."""
    pairs = zip(tensors_in(real), tensors_in(fake), strict=True)
    return {f.untyped_storage()._cdata: r for r, f in pairs if not r.is_floating_point()}


def count_calls(
    model: Callable[..., Any], inputs: list[Any], values: Values = MappingProxyType({})
) -> Work:
    """Call `model` once under the counting dispatch mode and return its work.

    If `inputs` are fake tensors, `values` has the real values of those that may be used as indices.
    """
    import torch

    counter = _counting_mode(values)
    with torch.no_grad(), counter, _recurrent_layers(counter):
        outputs, _ = flatten(model(*inputs), "output")
    return Work(
        bytes_in=counter.traffic.compulsory(outputs),
        bytes_inputs=counter.traffic.compulsory(outputs, tensors_in(inputs)),
        bytes_out=counter.traffic.written(outputs),
        matrix_flops=counter.flops.total(),
        other_flops=counter.elementwise,
        operators={
            name: OperatorWork(calls, counter.moved[name], counter.flops[name])
            for name, calls in counter.calls.items()
        },
        uncounted=tuple(sorted(name for name in counter.calls if name.startswith(UNCOUNTED))),
    )


def _counting_mode(values: Values) -> Any:
    """Return a torch dispatch mode that logs the reads and writes of each operator."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class CountingMode(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls: Counter[str] = Counter()
            self.elementwise = 0
            self.flops: Counter[str] = Counter()
            self.moved: Counter[str] = Counter()
            self.traffic = Traffic()

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
            outs, ins = tensors_in(out), tensors_in((args, kwargs or {}))
            self.traffic.storages_in_use += outs
            if func.is_view:
                return out
            self.traffic.add_created([t for t in outs if not any(share_storage(t, i) for i in ins)])
            if func.namespace == "prim" or name.startswith(FREE):
                return out
            self.calls[name] += 1
            is_aten = bool(outs) and func.namespace == "aten"
            partial = part_read(name, args, outs[0], values) if is_aten else None
            sizes, reads = [t.numel() for t in outs], []
            self.moved[name] += sum(map(bytes_behind, outs))
            for tensor in ins:
                needed = asked = bytes_behind(tensor)
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


def _recurrent_layers(counter: Any) -> Any:
    """Return a torch function mode that counts a recurrent module on fake tensors as one operator,
    without running its steps: six layers of a GRU with 512 steps are 58,000 operators and took
    71 s.

    A packed sequence runs as it is.
    """
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.overrides import TorchFunctionMode

    class RecurrentLayers(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(func, "__name__", "")
            whole = name in recurrent.FUNCTIONS and len(args) == len(recurrent.ARGUMENTS)
            whole = whole and isinstance(args[3], bool)  # a packed sequence has its weights there
            if not (whole and isinstance(args[0], FakeTensor)):
                return func(*args, **(kwargs or {}))
            call = dict(zip(recurrent.ARGUMENTS, args, strict=True))
            outs = recurrent.empty_outputs(name, call)
            ins = tensors_in(args)
            counter.traffic.storages_in_use += outs
            counter.traffic.add_created(outs)
            counter.traffic.log([(t, bytes_behind(t)) for t in ins], outs, changing=False)
            counter.calls[name] += 1
            counter.moved[name] += sum(map(bytes_behind, [*ins, *outs]))
            counter.flops[name] += _recurrent_flops(call["input"], call["parameters"])
            return tuple(outs)

    return RecurrentLayers()


def _recurrent_flops(inputs: torch.Tensor, weights: Any) -> int:
    """Return the operations of recurrent layers: two for each weight of a matrix and position."""
    positions = inputs.numel() // inputs.shape[-1]
    return int(2 * positions * sum(w.numel() for w in weights if w.dim() == 2))


def _known_flops(name: str, args: Any) -> int | None:
    """Return the operations of an operator that torch's own registry lacks, two for each
    multiply-add; None if unknown."""
    if name in RECURRENT:
        return _recurrent_flops(args[0], args[1:3] if name == "mkldnn_rnn_layer" else args[1])
    if name == ATTENTION:
        query, key, value = args[:3]
        rows = query.numel() // query.shape[-1]
        return int(2 * rows * key.shape[-2] * (query.shape[-1] + value.shape[-1]))
    return None


def tensors_in(tree: Any) -> list[torch.Tensor]:
    import torch

    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def matrix_unit(reference: Reference, work: Work) -> str:
    """Return the precision of the fastest matrix rate that torch's settings and the task admit.

    Call it after a run of the reference: the task's file or its constructor may change settings.
    """
    import torch

    half = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    tensors = tensors_in(reference.inputs(0)) + list(reference.model(0).parameters())
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
