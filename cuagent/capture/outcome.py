"""Describe the result of a recorded call and its changes to the objects in its arguments.

A task's module is a function of tensors. So its forward returns the new tensors of the result and
those that the call stored in objects (a cache); an exported package puts them back in place. A
tensor that the call changes in place is copied by the task, whose forward returns the changed copy;
the package writes it into the user's tensor. This code runs in the user's process.
Not covered: a tensor that is changed in place and shares memory with another argument, and an
object that the call replaced by another one of the same class with other references to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuagent.capture.calls import OUTPUT, PLACE, Call, refuse_unusual, same_view
from cuagent.capture.callspec import Form, Forms, call_spec
from cuagent.capture.encode import Encoder, Unsupported

if TYPE_CHECKING:
    from torch import Tensor

Step = list[Any]
"""One step into an object: ["attr", name], ["item", index or key] or ["layer"]."""


@dataclass(frozen=True)
class Outcome:
    """The result of a call and its effects, in the forms of `callspec`."""

    spec: Form
    """The arguments and `kinds`; also `result`, `effects` and `copies`, unless the call returns
    nothing but tensors and changes no argument."""
    values: tuple[str, ...] | None
    """Expressions for the new tensors, of `result`, `argument_N` and inputs; None if the module's
    result is the task's as it is."""

    @property
    def in_place(self) -> list[int]:
        """Numbers of the inputs that the call changes in place."""
        return [number for number, _ in self.spec.get("copies", ())]


def marks(call: Call) -> list[tuple[str, Tensor, object]]:
    """Return (name, tensor, mark) of each tensor in the arguments; the mark changes if the values
    do."""
    pairs = zip(call.names, call.tensors, strict=True)
    return [(name, tensor, _mark(tensor)) for name, tensor in pairs]


def describe_outcome(
    call: Call,
    before: Sequence[tuple[str, Tensor, object]],
    arguments: Sequence[Any],
    output: Any,
    is_library: Callable[[str], bool],
) -> tuple[Outcome, list[Tensor]]:
    """Return the outcome of a call and its new tensors.

    `before` are the `marks` from before the call; `arguments` those by position, then those by
    name. Raises Unsupported, ValueError or SyntaxError if a package could not repeat the call.
    """
    changed = [n for n, (_, tensor, mark) in enumerate(before) if _mark(tensor) != mark]
    if changed and call.aliases:
        name = before[changed[0]][0]
        raise Unsupported(f"{name}, which is changed in place ({call.aliases[0]})")
    found: list[Tensor] = []

    def text(value: Tensor) -> str:
        refuse_unusual(value)
        for mark, known in ((PLACE, call.tensors), (OUTPUT, found)):
            for number, tensor in enumerate(known):
                if tensor is value or same_view(tensor, value):
                    return mark.format(number)
        found.append(value)
        return OUTPUT.format(len(found) - 1)

    forms = Forms(is_library)
    spec = call_spec(call, forms)
    known = {id(x): f"__argument_{n}" for n, x in enumerate(arguments) if _is_object(x)}
    result = forms.read(Encoder(is_library, text, known=known)(output))
    encode = Encoder(is_library, text, layer=call.layer)
    effects = []
    for number, (then, value) in enumerate(
        zip((*call.positional, *call.named.values()), arguments, strict=True)
    ):
        if (now := encode(value)) != then:
            changes = _changes(forms.read(then), forms.read(now), [])
            effects += [[number, *change] for change in changes]
    if not (effects or changed) and _holds_tensors_only(result, set()):
        return Outcome(spec | {"kinds": forms.kinds}, None), found
    extra = {"result": result, "effects": effects}
    places: dict[int, str] = {}
    if changed:
        extra["copies"] = [[number, len(found) + k] for k, number in enumerate(changed)]
        places = {len(found) + k: call.names[number] for k, number in enumerate(changed)}
        found += [call.tensors[number] for number in changed]
    _find("result", result, call.layer, places)
    for number, path, form in effects:
        _find(_expression(f"argument_{number}", path, call.layer), form, call.layer, places)
    values = tuple(places[number] for number in range(len(found)))
    return Outcome(spec | extra | {"kinds": forms.kinds}, values), found


def _is_object(value: Any) -> bool:
    import torch

    return not isinstance(value, torch.Tensor | type) and (
        isinstance(value, list | dict) or hasattr(value, "__dict__")
    )


def _mark(tensor: Tensor) -> object:
    """Return the version counter of a tensor; a hash of an inference tensor, which has none."""
    import torch

    if not tensor.is_inference():
        return tensor._version
    values = tensor.detach().cpu().contiguous().view(-1)
    return hash(values.view(torch.uint8).numpy().tobytes()) if values.numel() else 0


def _holds_tensors_only(form: Form, seen: set[int]) -> bool:
    """Return True for nested lists, tuples and dicts of distinct new tensors."""
    if "output" in form:
        if form["output"] in seen:
            return False
        seen.add(form["output"])
        return True
    for kind in ("list", "tuple"):
        if kind in form:
            return all(_holds_tensors_only(item, seen) for item in form[kind])
    return "dict" in form and all(_holds_tensors_only(x, seen) for x in form["dict"].values())


def _changes(before: Form, after: Form, path: list[Step]) -> list[list[Any]]:
    """Return [path, new form] of each part of an object that a call changed.

    Raises ValueError for a change that cannot be repeated on the user's object.
    """
    if before == after:
        return []
    found: list[list[Any]] = []
    inside = _inside(before, after)
    if inside is None:
        if path[-1:] == [["layer"]] or not (path or ("list" in before and "list" in after)):
            raise ValueError("an argument was changed in a way that a package cannot repeat")
        return [[path, after]]
    for step, one, other in inside:
        found += [[[*path, step], other]] if one is None else _changes(one, other, [*path, step])
    return found


def _inside(before: Form, after: Form) -> list[tuple[Step, Form | None, Form]] | None:
    """Return (step, form before or None, form after) of the parts of an object; None if the
    object itself must be replaced."""
    if "list" in before and "list" in after and len(before["list"]) == len(after["list"]):
        pairs = zip(before["list"], after["list"], strict=True)
        return [(["item", n], one, other) for n, (one, other) in enumerate(pairs)]
    for name, step in (("dict", "item"), ("pairs", "item"), ("object", "attr"), ("cache", "attr")):
        if name not in before or name not in after:
            continue
        held = "items" if name in ("object", "cache") else name
        if name != held and before[name] != after[name]:
            return None
        ours, theirs = dict(before[held]), dict(after[held])
        if not ours.keys() <= theirs.keys():
            return None
        parts = [([step, key], ours.get(key), form) for key, form in theirs.items()]
        layers = [(["layer"], before["layer"], after["layer"])] if name == "cache" else []
        return [*parts, *layers]
    return None


def _find(expression: str, form: Form, layer: int | None, places: dict[int, str]) -> None:
    """Store the expression of each new tensor in `form` under its number."""
    if "output" in form:
        places.setdefault(form["output"], expression)
    for step, inner in _parts(form):
        _find(_expression(expression, [step], layer), inner, layer, places)


def _parts(form: Form) -> list[tuple[Step, Form]]:
    if "dict" in form:
        return [(["item", key], inner) for key, inner in form["dict"].items()]
    if "pairs" in form:
        return [(["item", key], inner) for key, inner in form["pairs"]]
    if "object" in form or "cache" in form:
        attributes = [(["attr", key], inner) for key, inner in form["items"].items()]
        return [*attributes, *([(["layer"], form["layer"])] if "cache" in form else [])]
    if "node" in form:
        named = form["context"].get("list")
        keys = [key.get("const") for key in named or ()]
        if len(keys) == len(form["items"]) and all(isinstance(key, str) for key in keys):
            return [(["item", k], x) for k, x in zip(keys, form["items"], strict=True)]
        return [(["node", n], inner) for n, inner in enumerate(form["items"])]
    items: Sequence[Form] = form.get("list") or form.get("tuple") or form.get("items") or ()
    return [(["item", n], inner) for n, inner in enumerate(items)]


def _expression(base: str, path: Sequence[Step], layer: int | None) -> str:
    for step in path:
        match step:
            case ["attr", name]:
                base = f"{base}.{name}"
            case ["item", key]:
                base = f"{base}[{key!r}]"
            case ["node", number]:
                base = f"_items({base})[{number}]"
            case _:
                base = f"{base}.layers[{layer}]"
    return base
