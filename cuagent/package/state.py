"""Name a module's parameters and buffers, and let a kernel's module use them.

Travels with an exported or applied kernel, next to `replace.py`. The state of a module is the list
of its parameters and buffers without repetitions; tied ones occur once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

CALLS = ("__call__", "_call_impl", "_wrapped_call_impl")
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Attributes of a module with hooks that its call runs around forward."""


class Unsuitable(Exception):
    """The module or call cannot use the kernel. The message is one line."""


def state_names(module: nn.Module) -> tuple[dict[str, int], list[Tensor]]:
    """Return ({name: index into the list}, list of parameters and buffers).

    Names that share one tensor have the same index.
    """
    names: dict[str, int] = {}
    unique: list[Tensor] = []
    at: dict[int, int] = {}
    for name, tensor in [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]:
        if id(tensor) not in at:
            at[id(tensor)] = len(unique)
            unique.append(tensor)
        names[name] = at[id(tensor)]
    return names, unique


def places(module: nn.Module) -> list[tuple[list[str], str]]:
    """Return (path of the owning submodule, key) of each parameter and buffer; tied ones once."""
    names, unique = state_names(module)
    first: list[str] = [""] * len(unique)
    for name, at in names.items():
        first[at] = first[at] or name
    return [(name.split(".")[:-1], name.split(".")[-1]) for name in first]


def pointers(state: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the memory addresses of the tensors, to recognize a state."""
    return tuple(map(_pointer, state))


_pointer = Tensor.data_ptr


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


def bind_tensors(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Replace parameters and buffers of `module` by detached tensors, given by name."""
    for name, tensor in tensors.items():
        path, _, key = name.rpartition(".")
        owner = module.get_submodule(path)
        if key in owner._parameters:
            owner._parameters[key] = nn.Parameter(tensor.detach(), requires_grad=False)
        else:
            owner._buffers[key] = tensor.detach()


def called(kernel: nn.Module) -> Callable[..., Any]:
    """Return the function to call for the kernel's module.

    This is its forward, which saves a microsecond. It is the module itself if the module has hooks
    or its class overrides `__call__`.
    """
    own = any(getattr(type(kernel), n) is not getattr(nn.Module, n) for n in CALLS)
    forward: Callable[..., Any] = kernel.forward
    return kernel if own or any(kernel.__dict__[hooks] for hooks in HOOKS) else forward
