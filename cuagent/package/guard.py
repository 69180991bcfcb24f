"""Run a kernel for the calls that it was verified on, and the original module for all others.

This file travels with an exported or applied kernel and does not import cuagent. `verified.json` in
the same folder lists the verified calls: device; shapes, dtypes and strides of the tensors; values
of the other arguments; arguments of the constructor; all in eval mode and without gradients.

During the kernel's call torch's global flags (TF32) have the values of the verification; the user's
values are restored afterwards. So the result does not depend on the user's flags.

The original shares the parameters and buffers of the kernel's module. It is imported and built at
the first call that needs it.

Not covered: the values in the tensors, and methods of the module other than forward.
Invariant: a call that differs from the verified calls in a listed property never runs the kernel.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from .flags import flags_kept, flags_set, read_flags, set_flags
from .forms import (
    INTERNAL,
    PLAIN,
    dtype_name,
    form_of,
    is_strided,
    matches,
    module_form,
    required_text,
    same,
    tensors_in,
    value_text,
)
from .machine import slower_here
from .modes import unverified_mode
from .original import linked
from .seen import Seen
from .state import called
from .verified import (
    by_position,
    kernel_class,
    original_class,
    read_verified,
    verified_text,
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
"""Attributes that the guarding module takes from the kernel's module, as the same objects."""


class Guarded(nn.Module):
    """Base of an exported `ModelNew`: same constructor, forward and state_dict as the original.

    A subclass sets `folder` and `reference`. A call that needs the original raises RuntimeError if
    the original cannot be imported or built; it never runs the kernel instead.
    """

    folder: ClassVar[Path]
    """Folder with `verified.json`, and `model_new.py` with the kernel's class."""
    reference: ClassVar[Path]
    """File with the original class."""
    _verified: ClassVar[dict[str, Any] | None] = None
    _warned: ClassVar[set[str]]
    _imported_flags: ClassVar[dict[str, Any]] = {}
    """Flags of torch that the import of the kernel's module changed, with their new values."""
    _was_imported: ClassVar[bool] = False
    _unloadable: ClassVar[str] = ""
    """Reason why the kernel cannot be used in this process, such as a missing compiler."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__()
        dtype = torch.get_default_dtype()
        kernel, flags = self._construct_kernel(args, named)
        if not isinstance(kernel, nn.Module) or isinstance(kernel, torch.jit.ScriptModule):
            raise TypeError(f"{self.folder}: its ModelNew is not a plain torch.nn.Module")
        kernel.training = False  # the kernel was verified in eval mode only
        attributes = self.__dict__
        attributes.update({name: kernel.__dict__[name] for name in SHARED})
        attributes.update(_kernel=kernel, _arguments=(args, named), _changed={})
        attributes.update(_original=None, _checked_state=None, _ties={}, _seen=Seen())
        attributes.update(_dtype=dtype, _flags=flags, _run=called(kernel))
        attributes["_constructed_forms"] = {name: form_of(tensor) for name, tensor in self._state()}
        inner = dict(kernel.named_modules())
        attributes["_constructed_modules"] = {p: module_form(m) for p, m in inner.items() if p}
        attributes["_construction"] = self._construction_difference()

    def _construct_kernel(
        self, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return the kernel's module, and the flags of torch that its import and constructor set.

        The flags of the process are restored. If the kernel cannot be loaded, the original is
        returned, and `_unloadable` has the reason.
        """
        cls, verified = type(self), self._facts()
        with flags_kept():
            set_flags(verified["flags"])
            before = read_flags()
            set_flags(cls._imported_flags)
            try:
                made = kernel_class(self.folder)
            except Exception as error:  # noqa: BLE001  importing it compiles the kernel
                line = str(error).strip().partition("\n")[0] or type(error).__name__
                cls._unloadable = f"the kernel cannot be loaded ({line})"
                made = original_class(self.folder, self.reference, verified)
            if not cls._was_imported:  # only the first import runs the module's body
                cls._imported_flags, cls._was_imported = _changed(before), True
            kernel = made(*args, **named)
            return kernel, _changed(before)

    # -- calls

    def forward(self, *args: Any, **named: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # a kernel cannot be part of a graph
            return _call_outside_graph(self, args, named)
        if named:
            args, named = self._by_position(args, named)
        if not named and self._fits(args):
            return self._run_kernel(args)
        return self._run_original(args, named)

    def _run_kernel(self, args: tuple[Any, ...]) -> Any:
        """Run the kernel under the flags that it was verified under."""
        verified = self._verified or self._facts()
        same, changes = verified["same_flags"], verified["changes"]
        if not changes and not self._flags and same():
            return self._run(*args)
        if changes == "all" or self._flags:
            with flags_kept():
                set_flags(verified["flags"] | self._flags)
                return self._run(*args)
        if not same():
            with flags_set(verified["flags"]):
                return self._run(*args)
        try:
            return self._run(*args)
        finally:
            if not same():
                set_flags(verified["flags"])

    def why_original(self, *args: Any, **named: Any) -> str:
        """Return the reason why this call would run the original; "" if it would run the kernel."""
        args, named = self._by_position(args, named)
        return "" if not named and self._fits(args) else self._why(args, named)

    def _fits(self, args: tuple[Any, ...]) -> bool:
        """Return True for a verified call; takes microseconds. `_why` explains a False."""
        verified = self._verified or self._facts()
        if self.training or self._construction or self._changed:
            return False
        if unverified_mode(verified["device"]):
            return False
        device = self._device(verified)
        if self._seen.find(args) is not device:
            forms = verified["forms"]
            if len(args) != len(forms) or not all(map(matches, args, forms, repeat(device))):
                return False
            self._seen.add(args, device)
        if self._state_difference(device):
            return False
        return not torch.is_grad_enabled() or not self._wants_gradients(args)

    def _device(self, verified: dict[str, Any]) -> torch.device:
        """Return the device that a verified call uses: the CPU or the current GPU.

        Equal devices are the same object, so that callers can compare with `is`.
        """
        kind = verified["device"]
        if kind == "cuda" and torch.cuda.is_initialized():
            return _device("cuda", torch._C._cuda_getDevice())
        return _device(kind)

    def _wants_gradients(self, args: tuple[Any, ...]) -> bool:
        tensors = [*tensors_in(args), *(tensor for _, tensor in self._state())]
        return any(tensor.requires_grad for tensor in tensors)

    def _by_position(
        self, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return (positional arguments, named arguments that have no position)."""
        return by_position(self._facts()["names"], args, named)

    def _why(self, args: tuple[Any, ...], named: dict[str, Any]) -> str:
        """Return the first difference from the verified calls, as a message."""
        verified = self._facts()
        device, forms = self._device(verified), verified["forms"]
        if self.training:
            return "the module is in training mode; call eval() to use the kernel"
        if mode := unverified_mode(verified["device"]):
            return mode
        if self._construction:
            return self._construction
        if self._changed:
            return f"attributes were set after construction ({', '.join(self._changed)})"
        if named or len(args) != len(forms):
            count = len(args) + len(named)
            return f"the call has {count} arguments; verified were {len(forms)} by position"
        for number, (value, form) in enumerate(zip(args, forms, strict=True)):
            if not matches(value, form, device):
                verified_form = required_text(form, device)
                return f"argument {number} is {value_text(value)}; verified was {verified_form}"
        if state := self._state_difference(device):
            return state
        return "gradients are enabled; use torch.no_grad() to run the kernel"

    # -- parameters and buffers

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._kernel.named_parameters(remove_duplicate=False)
        yield from self._kernel.named_buffers(remove_duplicate=False)

    def _state_difference(self, device: torch.device) -> str:
        """Return how parameters, buffers and submodules differ from the verified ones, or "".

        The full check runs only if a tensor or module was replaced, or memory or strides changed,
        since the last one.
        """
        checked = self._checked_state
        if checked is None or checked[0] is not device:
            return self._check_state(device)
        for owner, key, tensor, pointer, packed in checked[1]:
            if owner.get(key) is not tensor or _pointer(tensor) != pointer:
                return self._check_state(device)
            if packed is not None and _is_packed(tensor) is not packed:
                return self._check_state(device)
        for owner, key, module, form in checked[2]:
            if owner.get(key) is not module or module.training or module_form(module) != form:
                return self._check_state(device)
        return ""

    def _check_state(self, device: torch.device) -> str:
        self.__dict__["_checked_state"] = None
        tensors, modules = [], []
        for path, module in self._kernel.named_modules():
            if path and module.training:
                return f"{path} is in training mode; call eval() to use the kernel"
            if path and module_form(module) != self._constructed_modules.get(path):
                return f"{path} was changed or replaced after construction, or has hooks"
            owned = {**module._parameters, **module._buffers}
            for key, tensor in owned.items():
                name = f"{path}.{key}" if path else key
                if tensor is None:
                    continue
                plain = tensor.__class__ in PLAIN and is_strided(tensor)
                if not plain or tensor.device != device:
                    return f"{name} is {value_text(tensor)}; verified was on {device.type}"
                if form_of(tensor) != self._constructed_forms.get(name):
                    return f"{name} is {value_text(tensor)}, unlike when it was constructed"
                owner = module._parameters if key in module._parameters else module._buffers
                # With the same address, only tensors of several dimensions can have other strides.
                packed = tensor.is_contiguous() if tensor.ndim > 1 else None
                tensors.append((owner, key, tensor, tensor.data_ptr(), packed))
            for key, inner in module._modules.items():
                if inner is not None:
                    modules.append((module._modules, key, inner, module_form(inner)))
        self.__dict__["_checked_state"] = (device, tensors, modules)
        return ""

    def _construction_difference(self) -> str:
        """Return why an object constructed like this cannot use the kernel, as a message, or "".

        Reasons: other constructor arguments or default dtype, a kernel that cannot be loaded, or
        one that was timed as slower on this machine.
        """
        verified = self._facts()
        if why := self._unloadable or slower_here(self.folder):
            return why
        positional, named = verified["init"]
        if not same(self._bound(*self._arguments), self._bound(tuple(positional), named)):
            return "the arguments of its constructor differ from the verified ones"
        if dtype_name(self._dtype) != verified["default_dtype"]:
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
        self.__dict__.update(_checked_state=None, _original=None)
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
        if "_changed" not in self.__dict__ or name not in self.__dict__ or name in INTERNAL:
            return
        if name[:1] != "_" or name in self._kernel.__dict__:
            self._changed[name] = value

    def __getstate__(self) -> dict[str, Any]:
        forgotten = {"_original": None, "_checked_state": None, "_seen": Seen(), "_run": None}
        return {**self.__dict__, **forgotten}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__["_run"] = called(self._kernel)

    def extra_repr(self) -> str:
        return f"kernel for {verified_text(self._facts())}; the original for other calls"

    @classmethod
    def _facts(cls) -> dict[str, Any]:
        """Return the facts of `verified.json`; read the file once per class."""
        if cls._verified is None:
            cls._verified = read_verified(cls.folder / "verified.json")
            cls._warned = set()
        return cls._verified

    # -- the original

    def _run_original(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._warn_once(self._why(args, named))
        original, buffers = linked(self)
        result = original(*args, **named)
        for module, key, owner, name, tensor in buffers:  # copy back buffers that forward replaced
            if module._buffers.get(key, tensor) is not tensor:
                owner._buffers[name] = module._buffers[key]
        return result

    def _warn_once(self, why: str) -> None:
        if why not in self._warned:
            self._warned.add(why)
            text = f"{type(self).__name__}: the original module runs, not the kernel: {why}"
            warnings.warn(text, RuntimeWarning, stacklevel=6)


_device = cache(torch.device)
_pointer = Tensor.data_ptr
_is_packed = Tensor.is_contiguous


@_disable_dynamo
def _call_outside_graph(module: Guarded, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return module.forward(*args, **named)


def _changed(before: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of torch that differ from `before`, with their values now."""
    return {name: value for name, value in read_flags().items() if before[name] != value}
