"""Compare the arguments of a call with the dtypes, shapes and values that a kernel was verified on.

Travels with an exported or applied kernel, next to `guard.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

ALIGNMENT = 16
"""Alignment in bytes that tensors must have, as in the verification; vector loads need it."""
STRIDED = torch.strided
SCALARS = (bool, int, float, str, type(None))
PLAIN = (Tensor, nn.Parameter, getattr(nn, "Buffer", nn.Parameter))
"""Tensor classes with ordinary memory; other subclasses may have no memory."""


class Form:
    """Verified dtype, shape and stride (in elements) of one input tensor."""

    __slots__ = ("complex", "contiguous", "dtype", "shape", "stride")

    def __init__(self, dtype: str, shape: list[int], stride: list[int]) -> None:
        self.dtype = getattr(torch, dtype)
        self.complex = self.dtype.is_complex
        self.shape = torch.Size(shape)
        self.stride = tuple(stride)
        packed, run = [], 1
        for size in reversed(shape):
            packed.append(run)
            run *= max(size, 1)
        self.contiguous = self.stride == tuple(reversed(packed))

    def fits(self, value: Any, device: torch.device) -> bool:
        """Return True if `value` is a plain tensor of this form on `device`."""
        return (
            value.__class__ in PLAIN
            and value.layout is STRIDED
            and not value.is_nested
            and value.dtype is self.dtype
            and value.shape == self.shape
            and value.device == device
            and (value.is_contiguous() if self.contiguous else value.stride() == self.stride)
            and not value.data_ptr() % ALIGNMENT
            and not value.is_neg()
            and not (self.complex and value.is_conj())
        )

    def __str__(self) -> str:
        text = f"{dtype_name(self.dtype)}{list(self.shape)}"
        return text if self.contiguous else f"{text} with strides {list(self.stride)}"


def nested(spec: dict[str, Any], tensors: Iterator[Any]) -> Any:
    """Build nested arguments from `spec`, a `cuagent.task.Spec`: constants as given there, and the
    next item of `tensors` in the place of each tensor.
    """
    match spec["kind"]:
        case "tensor":
            return next(tensors)
        case "const":
            return spec["value"]
    items = [nested(item, tensors) for item in spec["items"]]
    if spec["kind"] == "dict":
        return dict(zip(spec["keys"], items, strict=True))
    return items if spec["kind"] == "list" else tuple(items)


def matches(value: Any, form: Any, device: torch.device) -> bool:
    """Return True if each tensor in `value` has its verified form and all else its verified value.

    `form` is nested like `value`, with a `Form` for each tensor.
    """
    if isinstance(form, Form):
        return form.fits(value, device)
    if isinstance(form, (list, tuple)):
        kind = list if isinstance(form, list) else tuple
        return (
            isinstance(value, kind)
            and len(value) == len(form)
            and all(matches(v, f, device) for v, f in zip(value, form, strict=True))
        )
    if isinstance(form, dict):
        return (
            isinstance(value, dict)
            and value.keys() == form.keys()
            and all(matches(value[key], form[key], device) for key in form)
        )
    return type(value) is type(form) and value == form


def same(one: Any, other: Any) -> bool:
    """Return True if types and values are equal at every depth; lists and tuples count as equal."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if type(one) is not type(other):
        return False
    return one is other or (isinstance(one, (bool, int, float, str)) and one == other)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def is_strided(tensor: Tensor) -> bool:
    """Return True for a tensor with strides; `stride()` of a sparse or nested one raises."""
    return tensor.layout is torch.strided and not tensor.is_nested


def form_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return (dtype, shape, stride) to compare tensors by.

    A tensor without strides has its layout there. The stride of a dimension of size 1 has no effect
    and is given as 0.
    """
    if tensor.is_nested:
        return tensor.dtype, None, "nested"
    if not is_strided(tensor):
        return tensor.dtype, tuple(tensor.shape), tensor.layout
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    stride = tuple(step if size > 1 else 0 for size, step in pairs)
    return tensor.dtype, tuple(tensor.shape), stride


INTERNAL = frozenset((*nn.Module().__dict__, "_compiled_call_impl", "_is_hf_initialized"))
"""Names of attributes that torch, or the library transformers, sets on modules."""


def module_form(module: nn.Module) -> tuple[Any, ...]:
    """Return (class, number of forward hooks, True if forward was replaced, attributes).

    Attributes are those of the class with numbers, strings, None or tuples of these.
    """
    attributes = module.__dict__
    values = {
        key: value
        for key, value in attributes.items()
        if key not in INTERNAL
        and (
            value.__class__ in SCALARS
            or (value.__class__ is tuple and all(item.__class__ in SCALARS for item in value))
        )
    }
    hooks = len(attributes["_forward_hooks"]) + len(attributes["_forward_pre_hooks"])
    return module.__class__, hooks, "forward" in attributes, values


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without its prefix: `float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def required_text(form: Any, device: torch.device) -> str:
    """Return a verified form as text for messages, for a tensor with the device."""
    return f"{form} on {device}" if form.__class__ is Form else form_text(form)


def form_text(form: Any) -> str:
    """Return a form, or nested forms, as text for messages."""
    if form.__class__ is Form:
        return str(form)
    if isinstance(form, dict):
        return f"{{{', '.join(f'{key!r}: {form_text(item)}' for key, item in form.items())}}}"
    if isinstance(form, (list, tuple)):
        return f"[{', '.join(map(form_text, form))}]"
    return repr(form)


def value_text(value: Any) -> str:
    """Return a short description of an argument for messages."""
    if not isinstance(value, Tensor):
        text = repr(value) if isinstance(value, (bool, int, float, str)) else type(value).__name__
        return text[:60]
    if not is_strided(value):
        layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        return f"a {layout} tensor of {dtype_name(value.dtype)} on {value.device}"
    notes = [f"{dtype_name(value.dtype)}{list(value.shape)} on {value.device}"]
    if value.__class__ not in PLAIN:
        return f"{notes[0]} ({type(value).__name__})"
    notes += [] if value.is_contiguous() else [f"strides {list(value.stride())}"]
    notes += [f"not aligned to {ALIGNMENT} bytes"] if value.data_ptr() % ALIGNMENT else []
    return ", ".join(notes)
