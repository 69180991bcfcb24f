"""Build the original module of a guarded kernel, and let it share the kernel's state.

Travels with an exported or applied kernel, next to `guard.py`, which calls `linked` before it runs
the original. In this file `guarded` is a `guard.Guarded`; "ours" are the modules and tensors of the
kernel's module in it, "theirs" those of the original.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .forms import form_of, module_form
from .verified import original_class

Shared = tuple[nn.Module, str, nn.Module, str, Tensor]
"""A shared buffer: (original's module, key in it, our module, key in it, tensor)."""
HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
"""Attributes with a submodule's hooks; the original's submodule gets them too."""


def linked(guarded: Any) -> tuple[nn.Module, list[Shared]]:
    """Give the original our parameters, buffers and modes; return it and the shared buffers.

    Raises RuntimeError if gradients are enabled and a tensor is a parameter in one of the two
    modules and a buffer in the other.
    """
    original = guarded._original if guarded._original is not None else _construct(guarded)
    _carry_over(guarded, original)
    buffers = []
    for path, module in original.named_modules():
        counterpart = _at(guarded, path)
        module.training = guarded.training if counterpart is None else counterpart.training
        for key in [*module._parameters, *module._buffers]:
            name = f"{path}.{key}" if path else key
            found = _tensor(guarded, guarded._ties.get(name, name))
            if found is None:
                continue
            owner, own_key, tensor = found
            store = module._parameters if key in module._parameters else module._buffers
            if name in guarded._ties:
                _tie(guarded, name, tensor)
            if torch.is_grad_enabled() and (store is module._parameters) != (
                own_key in owner._parameters
            ):
                raise RuntimeError(
                    f"{name} is a parameter in one module and a buffer in the other (kernel "
                    "and original), so it cannot be trained; use torch.no_grad()"
                )
            store[key] = tensor
            if store is module._buffers:
                buffers.append((module, key, owner, own_key, tensor))
    for name, value in guarded._changed.items():
        setattr(original, name, value)
    return original, buffers


def _carry_over(guarded: Any, original: nn.Module) -> None:
    """Apply to the original's submodules the changes that ours had since their construction."""
    for path, form in guarded._constructed_modules.items():
        ours = _at(guarded, path)
        parent, _, key = path.rpartition(".")
        try:
            owner = original.get_submodule(parent)
            theirs = owner.get_submodule(key)
        except AttributeError:  # the kernel's module has other submodules
            continue
        if ours is None or ours is theirs or (now := module_form(ours)) == form:
            continue
        guarded.__dict__["_original"] = None  # construct it anew for the next call
        if ours.__class__ is not form[0]:
            owner._modules[key] = ours
            continue
        theirs.__dict__.update({name: ours.__dict__[name] for name in HOOKS})
        changed = {k: v for k, v in now[3].items() if k not in form[3] or form[3][k] != v}
        if now[2] and not form[2]:
            changed["forward"] = ours.forward
        for name, value in changed.items():
            setattr(theirs, name, value)


def _construct(guarded: Any) -> nn.Module:
    """Construct the original. Raises RuntimeError if its state has other shapes."""
    args, named = guarded._arguments
    make = original_class(guarded.folder, guarded.reference, guarded._facts())
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    dtype = torch.get_default_dtype()
    with torch.random.fork_rng(devices=devices):
        torch.set_default_dtype(guarded._dtype)
        try:
            original: nn.Module = make(*args, **named)
        finally:
            torch.set_default_dtype(dtype)
    first: dict[int, str] = {}
    for name, tensor in original.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            continue
        if form_of(tensor)[:2] != guarded._constructed_forms.get(name, (None, None))[:2]:
            raise RuntimeError(
                f"the kernel's module has no {name} with the original's dtype and shape, "
                "so the original cannot run in its place"
            )
        if first.setdefault(id(tensor), name) != name:
            guarded._ties[name] = first[id(tensor)]
    state = next(iter(guarded._state()), None)
    original.to(state[1].device if state else guarded._facts()["device"])
    guarded.__dict__["_original"] = original
    return original


def _at(guarded: Any, path: str) -> nn.Module | None:
    """Return the submodule of the kernel's module at `path`; `guarded` for ""."""
    try:
        found: nn.Module = guarded._kernel.get_submodule(path) if path else guarded
        return found
    except AttributeError:
        return None


def _tensor(guarded: Any, name: str) -> tuple[nn.Module, str, Tensor] | None:
    """Return (owner, key, tensor) of a parameter or buffer of the kernel's module by its name;
    None if there is none."""
    path, _, key = name.rpartition(".")
    owner = _at(guarded, path) if path else guarded._kernel
    for store in () if owner is None else (owner._parameters, owner._buffers):
        tensor = store.get(key)
        if tensor is not None:
            assert owner is not None
            return owner, key, tensor
    return None


def _tie(guarded: Any, name: str, tensor: Tensor) -> None:
    """Store `tensor` as our `name`, because in the original this name is tied to that tensor."""
    found = _tensor(guarded, name)
    if found is not None and found[2] is not tensor:
        owner, key, _ = found
        store = owner._parameters if key in owner._parameters else owner._buffers
        store[key] = tensor  # type: ignore[assignment]
