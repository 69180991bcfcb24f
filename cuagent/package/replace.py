"""Make modules of a model run a kernel in place, and undo it: `optimize_` and `restore_`.

Travels with an exported or applied kernel, next to `guard.py`. An optimized module stays the same
object with the same parameters, hooks and state_dict. Only its class changes, to a subclass of the
original class. Its forward runs the kernel for verified calls and the original's code for others.
`restore_` gives the original class back. A pickled module holds the original class.

A module is optimized only if it equals the verified original (`likeness.py`); `replacement.py`
decides for each call.

Not covered: TorchScript, and attributes that are mutable objects and are changed in place.
Invariant: a call that differs from the verified calls in a listed property runs the original.
"""

from __future__ import annotations

import copy
import copyreg
import functools
from typing import Any

import torch
from torch import nn

from .boundary import Boundary
from .exported import Package
from .graphs import shape_in_graph, wants_gradients_in_graph
from .likeness import ADDED, KEY, ORIGINAL, original_of
from .machine import slower_here
from .replacement import Replacement
from .state import Unsuitable


def optimize_(
    model: nn.Module,
    package: Package,
    original: type[nn.Module] | None = None,
    gradients: bool | None = None,
) -> Any:
    """Let the modules in `model` that equal the verified original run the kernel; return `model`.

    `original` names the class of the modules, if it is not the class of the verified file.
    `gradients` decides what runs where gradients are wanted. None: the kernel if its own backward
    was verified, else the original. True: always the kernel; without its own backward, the backward
    pass runs the original again, which saves memory but takes more time. False: never the kernel.
    Warns if a module of that class cannot be optimized.
    """
    if why := slower_here(package.folder):
        package.warn(why)
        return model
    found, reasons = 0, []
    for module in list(model.modules()):
        kind = original_of(module)
        if kind is not original and (original or kind.__name__ != package.entry):
            continue
        found += 1
        earlier: Replacement | None = module.__dict__.get(KEY)
        if earlier is not None and earlier.package.folder != package.folder:
            reasons.append("it runs the kernel of another package; call restore_ first")
            continue
        if earlier is None or earlier.given is not gradients:
            why = replace_(module, package, any_class=original is not None, gradients=gradients)
            reasons += [why] if why else []
    for why in dict.fromkeys(reasons):
        some = f"{found - len(reasons)} of {found} modules run the kernel; not the others"
        package.warn(why, *([some] if len(reasons) < found else []))
    if not found:
        name = original.__name__ if original else package.entry
        package.warn(f"the model has no module of class {name}", "nothing was optimized")
    return model


def replace_(
    module: nn.Module, package: Package, any_class: bool = False, gradients: bool | None = None
) -> str:
    """Let one module run the kernel, in place. Return the reason if it cannot, else "".

    With `any_class` the module's class may differ from the verified one.
    """
    try:
        replacement = Replacement(package, module, any_class, gradients)
    except Unsuitable as why:
        return str(why)
    except Exception as error:  # noqa: BLE001  another version of torch must not end the program
        line = f"{type(error).__name__}: {error}".partition("\n")[0]
        return f"the package does not work with torch {torch.__version__} ({line})"
    module.__dict__[KEY] = replacement
    kind: Any = original_of(module)
    module.__class__ = _replaced_class(kind)
    replacement.check()
    return ""


def accelerate_(kind: Any, package: Package) -> Any:
    """Change the class so that each new object is optimized at the end of its constructor; return
    the class.

    Objects of a subclass are not optimized.
    """
    construct = kind.__init__
    inherited = "__init__" not in vars(kind)

    @functools.wraps(construct)
    def constructed(self: nn.Module, *args: Any, **named: Any) -> None:
        construct(self, *args, **named)
        if type(self) is kind and (why := slower_here(package.folder) or replace_(self, package)):
            package.warn(why)

    setattr(constructed, ADDED, inherited)
    kind.__init__ = constructed
    return kind


def restore_(model: nn.Module) -> Any:
    """Give the modules that `optimize_` changed their original class; return `model`."""
    for module in model.modules():
        module.__dict__.pop(KEY, None)
        # A parametrized or sharded module has a subclass, which it needs.
        if ORIGINAL in vars(type(module)):
            module.__class__ = original_of(module)
    return model


@functools.cache
def _replaced_class(original: Any) -> Any:
    """Return the subclass that optimized modules get; its forward runs the kernel if it fits."""

    @functools.wraps(original.forward)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        replacement: Replacement | None = self.__dict__.get(KEY)
        if replacement is None:  # restored, and the class is a subclass that torch made of this one
            return original.forward(self, *args, **named)
        given: tuple[Any, ...] | None = args
        if replacement.call is not None:
            given = replacement.call.inputs(args, named)
        elif named:
            given = replacement.package.inputs(args, named)
        if torch.compiler.is_compiling():
            at = -1
            if given is not None:
                at = shape_in_graph(self, given, replacement.package)
            if given is not None and at >= 0 and not replacement.trains[at]:
                at = -1 if wants_gradients_in_graph(self, given) else at
            if at >= 0 and given is not None and not replacement.reason_in_graph():
                operator, call = replacement.boundaries[at], replacement.call
                kept = given
                if call is not None and torch.is_grad_enabled():
                    kept = call.saved(given)
                flat = _call_operator(self, kept, replacement, operator)
                if replacement.rebuilds and call is not None:
                    return call.result(flat, given, args, named)
                return operator.outputs.result(flat)
            return original.forward(self, *args, **named)
        boundary = None if given is None else replacement.fitting(given)
        if given is None or boundary is None:
            replacement.package.warn(replacement.why(given))
            return original.forward(self, *args, **named)
        wanted = torch.is_grad_enabled() and replacement.wants_gradients(given)
        if wanted and not replacement.may_train(boundary):
            if replacement.given is None:  # gradients=False is the user's own wish
                replacement.package.warn(replacement.why(given))
            return original.forward(self, *args, **named)
        if replacement.rebuilds:
            return replacement.run_and_rebuild(given, boundary, args, named)
        if wanted:
            return replacement.run_with_gradients(given, boundary)
        return replacement.run_without_gradients(given)

    def why_original(self: Any, *args: Any, **named: Any) -> str:
        """Return the reason why this call would run the original; "" if it would run the kernel."""
        replacement: Replacement = self.__dict__[KEY]
        return replacement.why(replacement.inputs(args, named))

    return type(
        original.__name__,
        (original,),
        {
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "__doc__": original.__doc__,
            "__reduce_ex__": _reduced,
            "__deepcopy__": _deep_copy,
            ORIGINAL: original,
            "forward": forward,
            "why_original": why_original,
        },
    )


def _call_operator(
    module: nn.Module, args: tuple[Any, ...], replacement: Replacement, boundary: Boundary
) -> Any:
    state = []
    for path, key in replacement.places:
        owner = module
        for part in path:
            owner = getattr(owner, part)
        state.append(getattr(owner, key))
    return boundary.call(boundary.nesting.tensors(args), state)


def _twin(module: nn.Module) -> nn.Module:
    """Return a copy for pickle and deepcopy: the original class, the same attribute objects."""
    kind = original_of(module)
    twin: nn.Module = kind.__new__(kind)
    twin.__dict__.update({k: v for k, v in module.__dict__.items() if k != KEY})
    return twin


def _reduced(module: nn.Module, protocol: int) -> Any:
    """Implement `__reduce_ex__`: pickle the module with its original class."""
    found: Any = _twin(module).__reduce_ex__(protocol)
    make, args, *state = found
    if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle demands the same class
        make, args = copyreg._reconstructor, (args[0], object, None)  # type: ignore[attr-defined]
    return (make, args, *state)


def _deep_copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    made: nn.Module = copy.deepcopy(_twin(module), memo)
    memo[id(module)] = made
    replacement: Replacement = module.__dict__[KEY]
    package = replacement.package
    if why := replace_(made, package, replacement._any_class, replacement.given):
        package.warn(why)
    return made
