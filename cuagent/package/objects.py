"""Compare the objects in a call with the recorded ones, build such objects, and change them.

Travels with an exported or applied kernel, next to `callform.py`. A form is a nested tuple: of an
argument or a result, with ("tensor", n) for a tensor of the call and ("output", n) for a new one.
An object is compared by its class and all its attributes; of a cache, only the layer that the
module uses. torch.compile traces `taken`, so it uses plain tuples only.
"""

from __future__ import annotations

import enum
import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .likeness import original_of, same_class
from .state import Unsuitable

Form = tuple[Any, ...]
LAYER = "layer_idx"
"""Attribute that names a module's layer in a cache of the library transformers."""


def layer_of(module: nn.Module) -> int | None:
    """Return the attribute `layer_idx` of the submodules; None unless all that have it agree."""
    found = {vars(inner)[LAYER] for inner in module.modules() if LAYER in vars(inner)}
    (value, *others) = found or {None}
    return value if not others and type(value) is int and value >= 0 else None


def kinds_of(recorded: Sequence[dict[str, Any]], module: nn.Module, original: Any) -> list[Any]:
    """Return the classes and functions of a call's objects, as the file of `module` has them.

    `original` is the verified class, whose file has copies of the user's classes. Raises Unsuitable
    if one is missing or differs from its copy.
    """
    return [_kind(each, module, original) for each in recorded]


def _kind(recorded: dict[str, Any], module: nn.Module, original: Any) -> Any:
    name = f"{recorded['module']}.{recorded['name']}"
    if recorded["library"]:
        try:
            return _named(importlib.import_module(recorded["module"]), recorded["name"])
        except (ImportError, AttributeError) as error:
            raise Unsuitable(f"{name} is not installed") from error
    copies = sys.modules[original.__module__]
    inside = getattr(copies, "_modules", {}).get(recorded["module"], copies)
    own = sys.modules.get(original_of(module).__module__)
    for place in (own, sys.modules.get(recorded["module"])):
        try:
            found = _named(place, recorded["name"])
            copied = _named(inside, recorded["name"])
        except AttributeError:
            continue
        if isinstance(found, type) and same_class(found, copied):
            return found
    raise Unsuitable(f"the class {name} of its calls is not the verified one")


def _named(place: ModuleType | None, name: str) -> Any:
    found: Any = place
    for part in name.split("."):
        found = getattr(found, part)
    return found


def form_of(item: dict[str, Any], kinds: Sequence[Any]) -> Form:
    """Return a form of `verified.json` as nested tuples, with the classes in it."""
    (kind, value), *_ = item.items()
    match kind:
        case "list" | "tuple":
            return (kind, tuple(form_of(inner, kinds) for inner in value))
        case "dict" | "pairs":
            pairs = value.items() if kind == "dict" else value
            return ("dict", tuple((key, form_of(inner, kinds)) for key, inner in pairs))
        case "torch":
            return ("same", getattr(torch, value))
        case "device":
            return ("equal", torch.device(value))
        case "kind":
            return ("same", kinds[value])
        case "object" | "cache":
            held = tuple((key, form_of(inner, kinds)) for key, inner in item["items"].items())
            layer = (form_of(item["layer"], kinds),) if kind == "cache" else ()
            return (kind, kinds[value], held, *layer)
        case "call" | "node":
            items = tuple(form_of(inner, kinds) for inner in item["items"])
            made = kinds[value]
            if kind == "node":
                context = _built(form_of(item["context"], kinds), (), (), ())
                return (kind, made, items, context)
            if issubclass(made, enum.Enum):
                return ("same", made(*(_built(inner, (), (), ()) for inner in items)))
            return (kind, made, items)
    return (kind, value)


def taken(value: Any, form: Form, found: list[Any], layer: int | None) -> bool:
    """Store the tensors of an argument in `found`, at their input's index.

    Returns False if the argument does not have the recorded form. `layer` is the index of the
    module's layer in a cache.
    """
    kind, inner = form[0], form[1]
    if kind == "tensor":
        if not isinstance(value, Tensor):
            return False
        if found[inner] is not None and found[inner] is not value:
            return False
        found[inner] = value
        return True
    if kind == "const":
        return equal(value, inner)
    if kind == "same":
        return value is inner
    if kind == "equal":
        return type(value) is type(inner) and value == inner
    if kind == "dict":
        return type(value) is dict and _held(value, inner, found, layer)
    if kind == "list" or kind == "tuple":
        if type(value) is not (list if kind == "list" else tuple):
            return False
        return _each(value, inner, found, layer)
    if type(value) is not inner:
        return False
    if kind == "call":
        return _each(value, form[2], found, layer)
    if kind == "node":
        items, context = pytree.SUPPORTED_NODES[inner].flatten_fn(value)
        return context == form[3] and _each(list(items), form[2], found, layer)
    held = value.__dict__
    if kind == "object":
        return _held(held, form[2], found, layer)
    layers = held.get("layers")
    if layer is None or type(layers) is not list or not layer < len(layers):
        return False
    rest = {key: item for key, item in held.items() if key != "layers"}
    return _held(rest, form[2], found, layer) and taken(layers[layer], form[3], found, layer)


def _each(values: Any, forms: Any, found: list[Any], layer: int | None) -> bool:
    if len(values) != len(forms):
        return False
    pairs = zip(values, forms, strict=True)
    return all(taken(value, form, found, layer) for value, form in pairs)


def _held(values: Any, forms: Any, found: list[Any], layer: int | None) -> bool:
    if len(values) != len(forms):
        return False
    for key, form in forms:
        if key not in values or not taken(values[key], form, found, layer):
            return False
    return True


def equal(value: Any, other: Any) -> bool:
    """Return True if a value is the recorded constant, with the same type."""
    if value is None or other is None:
        return value is other
    if isinstance(value, Tensor):
        return False
    return type(value) is type(other) and bool(value == other)


class Values:
    """The values from which results and arguments are built by their forms."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor] = (),
        argument: Callable[[int], Any] | None = None,
        layer: int | None = None,
    ) -> None:
        """`tensors` are the inputs of the call, `outputs` its new tensors; `argument` returns an
        argument by its number; `layer` is the index of the module's layer in a cache."""
        self.tensors, self.outputs, self.argument, self.layer = tensors, outputs, argument, layer

    def built(self, form: Form) -> Any:
        """Return the value with this form."""
        return _built(form, self.tensors, self.outputs, self.argument, self.layer)


def _built(form: Form, tensors: Any, outputs: Any, argument: Any, layer: int | None = None) -> Any:
    def inner(part: Form) -> Any:
        return _built(part, tensors, outputs, argument, layer)

    kind, value = form[0], form[1]
    if kind == "tensor":
        return tensors[value]
    if kind == "output":
        return outputs[value]
    if kind == "argument":
        return argument(value)
    if kind == "list":
        return [inner(part) for part in value]
    if kind == "tuple":
        return tuple([inner(part) for part in value])
    if kind == "dict":
        return {key: inner(part) for key, part in value}
    if kind == "call":
        return value(*[inner(part) for part in form[2]])
    if kind == "node":
        items = [inner(part) for part in form[2]]
        return pytree.SUPPORTED_NODES[value].unflatten_fn(items, form[3])
    if kind == "object" or kind == "cache":
        made = value.__new__(value)
        for key, part in form[2]:
            setattr(made, key, inner(part))
        if kind == "cache":
            assert layer is not None
            made.layers = [None] * layer + [inner(form[3])]
        return made
    return value  # a constant


def change(target: Any, path: Sequence[Sequence[Any]], value: Any, layer: int | None) -> None:
    """Set the part of an object at `path` to `value`; a list keeps its identity."""
    if not path:
        target[:] = value
        return
    for step in path[:-1]:
        target = step_into(target, step, layer)
    name, key = path[-1]
    if name == "item":
        target[key] = value
        return
    now = getattr(target, key, None)
    if type(now) is list and type(value) is list:
        now[:] = value
    else:
        setattr(target, key, value)


def step_into(target: Any, step: Sequence[Any], layer: int | None) -> Any:
    """Return the part of an object that one step of a path names."""
    if step[0] == "layer":
        return target.layers[layer]
    return getattr(target, step[1]) if step[0] == "attr" else target[step[1]]


def outputs_in(value: Any, form: Form, found: dict[int, Any]) -> None:
    """Store the new tensors of a value with this form under their numbers."""
    kind, inner = form[0], form[1]
    if kind == "output":
        found.setdefault(inner, value)
    elif kind in ("list", "tuple"):
        for item, part in zip(value, inner, strict=True):
            outputs_in(item, part, found)
    elif kind == "dict":
        for key, part in inner:
            outputs_in(value[key], part, found)
    elif kind == "call":
        for item, part in zip(value, form[2], strict=True):
            outputs_in(item, part, found)
    elif kind == "node":
        items = pytree.SUPPORTED_NODES[inner].flatten_fn(value)[0]
        for item, part in zip(items, form[2], strict=True):
            outputs_in(item, part, found)
    elif kind == "object":
        for key, part in form[2]:
            outputs_in(value.__dict__[key], part, found)
