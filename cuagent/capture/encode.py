"""Write live Python values as source text: attributes of modules, and arguments of their calls.

Classes and functions become tokens. `sources.Sources.resolve` replaces the tokens by names later,
when it is known how the user's sources are embedded.
Not covered: lambdas, nested classes and open resources; each raises `Unsupported` with a message of
one line.
"""

from __future__ import annotations

import base64
import enum
import functools
import io
import math
import pickle
import sys
import types
import zlib
from collections.abc import Callable, Mapping
from typing import Any

TOKEN = "\x00{}\x01{}\x02"
"""Placeholder for a class or function in a text; its fields are the module and the qualified
name."""
DEEPEST = 16
"""Largest nesting depth of values that are written as text."""
LARGEST_PICKLE = 64 << 10
"""Largest size in bytes of a pickle that is embedded for an object of an installed package."""
LARGEST_TENSOR = 1 << 20
"""Largest size of a tensor that is embedded as text, in bytes after compression."""


class _Plain:
    """Example of a class without C-level state. Other classes are compared with its
    `__basicsize__`."""


class Unsupported(Exception):
    """Error: a value cannot be written as text. The message describes the value: `a Lock, which
    ...`."""


class Encoder:
    """Callable that writes Python values as source text.

    `is_library`: returns True for the names of modules that a task imports; the sources of other
    modules are embedded. `tensor`: returns the text for a tensor; by default its data is embedded.
    `layer`: index of the only layer that is written of a cache (`is_cache`); None: all layers.
    `known`: texts of objects by their `id`; the caller keeps the objects alive.
    """

    def __init__(
        self,
        is_library: Callable[[str], bool],
        tensor: Callable[[Any], str] | None = None,
        *,
        layer: int | None = None,
        known: Mapping[int, str] | None = None,
    ) -> None:
        self._is_library = is_library
        self._tensor = tensor or embedded
        self._layer, self._known = layer, known or {}
        self._open: set[int] = set()

    def __call__(self, value: Any, depth: int = 0) -> str:
        """Return the source text of an expression that evaluates to a value equal to `value`.
        Raises Unsupported."""
        if (text := _plain(value)) is not None:
            return text
        if (text := self._known.get(id(value))) is not None:
            return text
        import torch

        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            return str(value)
        if isinstance(value, torch.nn.Module):
            raise Unsupported(f"a {type(value).__name__} that is not registered as a submodule")
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return reference(value)
        if depth > DEEPEST or id(value) in self._open:
            raise Unsupported(f"a {type(value).__name__} that contains itself or is nested deeply")
        self._open.add(id(value))
        try:
            return self._container(value, depth + 1)
        finally:
            self._open.discard(id(value))

    def _container(self, value: Any, depth: int) -> str:
        import torch

        match value:
            case enum.Enum():
                return f"{reference(type(value))}({self(value.value, depth)})"
            case torch.Size():
                return f"torch.Size({list(value)})"
            case tuple() if hasattr(value, "_fields"):
                inner = ", ".join(self(item, depth) for item in value)
                return f"{reference(type(value))}({inner})"
            case functools.partial():
                named = [f"{key}={self(item, depth)}" for key, item in value.keywords.items()]
                parts = [self(value.func, depth), *(self(x, depth) for x in value.args), *named]
                return f"{TOKEN.format('functools', 'partial')}({', '.join(parts)})"
        if type(value) in (list, set, frozenset, tuple, slice):
            return self._sequence(value, depth)
        if type(value) is dict:
            pairs = (f"{self(k, depth)}: {self(v, depth)}" for k, v in value.items())
            return "{" + ", ".join(pairs) + "}"
        return self._object(value, depth)

    def _sequence(self, value: Any, depth: int) -> str:
        if isinstance(value, slice):
            return f"slice({value.start!r}, {value.stop!r}, {value.step!r})"
        inner = ", ".join(self(item, depth) for item in value)
        if isinstance(value, list):
            return f"[{inner}]"
        if isinstance(value, tuple):
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        return f"{type(value).__name__}([{inner}])"

    def _object(self, value: Any, depth: int) -> str:
        """Return an expression that rebuilds an object from its class and its attributes.

        If its state is more than its attributes, an object that torch's pytrees know is built from
        its items, and a library's object is embedded as a pickle.
        """
        from torch.utils import _pytree as pytree

        cls, kind = type(value), type(value).__name__
        name = reference(cls)
        custom = cls.__reduce__ is not object.__reduce__ or cls.__reduce_ex__ is not (
            object.__reduce_ex__
        )
        slots = any(vars(base).get("__slots__") for base in cls.__mro__)
        # With the same size as a plain class, the class has no C-level state.
        is_plain = cls.__basicsize__ == _Plain.__basicsize__ and not (custom or slots)
        if is_plain and hasattr(value, "__dict__"):
            held = vars(value)
            at = self._layer
            if at is None or not is_cache(value) or at >= len(held["layers"]):
                return f"_object({name}, {self._attributes(kind, held, depth)})"
            rest = {key: item for key, item in held.items() if key != "layers"}
            layer = self(held["layers"][at], depth)
            return f"_cache({name}, {self._attributes(kind, rest, depth)}, {layer}, {at})"
        if (node := pytree.SUPPORTED_NODES.get(cls)) is not None:
            items, context = node.flatten_fn(value)
            return f"_node({name}, {self(list(items), depth)}, {self(context, depth)})"
        if not self._is_library(cls.__module__):
            raise Unsupported(f"a {kind}, which has its own way to be pickled")
        try:
            data = _pickled(value)
        except Exception as error:  # methods of the user's object may raise any type
            raise Unsupported(f"a {kind}, which cannot be pickled") from error
        if len(data) > LARGEST_PICKLE:
            raise Unsupported(f"a {kind} of {len(data) >> 10} KiB")
        return f"_unpickled({_packed(data)!r})"

    def _attributes(self, kind: str, held: Mapping[str, Any], depth: int) -> str:
        """Return attributes as the text of a dict."""
        pairs = []
        for key, item in held.items():
            try:
                pairs.append(f"{key!r}: {self(item, depth)}")
            except Unsupported as error:
                raise Unsupported(f"a {kind} whose {key} is {error}") from None
        return "{" + ", ".join(pairs) + "}"


def is_cache(value: Any) -> bool:
    """Return True for a cache of the library transformers with a list of layers.

    A layer of a model uses only that entry of the list that its attribute `layer_idx` names.
    """
    return isinstance(getattr(value, "layers", None), list) and any(
        kind.__name__ == "Cache" and kind.__module__ == "transformers.cache_utils"
        for kind in type(value).__mro__
    )


def reference(value: Any) -> str:
    """Return the token of a class or function. Raises Unsupported if its module lacks the name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if name.endswith("<lambda>"):
        raise Unsupported("a lambda; use a function of the file's top level")
    if module is None and getattr(sys.modules["torch"], name, None) is value:
        module = "torch"  # functions of torch's C extension do not name their module
    found: Any = sys.modules.get(module or "builtins")
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        if module == "builtins" or not hasattr(sys.modules.get(module or ""), "__file__"):
            # Generators and locks: Python's own code has the class, and no name for it.
            raise Unsupported(f"a {name}, which cannot be recorded")
        where = "defined inside a function" if "<locals>" in name else "not found in its module"
        raise Unsupported(f"{name or value!r}, which is {where}: move it to the file's top level")
    return name if module == "builtins" else TOKEN.format(module, name)


def embedded(tensor: Any) -> str:
    """Return an expression that contains the data of a small tensor as text. Raises Unsupported if
    the tensor is too large."""
    import torch

    plain = tensor.detach().cpu().contiguous()
    dtype = str(plain.dtype).removeprefix("torch.")
    data = zlib.compress(
        plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    )
    if len(data) > LARGEST_TENSOR:
        raise Unsupported(f"a tensor of {plain.nbytes >> 20} MiB outside the state dict")
    packed = base64.b85encode(data).decode()
    return f"_tensor({packed!r}, {dtype!r}, {tuple(plain.shape)})"


class _WithoutTensors(pickle.Pickler):
    """Pickler that refuses tensors and modules, because a task must not hide them in a pickle."""

    def persistent_id(self, value: Any) -> None:
        import torch

        if isinstance(value, torch.Tensor | torch.nn.Module):
            raise pickle.PicklingError("it holds a tensor")


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    _WithoutTensors(buffer, protocol=4).dump(value)
    return buffer.getvalue()


def _packed(data: bytes) -> str:
    return base64.b85encode(zlib.compress(data)).decode()


def _plain(value: Any) -> str | None:
    if type(value) is float and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or value is Ellipsis or type(value) in (bool, int, float, complex, str, bytes):
        return repr(value)
    return None
