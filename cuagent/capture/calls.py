"""Describe calls of a module as source text of the arguments, in which placeholders stand for
tensors.

A tensor that occurs twice in the arguments is one input. Objects that contain tensors (a cache, a
dataclass) are written as an expression that contains the placeholders. This code runs in the user's
process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cuagent.capture.encode import Encoder, Unsupported

if TYPE_CHECKING:
    from torch import Tensor, nn

PLACE = "\x03{}\x04"
"""Placeholder, within a call's text, for the input tensor with number `{}`."""
OUTPUT = "\x05{}\x06"
"""Placeholder, within the text of a result, for the new tensor with number `{}`."""


@dataclass
class Call:
    """The arguments of one call: source texts with a `PLACE` for each tensor, and the list of
    tensors with their names."""

    positional: list[str]
    named: dict[str, str]
    tensors: list[Tensor]
    names: list[str]
    aliases: list[str] = field(default_factory=list)
    """One line of text for each input tensor that shares its memory with an earlier input."""
    layer: int | None = None
    """Index of the only layer of a cache that the texts contain; None if they contain all."""

    @property
    def is_plain(self) -> bool:
        """Return True if all arguments are distinct tensors passed by position."""
        places = [PLACE.format(number) for number in range(len(self.tensors))]
        return self.positional == places and not self.named


LAYER = "layer_idx"
"""Attribute that names a module's layer in a cache of the library transformers."""


def describe_call(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    is_library: Callable[[str], bool],
) -> Call:
    """Return the description of a call with `args` and `kwargs`. Raises Unsupported for arguments
    that cannot be written as text.

    `is_library`: True for names of modules that a task imports.
    """
    leaves: list[Tensor] = []
    names: list[str] = []
    place: list[str] = [""]

    def tensor(value: Tensor) -> str:
        refuse_unusual(value)
        for number, known in enumerate(leaves):
            if known is value or (same_view(known, value)):
                return PLACE.format(number)
        leaves.append(value)
        taken = sum(name.rpartition("_")[0] == place[0] or name == place[0] for name in names)
        names.append(f"{place[0]}_{taken}" if taken else place[0])
        return PLACE.format(len(leaves) - 1)

    layer = layer_of(module)
    encode = Encoder(is_library, tensor, layer=layer)
    positional, named = [], {}
    try:
        for name, value in zip(_positional_names(module, len(args)), args, strict=True):
            place[0] = name
            positional.append(encode(value))
        for name, value in kwargs.items():
            place[0] = name
            named[name] = encode(value)
    except Unsupported as error:
        raise Unsupported(f"argument {place[0]} is {error}") from None
    return Call(positional, named, leaves, names, _aliases(leaves, names), layer)


def layer_of(module: nn.Module) -> int | None:
    """Return the attribute `layer_idx` of the submodules; None unless all that have it agree."""
    found = {vars(inner)[LAYER] for inner in module.modules() if LAYER in vars(inner)}
    (value, *others) = found or {None}
    return value if not others and type(value) is int and value >= 0 else None


def plain_output(value: Any) -> tuple[Any, bool]:
    """Return (output as nested dicts, lists and tensors, True if no object had to be replaced).

    The text of a captured task contains the same function (`template.PLAIN`).
    """
    import torch

    if value is None or isinstance(value, torch.Tensor | bool | int | float | str):
        return value, True
    if isinstance(value, Mapping):
        pairs = {str(key): plain_output(item) for key, item in value.items()}
        kept = type(value) is dict and all(type(key) in (str, int) for key in value)
        return {k: v for k, (v, _) in pairs.items()}, kept and all(p for _, p in pairs.values())
    if isinstance(value, list | tuple):
        items = [plain_output(item) for item in value]
        kept = type(value) in (list, tuple)  # a kernel returns no named tuple
        return [item for item, _ in items], kept and all(p for _, p in items)
    held = (
        {k: v for k, v in vars(value).items() if v is not None}
        if hasattr(value, "__dict__")
        else {}
    )
    return {key: plain_output(item)[0] for key, item in held.items()}, False


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors of a plain output as a flat list; tensors in a dict are ordered by key."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in tensors_of(value[key])]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in tensors_of(item)]
    return []


def same_view(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors have equal memory address, dtype, shape and strides."""
    return (
        a.numel() > 0
        and a.device == b.device
        and a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.data_ptr() == b.data_ptr()
    )


def autocast_of(device: str) -> str | None:
    """Return the autocast dtype for a device type such as `cuda`; None if autocast is off."""
    import torch

    if not torch.is_autocast_enabled(device):
        return None
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def refuse_context(module: nn.Module) -> None:
    """Raise Unsupported for a module or a surrounding of its call that cannot be recorded."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        raise Unsupported("it is a TorchScript module; capture the module that was compiled")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise Unsupported("it is called inside a transform of torch.func, such as vmap or grad")


def refuse_unusual(tensor: Tensor) -> None:
    import torch

    plain = (torch.Tensor, torch.nn.Parameter)
    if type(tensor) not in plain or tensor.layout is not torch.strided or tensor.is_quantized:
        kind = type(tensor).__name__ if type(tensor) not in plain else str(tensor.layout)
        raise Unsupported(f"a tensor of another kind ({kind})")
    if tensor.device.type == "meta":
        raise Unsupported("a tensor on the meta device, which has no values")


def _aliases(leaves: list[Tensor], names: list[str]) -> list[str]:
    found: list[str] = []
    seen: dict[int, str] = {}
    for leaf, name in zip(leaves, names, strict=True):
        key = leaf.untyped_storage().data_ptr() if leaf.numel() else id(leaf)
        if key in seen:
            found.append(f"{name} shares memory with {seen[key]}")
        seen.setdefault(key, name)
    return found


def _positional_names(module: nn.Module, count: int) -> list[str]:
    """Return names for `count` positional arguments: those of forward's parameters, else `xN`."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in kinds]
    return [names[n] if n < len(names) else f"x{n}" for n in range(count)]
