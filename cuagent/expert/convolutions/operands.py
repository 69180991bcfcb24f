"""Add copies of the operands of convolutions: in channels-last layout, rounded to TF32, or as
scaled float16."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cuagent.expert.capture.subject import Target
from cuagent.expert.convolutions.convolution import settings_of
from cuagent.expert.convolutions.padding import without_padding
from cuagent.expert.convolutions.qualify import (
    FEW_CHANNELS,
    captured_channels,
    copy_call,
    is_pointwise,
    is_read_in_place,
    qualifies,
    runs_in_halves,
    runs_in_tf32,
)
from cuagent.expert.edits import PREPARATIONS
from cuagent.expert.graph.graph import Graph, Kind, Node

WEIGHT = "{0}.movedim(1, -1).contiguous() "
TRANSPOSED_WEIGHT = "{0}.movedim(0, -1).contiguous()"
TRANSPOSED_GROUPS = "{0}.unflatten(0, (GROUPS, -1)).movedim(1, -1).flatten(0, 1).contiguous()"
"""Python expression of a grouped transposed convolution's weight as (output channels, *taps, input
channels of one group). GROUPS stands for the number of groups."""
ROUNDED = "(({0}.float().view(torch.int32) + 4096) & -8192).view(torch.float32)"
"""Python expression that rounds to the nearest TF32 number. Tensor cores would truncate the last 13
bits of an operand instead; such errors have one sign and add up over the sum."""
SCALE = (
    "(lambda most: torch.where((most < 2.0**63) & ((most >= 2.0**-63) | (most == 0)),"
    " torch.exp2(most.log2().floor().clamp(min=-63) - 14), torch.nan))"
    "({0}.abs().transpose(0, OUT).flatten(1).amax(1))"
)
"""Python expression of the scale of each output channel of a weight, a power of two; NaN if a
weight is out of range. OUT stands for the dimension of the output channels."""
HALVES = "({0} / {1}.nan_to_num(1.0).view(SHAPE)).to(torch.float16)"
"""Python expression of a weight divided by the scales, in float16, which has 11 significant bits
like TF32."""
PREPARATIONS |= {WEIGHT, TRANSPOSED_WEIGHT, ROUNDED}
PREPARATIONS |= {call.format(ROUNDED) for call in (WEIGHT, TRANSPOSED_WEIGHT)}


def copy_operands(graph: Graph, target: Target, keep: frozenset[str], every: bool = False) -> Graph:
    """Return the graph in which each qualifying convolution reads channels-last copies of its
    operands. A padding of the input with zeros becomes part of it.

    The convolution is marked for a generated kernel ("own" in its `op`). Weights that the tensor
    cores read in TF32 are rounded once, in their copy. Convolutions of one input share its copy.
    With `every`, convolutions with long sums qualify too.
    """
    nodes: list[Node] = []
    known: dict[Node, str] = {}
    for node in graph.nodes:
        if node.origin in keep or not qualifies(graph, node, target, every):
            nodes.append(node)
            continue
        inner = without_padding(graph, node)
        whole = not is_pointwise(node, graph.node(str(node.args[1])))
        if inner is not None and whole and qualifies(graph, inner, target, every):
            node = inner
        x, weight = graph.node(str(node.args[0])), graph.node(str(node.args[1]))
        names = [x.name, weight.name]
        copies: list[tuple[Any, ...]] = []
        groups = settings_of(node)["groups"]
        channels = x.shape[1] // groups
        captured = captured_channels(node, channels)
        rounded = weight.dtype == "float32" and runs_in_tf32(target, captured)
        extra: list[str] = []
        if not is_pointwise(node, weight):
            halves = groups == 1 and rounded and runs_in_halves(graph, node, x, target)
            copied = halves or channels >= FEW_CHANNELS or not is_read_in_place(graph, x)
            call, moved = WEIGHT, (weight.shape[0], *weight.shape[2:], weight.shape[1])
            if node.op.startswith("F.conv_transpose"):
                call, moved = _transposed_weight(weight, groups)
            names[1] = f"{node.name}_taps"
            if copied:
                names[0] = f"{node.name}_channels_last"
                shape = (x.shape[0], *x.shape[2:], x.shape[1])
                copies.append((names[0], copy_call(graph, x), x, shape))
            if halves:
                copies[0] = (*copies[0], "float16")
                extra = [x.name, f"{node.name}_exact_taps", f"{node.name}_scale"]
                copies += _halves(node, weight, names[1], extra[2], call, moved)
                copies.append((extra[1], call.format(ROUNDED), weight, moved))
            else:
                call = call.format(ROUNDED) if rounded else call
                copies.append((names[1], call, weight, moved))
        elif rounded:
            names[1] = f"{node.name}_taps"
            copies.append((names[1], ROUNDED, weight, weight.shape))
        for name, text, source, shape, *types in copies:
            args = (source.name, extra[2]) if "{1}" in text else (source.name,)
            copy = Node("", Kind.LIBRARY, text, args, shape, (*types, source.dtype)[0])
            copy = replace(copy, spec=captured)
            if source is x and copy in known:
                names[0] = known[copy]  # Another convolution reads an equal copy.
                continue
            known[copy] = name
            nodes.append(replace(copy, name=name, origin=node.origin))
        nodes.append(replace(node, op=f"own {node.op}", args=(*names, *node.args[2:], *extra)))
    return replace(graph, nodes=tuple(nodes)).live()


def _transposed_weight(weight: Node, groups: int) -> tuple[str, tuple[int, ...]]:
    """Return (expression, shape) of the copy of a transposed convolution's weight."""
    shape = (weight.shape[1] * groups, *weight.shape[2:], weight.shape[0] // groups)
    if groups == 1:
        return TRANSPOSED_WEIGHT, shape
    call = TRANSPOSED_GROUPS.replace("GROUPS", str(groups))
    PREPARATIONS.update((call, call.format(ROUNDED)))
    return call, shape


def _halves(
    node: Node, weight: Node, name: str, scale: str, call: str, moved: tuple[int, ...]
) -> list[tuple[Any, ...]]:
    """Return the nodes of a weight's float16 copy and of its scales, as (name, expression, source,
    shape, dtype).

    Both are computed once, in float64.
    """
    out = int(node.op.startswith("F.conv_transpose"))
    shape = ", ".join("-1" if d == out else "1" for d in range(len(weight.shape)))
    texts = SCALE.replace("OUT", str(out)), call.format(HALVES.replace("SHAPE", shape))
    PREPARATIONS.update(texts)
    return [
        (scale, texts[0], weight, (weight.shape[out],), "float32"),
        (name, texts[1], weight, moved, "float16"),
    ]
