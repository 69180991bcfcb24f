"""Record the operators that a reference calls, or replace their results, by a torch dispatch mode.

`record` lists the computing operators of one call, each with its module. `without_effect` replaces
the result of one operator at a time by other numbers, and returns the operators for which the
output stays the same. Views, creations of tensors and copies are not computing operators.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from cuagent.pieces import pieces
from cuagent.worker.operators import names_in

if TYPE_CHECKING:
    from torch import Tensor, nn

Run = Callable[[], list["Tensor"]]
COPIES = names_in(
    """
    clone copy_ _to_copy contiguous lift_fresh lift_fresh_copy detach alias _unsafe_view
    _reshape_copy _reshape_alias expand_copy view_copy
    """
)
"""Names of operators that copy elements without changing their values, dtype aside."""
CREATIONS = names_in(
    """
    empty zeros ones full arange scalar_tensor empty_like zeros_like ones_like full_like
    new_empty new_zeros new_ones new_full empty_strided new_empty_strided eye linspace
    _local_scalar_dense fill_ zero_ tril_indices triu_indices
    """
)
"""Names of operators that create a tensor whose values do not depend on other tensors' values."""
UNCHANGED = 1e-5
"""Largest difference that is regarded as roundoff, relative to the largest absolute output."""


@dataclass(frozen=True)
class Operator:
    """One call of a computing operator in the reference."""

    name: str
    """Operator name without namespace and overload, for instance `addmm`."""
    module: str
    """Path of the innermost module that called the operator; "" for the model itself."""
    attributes: tuple[tuple[str, int], ...] = ()
    """(name, value) pairs of a convolution: `dimensions`, `transposed`, `depthwise`; empty for
    other operators."""
    same: bool = False
    """True if the operator's result equals its first tensor argument."""

    @property
    def label(self) -> str:
        return f"{self.name} in {self.module}" if self.module else self.name


def record(model: nn.Module, run: Run) -> list[Operator]:
    """Return the computing operators (no views, copies or creations) of one call of `model`, in
    order."""
    mode = _Recorder()
    with _modules_tracked(model, mode.modules), mode:
        run()
    return mode.operators


def without_effect(
    operators: Sequence[Operator], run: Run, expected: Sequence[Tensor], budget_s: float
) -> tuple[list[int], int]:
    """Return (indices of operators without effect on the output, number of operators tested).

    `run` calls the reference, `expected` is its normal output, `budget_s` the time limit in
    seconds.
    """
    found: list[int] = []
    deadline = time.monotonic() + budget_s
    for index in range(len(operators)):
        if time.monotonic() > deadline:
            return found, index
        mode = _Disturber(index)
        try:
            with mode:
                output = run()
        except (RuntimeError, ValueError, IndexError):
            continue  # later operators fail on the replaced numbers, so the result has an effect
        if mode.disturbed and unchanged(output, expected):
            found.append(index)
    return found, len(operators)


def unchanged(output: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Return True if all outputs equal the expected ones up to roundoff (`UNCHANGED`)."""
    return all(_near(a, b) for a, b in zip(output, expected, strict=True))


def _near(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.is_floating_point() or not a.numel():
        return all(bool((x == y).all()) for x, y in pieces(a, b))
    limit = UNCHANGED * max(float(y.nan_to_num(0, 0, 0).abs().max()) for (y,) in pieces(b))
    return all(_differs_by(x, y) <= limit for x, y in pieces(a, b))


def _differs_by(a: Tensor, b: Tensor) -> float:
    """Return the largest |a - b| over finite elements; inf if other elements are finite."""
    if not bool((a.isfinite() == b.isfinite()).all()):
        return float("inf")
    return float((a.nan_to_num(0, 0, 0) - b.nan_to_num(0, 0, 0)).abs().max())


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Operator] = []
        self.modules: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func)
        if not computes(func):
            return func(*args, **(kwargs or {}))
        first = next(iter(_tensors(args)), None)
        # An operator in place overwrites its argument before it can be compared.
        kept = first.clone() if first is not None and func._schema.is_mutable else first
        output = func(*args, **(kwargs or {}))
        same = kept is not None and _equal(output, kept)
        module = self.modules[-1] if self.modules else ""
        self.operators.append(Operator(name, module, _attributes(name, args), same))
        return output


class _Disturber(TorchDispatchMode):
    """Dispatch mode that replaces the floating-point results of the computing operator number
    `index` by other numbers."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.left = index
        self.disturbed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if computes(func):
            if self.left == 0:
                for tensor in _tensors((output,)):
                    if tensor.is_floating_point() and tensor.numel():
                        _disturb(tensor)
                        self.disturbed = True
            self.left -= 1
        return output


def _disturb(tensor: Tensor) -> None:
    """Replace the numbers of a tensor in place by random ones of similar size."""
    import torch

    finite = tensor.nan_to_num(0, 0, 0)
    size = float(finite.abs().max()) or 1.0
    # The sign and the order of the numbers change too, because some operators read only those.
    tensor.copy_(torch.randn_like(tensor) * size - finite)


def name_of(func: Any) -> str:
    """Return the name of an operator without namespace and overload."""
    return str(func._schema.name.partition("::")[2])


def computes(func: Any) -> bool:
    """Return True if an operator computes new numbers: it is not a view, copy or creation."""
    name = name_of(func)
    return not (func.is_view or name in COPIES or name in CREATIONS)


def _equal(output: Any, first: Tensor) -> bool:
    import torch

    return (
        isinstance(output, torch.Tensor)
        and output.shape == first.shape
        and output.dtype == first.dtype
        and torch.equal(output, first)
    )


def _attributes(name: str, args: Sequence[Any]) -> tuple[tuple[str, int], ...]:
    """Return (name, value) pairs of a convolution: dimensions, transposed, depthwise; () for other
    operators."""
    if name not in ("convolution", "_convolution", "convolution_overrideable"):
        return ()
    weight, transposed, groups = args[1], args[6], args[8]
    depthwise = groups > 1 and groups == args[0].shape[1]
    return (
        ("dimensions", weight.dim() - 2),
        ("transposed", int(transposed)),
        ("depthwise", int(depthwise)),
    )


def _tensors(values: Any) -> Iterator[Tensor]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


@contextmanager
def _modules_tracked(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keep the paths of the running modules in `stack` inside this context, the innermost last."""

    def entering(path: str) -> Callable[..., None]:
        return lambda *_: stack.append(path)

    def leaving(*_: Any) -> None:
        stack.pop()

    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(entering(path)))
        handles.append(module.register_forward_hook(leaving, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
