"""What a module keeps between calls, beside its state dict: a print of each value, by name.

Looked at are the attributes of the model and its children, of its classes and functions (defaults,
closures, caches), and the globals of the user's files. Not covered: what C extensions and
generators keep, nor containers past the first LONGEST places.
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
LONGEST = 64
"""Places of a container that are looked at."""
DEEPEST = 12
MOST = 20_000
LARGE = 1 << 24
"""Bytes; of a larger tensor only writes by torch are seen."""
Put = Callable[[Any], None]


@dataclass(frozen=True)
class ModuleState:
    """One value as it is now."""

    print: Hashable
    value: Any = None
    """Of numbers, lists and dicts."""
    put: Put | None = None
    """Sets another number in its place."""


def module_state(
    model: nn.Module, modules: Iterable[ModuleType], folder: Path
) -> dict[str, ModuleState]:
    """By the name that the author would use: `self.n`, `Model.n`, or a global's own."""
    walk = _Walk(folder, {module.__name__ for module in modules})
    walk.see("self", model, None, 0)
    classes = {base: None for part in model.modules() for base in type(part).__mro__}
    for cls in filter(walk.of_the_user, classes):
        walk.namespace(f"{cls.__name__}.", vars(cls), partial(partial, setattr, cls), 0)
    for module in modules:
        put = partial(partial, operator.setitem, vars(module))
        walk.namespace("", vars(module), put, 0)
    return walk.found


def changed(before: Mapping[str, ModuleState], after: Mapping[str, ModuleState]) -> list[str]:
    """Names of what is not as it was; of a container and its parts the container."""
    names = sorted(
        name
        for name in before.keys() | after.keys()
        if name not in before or name not in after or before[name].print != after[name].print
    )
    return [n for n in names if not any(n.startswith((f"{o}[", f"{o}.")) for o in names)]


class _Walk:
    def __init__(self, folder: Path, modules: set[str]) -> None:
        self.folder, self.modules = folder, modules
        self.found: dict[str, ModuleState] = {}
        self.seen: set[int] = set()

    def of_the_user(self, thing: Any) -> bool:
        """Whether a class or function was defined in one of the user's files."""
        return getattr(thing, "__module__", None) in self.modules

    def namespace(
        self, prefix: str, names: Mapping[str, Any], put: Callable[[str], Put], depth: int
    ) -> None:
        for name, value in list(names.items()):
            if not (name.startswith("__") or isinstance(value, type | ModuleType)):
                self.see(f"{prefix}{name}", value, put(name), depth)

    def see(self, name: str, value: Any, put: Put | None, depth: int) -> None:
        """Take in one value and what it holds."""
        import numpy
        import torch

        if isinstance(value, PLAIN):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            self.found[name] = ModuleState(
                (type(value), repr(value)), value if number else None, put
            )
            return
        if id(value) in self.seen or depth > DEEPEST or len(self.found) > MOST:
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
                places = enumerate(value) if isinstance(value, list) else value.items()
                for place, item in list(islice(places, LONGEST)):
                    own = partial(operator.setitem, value, place)
                    self.see(f"{name}[{place!r}]", item, own, depth + 1)
            case tuple() | deque() | set() | frozenset():
                self.found[name] = ModuleState(len(value))
                for place, item in enumerate(islice(value, LONGEST)):
                    self.see(f"{name}[{place}]", item, None, depth + 1)
            case count():
                self.found[name] = ModuleState(repr(value))
            case _:
                self._object(name, value, depth + 1)

    def _module(self, name: str, model: nn.Module, depth: int) -> None:
        import torch

        for key, parameter in model._parameters.items():
            if parameter is not None:
                self.found[f"{name}.{key}"] = ModuleState(_written(parameter))
        self.namespace(f"{name}.", model._buffers, partial(partial, _nothing), depth)
        for key, child in model._modules.items():
            self.see(f"{name}.{key}", child, None, depth)
        inner = vars(torch.nn.Module())
        own = {key: value for key, value in vars(model).items() if key not in inner}
        self.namespace(f"{name}.", own, partial(partial, operator.setitem, vars(model)), depth)

    def _object(self, name: str, value: Any, depth: int) -> None:
        if hasattr(value, "cache_info"):
            info = value.cache_info()
            self.found[name] = ModuleState((info.misses, info.currsize))
        value = inspect.unwrap(value) if callable(value) else value
        value = getattr(value, "__func__", value)
        if isinstance(value, FunctionType) and self.of_the_user(value):
            self.namespace(f"{name}.", vars(value), partial(partial, setattr, value), depth)
            for item in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
                self.see(f"a default of {name}", item, None, depth)
            free = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            for variable, cell in free:
                with suppress(ValueError):  # an empty cell
                    put = partial(setattr, cell, "cell_contents")
                    self.see(variable, cell.cell_contents, put, depth)
        elif self.of_the_user(type(value)):
            own = getattr(value, "__dict__", {})
            self.namespace(f"{name}.", own, partial(partial, setattr, value), depth)


def _nothing(key: str, value: Any) -> None:
    """Buffers are no counters."""


def _tensor(tensor: Tensor) -> Hashable:
    """Of the content, where that is small enough."""
    import torch

    form = (tuple(tensor.shape), tensor.dtype)
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return form
    if tensor.nbytes > LARGE:
        return _written(tensor)
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return (*form, zlib.crc32(flat.view(torch.uint8).numpy().data))


def _written(tensor: Tensor) -> Hashable:
    """Another one when torch wrote to it, or it is another tensor."""
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version
