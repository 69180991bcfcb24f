"""Make modules of a model run a kernel in place, and undo it: `optimize_` and `restore_`.

Travels with an exported or applied kernel, next to `guard.py`. An optimized module stays the same
object with the same parameters, hooks and state_dict; only its class changes, to a subclass of the
original class whose forward runs the kernel for verified calls and the original's code for others.
`restore_` gives the original class back. A pickled module holds the original class.

A module is optimized only if it equals the verified original (`likeness.py`). Each call compares
what may change later with what was found then (`watch.py`). With gradients the kernel computes the
output, and the backward pass is the original's (`boundary.py`).

Not covered: TorchScript, and attributes that are mutable objects and change in themselves.
Invariant: a call that differs from the verified calls in a listed property runs the original.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.compiler import assume_constant_result

from .boundary import Boundary, Recomputed, Unsuitable, state_names
from .flags import flags_kept, flags_set, set_flags
from .forms import Form, form_of, is_strided, matches, required_text, tensors_in
from .forms import value_text as shown
from .graphs import fits_in_graph, static_form
from .likeness import ADDED, KEY, ORIGINAL, difference, original_of
from .machine import slower_here
from .modes import unverified_mode
from .verified import kernel_class, original_class, read_verified
from .watch import Watch


class Package:
    """One exported kernel: its files, the verified calls and the operators; one in a process."""

    def __init__(self, folder: Path, reference: Path) -> None:
        self.folder, self.reference = folder, reference
        self.facts = read_verified(folder / "verified.json")
        self.entry: str = self.facts["entry"]
        self.forms: Any = tuple(self.facts["forms"])
        self.static = tuple(static_form(form) for form in self.forms)
        self.device: str = self.facts["device"]
        self.warned: set[str] = set()
        self._boundary: Boundary | None = None

    def __deepcopy__(self, memo: object) -> Package:
        return self

    def warn(self, why: str, result: str = "the original module runs, not the kernel") -> None:
        """Warn once for each reason."""
        if why not in self.warned:
            self.warned.add(why)
            warnings.warn(f"{self.entry}: {result}: {why}", RuntimeWarning, stacklevel=5)

    def make_kernel(self) -> nn.Module:
        """Construct the kernel's module. Raises Unsuitable if it cannot be compiled or loaded."""
        try:
            with flags_kept():
                set_flags(self.facts["flags"])
                made = self._made(kernel_class(self.folder))
        except Exception as error:  # code of the kernel's author, which may raise any type
            line = str(error).strip().partition("\n")[0] or type(error).__name__
            raise Unsuitable(f"the kernel cannot be loaded ({line})") from error
        if not isinstance(made, nn.Module) or isinstance(made, torch.jit.ScriptModule):
            raise Unsuitable("its ModelNew is not a plain torch.nn.Module")
        return made.eval()

    def boundary(self, device: torch.device) -> Boundary:
        """Return the operators; the first call registers them. Raises Unsuitable."""
        if self._boundary is None:
            try:
                make = original_class(self.folder, self.reference, self.facts)
            except RuntimeError as error:
                raise Unsuitable(str(error)) from error
            original = self._made(make).to(device)
            self._boundary = Boundary(self.folder, self.forms, original, self.make_kernel)
        return self._boundary

    def _made(self, make: Any) -> Any:
        """Construct as it was verified, without a change of the random numbers of the process."""
        args, named = self.facts["init"]
        dtype = torch.get_default_dtype()
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with torch.random.fork_rng(devices=devices):
            torch.set_default_dtype(getattr(torch, self.facts["default_dtype"]))
            try:
                return make(*args, **named)
            finally:
                torch.set_default_dtype(dtype)


class Replacement:
    """The kernel of one optimized module, and why the module cannot use it now."""

    def __init__(self, package: Package, module: nn.Module, any_class: bool = False) -> None:
        self.package, self.module, self._any_class = package, module, any_class
        device = next((t.device for t in state_names(module)[1]), torch.device(package.device))
        self.boundary = package.boundary(device)
        if why := difference(module, self.boundary.original, any_class=any_class):
            raise Unsuitable(why)
        self.kernel = package.make_kernel()
        self.forward = self.kernel.forward
        self._changes = package.facts["changes"]
        products = package.facts.get("products", True)
        self._same_flags = package.facts["same_flags"] if products else _always
        self._on, self._count = package.device, len(package.forms)
        self._checks = [_check_of(form) for form in package.forms]
        self.places = _places(module)
        self.structure = ""
        """Difference of the module from the verified original now, as a message, or ""."""
        self.state = ""
        """Difference of parameters or modes from the verified ones now, as a message, or ""."""
        self.check()
        self.fits(())  # fail here, not in a call, if torch lacks a function

    def check(self) -> None:
        """Compare the module with the verified original, and bind the kernel to it."""
        module, boundary = self.module, self.boundary
        self.watch = Watch(module)
        self.structure = difference(module, boundary.original, any_class=self._any_class)
        self.state = self.structure or self._state_difference()
        self.device = self.watch.tensors[0].device if self.watch.tensors else None
        self.trainable = [t for t in self.watch.tensors if t.is_floating_point() or t.is_complex()]
        if not self.structure:
            bind(self.kernel, module)
        if self.watch.plain:
            boundary.know(self.watch.tensors, self)

    def _state_difference(self) -> str:
        for path, module in self.module.named_modules():
            if module.training:
                return f"{path or 'the module'} is in training mode; call eval() to use the kernel"
        if not self.watch.plain:
            return "its parameters have no plain memory"
        expected = self.boundary.forms
        for name, at in self.boundary.names.items():
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
        """Return the same while a graph is traced, where parameters may be without memory."""
        if any(t.__class__ in FAKE for t in state_names(self.module)[1]):
            return self.structure
        return self.reason() and self.structure

    def why(self, args: tuple[Any, ...]) -> str:
        """Return why a call would run the original; "" if it would run the kernel."""
        if self.fits(args):
            return ""
        forms, device = self.package.forms, self.place()
        if why := self.reason() or unverified_mode(self.package.device):
            return why
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

    def fits(self, args: tuple[Any, ...]) -> bool:
        """Return True for a verified call, in a few microseconds; `why` explains a False."""
        if not self.watch.unchanged():
            self.check()
        if self.state or len(args) != self._count or unverified_mode(self._on):
            return False
        device = self.device or self.place()
        if self._on == "cuda" and device.index != torch._C._cuda_getDevice():
            return False
        for value, check in zip(args, self._checks):  # noqa: B905, SIM110  0.1 us faster each
            if not check(value, device):
                return False
        return True

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run the kernel under the flags that it was verified under."""
        flags = self.package.facts["flags"]
        if self._changes == "all":
            with flags_kept():
                set_flags(flags)
                return self.forward(*args)
        if not self._same_flags():
            with flags_set(flags):
                return self.forward(*args)
        if not self._changes:
            return self.forward(*args)
        try:
            return self.forward(*args)
        finally:
            if not self._same_flags():
                set_flags(flags)

    def run_without_gradients(self, args: tuple[Any, ...]) -> Any:
        """Run the kernel as it was verified: with gradients disabled."""
        with torch.no_grad():
            return self.run(args)

    def run_in_graph(self, args: tuple[Any, ...]) -> Any:
        """Run the kernel for a compiled graph; None if the module's state does not fit now.

        Raises RuntimeError if the module has changed since it was compiled.
        """
        if self.reason():
            if self.structure:
                raise RuntimeError(
                    f"{self.package.entry} changed after it was compiled ({self.structure}); "
                    "compile the model again"
                )
            return None
        return self.run_without_gradients(args)

    def run_with_gradients(self, args: tuple[Any, ...]) -> Any:
        """Run the kernel; the backward pass is the original's."""
        inputs = self.boundary.tensors(args)
        flat = Recomputed.apply(
            self.boundary, self.run, args, len(inputs), *inputs, *self.watch.tensors
        )
        return self.boundary.result(flat)

    def wants_gradients(self, args: tuple[Any, ...]) -> bool:
        """Return True if a tensor of the call requires a gradient; gradients are enabled."""
        return any(t.requires_grad for t in self.trainable) or any(
            t.requires_grad for t in tensors_in(args)
        )


def _always() -> bool:
    """Stand for the test of torch's flags if the kernel has no product that depends on them."""
    return True


def _check_of(form: Any) -> Any:
    """Return the function of (value, device) that compares an argument with its verified form."""
    if form.__class__ is Form:
        return form.fits
    return lambda value, device: matches(value, form, device)


FAKE = (torch._subclasses.FakeTensor, torch._subclasses.functional_tensor.FunctionalTensor)


def optimize_(model: nn.Module, package: Package, original: type[nn.Module] | None = None) -> Any:
    """Let the modules in `model` that equal the verified original run the kernel; return `model`.

    `original` names the class of the modules, if it is not the class of the verified file. Warns
    about a module of that class that cannot be optimized.
    """
    if why := slower_here(package.folder):
        package.warn(why)
        return model
    found = 0
    for module in list(model.modules()):
        kind = original_of(module)
        if kind is not original and (original or kind.__name__ != package.entry):
            continue
        found += 1
        if KEY not in module.__dict__:
            replace_(module, package, any_class=original is not None)
    if not found:
        name = original.__name__ if original else package.entry
        package.warn(f"the model has no module of class {name}", "nothing was optimized")
    return model


def replace_(module: nn.Module, package: Package, any_class: bool = False) -> bool:
    """Let one module run the kernel. Returns False with a warning if it cannot."""
    try:
        replacement = Replacement(package, module, any_class)
    except Unsuitable as why:
        package.warn(str(why))
        return False
    except Exception as error:  # noqa: BLE001  another version of torch must not end the program
        line = f"{type(error).__name__}: {error}".partition("\n")[0]
        package.warn(f"the package does not work with torch {torch.__version__} ({line})")
        return False
    module.__dict__[KEY] = replacement
    kind: Any = type(module)
    module.__class__ = _replaced_class(kind)
    replacement.check()
    return True


def accelerate_(kind: Any, package: Package) -> Any:
    """Optimize each new object of the class at the end of its constructor; return the class.

    Objects of a subclass stay as they are.
    """
    construct = kind.__init__
    inherited = "__init__" not in vars(kind)

    @functools.wraps(construct)
    def constructed(self: nn.Module, *args: Any, **named: Any) -> None:
        construct(self, *args, **named)
        if type(self) is kind:
            if why := slower_here(package.folder):
                package.warn(why)
            else:
                replace_(self, package)

    setattr(constructed, ADDED, inherited)
    kind.__init__ = constructed
    return kind


def restore_(model: nn.Module) -> Any:
    """Give the modules that `optimize_` changed their original class; return `model`."""
    for module in model.modules():
        if KEY in module.__dict__:
            module.__class__ = original_of(module)
            del module.__dict__[KEY]
    return model


@functools.cache
def _replaced_class(original: Any) -> Any:
    """Return the subclass of the original class whose forward may run a kernel."""

    @functools.wraps(original.forward)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        replacement: Replacement = self.__dict__[KEY]
        if torch.compiler.is_compiling():
            fits = not named and fits_in_graph(self, args, replacement.package)
            if fits and not replacement.reason_in_graph():
                return _call_operator(self, args, replacement)
            return original.forward(self, *args, **named)
        if named:
            args, named = _by_position(replacement.package.facts["names"], args, named)
        if named or not replacement.fits(args):
            replacement.package.warn(
                f"arguments {', '.join(named)} were given by name"
                if named
                else replacement.why(args)
            )
            return original.forward(self, *args, **named)
        if not torch.is_grad_enabled():
            return replacement.run(args)
        if replacement.wants_gradients(args):
            return replacement.run_with_gradients(args)
        return replacement.run_without_gradients(args)

    def why_original(self: Any, *args: Any, **named: Any) -> str:
        """Return the reason why this call would run the original; "" if it would run the kernel."""
        replacement: Replacement = self.__dict__[KEY]
        args, named = _by_position(replacement.package.facts["names"], args, named)
        return replacement.why(args) or (f"{', '.join(named)} by name" if named else "")

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


def _call_operator(module: nn.Module, args: tuple[Any, ...], replacement: Replacement) -> Any:
    boundary = replacement.boundary
    state = []
    for path, key in replacement.places:
        owner = module
        for part in path:
            owner = getattr(owner, part)
        state.append(getattr(owner, key))
    return boundary.result(boundary.call(boundary.tensors(args), state))


def _by_position(
    names: list[str], args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move named arguments to their positions, and return them with those that have none."""
    remaining, positional = dict(named), list(args)
    for name in names[len(args) :]:
        if name not in remaining:
            break
        positional.append(remaining.pop(name))
    return tuple(positional), remaining


def _places(module: nn.Module) -> list[tuple[list[str], str]]:
    """Return (path of the owner, key) of each parameter and buffer, tied ones once."""
    names, unique = state_names(module)
    first: list[str] = [""] * len(unique)
    for name, at in names.items():
        first[at] = first[at] or name
    return [(name.split(".")[:-1], name.split(".")[-1]) for name in first]


def bind(kernel: nn.Module, module: nn.Module) -> None:
    """Let `kernel` use the parameters and buffers of `module`. Raises Unsuitable."""
    theirs = dict(module.named_modules(remove_duplicate=False))
    ours = dict(kernel.named_modules(remove_duplicate=False))
    if sorted(state_names(kernel)[0]) != sorted(state_names(module)[0]):
        raise Unsuitable("the kernel's module has other parameters or buffers")
    for path, own in ours.items():
        other = theirs.get(path)
        for name in ("_parameters", "_buffers"):
            held = {k for k, t in own.__dict__[name].items() if t is not None}
            given = getattr(other, name, {})
            if held != {k for k, t in given.items() if t is not None}:
                raise Unsuitable(f"the kernel's module stores {path or 'its state'} in another way")
            if other is not None:
                own.__dict__[name] = given


def _twin(module: nn.Module) -> nn.Module:
    """Return a module of the original class with the same attributes, for pickle and deepcopy."""
    kind = original_of(module)
    twin: nn.Module = kind.__new__(kind)
    twin.__dict__.update({k: v for k, v in module.__dict__.items() if k != KEY})
    return twin


def _reduced(module: nn.Module, protocol: int) -> Any:
    """Return what pickle stores: the module with its original class."""
    found: Any = _twin(module).__reduce_ex__(protocol)
    make, args, *state = found
    if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle demands the same class
        make, args = copyreg._reconstructor, (args[0], object, None)  # type: ignore[attr-defined]
    return (make, args, *state)


def _deep_copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    made: nn.Module = copy.deepcopy(_twin(module), memo)
    memo[id(module)] = made
    replacement: Replacement = module.__dict__[KEY]
    replace_(made, replacement.package, replacement._any_class)
    return made
