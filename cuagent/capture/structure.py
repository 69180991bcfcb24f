"""Write a live module as a text table with one row for each submodule.

A row has the class, the attributes, and dtype and shape of the parameters and buffers. The table
rebuilds the module without its constructor's arguments, also if the script changed the module after
its construction (tied weights, frozen parameters, replaced layers). Hooks are left out.
Not covered: lazy, quantized, distributed and parametrized modules, and modules whose `forward` was
replaced on the instance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cuagent.capture.encode import Encoder, Unsupported, reference

if TYPE_CHECKING:
    from torch import Tensor, nn

REBUILT = ("_flat_weights", "_flat_weight_refs")
"""Names of attributes of recurrent modules that are rebuilt from the parameters instead of
written."""
IGNORED = ("_compiled_call_impl", "_is_hf_initialized", "_forward_hooks_with_kwargs")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass
class Structure:
    """The table of a module, the module's tensors, and notes on parts that the table omits."""

    rows: list[str] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Parameters and persistent buffers (not copies) by their first name in the state dict."""
    tied: list[str] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """One line for each attribute that could not be written, with the reason."""
    modules: int = 0


def describe_module(model: nn.Module, encode: Encoder) -> Structure:
    """Return the table from which `model` can be rebuilt. Raises Unsupported with a message of one
    line."""
    found = Structure()
    _visit(model, "", found, encode, {}, {})
    return found


def _visit(
    module: nn.Module,
    path: str,
    found: Structure,
    encode: Encoder,
    seen: dict[int, str],
    tensors: dict[int, str],
) -> None:
    if id(module) in seen:
        found.rows.append(f"({path!r}, {seen[id(module)]!r}, {{}}, {{}}, {{}}),")
        return
    seen[id(module)] = path
    found.modules += 1
    _refuse_unusual(module, path)
    _note_hooks(module, path, found)
    parts = [
        _attributes(module, path, found, encode),
        _forms(module._parameters, path, found, tensors),
        _buffers(module, path, found, encode, tensors),
    ]
    kind = reference(type(module)) if path else "None"
    found.rows.append(f"({path!r}, {kind}, {', '.join(parts)}),")
    for name, child in module._modules.items():
        below = f"{path}.{name}" if path else name
        if child is None:
            found.rows.append(f"({below!r}, None, {{}}, {{}}, {{}}),")
        else:
            _visit(child, below, found, encode, seen, tensors)


def _refuse_unusual(module: nn.Module, path: str) -> None:
    place = path or "the module"
    if "forward" in vars(module):
        raise Unsupported(f"{place}: its forward was replaced on the instance")
    if hasattr(module, "parametrizations"):
        raise Unsupported(
            f"{place}: it is parametrized; call torch.nn.utils.parametrize.remove_parametrizations "
            "before it is used"
        )
    for hook in module._forward_pre_hooks.values():
        if type(hook).__module__.startswith("torch.nn.utils"):
            kind = type(hook).__name__
            raise Unsupported(f"{place}: torch.nn.utils computes its weight ({kind}); remove that")


def _note_hooks(module: nn.Module, path: str, found: Structure) -> None:
    count = sum(len(getattr(module, name, ())) for name in HOOKS)
    if count:
        found.hooks.append(f"{path or 'the module'} ({count})")


def _attributes(module: nn.Module, path: str, found: Structure, encode: Encoder) -> str:
    """Return a module's attributes as the text of a dict; name attributes that cannot be written in
    `found.skipped`."""
    import torch

    own = vars(torch.nn.Module())
    parts = []
    for name, value in vars(module).items():
        if (name in own and name != "training") or name in (*REBUILT, *IGNORED):
            continue
        try:
            parts.append(f"{name!r}: {encode(value)}")
        except Unsupported as error:
            found.skipped.append(f"{path + '.' if path else ''}{name} is {error}")
    return "{" + ", ".join(parts) + "}"


def _forms(parameters: Any, path: str, found: Structure, tensors: dict[int, str]) -> str:
    import torch

    parts = []
    for name, value in parameters.items():
        full = f"{path}.{name}" if path else name
        if value is None:
            parts.append(f"{name!r}: None")
        elif id(value) in tensors:
            found.tied.append(f"{full} = {tensors[id(value)]}")
            parts.append(f"{name!r}: {tensors[id(value)]!r}")
        else:
            if type(value) is not torch.nn.Parameter or value.layout is not torch.strided:
                raise Unsupported(f"{full}: a {type(value).__name__}, not a plain parameter")
            if value.is_meta:
                raise Unsupported(f"{full}: on the meta device, without values")
            tensors[id(value)] = full
            found.tensors[full] = value
            parts.append(f"{name!r}: {_form(value, trained=value.requires_grad)}")
    return "{" + ", ".join(parts) + "}"


def _buffers(
    module: nn.Module, path: str, found: Structure, encode: Encoder, tensors: dict[int, str]
) -> str:
    parts = []
    for name, value in module._buffers.items():
        full = f"{path}.{name}" if path else name
        if value is None:
            parts.append(f"{name!r}: None")
        elif name in module._non_persistent_buffers_set:
            try:
                parts.append(f"{name!r}: {encode(value)}")
            except Unsupported as error:
                raise Unsupported(f"{full}: {error}") from None
        elif id(value) in tensors:
            parts.append(f"{name!r}: {tensors[id(value)]!r}")
        else:
            tensors[id(value)] = full
            found.tensors[full] = value
            parts.append(f"{name!r}: {_form(value, trained=True)}")
    return "{" + ", ".join(parts) + "}"


def _form(tensor: Tensor, *, trained: bool) -> str:
    """Return the text of a tuple that describes a tensor: dtype, shape, trained flag, strides.

    Trailing entries with default values are left out: `('float32', (3, 4))` is trained and
    contiguous.
    """
    stride = _permuted_stride(tensor)
    rest = f", {trained}, {stride}" if stride is not None else "" if trained else ", False"
    return f"({_dtype(tensor)!r}, {tuple(tensor.shape)}{rest})"


def _permuted_stride(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides of a dense tensor whose dimensions are permuted in memory; None for
    contiguous tensors and tensors with gaps."""
    if tensor.is_contiguous():
        return None
    packed = 1
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for step, size in sorted(pair for pair in pairs if pair[1] > 1):
        if step != packed:
            return None
        packed *= size
    return tensor.stride()


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
