"""Compare a call with the verified forms while a graph is traced.

Travels with an exported or applied kernel, next to `replace.py`. torch.compile traces these
functions, so they use plain tuples and attributes of tensors only. Each value that they read
becomes a guard of the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .forms import Form


def static_form(form: Any) -> tuple[Any, ...]:
    """Return a verified argument as nested plain tuples.

    A tensor is ("tensor", dtype, shape, stride), with None for the stride of a contiguous one.
    """
    if form.__class__ is Form:
        stride = None if form.contiguous else form.stride
        return ("tensor", form.dtype, tuple(form.shape), stride)
    if isinstance(form, dict):
        return ("dict", tuple(form), tuple(static_form(item) for item in form.values()))
    if isinstance(form, (list, tuple)):
        return ("list", type(form), tuple(static_form(item) for item in form))
    return ("value", form)


def shape_in_graph(module: nn.Module, args: tuple[Any, ...], package: Any) -> int:
    """Return the index in `package.static` of the verified arguments that the call has; -1 if the
    call is not a verified one."""
    on = torch.is_autocast_enabled(package.device)
    if on != (package.autocast is not None):
        return -1
    if on and torch.get_autocast_dtype(package.device) != getattr(torch, package.autocast):
        return -1
    if package.mode_matters:
        for inner in module.modules():
            if inner.training:
                return -1
    for number, forms in enumerate(package.static):
        if len(args) == len(forms) and _all_match(args, forms, package.device):
            return number
    return -1


def wants_gradients_in_graph(module: nn.Module, args: tuple[Any, ...]) -> bool:
    """Return True if gradients are enabled and an argument or a parameter requires one."""
    if not torch.is_grad_enabled():
        return False
    for tensor in module.parameters():
        if tensor.requires_grad:
            return True
    return any(isinstance(value, Tensor) and value.requires_grad for value in args)


def _all_match(args: tuple[Any, ...], forms: tuple[Any, ...], device: str) -> bool:
    return all(_matches(value, form, device) for value, form in zip(args, forms, strict=True))


def _has_sizes(value: Tensor, sizes: tuple[int, ...]) -> bool:
    """Return True if the tensor has these sizes.

    A dimension that torch.export keeps dynamic has no size: a comparison would make it static.
    """
    if not _is_exporting():
        return tuple(value.shape) == sizes
    if value.ndim != len(sizes):
        return False
    for number, size in enumerate(sizes):
        if not statically_known_true(value.shape[number] == size):
            return False
    return True


def _matches(value: Any, form: tuple[Any, ...], device: str) -> bool:
    if form[0] == "tensor":
        if not isinstance(value, Tensor) or value.dtype != form[1]:
            return False
        if value.device.type != device or not _has_sizes(value, form[2]):
            return False
        return value.is_contiguous() if form[3] is None else tuple(value.stride()) == form[3]
    if form[0] == "dict":
        if not isinstance(value, dict) or tuple(value) != form[1]:
            return False
        return all(
            _matches(value[key], inner, device) for key, inner in zip(*form[1:], strict=True)
        )
    if form[0] == "list":
        if not isinstance(value, form[1]) or len(value) != len(form[2]):
            return False
        return all(
            _matches(item, inner, device) for item, inner in zip(value, form[2], strict=True)
        )
    return type(value) is type(form[1]) and value == form[1]


_is_exporting: Any = getattr(torch.compiler, "is_exporting", lambda: False)  # torch 2.6 has none
