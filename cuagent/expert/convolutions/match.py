"""Assign qualifying convolutions (`qualify.py`), with the operations that follow them, to generated
kernels.

A group of nodes that is the only reader of the result becomes the kernel's epilogue, if it is
elementwise or reduces over the channels alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuagent.expert.convolutions.convolution import (
    COPY,
    TRANSPOSED,
    Convolution,
    Volume,
    image_shape,
    is_last,
    settings_of,
    volume_of,
)
from cuagent.expert.convolutions.phases import Axis
from cuagent.expert.convolutions.qualify import CHANNELS_LAST, is_pointwise
from cuagent.expert.convolutions.together import stores_together
from cuagent.expert.graph.graph import ITEM_BYTES, Graph, Kind, Node
from cuagent.expert.graph.storage import NestError, storage
from cuagent.expert.products.expressions import EXPRESSIONS
from cuagent.expert.products.match import only_reader
from cuagent.expert.streaming.group import Group, Step

MOST_CHANNELS = 256
"""Largest number of output channels over which an epilogue may reduce: one tile must have all of
them."""
REDUCTIONS = ("sum", "max", "min", "amax", "amin")


def with_convolutions(
    steps: Sequence[Step | Any], graph: Graph
) -> tuple[Step | Convolution | Any, ...]:
    """Return the steps with each convolution that has copied operands, and the fused group that
    becomes its epilogue, replaced by one `Convolution`."""
    result = list(steps)
    for step in steps:
        if not isinstance(step, Node) or not step.op.startswith("own F.conv"):
            continue
        group = only_reader(step, steps, graph) or _reader_of_channels(step, steps, graph)
        if group not in result:  # both convolutions of a gate are read by one group
            group = None
        found = _convolution(step, group, graph) if group is not None else None
        if found is not None and group is not None:
            result[result.index(group)] = found
            result.remove(step)
        else:
            found = _convolution(step, None, graph)
            result[result.index(step)] = found
    return tuple(result)


def _reader_of_channels(node: Node, steps: Sequence[Any], graph: Graph) -> Group | None:
    """Return the fused group that reduces the convolution `node` over its channels, if it is the
    only reader; else None."""
    if node.name in graph.outputs or is_last(node) or node.shape[1] > MOST_CHANNELS:
        return None
    readers = {user.name for user in graph.users()[node.name]}
    span = (math.prod(node.shape[2:]), node.shape[1])
    for step in steps:
        if isinstance(step, Group) and readers <= set(step.places):
            fits = step.family == "streaming" and step.reduced == (span,) and step.size == node.size
            return step if fits else None
    return None


def _convolution(node: Node, group: Group | None, graph: Graph) -> Convolution | None:
    """Return the `Convolution` of a node with the fused `group` as its epilogue; None if the group
    cannot be the epilogue."""
    x, *others = (graph.node(str(arg)) for arg in node.args)
    weight = None if node.op in (TRANSPOSED, COPY) else others[0]
    bias = others if weight is None else others[1:]
    halves = bias[-3:] if weight is not None and weight.dtype != node.dtype else []
    bias = bias[: len(bias) - len(halves)]
    transposed = node.op.startswith("own F.conv_transpose")
    epilogue = group.nodes if group is not None else ()
    outputs = group.outputs if group is not None else (node.name,)
    inner = {node.name, *(n.name for n in epilogue)}
    groups = 1 if weight is None else int(settings_of(node)["groups"])
    if not all(map(_has_text, epilogue)):
        return None
    reduces = any(n.kind is Kind.REDUCE for n in epilogue)
    if groups > 1 and reduces:
        return None
    sizes = (node.size, node.size // node.shape[1] if group is not None and group.reduced else 0)
    if any(graph.node(name).size not in sizes for name in outputs):
        return None
    try:
        reads = {
            (n.name, arg): _read_by(graph, group, n, arg, node)
            for n in epilogue
            for arg in n.inputs
            if arg not in inner and group is not None
        }
    except NestError:
        return None
    axes: tuple[Axis, ...] = (_one_axis(node),)
    if weight is None:
        left, right = _given(graph, x, node)
    else:
        left, right, axes = _operands(graph, node, x, weight)
    if reduces:
        # One value for each position is stored.
        axes = tuple(replace(axis, together=False) for axis in axes)
    dtypes = {volume.tensor: volume.dtype for volume in (left, right) if volume.tensor}
    dtypes |= {n.name: n.dtype for n in bias}
    dtypes |= {volume.tensor: volume.dtype for volume in reads.values()}
    again = None
    if halves:
        given = volume_of(graph, halves[0].name, halves[0].shape)
        again = given, halves[1].name
        dtypes |= {given.tensor: given.dtype} | {n.name: n.dtype for n in halves[1:]}
    return Convolution(
        node,
        transposed,
        x.shape[0],
        x.shape[-1] if _is_copied(x) or node.op == TRANSPOSED else x.shape[1] // groups,
        node.shape[-1] if node.op == COPY else image_shape(node)[1],
        axes,
        left,
        right.tensor,
        Volume(bias[0].name, bias[0].dtype, 0, 1, 0, 0) if bias else None,
        epilogue,
        reads,
        outputs,
        dict.fromkeys(inner, ()),
        dtypes,
        reduces,
        x.op == COPY,
        halves[2].name if halves else "",
        groups,
        again,
        last=is_last(node),
    )


def _given(graph: Graph, x: Node, node: Node) -> tuple[Volume, Volume]:
    """Return the input of a node that only copies or transposes its input, and a weight without a
    name.
    """
    right = Volume("", "", 0, 0, 0, 0)
    if node.op == COPY:
        return volume_of(graph, x.name, x.shape), right
    return Volume(x.name, x.dtype, x.size // x.shape[0], 1, x.shape[-1], 0), right


def convolution_axes(graph: Graph, node: Node) -> tuple[tuple[Axis, ...], bool]:
    """Return the settings along each spatial axis of a convolution, and True if it is transposed.

    Its operands must be copies in channels-last layout.
    """
    x, weight = (graph.node(str(arg)) for arg in node.args[:2])
    return _operands(graph, node, x, weight)[2], node.op.startswith("own F.conv_transpose")


def _is_copied(x: Node) -> bool:
    """Return True if the input of a convolution is a copy, whose channels are adjacent."""
    return x.op in (CHANNELS_LAST, COPY)


def _one_axis(node: Node) -> Axis:
    """Return all spatial positions of a pointwise convolution as one axis."""
    places = math.prod(node.shape[1:-1] if node.op == COPY else image_shape(node)[2:])
    return Axis(places, places, 1, 1, 0, 1)


def _has_text(node: Node) -> bool:
    """Return True if an epilogue can compute this node."""
    match node.kind:
        case Kind.POINTWISE:
            return node.op in EXPRESSIONS
        case Kind.REDUCE:
            return node.op in REDUCTIONS
    return node.kind is Kind.VIEW


def _operands(
    graph: Graph, node: Node, x: Node, weight: Node
) -> tuple[Volume, Volume, tuple[Axis, ...]]:
    """Return the input, the weight and the spatial axes of a convolution.

    A pointwise convolution has a single axis with all spatial positions.
    """
    copied = _is_copied(x)
    if not copied and is_pointwise(node, weight):
        volumes = (volume_of(graph, n.name, n.shape) for n in (x, weight))
        return *volumes, (_one_axis(node),)  # type: ignore[return-value]
    settings = settings_of(node)
    axes = tuple(
        Axis(
            x.shape[k + 2 - copied],
            image_shape(node)[2 + k],
            weight.shape[1 + k],
            stride,
            padding,
            dilation,
        )
        for k, (stride, padding, dilation) in enumerate(
            zip(settings["stride"], settings["padding"], settings["dilation"], strict=True)
        )
    )
    if copied:
        left = Volume(x.name, x.dtype, x.size // x.shape[0], 1, x.shape[-1], 0)
    else:
        left = volume_of(graph, x.name, x.shape)
    if node.op.startswith("own F.conv_transpose"):
        axes = _with_last_together(axes, node, left, settings["groups"], weight.shape[-1])
    return left, Volume(weight.name, weight.dtype, 0, 1, 0, 0), axes


def _with_last_together(
    axes: tuple[Axis, ...], node: Node, left: Volume, groups: int, channels: int
) -> tuple[Axis, ...]:
    """Return the axes of a transposed convolution, the last with all outputs in one phase if that
    is faster."""
    sizes = ITEM_BYTES[left.dtype], ITEM_BYTES[node.dtype]
    merged = left.channel != 1
    if stores_together(axes, channels, node.shape[1] // groups, *sizes, merged):
        return (*axes[:-1], replace(axes[-1], together=True))
    return axes


def _read_by(graph: Graph, group: Group, reader: Node, name: str, conv: Node) -> Volume:
    """Return the strides with which `reader`, a node of the group, reads tensor `name`.

    Raises NestError if the tensor has no single stride along each of samples, channels and places
    of the result of `conv`.
    """
    node = graph.node(name)
    if node.kind in (Kind.WINDOW, Kind.INSIDE, Kind.GATHER):
        raise NestError(f"{name} is read under a condition")
    base, strides, offset = storage(graph, node)
    shape = image_shape(conv)
    channels, places = shape[1], math.prod(shape[2:])
    if places == 1:
        raise NestError("one place for each sample")
    domain = group.places[reader.name]
    padded = (0,) * (len(reader.shape) - len(node.shape)) + tuple(
        stride if extent > 1 else 0 for stride, extent in zip(strides, node.shape, strict=True)
    )
    # Step of each of them in the domain, the largest first.
    units = {"sample": places * channels, "channel": places, "place": 1}
    if is_last(conv):
        units = {"sample": places * channels, "place": channels, "channel": 1}
    found: dict[str, set[int]] = {unit: set() for unit in units}
    for extent, step, stride in zip(reader.shape, domain, padded, strict=True):
        if extent == 1:
            continue
        unit = next(word for word, size in units.items() if step >= size)
        size = units[unit]
        if unit != "place" and step != size:
            raise NestError(f"{name} is read in parts of a sample or of its channels")
        if stride and any(step < other < step * extent for other in units.values()):
            raise NestError(f"{name} is read across samples, channels or places")
        if stride * size % step:
            raise NestError(f"{name} has no single stride from place to place")
        found[unit].add(stride * size // step)
    if any(len(values) > 1 for values in found.values()):
        raise NestError(f"{name} has no single stride")
    sample, channel, place = (next(iter(found[w]), 0) for w in ("sample", "channel", "place"))
    return Volume(base.name, base.dtype, sample, channel, place, offset)
