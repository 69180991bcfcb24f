"""Capture a reference module as a graph of torch operators: `torch.export` in eval mode,
functional.

Composite operators (linear, layer_norm, softmax, attention) stay whole; `lower` decides which ones
to decompose. Shapes are static: the graph is valid for inputs of the captured shapes only. Not
covered: control flow on tensor values, modules that change their buffers, and everything else that
torch.export refuses; each raises CaptureError with one line.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.expert.capture.composites import composites
from cuagent.expert.capture.recurrent_layers import whole_recurrent_layers
from cuagent.expert.capture.states import as_buffers, forget_old_value, plain_tensors

if TYPE_CHECKING:
    import torch


class CaptureError(Exception):
    """The module cannot be captured as a static operator graph. The message is one line."""


@dataclass(frozen=True)
class Captured:
    """A captured module: its torch.fx graph, and the meaning of each placeholder and output."""

    nodes: tuple[Any, ...]
    """torch.fx nodes, in order; `meta["val"]` has shape and dtype."""
    parameters: dict[str, str]
    """State dict (or attribute) names of parameters and buffers; the keys are placeholder names."""
    inputs: dict[str, str]
    """Python expressions of the input tensors over forward's arguments; the keys are placeholder
    names.
    """
    literals: dict[str, Any]
    """Values, at capture time, of Python numbers among the inputs; the keys are placeholder
    names.
    """
    constants: dict[str, torch.Tensor]
    """Constant tensors that forward uses; the keys are placeholder names."""
    outputs: tuple[Any, ...]
    """Outputs of forward as a flat list: fx nodes, or plain values."""
    template: str
    """Python expression that forward returns, in which `{0}`, `{1}`, ... stand for the outputs."""
    arguments: tuple[str, ...]
    """Names of forward's arguments, one for each captured input."""
    states: tuple[str, ...] = ()
    """Names of the tensor attributes that forward overwrites; their values are the last outputs,
    and `template` is then the tuple of forward's result and these values."""


def capture(model: torch.nn.Module, inputs: Sequence[Any]) -> Captured:
    """Capture `model.forward(*inputs)`. Raises CaptureError."""
    from torch.utils import _pytree as pytree

    # torch.export imports torch._inductor, which creates its cache folder on import (in TMPDIR
    # unless this variable is set).
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_cache() / "inductor"))
    exported, plain = _exported(model, inputs)
    arguments = _argument_names(model, len(inputs))
    paths, _ = pytree.tree_flatten_with_path(tuple(inputs))
    expressions = [arguments[_key(path[0])] + _path(path[1:]) for path, _ in paths]
    signature = exported.graph_signature
    parameters, feeds, constants = {}, [], {}
    for spec in signature.input_specs:
        name = spec.arg.name
        match spec.kind.name:
            case "PARAMETER" | "BUFFER":
                parameters[name] = spec.target
            case "CONSTANT_TENSOR":
                constants[name] = exported.constants[spec.target]
            case "USER_INPUT":
                feeds.append(spec.arg)
            case kind:
                raise CaptureError(f"{name} is a {kind.lower()}, which is not supported")
    named = dict(zip((feed.name for feed in feeds), expressions, strict=True))
    states = _states(exported, plain, parameters)
    literals = {feed.name: feed.value for feed in feeds if hasattr(feed, "value")}
    nodes = tuple(exported.graph.nodes)
    if changing := next((node.name for node in nodes if not _has_fixed_shape(node)), None):
        raise CaptureError(f"the shape of {changing} depends on values of tensors")
    outputs = tuple(nodes[-1].args[0])
    # torch.export returns the values of changed buffers first.
    outputs = (*outputs[len(states) :], *outputs[: len(states)])
    spec, words = exported.call_spec.out_spec, [f"{{{k}}}" for k in range(len(outputs))]
    template = _expression(pytree.tree_unflatten(words[: len(outputs) - len(states)], spec))
    if states:
        template = f"({', '.join([template, *words[-len(states) :]])})"
    return Captured(
        nodes,
        parameters,
        named,
        literals,
        constants,
        outputs,
        template,
        arguments,
        states,
    )


def _states(
    exported: Any, plain: dict[str, torch.Tensor], parameters: dict[str, str]
) -> tuple[str, ...]:
    """Return the names of the tensor attributes that forward overwrites, without reading them.

    `plain` and `parameters` are as in `_exported` and `Captured`. Raises CaptureError if forward
    changes another tensor, or reads a tensor that it changes.
    """
    states = []
    for spec in exported.graph_signature.output_specs:
        if spec.kind.name == "USER_OUTPUT":
            continue
        if spec.kind.name != "BUFFER_MUTATION" or spec.target not in plain:
            raise CaptureError(f"forward changes {spec.target} in place")
        states.append(spec.target)
    for node in exported.graph.find_nodes(op="placeholder"):
        if parameters.get(node.name) in states and not forget_old_value(node):
            raise CaptureError(f"forward reads {parameters[node.name]}, which it changes")
    values = exported.graph.output_node().args[0]
    for name, value in zip(states, values, strict=False):
        if value.op == "placeholder":
            raise CaptureError(f"forward changes {name} in place")
    return tuple(states)


def _exported(model: torch.nn.Module, inputs: Sequence[Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return (exported program, tensor attributes that were made buffers to capture the module).

    Raises CaptureError.
    """
    try:
        return _export(model, inputs), {}
    except CaptureError:
        if not (plain := plain_tensors(model)):
            raise
        with as_buffers(model, plain):
            return _export(model, inputs), plain


def _export(model: torch.nn.Module, inputs: Sequence[Any]) -> Any:
    import torch

    try:
        with warnings.catch_warnings(), torch.no_grad(), whole_recurrent_layers():
            warnings.simplefilter("ignore")
            exported = torch.export.export(model, tuple(inputs), strict=False)
            exported = exported.run_decompositions({})
            if definitions := composites(exported.graph.nodes):
                exported = exported.run_decompositions(definitions)
    except Exception as error:  # torch.export raises errors of many unrelated types
        raise CaptureError(f"torch.export: {_first_line(error)}") from error
    return exported


def _has_fixed_shape(node: Any) -> bool:
    shape = getattr(node.meta.get("val"), "shape", ())
    return all(isinstance(size, int) for size in shape)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cuagent"


def _argument_names(model: torch.nn.Module, count: int) -> tuple[str, ...]:
    """Return the names of forward's positional arguments; `arg2` and so on for `*args`."""
    names = [
        parameter.name
        for parameter in inspect.signature(model.forward).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return tuple(names[k] if k < len(names) else f"arg{k}" for k in range(count))


def _key(entry: Any) -> Any:
    """Return the dict key or the sequence index in an entry of a pytree path."""
    return getattr(entry, "key", getattr(entry, "idx", None))


def _path(path: Sequence[Any]) -> str:
    return "".join(f"[{_key(entry)!r}]" for entry in path)


def _expression(structure: Any) -> str:
    """Return the Python expression of nested lists, tuples and dicts of placeholders.

    Braces of dicts are doubled, because the text becomes a format string.
    """
    match structure:
        case str():
            return structure
        case dict() if type(structure) is dict:
            words = {
                repr(key).replace("{", "{{").replace("}", "}}"): v for key, v in structure.items()
            }
            inner = ", ".join(f"{word}: {_expression(v)}" for word, v in words.items())
            return "{{" + inner + "}}"
        case list():
            return "[" + ", ".join(map(_expression, structure)) + "]"
        case tuple() if type(structure) is tuple:
            inner = ", ".join(map(_expression, structure))
            return f"({inner},)" if len(structure) == 1 else f"({inner})"
        case tuple() if type(structure).__module__ == "torch.return_types":
            inner = ", ".join(map(_expression, structure))
            return f"torch.return_types.{type(structure).__name__}(({inner}))"
    raise CaptureError(f"forward returns a {type(structure).__name__}")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
