"""Map a call of the user's module to the flat tensor inputs that the kernel takes, and the kernel's
flat outputs to the module's result.

Travels with an exported or applied kernel, next to `replace.py`. The task of a captured module has
one input for each tensor of the recorded call. Other arguments must equal the recorded ones.
torch.compile traces `CallForm.inputs` and `CallForm.result`, so they use plain tuples only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from .objects import Values, change, equal, form_of, kinds_of, layer_of, outputs_in, step_into
from .objects import taken as _taken
from .state import Unsuitable

_ABSENT = object()


class CallForm:
    """The recorded form of a call: arguments by position and by name.

    Each argument is the index of a task input, a constant, or an object that contains these.
    """

    def __init__(
        self,
        call: dict[str, Any],
        forward: Callable[..., Any],
        kinds: Sequence[Any] = (),
        layer: int | None = None,
    ) -> None:
        """`kinds` are the classes of the objects (`objects.kinds_of`), `layer` the index of the
        module's layer in a cache."""
        self.count: int = call["inputs"]
        self.layer = layer
        self._positional = tuple(form_of(item, kinds) for item in call["positional"])
        self._named = tuple((name, form_of(item, kinds)) for name, item in call["named"].items())
        self._keys = tuple(name for name, _ in self._named)
        self._names, self._defaults = _parameters(forward)
        self._all = dict(zip(self._names, self._positional, strict=False)) | dict(self._named)
        self._by_name = len(self._positional) <= len(self._names)
        forms = (*self._positional, *(form for _, form in self._named))
        # True for the usual call: only distinct tensors, in the order of the task's inputs.
        self._plain = forms == tuple(("tensor", number) for number in range(self.count))
        self._copies: tuple[tuple[int, int], ...] = ()
        """(input, output) for each tensor that the module changes in place."""
        self.rebuilds = "result" in call
        """True if `result` makes the module's result; False if it is the kernel's."""
        if self.rebuilds:
            self._result = form_of(call["result"], kinds)
            self._effects = tuple(
                (number, tuple(map(tuple, path)), form_of(form, kinds))
                for number, path, form in call["effects"]
            )
            self._copies = tuple((number, new) for number, new in call.get("copies", ()))

    def inputs(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return the tensors of a call in the task's order; None if the call has another form."""
        if self._plain and len(args) == len(self._positional) and tuple(named) == self._keys:
            return (*args, *named.values()) if named else args
        found: list[Any] = [None] * self.count
        if len(args) == len(self._positional) and tuple(named) == self._keys:
            for value, form in zip(args, self._positional, strict=True):
                if not _taken(value, form, found, self.layer):
                    return None
            for name, form in self._named:
                if not _taken(named[name], form, found, self.layer):
                    return None
            return tuple(found)
        if not self._by_name or len(args) > len(self._names):
            return None
        given = dict(zip(self._names, args, strict=False))
        for name in named:
            if name in given:
                return None
        given.update(named)
        for name, form in self._all.items():
            value = given[name] if name in given else self._defaults.get(name, _ABSENT)
            if not _taken(value, form, found, self.layer):
                return None
        for name, value in given.items():
            if name not in self._all:
                if name not in self._defaults:
                    return None
                default = self._defaults[name]
                if value is not default and not equal(value, default):
                    return None
        return tuple(found)

    def saved(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the call's `inputs` for a call with gradients, whose backward pass needs them.

        Those that `result` changes in place are copied.
        """
        if not self._copies:
            return tensors
        changed = [number for number, _ in self._copies]
        return tuple([t.clone() if n in changed else t for n, t in enumerate(tensors)])

    def result(
        self,
        outputs: Sequence[Tensor],
        tensors: Sequence[Tensor],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        """Return the module's result for the kernel's `outputs`, and change the arguments as the
        module does.

        `tensors` are the call's `inputs`.
        """

        def argument(number: int) -> Any:
            return self._argument(number, args, named)

        values = Values(tensors, outputs, argument)
        made = [values.built(form) for _, _, form in self._effects]
        for number, new in self._copies:
            tensors[number].copy_(outputs[new])
        for (number, path, _), value in zip(self._effects, made, strict=True):
            change(argument(number), path, value, self.layer)
        return values.built(self._result)

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call of the recorded form with these tensors."""
        values = Values(tensors, layer=self.layer)
        args = tuple(values.built(form) for form in self._positional)
        return args, {name: values.built(form) for name, form in self._named}

    def outputs(
        self, result: Any, tensors: Sequence[Tensor], args: tuple[Any, ...], named: dict[str, Any]
    ) -> list[Tensor]:
        """Return the new tensors of a call from its result and its changed arguments.

        `tensors` are the call's `inputs`.
        """
        found: dict[int, Any] = {new: tensors[number] for number, new in self._copies}
        outputs_in(result, self._result, found)
        for number, path, form in self._effects:
            target = self._argument(number, args, named)
            for step in path:
                target = step_into(target, step, self.layer)
            outputs_in(target, form, found)
        return [found[number] for number in sorted(found)]

    def _argument(self, number: int, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return an argument by its number in the recorded call."""
        count = len(self._positional)
        if number < min(count, len(args)):
            return args[number]
        name = self._names[number] if number < count else self._keys[number - count]
        return named[name] if name in named else args[self._names.index(name)]


def call_form(call: dict[str, Any], module: nn.Module, original: Any) -> CallForm:
    """Return the form of the calls of `module`; `original` is the verified class.

    Raises Unsuitable if the module lacks a class of the recorded call.
    """
    kinds = kinds_of(call.get("kinds", ()), module, original)
    layer = layer_of(module) if _uses_layer(call) else None
    if layer is None and _uses_layer(call):
        raise Unsuitable("its submodules do not name one layer of the cache")
    return CallForm(call, original.forward, kinds, layer)


def _uses_layer(form: Any) -> bool:
    if isinstance(form, dict):
        return ("cache" in form and "layer" in form) or any(map(_uses_layer, form.values()))
    return isinstance(form, list) and any(map(_uses_layer, form))


def _parameters(forward: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the names of the positional parameters and the default values, without `self`."""
    try:
        found = list(inspect.signature(forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return (), {}
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(p.name for p in found if p.kind in by_position)
    return names, {p.name: p.default for p in found if p.default is not inspect.Parameter.empty}
