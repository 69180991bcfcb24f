"""Decide for each call of an optimized module if the kernel may run, and run it.

Travels with an exported or applied kernel, next to `replace.py`. Each call checks that the module
has not changed since it was optimized (`watch.py`). Where gradients are wanted the original runs,
unless the kernel's own backward was verified (`boundary.py`).

Invariant: a call that differs from the verified calls in a property of `verified.json` does not
run the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import assume_constant_result

from .boundary import Boundary
from .exported import Package
from .flags import flags_kept, flags_set, set_flags
from .forms import PLAIN, Form, form_of, is_strided, matches, required_text, tensors_in
from .forms import value_text as shown
from .layers import layer_difference
from .likeness import difference, original_of
from .modes import unverified_mode
from .objects import LAYER, layer_of
from .reads import reads
from .recomputed import Recomputed
from .seen import Seen
from .state import Unsuitable, bind, called, places, state_names
from .verified import flags_matter
from .watch import Watch

_with_gradients = torch.is_grad_enabled
FAKE = (torch._subclasses.FakeTensor, torch._subclasses.functional_tensor.FunctionalTensor)
"""Tensor classes without memory that torch.compile uses to trace."""


class Replacement:
    """The kernel of one optimized module, and why the module cannot use it now."""

    def __init__(
        self,
        package: Package,
        module: nn.Module,
        any_class: bool = False,
        gradients: bool | None = None,
    ) -> None:
        self.package, self.module, self._any_class = package, module, any_class
        self.given = gradients
        device = next((t.device for t in state_names(module)[1]), torch.device(package.device))
        self.boundaries = package.boundaries(device)
        self.boundary, self.call = self.boundaries[0], package.call_of(module)
        self.rebuilds = self.call is not None and self.call.rebuilds
        """True if the module's result is built from the kernel's (`CallForm.result`)."""
        self.trains = tuple(
            b.own is not None if gradients is None else gradients for b in self.boundaries
        )
        """One flag for each verified shape: True if the kernel runs where gradients are wanted."""
        if why := self._structure_difference():
            raise Unsuitable(why)
        self.kernel = package.make_kernel()
        self.forward = called(self.kernel)
        self._changes = package.facts["changes"]
        self._same_flags = package.facts["same_flags"]
        self._on, self._autocast = package.device, package.autocast
        self._checks = [
            (len(forms), [_check_of(form) for form in forms], boundary)
            for forms, boundary in zip(package.shapes, self.boundaries, strict=True)
        ]
        self.run = self._run if self._autocast is None else self._run_without_autocast
        if self._autocast is None and not self._changes and not flags_matter(package.facts):
            self.run = self._run_under_any_flags
        """Runs the kernel under the flags that it was verified under."""
        self._by_shape = _by_first_shape(package.shapes, self._checks)
        self._seen = Seen(by_shape=len(package.shapes) > 1)
        self.places = places(module)
        self.structure = ""
        """Message on the module's current difference from the verified original, or ""."""
        self.state = ""
        """Message on why the module cannot use the kernel now, or "": `structure`, or a difference
        of parameters or modes."""
        self.check()
        self.fitting(())  # fail here, not in a call, if torch lacks a function
        if why := self._layer_difference():
            raise Unsuitable(why)

    def check(self) -> None:
        """Compare the module with the verified original, and let the kernel use its parameters.

        Sets `structure` and `state`.
        """
        module = self.module
        self.watch = Watch(module, self.package.read)
        self._seen.forget()
        self.structure = self._structure_difference()
        self.state = self.structure or self._state_difference()
        self.device = self.watch.tensors[0].device if self.watch.tensors else None
        self.trainable = [t for t in self.watch.tensors if t.is_floating_point() or t.is_complex()]
        if not self.structure:
            bind(self.kernel, module)
        if self.watch.plain:
            for boundary in self.boundaries:
                boundary.know(self.watch.tensors, self)

    def _structure_difference(self) -> str:
        package = self.package
        layer = None if self.call is None else self.call.layer
        if layer is not None and layer_of(self.module) != layer:
            return f"its {LAYER} was changed"
        return difference(
            self.module,
            self.boundary.original.module,
            kind=package.kind,
            any_class=self._any_class,
            read=package.read,
            free=() if layer is None else (LAYER,),
        )

    def _layer_difference(self) -> str:
        """Return why the kernel cannot run for this layer of a model with a cache, or ""."""
        call, original = self.call, self.boundary.original.module
        if call is None or call.layer is None or call.layer == layer_of(original):
            return ""
        if not self.watch.plain:
            return self.state
        kind, tensors = original_of(self.module), self.watch.tensors
        return layer_difference(
            self.module, kind, call, self.boundaries, tensors, self.place(), self._autocast
        )

    def inputs(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return the kernel's inputs by position for a call; None if the call has another form."""
        if self.call is not None:
            return self.call.inputs(args, named)
        return self.package.inputs(args, named)

    def _state_difference(self) -> str:
        read = self.package.read
        for path, module in self.module.named_modules():
            if module.training and reads(read, path, "training"):
                return f"{path or 'the module'} is in training mode; call eval() to use the kernel"
        if not self.watch.plain:
            return "its parameters have no plain memory"
        expected = self.boundary.original.forms
        for name, at in self.boundary.original.names.items():
            tensor = self.watch.tensors[at]
            if not is_strided(tensor) or tensor.device.type != self.package.device:
                return f"{name} is {shown(tensor)}; verified was on {self.package.device}"
            if tensor.device != self.watch.tensors[0].device:
                return f"{name} is on {tensor.device}, unlike other parameters"
            if form_of(tensor) != expected[at]:
                return f"{name} is {shown(tensor)}, unlike when it was verified"
        return ""

    def reason(self) -> str:
        """Return why the module cannot use the kernel now, or ""; cheap if nothing changed."""
        if not self.watch.unchanged():
            self.check()
        return self.state

    @assume_constant_result
    def reason_in_graph(self) -> str:
        """Return why a traced call cannot use the kernel, or "".

        Parameters may have no memory during a trace.
        """
        if any(t.__class__ in FAKE for t in state_names(self.module)[1]):
            return self.structure
        return self.reason() and self.structure

    def why(self, args: tuple[Any, ...] | None) -> str:
        """Return why a call would run the original; "" if it would run the kernel."""
        if args is None:
            return self._why_form()
        if boundary := self.fitting(args):
            wanted = torch.is_grad_enabled() and self.wants_gradients(args)
            if not wanted or self.may_train(boundary):
                return ""
            if self.given is None:
                return "gradients are wanted, and no backward of the kernel was verified"
            return "gradients=False was given to optimize_"
        if why := unverified_mode(self.package.device, self._autocast) or self.reason():
            return why
        reasons = [self._why_shape(args, forms) for forms in self.package.shapes]
        if len(reasons) > 1:
            return f"{reasons[0]}, and {len(reasons) - 1} other shapes"
        return reasons[0]

    def _why_form(self) -> str:
        if self.call is None:
            return "arguments were given by name that the verified call has not"
        return "its arguments differ from the recorded ones in other things than tensors"

    def _why_shape(self, args: tuple[Any, ...], forms: tuple[Any, ...]) -> str:
        device = self.place()
        if len(args) != len(forms):
            return f"the call has {len(args)} arguments; verified were {len(forms)} by position"
        for number, (value, form) in enumerate(zip(args, forms, strict=True)):
            if not matches(value, form, device):
                required = required_text(form, device)
                return f"argument {number} is {shown(value)}; verified was {required}"
        return "its device is not the current one"

    def place(self) -> torch.device:
        """Return the device that a verified call must use."""
        if self.device is not None:
            return self.device
        if self.package.device == "cuda" and torch.cuda.is_initialized():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device(self.package.device)

    def fitting(self, args: tuple[Any, ...]) -> Boundary | None:
        """Return the operators for a verified call, None for others; takes microseconds.

        `why` explains a None.
        """
        # First: transforms of torch.func may replace parameters by tensors without memory.
        if unverified_mode(self._on, self._autocast):
            return None
        if not self.watch.unchanged():
            self.check()
        if self.state:
            return None
        device = self.device or self.place()
        if self._on == "cuda" and device.index != torch._C._cuda_getDevice():
            return None
        if (known := self._seen.find(args)) is not None:
            return known
        found = self._checks
        if self._by_shape is not None and args and args[0].__class__ in PLAIN:
            found = self._by_shape.get(args[0].shape, [])
        for count, checks, boundary in found:
            if len(args) == count and all(map(_checked, checks, args, repeat(device))):
                self._seen.add(args, boundary)
                return boundary
        return None

    def _run_without_autocast(self, args: tuple[Any, ...]) -> Any:
        """Run the kernel with autocast disabled, as it was verified.

        For a module whose calls were recorded under autocast.
        """
        with torch.autocast(self._on, enabled=False):
            return self._run(args)

    def run_backward(self, args: tuple[Any, ...]) -> Any:
        """Run the kernel's own backward under the verified flags.

        `args` are the arguments of the call, followed by the gradients of the outputs.
        """
        with torch.no_grad(), torch.autocast(self._on, enabled=False), flags_kept():
            set_flags(self.package.facts["flags"])
            return self.kernel.backward(*args)  # type: ignore[operator]

    def run_backward_in_graph(self, args: tuple[Any, ...]) -> Any:
        """Run the kernel's own backward for a compiled graph."""
        return self.run_backward(args)

    def _run(self, args: tuple[Any, ...]) -> Any:
        if not self._changes and self._same_flags():
            return self.forward(*args)
        flags = self.package.facts["flags"]
        if self._changes == "all":
            with flags_kept():
                set_flags(flags)
                return self.forward(*args)
        if not self._same_flags():
            with flags_set(flags):
                return self.forward(*args)
        try:
            return self.forward(*args)
        finally:
            if not self._same_flags():
                set_flags(flags)

    def _run_under_any_flags(self, args: tuple[Any, ...]) -> Any:
        """Run a kernel whose result does not depend on torch's flags and that sets none."""
        return self.forward(*args)

    def run_without_gradients(self, args: tuple[Any, ...]) -> Any:
        """Run the kernel as it was verified: with gradients disabled."""
        if not _with_gradients():  # the context takes a microsecond
            return self.run(args)
        with torch.no_grad():
            return self.run(args)

    def run_and_rebuild(
        self,
        given: tuple[Any, ...],
        boundary: Boundary,
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        """Run the kernel, change the objects in the arguments, and return the module's result."""
        assert self.call is not None
        tensors = boundary.nesting.tensors(given)
        if torch.is_grad_enabled() and self.wants_gradients(given):
            flat = self._flat_with_gradients(self.call.saved(given), boundary)
        else:
            out = self.run_without_gradients(given)
            flat = boundary.outputs.normalised(out, tensors, self.watch.tensors)
        return self.call.result(flat, tensors, args, named)

    def run_in_graph(self, args: tuple[Any, ...]) -> Any:
        """Run the kernel for a compiled graph; return None if the module's state does not fit now.

        The caller has called `check` if the module has changed since the last one. Raises
        RuntimeError if the module has changed since it was compiled.
        """
        if self.state:
            if self.structure:
                raise RuntimeError(
                    f"{self.package.entry} changed after it was compiled ({self.structure}); "
                    "compile the model again"
                )
            return None
        return self.run_without_gradients(args) if _with_gradients() else self.run(args)

    def run_with_gradients(self, args: tuple[Any, ...], boundary: Boundary) -> Any:
        """Run the kernel and record a backward pass: its own if verified, else the original's."""
        return boundary.outputs.result(self._flat_with_gradients(args, boundary))

    def _flat_with_gradients(self, args: tuple[Any, ...], boundary: Boundary) -> Any:
        inputs, state = boundary.nesting.tensors(args), self.watch.tensors
        own = None if boundary.own is None else self._backward_of(state)
        return Recomputed.apply(boundary, self.run, own, args, len(inputs), *inputs, *state)

    def _backward_of(self, state: list[Tensor]) -> Callable[[tuple[Any, ...]], Any]:
        """Return a function that runs the kernel's own backward for a call with these parameters.

        The function returns None if the module has other parameters by then, as after
        `functional_call`.
        """

        def backward(args: tuple[Any, ...]) -> Any:
            if self.reason() or any(a is not b for a, b in zip(self.watch.tensors, state)):  # noqa: B905
                return None
            return self.run_backward(args)

        return backward

    def may_train(self, boundary: Boundary) -> bool:
        """Return True if the kernel of a shape runs where gradients are wanted."""
        return boundary.own is not None if self.given is None else self.given

    def wants_gradients(self, args: tuple[Any, ...]) -> bool:
        """Return True if an argument or parameter requires a gradient; the caller has tested that
        gradients are enabled."""
        return any(t.requires_grad for t in self.trainable) or any(
            t.requires_grad for t in tensors_in(args)
        )


def _by_first_shape(shapes: list[Any], checks: list[Any]) -> dict[Any, list[Any]] | None:
    """Return the checks grouped by the shape of the first argument.

    None if there is one verified shape only, or the first argument is not always a tensor.
    """
    if len(shapes) == 1 or not all(forms and forms[0].__class__ is Form for forms in shapes):
        return None
    found: dict[Any, list[Any]] = {}
    for forms, check in zip(shapes, checks, strict=True):
        found.setdefault(forms[0].shape, []).append(check)
    return found


def _checked(check: Any, value: Any, device: torch.device) -> Any:
    return check(value, device)


def _check_of(form: Any) -> Any:
    """Return a function (value, device) -> True if the argument has its verified form."""
    if form.__class__ is Form:
        return form.fits
    return lambda value, device: matches(value, form, device)
