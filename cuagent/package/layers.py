"""Check that the module of another layer gives the results of the verified one.

Travels with an exported or applied kernel, next to `replacement.py`. Two layers of a model with a
cache differ in `layer_idx`, which names their part of the cache. Some models also compute with it
(a scale by the layer). So both modules run once for each verified shape, on random inputs, and
their results must be equal, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .boundary import Boundary
from .callform import CallForm
from .forms import Form

SEED = 7


def layer_difference(
    module: nn.Module,
    kind: Any,
    call: CallForm,
    boundaries: Sequence[Boundary],
    state: Sequence[Tensor],
    device: torch.device,
    autocast: str | None,
) -> str:
    """Return how the results of `module` differ from the verified original's, as a message, or "".

    `kind` is the class of the module, `call` the form of its calls, `state` its parameters and
    buffers on `device`, `autocast` the dtype of the recorded autocast.
    """
    for boundary in boundaries:
        try:
            inputs = [_drawn(form, device) for form in boundary.nesting.flat]
            with torch.no_grad(), _in_eval_mode(module):
                wanted = boundary.original.compute(inputs, state)
                args, named = call.arguments(inputs)
                dtype = None if autocast is None else getattr(torch, autocast)
                with torch.autocast(device.type, dtype, enabled=dtype is not None):
                    result = kind.forward(module, *args, **named)
                found = call.outputs(result, inputs, args, named)
        except Exception as error:  # noqa: BLE001  the user's module may raise any type
            line = str(error).strip().partition("\n")[0] or type(error).__name__
            return f"layer {call.layer} cannot be compared with the verified one ({line[:120]})"
        if len(found) != len(wanted) or not all(map(_same, found, wanted)):
            return f"layer {call.layer} computes something else than the verified one"
    return ""


def _same(one: Tensor, other: Tensor) -> bool:
    """Return True if two results are equal; NaN is equal to NaN, but not all may be NaN."""
    if one.dtype is not other.dtype or one.shape != other.shape:
        return False
    missing = one.isnan()
    if missing.any():
        if missing.all() or not torch.equal(missing, other.isnan()):
            return False
        one, other = one[~missing], other[~missing]
    return torch.equal(one, other)


def _drawn(form: Form, device: torch.device) -> Tensor:
    random = torch.Generator().manual_seed(SEED)
    reach = sum((n - 1) * step for n, step in zip(form.shape, form.stride, strict=True))
    size = max(1, 1 + reach)
    values = torch.randint(2, (size,), generator=random)
    if form.dtype.is_floating_point or form.complex:
        values = torch.randn(size, generator=random)
    return values.to(device, form.dtype).as_strided(form.shape, form.stride)


@contextmanager
def _in_eval_mode(module: nn.Module) -> Iterator[None]:
    modes = [(inner, inner.training) for inner in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for inner, mode in modes:
            inner.training = mode
