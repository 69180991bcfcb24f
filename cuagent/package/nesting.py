"""Convert the nested arguments of a verified call to a flat list of tensors, and back.

Travels with an exported or applied kernel, next to `boundary.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .forms import Form


class Nesting:
    """The arguments of a verified call, nested, with a `Form` for each tensor."""

    def __init__(self, forms: Any) -> None:
        self._forms = forms
        self.flat = _tensor_forms(forms)
        """Forms of the tensors, in the order of `tensors`."""
        self.is_flat = all(form.__class__ is Form for form in forms)
        """True if each argument is a tensor."""

    def tensors(self, args: tuple[Any, ...]) -> list[Tensor]:
        """Return the tensors in the nested arguments of a verified call, as a flat list."""
        if self.is_flat:
            return list(args)
        found: list[Tensor] = []
        _collect(args, self._forms, found)
        return found

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """Return the nested arguments of a verified call that contain these tensors, in order."""
        if self.is_flat:
            return tuple(tensors)
        given = iter(tensors)
        return tuple(_filled(form, given) for form in self._forms)

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Return True if each tensor has its verified form, on the device where it is."""
        return len(tensors) == len(self.flat) and all(
            form.fits(tensor, tensor.device)
            for form, tensor in zip(self.flat, tensors, strict=True)
        )


def _tensor_forms(form: Any) -> list[Form]:
    if form.__class__ is Form:
        return [form]
    items = form.values() if isinstance(form, dict) else form
    if not isinstance(form, (dict, list, tuple)):
        return []
    return [found for item in items for found in _tensor_forms(item)]


def _collect(value: Any, form: Any, found: list[Tensor]) -> None:
    if form.__class__ is Form:
        found.append(value)
    elif isinstance(form, (list, tuple)):
        for item, inner in zip(value, form, strict=True):
            _collect(item, inner, found)
    elif isinstance(form, dict):
        for key, inner in form.items():
            _collect(value[key], inner, found)


def _filled(form: Any, tensors: Any) -> Any:
    if form.__class__ is Form:
        return next(tensors)
    if isinstance(form, dict):
        return {key: _filled(item, tensors) for key, item in form.items()}
    if isinstance(form, (list, tuple)):
        return type(form)(_filled(item, tensors) for item in form)
    return form
