"""Lower captured aten operators to the expert's graph, and decompose the fusible ones.

Softmax, norms and losses become pointwise operations and row reductions. Matrix products,
convolutions and unknown operators become library calls of the same operator. Variances are computed
about the mean (two passes), so that an offset costs no precision.
Invariant: every captured operator named in `keep` stays a library call.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuagent.expert.capture.export import Captured, CaptureError
from cuagent.expert.capture.host_values import (
    constant_scalars,
    device_of,
    is_mixed,
    number_of,
    strangers,
)
from cuagent.expert.graph.graph import FLOATS, ITEM_BYTES, Graph, Kind, Node
from cuagent.expert.graph.lowering import (
    LOWERINGS,
    Lowering,
    dtype_of,
    floating,
    operator_name,
    shape_of,
    value_of,
)
from cuagent.expert.graph.orders import CHANNELS_LAST, has_layouts, order_of_value
from cuagent.expert.rules.library import doubled, library, literal

MAX_CONSTANT = 64
"""Largest number of elements of a tensor constant that the module's text contains."""


def lower(
    captured: Captured,
    keep: frozenset[str] = frozenset(),
    constants: frozenset[str] = frozenset(),
    joins: frozenset[str] | None = None,
    *,
    many_lookups: bool = False,
) -> Graph:
    """Return the expert's graph of a captured module.

    Operators named in `keep` remain torch calls. So do the values in `constants`, which are
    computed once. `joins` and `many_lookups` are as in `Lowering`.
    """
    low = Lowering(joins=joins, many_lookups=many_lookups, layouts=has_layouts(captured.nodes))
    scalars, mixed = constant_scalars(captured), is_mixed(captured)
    for fx in captured.nodes:
        if fx.op == "placeholder":
            _placeholder(low, captured, fx)
        elif fx.op == "call_function":
            low.origin = low.readable_name(fx.name)
            if fx.name in scalars:
                low.values[fx.name] = _scalar(low, fx, scalars[fx.name])
                continue
            if fx.name in constants:
                low.values[fx.name] = name = library(low, fx, constant=True)
                if (number := _filled_number(fx)) is not None:
                    low.numbers[name] = number
                continue
            rule = LOWERINGS.get(operator_name(fx))
            usable = low.origin not in keep and _loadable(low, fx)
            usable = usable and _contiguous_output(captured, fx, low.layouts)
            usable = usable and not (mixed and _reads_host(low, fx))
            lowered = rule(low, fx) if rule and usable else None
            if lowered is None:
                low.values[fx.name] = library(low, fx)
            else:
                low.values[fx.name] = low.stored_as(lowered, dtype_of(fx))
    names: list[str] = []
    words: list[str] = []
    orders, strides = [], []
    for value in captured.outputs:
        is_node = hasattr(value, "name")
        operand = low.values[value.name] if is_node else value
        if is_node and isinstance(operand, str):
            words.append(f"{{{len(names)}}}")
            names.append(operand)
            traced = value.meta.get("val")
            orders.append(order_of_value(traced) if low.layouts else ())
            strides.append(tuple(map(int, traced.stride())) if hasattr(traced, "stride") else ())
        else:
            words.append(doubled(literal(operand)))
    inputs = {
        str(low.values[n]): e for n, e in captured.inputs.items() if n not in captured.literals
    }
    template = _filled(captured.template, words)
    made = Graph(tuple(low.nodes), tuple(names), inputs, template, tuple(orders))
    if not low.layouts:
        return made.live()
    last = {
        str(low.values[fx.name])
        for fx in captured.nodes
        if fx.name in low.values and order_of_value(fx.meta.get("val")) == CHANNELS_LAST
    }
    return replace(made, output_strides=tuple(strides), last=_channels_last(made, last)).live()


def _channels_last(graph: Graph, traced: set[str]) -> frozenset[str]:
    """Return the names of the values that the reference has in channels-last layout: those that the
    trace has so (`traced`), and results of convolutions and elementwise operations on them."""
    found = set(traced)
    for node in graph.nodes:
        if node.op.startswith("F.conv2d(") and node.args[0] in found:
            found.add(node.name)
        elif node.kind is Kind.POINTWISE:
            # Of operands in different layouts the first one decides.
            whole = (a for a in node.inputs if graph.node(a).shape == node.shape)
            if next(whole, "") in found:
                found.add(node.name)
    return frozenset(found)


def _filled(template: str, words: Sequence[str]) -> str:
    """Return `template` with each `{k}` replaced by `words[k]`; doubled braces do not change."""
    return re.sub(
        r"\{\{|\}\}|\{(\d+)\}",
        lambda match: words[int(match[1])] if match[1] else match[0],
        template,
    )


def _filled_number(fx: Any) -> float | None:
    """Return the number that a tensor without dimensions is filled with; None for other values."""
    position = {"scalar_tensor": 0, "full": 1}.get(operator_name(fx))
    value = None if position is None else fx.args[position]
    if not floating(fx) or shape_of(fx) or not isinstance(value, int | float):
        return None
    import torch

    return float(torch.tensor(value, dtype=value_of(fx).dtype))


def _loadable(low: Lowering, fx: Any) -> bool:
    """Return True if the result and all operands of `fx` are numbers or nonempty tensors that
    kernels can load.
    """
    if operator_name(fx) == "getitem":
        return True
    tensors = [fx, *(n for n in fx.all_input_nodes if low.values[n.name] not in low.numbers)]
    return all(
        hasattr(value := value_of(t), "shape")
        and dtype_of(t) in ITEM_BYTES
        and math.prod(value.shape) > 0
        for t in tensors
    )


VIEWS = {
    "permute", "transpose", "t", "slice", "select", "expand", "view", "squeeze", "unsqueeze",
    "split", "split_with_sizes", "chunk", "unbind",
}  # fmt: skip


def _contiguous_output(captured: Captured, fx: Any, layouts: bool) -> bool:
    """Return False if `fx` is an output of the module that torch would return in another memory
    layout.
    """
    if operator_name(fx) in VIEWS | {"getitem"}:
        return True  # a `getitem` takes what its operator became
    items = [user for user in fx.users if operator_name(user) == "getitem"]
    for result in items or [fx]:
        if any(result is value for value in captured.outputs):
            value = value_of(result)
            if not (value.is_contiguous() or (layouts and order_of_value(value))):
                return False
    return True


def _placeholder(low: Lowering, captured: Captured, fx: Any) -> None:
    name = fx.name
    if name in captured.literals:
        low.values[name] = captured.literals[name]
        return
    kind, op = Kind.INPUT, ""
    if name in captured.parameters:
        kind, op = Kind.PARAMETER, captured.parameters[name]
        # A parameter gets the name of its path, which readers of the module know.
        # Python treats some other letters as equal in names, and C++ does not know all of them.
        name = re.sub(r"\W", "_", op, flags=re.ASCII)
        name = name if name.lstrip("_")[:1].isalpha() else f"p{name}"
    elif name in captured.constants:
        kind, op = Kind.CONSTANT, _constant(name, captured.constants[name])
    name = low.readable_name(name)
    constant = captured.constants.get(fx.name)
    if constant is not None and constant.ndim == 0 and (number := number_of(constant)) is not None:
        low.numbers[name] = number
    order = order_of_value(fx.meta["val"]) if low.layouts and kind is Kind.INPUT else ()
    dense = kind is not Kind.PARAMETER or bool(value_of(fx).is_contiguous())
    low.values[fx.name] = low.add(
        Node(name, kind, op, (), shape_of(fx), dtype_of(fx), contiguous=dense, order=order)
    )


def _scalar(low: Lowering, fx: Any, tensor: Any) -> str:
    """Add an operator whose result is the constant `tensor`; kernels use its value as a number."""
    if device_of(fx) == tensor.device.type:
        text = _constant(low.origin, tensor)
        name = low.add(Node(low.origin, Kind.CONSTANT, text, (), (), dtype_of(fx)))
    else:
        name = library(low, fx)
    if (number := number_of(tensor)) is not None:
        low.numbers[name] = number
    return name


def _reads_host(low: Lowering, fx: Any) -> bool:
    """Return True if a kernel for `fx`, an operator of a module on a GPU, would have to read memory
    of the CPU, or to write it.

    Constants without dimensions are numbers in a kernel of floating-point arithmetic.
    """
    if device_of(fx) == "cpu":
        return True
    if not (found := strangers(fx)):
        return False
    known = all(low.values[source.name] in low.numbers for source in found)
    whole = all(low.values[source.name] in low.numbers for source in fx.all_input_nodes)
    return whole or not known or dtype_of(fx) not in (*FLOATS, "bool")


def _constant(name: str, tensor: Any) -> str:
    if tensor.numel() > MAX_CONSTANT:
        raise CaptureError(
            f"{name} is a constant with {tensor.numel()} elements; register it as a buffer"
        )
    return (
        f"torch.tensor({literal(tensor.tolist())}, dtype={tensor.dtype}, device='{tensor.device}')"
    )
