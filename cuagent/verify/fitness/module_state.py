"""Fingerprint the state that a module keeps between calls outside its state dict, by name.

Covered are the attributes of the model and its children, of its classes and functions (defaults,
closures, caches), and the globals of the user's files. Not covered: state of C extensions and
generators, and items of a container after the first MAX_ITEMS.
"""

from __future__ import annotations

import inspect
import operator
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

PLAIN = (type(None), bool, int, float, complex, str, bytes)
MAX_ITEMS = 64
"""Number of items of each container that are fingerprinted."""
MAX_DEPTH = 12
"""Largest depth of nested attributes and containers that is fingerprinted."""
MAX_VALUES = 20_000
"""Largest number of values that one scan fingerprints, to limit its time."""
LARGE_BYTES = 1 << 24
"""Size in bytes above which a tensor's fingerprint is torch's version counter, not its content."""
Setter = Callable[[Any], None]


@dataclass(frozen=True)
class ModuleState:
    """Fingerprint of one value that may change between calls, with a way to replace the value."""

    fingerprint: Hashable
    value: Any = None
    """The value itself, for numbers, lists and dicts only."""
    setter: Setter | None = None
    """Function that replaces the value; None if it cannot be replaced."""


def module_state(
    model: nn.Module, modules: Iterable[ModuleType], folder: Path
) -> dict[str, ModuleState]:
    """Return the state that is not in the state dict, by its name in the code.

    Names are for example `self.n`, `Model.n` or that of a global. `folder` is the user's folder;
    `modules` are the modules imported from it.
    """
    walk = _Walk(folder, {module.__name__ for module in modules})
    walk.visit("self", model, None, 0)
    classes = {base: None for part in model.modules() for base in type(part).__mro__}
    for cls in filter(walk.is_user_defined, classes):
        walk.namespace(f"{cls.__name__}.", vars(cls), partial(partial, setattr, cls), 0)
    for module in modules:
        setter = partial(partial, operator.setitem, vars(module))
        walk.namespace("", vars(module), setter, 0)
    return walk.found


def changed(before: Mapping[str, ModuleState], after: Mapping[str, ModuleState]) -> list[str]:
    """Return the names whose fingerprints differ between `before` and `after`.

    If a container changed, its items are not named.
    """
    names = sorted(
        name
        for name in before.keys() | after.keys()
        if name not in before
        or name not in after
        or before[name].fingerprint != after[name].fingerprint
    )
    return [n for n in names if not any(n.startswith((f"{o}[", f"{o}.")) for o in names)]


class _Walk:
    def __init__(self, folder: Path, modules: set[str]) -> None:
        self.folder, self.modules = folder, modules
        self.found: dict[str, ModuleState] = {}
        self.seen: set[int] = set()

    def is_user_defined(self, thing: Any) -> bool:
        """Return True if a class or function is defined in one of the user's files."""
        return getattr(thing, "__module__", None) in self.modules

    def namespace(
        self, prefix: str, names: Mapping[str, Any], setter: Callable[[str], Setter], depth: int
    ) -> None:
        for name, value in list(names.items()):
            if not (name.startswith("__") or isinstance(value, type | ModuleType)):
                self.visit(f"{prefix}{name}", value, setter(name), depth)

    def visit(self, name: str, value: Any, setter: Setter | None, depth: int) -> None:
        """Store the fingerprint of `value` under `name`, then visit its items or attributes.

        `setter` replaces the value; None if it cannot be replaced.
        """
        import numpy
        import torch

        if isinstance(value, PLAIN):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            self.found[name] = ModuleState(
                (type(value), repr(value)), value if number else None, setter
            )
            return
        if id(value) in self.seen or depth > MAX_DEPTH or len(self.found) > MAX_VALUES:
            return
        self.seen.add(id(value))
        match value:
            case torch.nn.Module():
                self._module(name, value, depth + 1)
            case torch.Tensor():
                self.found[name] = ModuleState(_tensor(value))
            case numpy.ndarray():
                self.found[name] = ModuleState(
                    (value.shape, value.dtype.str, zlib.crc32(value.tobytes()))
                )
            case list() | dict():
                self.found[name] = ModuleState(len(value), value)
                items = enumerate(value) if isinstance(value, list) else value.items()
                for key, item in list(islice(items, MAX_ITEMS)):
                    own = partial(operator.setitem, value, key)
                    self.visit(f"{name}[{key!r}]", item, own, depth + 1)
            case tuple() | deque() | set() | frozenset():
                self.found[name] = ModuleState(len(value))
                for key, item in enumerate(islice(value, MAX_ITEMS)):
                    self.visit(f"{name}[{key}]", item, None, depth + 1)
            case count():
                self.found[name] = ModuleState(repr(value))
            case _:
                self._object(name, value, depth + 1)

    def _module(self, name: str, model: nn.Module, depth: int) -> None:
        import torch

        for key, parameter in model._parameters.items():
            if parameter is not None:
                self.found[f"{name}.{key}"] = ModuleState(_version(parameter))
        self.namespace(f"{name}.", model._buffers, partial(partial, _nothing), depth)
        for key, child in model._modules.items():
            self.visit(f"{name}.{key}", child, None, depth)
        inner = vars(torch.nn.Module())
        own = {key: value for key, value in vars(model).items() if key not in inner}
        self.namespace(f"{name}.", own, partial(partial, operator.setitem, vars(model)), depth)

    def _object(self, name: str, value: Any, depth: int) -> None:
        if hasattr(value, "cache_info"):
            info = value.cache_info()
            self.found[name] = ModuleState((info.misses, info.currsize))
        value = inspect.unwrap(value) if callable(value) else value
        value = getattr(value, "__func__", value)
        if isinstance(value, FunctionType) and self.is_user_defined(value):
            self.namespace(f"{name}.", vars(value), partial(partial, setattr, value), depth)
            for item in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
                self.visit(f"a default of {name}", item, None, depth)
            free = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            for variable, cell in free:
                with suppress(ValueError):  # an empty cell
                    setter = partial(setattr, cell, "cell_contents")
                    self.visit(variable, cell.cell_contents, setter, depth)
        elif self.is_user_defined(type(value)):
            own = getattr(value, "__dict__", {})
            self.namespace(f"{name}.", own, partial(partial, setattr, value), depth)


def _nothing(key: str, value: Any) -> None:
    """Ignore the new value: the setter of buffers, which are not treated as counters."""


def _tensor(tensor: Tensor) -> Hashable:
    """Return a checksum of the tensor's content; for a large tensor, `_version`."""
    import torch

    form = (tuple(tensor.shape), tensor.dtype)
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return form
    if tensor.nbytes > LARGE_BYTES:
        return _version(tensor)
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return (*form, zlib.crc32(flat.view(torch.uint8).numpy().data))


def _version(tensor: Tensor) -> Hashable:
    """Return (address, torch's version counter); a write or another tensor changes them."""
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version
