"""Runs a kernel for the calls that it was verified on, and the original module for all others.

Travels with an exported or applied kernel (it imports nothing of cuagent). `verified.json` beside
it names the verified calls: device, shapes, dtypes and strides of the tensors, values of the other
arguments, arguments of the constructor; in eval mode and without gradients.

The kernel's module and the original share one set of parameters and buffers, those of the kernel's
module. The original is imported and built at the first call that needs it.

Not covered: the values in the tensors, and functions of the module other than forward.
Invariant: a call that differs from the verified form in what is listed here never runs the kernel.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad

from .forms import (
    PLAIN,
    Form,
    dtype_name,
    form_of,
    form_text,
    matches,
    nested,
    same,
    shown,
    tensors_in,
    wanted,
)

SHARED = (
    "_parameters",
    "_buffers",
    "_non_persistent_buffers_set",
    "_modules",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
"""Attributes of the kernel's module that this module uses as its own."""


class Guarded(nn.Module):
    """Base of an exported `ModelNew`: same constructor, forward and state_dict as the original.

    A subclass says where its files lie. Raises RuntimeError where a call needs the original and the
    original cannot be used; it never runs the kernel instead.
    """

    folder: ClassVar[Path]
    """Holds `verified.json`, and `model_new.py` with the kernel's class."""
    reference: ClassVar[Path]
    """The file with the original class."""
    _verified: ClassVar[dict[str, Any] | None] = None
    _warned: ClassVar[set[str]]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__()
        kernel = _kernel_class(type(self))(*args, **named)
        if not isinstance(kernel, nn.Module) or isinstance(kernel, torch.jit.ScriptModule):
            raise TypeError(f"{self.folder}: its ModelNew makes no plain torch.nn.Module")
        kernel.training = False  # it runs in eval mode only, and has never run in another
        own = self.__dict__
        own.update({name: kernel.__dict__[name] for name in SHARED})
        own.update(_kernel=kernel, _arguments=(args, named), _changed={})
        own.update(_original=None, _watched=None, _ties={}, _dtype=torch.get_default_dtype())
        own["_made"] = {name: form_of(tensor) for name, tensor in self._state()}
        own["_construction"] = self._other_construction()

    # -- calls

    def forward(self, *args: Any, **named: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # a kernel cannot be part of a graph
            return _outside_of_graphs(self, args, named)
        return self._call(args, named)

    def _call(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if named:
            args, named = self._by_position(args, named)
        if not named and self._fits(args):
            return self._kernel(*args)
        return self._run_original(args, named)

    def why_original(self, *args: Any, **named: Any) -> str:
        """Why this call would run the original module; "" where it would run the kernel."""
        args, named = self._by_position(args, named)
        return "" if not named and self._fits(args) else self._why(args, named)

    def _fits(self, args: tuple[Any, ...]) -> bool:
        """Whether this is a verified call. Some microseconds; `_why` explains a False."""
        verified = self._facts()
        device = self._device(verified)
        if (
            self.training
            or self._construction
            or self._changed
            or len(args) != len(verified["forms"])
            or _special(verified["device"])
            or not all(map(matches, args, verified["forms"], [device] * len(args)))
            or self._state_differs(device)
        ):
            return False
        return not torch.is_grad_enabled() or not self._wants_gradients(args)

    def _device(self, verified: dict[str, Any]) -> torch.device:
        """Where a verified call computes: on the CPU, or on the current GPU."""
        if verified["device"] == "cuda" and torch.cuda.is_initialized():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device(verified["device"])

    def _wants_gradients(self, args: tuple[Any, ...]) -> bool:
        tensors = [*tensors_in(args), *(tensor for _, tensor in self._state())]
        return any(tensor.requires_grad for tensor in tensors)

    def _by_position(
        self, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call with its named arguments put into their places, as far as they have one."""
        left = dict(named)
        given = list(args)
        for name in self._facts()["names"][len(args) :]:
            if name not in left:
                break
            given.append(left.pop(name))
        return tuple(given), left

    def _why(self, args: tuple[Any, ...], named: dict[str, Any]) -> str:
        """In words, what differs from the verified calls."""
        verified = self._facts()
        device, forms = self._device(verified), verified["forms"]
        if self.training:
            return "the module is in training mode; call eval() to use the kernel"
        if special := _special(verified["device"]):
            return special
        if self._construction:
            return self._construction
        if self._changed:
            return f"attributes were set after construction ({', '.join(self._changed)})"
        if named or len(args) != len(forms):
            return f"{len(args) + len(named)} arguments, and {len(forms)} by position were verified"
        for number, (value, form) in enumerate(zip(args, forms, strict=True)):
            if not matches(value, form, device):
                return f"argument {number} is {shown(value)}, verified was {wanted(form, device)}"
        if state := self._state_differs(device):
            return state
        return "gradients are enabled; use torch.no_grad() to run the kernel"

    # -- parameters and buffers

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._kernel.named_parameters(remove_duplicate=False)
        yield from self._kernel.named_buffers(remove_duplicate=False)

    def _state_differs(self, device: torch.device) -> str:
        """What is not as verified in parameters, buffers and submodules; "" if all is.

        Parameters are looked at closely only where one was replaced or moved since the last time.
        """
        watched = self._watched
        if watched is not None and watched[0] == device:
            for owner, key, tensor, pointer in watched[1]:
                if owner.get(key) is not tensor or tensor.data_ptr() != pointer:
                    break
            else:
                for owner, key, module in watched[2]:
                    if owner.get(key) is not module or module.training:
                        break
                else:
                    return ""
        return self._look_at_state(device)

    def _look_at_state(self, device: torch.device) -> str:
        self.__dict__["_watched"] = None
        tensors, modules = [], []
        for path, module in self._kernel.named_modules():
            if path and module.training:
                return f"{path} is in training mode; call eval() to use the kernel"
            owned = {**module._parameters, **module._buffers}
            for key, tensor in owned.items():
                name = f"{path}.{key}" if path else key
                if tensor is None:
                    continue
                if tensor.__class__ not in PLAIN or tensor.device != device:
                    return f"{name} is {shown(tensor)}, verified was on {device.type}"
                if form_of(tensor) != self._made.get(name):
                    return f"{name} is {shown(tensor)}, which is not as it was constructed"
                owner = module._parameters if key in module._parameters else module._buffers
                tensors.append((owner, key, tensor, tensor.data_ptr()))
            modules += [(module._modules, key, inner) for key, inner in module._modules.items()]
        modules = [entry for entry in modules if entry[2] is not None]
        self.__dict__["_watched"] = (device, tensors, modules)
        return ""

    def _other_construction(self) -> str:
        """What differs from the verified construction, in words."""
        verified = self._facts()
        positional, named = verified["init"]
        if not same(self._bound(*self._arguments), self._bound(tuple(positional), named)):
            return "it was constructed with other arguments than were verified"
        if self._dtype is not torch.float32:
            return f"it was constructed with {dtype_name(self._dtype)} as default dtype"
        return ""

    def _bound(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        try:
            bound = inspect.signature(type(self._kernel)).bind(*args, **named)
        except (TypeError, ValueError):
            return list(args), named
        bound.apply_defaults()
        return dict(bound.arguments)

    def _apply(self, fn: Any, recurse: bool = True) -> Guarded:
        self._kernel._apply(fn, recurse)
        self.__dict__.update(_watched=None, _original=None)
        return self

    def _load_from_state_dict(self, *args: Any, **named: Any) -> None:
        self._kernel._load_from_state_dict(*args, **named)

    def _save_to_state_dict(self, *args: Any, **named: Any) -> None:
        self._kernel._save_to_state_dict(*args, **named)

    # -- attributes, copies

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            kernel = self.__dict__.get("_kernel")
            value = getattr(kernel, name, None) if name[:1] != "_" else None
            if value is None or callable(value):  # other functions than forward are not verified
                raise
            return value

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        plain = name in self.__dict__ and name[:1] != "_" and name != "training"
        if plain and "_changed" in self.__dict__:
            self._changed[name] = value

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_original": None, "_watched": None}

    def extra_repr(self) -> str:
        return f"kernel for {verified_text(self._facts())}; the original for other calls"

    @classmethod
    def _facts(cls) -> dict[str, Any]:
        """What was verified, read once."""
        if cls._verified is None:
            cls._verified = read_verified(cls.folder / "verified.json")
            cls._warned = set()
        return cls._verified

    # -- the original

    def _run_original(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._say(self._why(args, named))
        original, linked = self._linked()
        result = original(*args, **named)
        for module, key, owner, name, tensor in linked:  # a buffer that forward has replaced
            if module._buffers.get(key, tensor) is not tensor:
                owner._buffers[name] = module._buffers[key]
        return result

    def _say(self, why: str) -> None:
        if why not in self._warned:
            self._warned.add(why)
            text = f"{type(self).__name__}: the original module runs, not the kernel: {why}"
            warnings.warn(text, RuntimeWarning, stacklevel=7)

    def _linked(self) -> tuple[nn.Module, list[tuple[nn.Module, str, nn.Module, str, Tensor]]]:
        """The original, with our parameters, buffers and modes; and the buffers it was given."""
        original = self._original if self._original is not None else self._construct()
        buffers = []
        for path, module in original.named_modules():
            here = self._at(path)
            module.training = self.training if here is None else here.training
            for key in [*module._parameters, *module._buffers]:
                name = f"{path}.{key}" if path else key
                found = self._tensor(self._ties.get(name, name))
                if found is None:
                    continue
                owner, own_key, tensor = found
                kind = module._parameters if key in module._parameters else module._buffers
                if name in self._ties:
                    self._tie(name, tensor)
                if torch.is_grad_enabled() and (kind is module._parameters) != (
                    own_key in owner._parameters
                ):
                    raise RuntimeError(
                        f"the kernel keeps {name} otherwise than the original does (as a parameter "
                        "or as a buffer), so it cannot be trained"
                    )
                kind[key] = tensor
                if kind is module._buffers:
                    buffers.append((module, key, owner, own_key, tensor))
        for name, value in self._changed.items():
            setattr(original, name, value)
        return original, buffers

    def _construct(self) -> nn.Module:
        args, named = self._arguments
        make = _original_class(type(self))
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        dtype = torch.get_default_dtype()
        with torch.random.fork_rng(devices=devices):
            torch.set_default_dtype(self._dtype)
            try:
                original: nn.Module = make(*args, **named)
            finally:
                torch.set_default_dtype(dtype)
        first: dict[int, str] = {}
        for name, tensor in original.state_dict(keep_vars=True).items():
            if not isinstance(tensor, Tensor):
                continue
            if form_of(tensor)[:2] != self._made.get(name, (None, None))[:2]:
                raise RuntimeError(
                    f"the kernel keeps {name} in another form than the original module, which "
                    "therefore cannot run in its place"
                )
            if first.setdefault(id(tensor), name) != name:
                self._ties[name] = first[id(tensor)]
        state = next(iter(self._state()), None)
        original.to(state[1].device if state else self._facts()["device"])
        self.__dict__["_original"] = original
        return original

    def _at(self, path: str) -> nn.Module | None:
        try:
            return self if not path else self._kernel.get_submodule(path)
        except AttributeError:
            return None

    def _tensor(self, name: str) -> tuple[nn.Module, str, Tensor] | None:
        """The owner, the key there and the tensor of that name in the kernel's module."""
        path, _, key = name.rpartition(".")
        owner = self._at(path) if path else self._kernel
        for held in () if owner is None else (owner._parameters, owner._buffers):
            tensor = held.get(key)
            if tensor is not None:
                assert owner is not None
                return owner, key, tensor
        return None

    def _tie(self, name: str, tensor: Tensor) -> None:
        """Names that are one tensor in the original are one here too."""
        found = self._tensor(name)
        if found is not None and found[2] is not tensor:
            owner, key, _ = found
            held = owner._parameters if key in owner._parameters else owner._buffers
            held[key] = tensor  # type: ignore[assignment]


@_disable_dynamo
def _outside_of_graphs(module: Guarded, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return module._call(args, named)


def read_verified(path: Path) -> dict[str, Any]:
    """The facts of `verified.json`, with the forms of the arguments ready to compare."""
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    tensors = iter(Form(**each) for each in facts["tensors"])
    return facts | {
        "forms": nested(facts["nesting"], tensors),
        "init": nested(facts["init"], tensors),
    }


def verified_text(facts: dict[str, Any]) -> str:
    """`x: float32[4, 128] on cpu`, for people."""
    forms = facts["forms"]
    names = [*facts["names"], *(f"argument {n}" for n in range(len(forms)))]
    parts = [f"{name}: {form_text(form)}" for name, form in zip(names, forms, strict=False)]
    return f"{', '.join(parts)} on {facts['device']}"


def _kernel_class(cls: type[Guarded]) -> Any:
    made = importlib.import_module(f"{Guarded.__module__.rpartition('.')[0]}.model_new").ModelNew
    if not callable(made):
        raise TypeError(f"{cls.folder}: its ModelNew is no class")
    return made


def _original_class(cls: type[Guarded]) -> Any:
    """The original class. Raises RuntimeError where its file cannot be imported."""
    facts = cls._facts()
    name = f"{Guarded.__module__.rpartition('.')[0]}._original"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, cls.reference)
        assert spec is not None
        assert spec.loader is not None
        module: ModuleType = importlib.util.module_from_spec(spec)
        if facts["package"]:
            module.__package__ = facts["package"]
        beside = [str(cls.folder / "imports"), str(cls.reference.parent)]
        sys.path += [path for path in beside if path not in sys.path]
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            raise RuntimeError(
                f"this call needs the original module, and {cls.reference} cannot be imported "
                f"({type(error).__name__}: {error}); the kernel is verified for "
                f"{verified_text(facts)} only"
            ) from error
    return getattr(sys.modules[name], facts["entry"])


def _special(device: str) -> str:
    """A mode of torch in which a kernel would compute something else, in words; else ""."""
    if torch.is_autocast_enabled(device):
        return "autocast is enabled"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is at work"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is at work"
    return "it is traced" if torch._C._get_tracing_state() is not None else ""
