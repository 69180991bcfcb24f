"""Tell whether a module of the user equals the original that a kernel was verified against.

Travels with an exported or applied kernel, next to `replace.py`. Two modules are equal if their
submodules have the same paths, class sources and attributes, and their parameters and buffers have
the same names and ties. Functions and constants that a class uses from its own file are compared
too. Not covered: functions that it imports from other files.
"""

from __future__ import annotations

import enum
import functools
import inspect
import textwrap
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .reads import Reads, reads
from .state import HOOKS, state_names

KEY = "_cuagent_replacement"
"""Attribute of an optimized module that holds its `Replacement` (`replacement.py`)."""
ORIGINAL = "_cuagent_original"
"""Attribute of an optimized module's class that holds the original class."""
ADDED = "_cuagent_added"
"""Attribute of the `__init__` that `accelerate_` sets on a class: True if the class had none."""
FLAT = ("_flat_weights", "_flat_weight_refs")
"""Attributes of recurrent modules with a second list of their parameters."""
INTERNAL = frozenset((*nn.Module().__dict__, KEY, "_compiled_call_impl", *FLAT))
"""Attributes that are not compared: those that every `nn.Module` has, and lists of parameters."""
GLOBAL_HOOKS = [
    found
    for name in ("forward", "forward_pre", "backward", "backward_pre")
    if (found := getattr(torch.nn.modules.module, f"_global_{name}_hooks", None)) is not None
]
"""Hooks of all modules of the process, by torch."""
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
DEPTH = 8
"""Depth to which nested objects in attributes are compared; deeper ones count as different."""


def original_of(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module; for an optimized module the original class."""
    kind: type[nn.Module] = getattr(type(module), ORIGINAL, type(module))
    return kind


def difference(
    module: nn.Module,
    template: nn.Module,
    *,
    kind: type[nn.Module] | None = None,
    any_class: bool = False,
    read: Reads | None = None,
    free: Sequence[str] = (),
) -> str:
    """Return how `module` differs from the verified original, as a message, or "".

    `kind` is the class that the module must have; by default the template's. With `any_class` the
    class of the module itself is not compared. `read` are the attributes that a verified call
    reads; the others may differ, and so may those with a name in `free`.
    """
    ours = dict(module.named_modules(remove_duplicate=False))
    theirs = dict(template.named_modules(remove_duplicate=False))
    if ours.keys() != theirs.keys():
        names = ", ".join(sorted(ours.keys() ^ theirs.keys())[:3])
        return f"its submodules differ from the verified ones ({names})"
    for path, inner in ours.items():
        where = path or "the module"
        one: Any = original_of(inner)
        other: Any = (None if path else kind) or type(theirs[path])
        if (path or not any_class) and not same_class(one, other):
            return f"the source of {one.__name__} differs from the verified one"
        if path and any(inner.__dict__.get(hooks) for hooks in HOOKS):
            return f"{where} has hooks"
        if "forward" in inner.__dict__:
            return f"the forward of {where} was replaced"
        if name := _attribute_difference(inner, theirs[path], path, read, free):
            return f"attribute {name} of {where} differs from the verified one"
    if module._modules and any(GLOBAL_HOOKS):
        return "hooks for all modules are registered"
    if state_names(module)[0] != state_names(template)[0]:
        return "its parameters and buffers have other names or ties than the verified ones"
    return ""


def _attribute_difference(
    module: nn.Module, template: nn.Module, path: str, read: Reads | None, free: Sequence[str]
) -> str:
    ours, theirs = module.__dict__, template.__dict__
    for name in [*theirs, *(name for name in ours if name not in theirs and name[:1] != "_")]:
        if name in INTERNAL or name in free or not reads(read, path, name):
            continue
        if name not in ours or name not in theirs or not same_value(ours[name], theirs[name]):
            return name
    return ""


@functools.lru_cache(maxsize=4096)
def same_class(one: Any, other: Any) -> bool:
    """Return True if both are the same class, or have equal names, sources and bases, and their
    methods use equally defined globals."""
    if one is other:
        return True
    if one.__name__ != other.__name__ or _source(one) != _source(other) or not _source(one):
        return False
    if len(one.__bases__) != len(other.__bases__):
        return False
    mine, yours = _functions(one), _functions(other)
    return (
        all(map(same_class, one.__bases__, other.__bases__))
        and mine.keys() == yours.keys()
        and all(_same_globals(mine[name], yours[name], set()) for name in mine)
    )


def same_value(one: Any, other: Any, depth: int = DEPTH) -> bool:
    """Return True if two attributes have equal types and values at every depth."""
    if one is other:
        return True
    kinds: tuple[Any, Any] = type(one), type(other)
    if not depth or (kinds[0] is not kinds[1] and not same_class(*kinds)):
        return False
    if isinstance(one, type):
        return _same_source(one, other)
    inner = functools.partial(same_value, depth=depth - 1)
    if isinstance(one, (*PLAIN, enum.Enum)):
        return bool(one == other)
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype is other.dtype and bool((one == other).all())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(inner, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(inner(one[key], other[key]) for key in one)
    if isinstance(one, (set, frozenset)):
        return bool(one == other)
    if isinstance(one, functools.partial):
        return all(
            map(inner, (one.func, one.args, one.keywords), (other.func, other.args, other.keywords))
        )
    if isinstance(one, types.FunctionType):
        return _same_function(one, other, set())
    if isinstance(one, types.MethodType):
        return _same_function(one.__func__, other.__func__, set())
    if isinstance(one, nn.Module) or not hasattr(one, "__dict__"):
        return False
    return inner(vars(one), vars(other))


def _same_function(one: Any, other: Any, seen: set[Any]) -> bool:
    if one is other:
        return True
    cells = [[cell.cell_contents for cell in f.__closure__ or ()] for f in (one, other)]
    return (
        bool(_source(one))
        and _source(one) == _source(other)
        and same_value(one.__defaults__, other.__defaults__)
        and len(cells[0]) == len(cells[1])
        and all(map(same_value, *cells))
        and _same_globals(one, other, seen)
    )


def _same_globals(one: types.FunctionType, other: types.FunctionType, seen: set[Any]) -> bool:
    """Return True if the globals that two functions use have equal values or sources.

    The functions have equal source. `seen` holds the names of functions compared already.
    """
    if one.__globals__ is other.__globals__ or one.__qualname__ in seen:
        return True
    seen.add(one.__qualname__)
    missing = object()
    for name in _names(one.__code__):
        mine, yours = one.__globals__.get(name, missing), other.__globals__.get(name, missing)
        if mine is yours:
            continue
        if isinstance(mine, types.FunctionType) and isinstance(yours, types.FunctionType):
            if not _same_function(mine, yours, seen):
                return False
        elif isinstance(mine, type) and isinstance(yours, type):
            if not _same_source(mine, yours):
                return False
        elif not same_value(mine, yours):
            return False
    return True


def _same_source(one: type, other: type) -> bool:
    """Return True if two classes have the same name and source; their globals may differ."""
    return one.__name__ == other.__name__ and _source(one) == _source(other)


def _names(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _functions(kind: type) -> dict[str, types.FunctionType]:
    own = {name: value for name, value in vars(kind).items() if callable(value)}
    found = {n: inspect.unwrap(value) for n, value in own.items() if not getattr(value, ADDED, 0)}
    return {n: value for n, value in found.items() if isinstance(value, types.FunctionType)}


@functools.lru_cache(maxsize=4096)
def _source(thing: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(thing)).strip()
    except (OSError, TypeError):
        return ""
