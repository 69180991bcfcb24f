"""Find convolutions that a generated kernel may compute faster than cuDNN.

These are transposed and three-dimensional ones, pointwise ones, and others with a short sum (few
input channels), without groups. On an H200 the library stood at 4 to 17 times the floor on the
first two, and pointwise kernels took 0.55 to 0.95 of cuDNN's time; two-dimensional ones with long
sums were slower. A group that is the only reader of the result becomes the epilogue, if it is
elementwise or reduces over the channels alone. A place is one spatial position.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cuagent.expert.capture.subject import Target
from cuagent.expert.convolutions.phases import Axis
from cuagent.expert.graph.graph import Graph, Kind, Node, contiguous_strides
from cuagent.expert.products.expressions import EXPRESSIONS
from cuagent.expert.products.match import only_reader
from cuagent.expert.rewrites import PREPARATIONS
from cuagent.expert.streaming.fuse import Group, Step
from cuagent.expert.streaming.nest import NestError, storage

CHANNELS_LAST = "{0}.movedim(1, -1).contiguous()"
WEIGHT = "{0}.movedim(1, -1).contiguous() "
TRANSPOSED_WEIGHT = "{0}.movedim(0, -1).contiguous()"
ROUNDED = "(({0}.float().view(torch.int32) + 4096) & -8192).view(torch.float32)"
"""Expression that rounds to the nearest TF32 number. Tensor cores would drop the last 13 bits of an
operand instead, and such errors have one sign and add up over the sum."""
SCALE = (
    "(lambda most: torch.where((most < 2.0**63) & ((most >= 2.0**-63) | (most == 0)),"
    " torch.exp2(most.log2().floor().clamp(min=-63) - 14), torch.nan))"
    "({0}.abs().transpose(0, OUT).flatten(1).amax(1))"
)
"""Expression of the scale of each output channel of a weight, a power of two; NaN if a weight is
out of range. OUT stands for the dimension of the output channels."""
HALVES = "({0} / {1}.nan_to_num(1.0).view(SHAPE)).to(torch.float16)"
"""Expression of a weight divided by the scales, in float16: 11 significant bits, as in TF32."""
PREPARATIONS |= {WEIGHT, TRANSPOSED_WEIGHT, ROUNDED}
PREPARATIONS |= {call.format(ROUNDED) for call in (WEIGHT, TRANSPOSED_WEIGHT)}
TRANSPOSED = "own F.conv of channels last"
"""Operator of a node that transposes the library's channels-last result and adds the bias."""
COPY = "own F.conv copy to channels last"
"""Operator of a node that copies an input to (samples, *places, channels), and rounds to TF32 if
that is admitted."""
LEAST_CHANNELS = 16
"""Fewest input channels of a pointwise convolution; with fewer, a tile would be mostly zeros."""
FEW_CHANNELS = 32
"""With fewer input channels the sum runs over one index of taps and channels, so that its tiles are
full, and the input is read without a copy."""
SHORT_SUM = 512
"""Most terms (taps times input channels) of the sum of a convolution in one or two dimensions that
is not pointwise, and whose input is not copied to float16. 11x11 windows of three channels in TF32
took 0.48 of torch.compile's time on an H200. Scaled float16 took 0.4 of cuDNN's time in TF32 on 3x3
layers of 64 to 512 channels."""
SHORT_EXACT_SUM = 96
"""`SHORT_SUM` for a convolution that needs float32 precision although TF32 is admitted. 16 channels
in 3x3 windows took 1.76 times the time of cuDNN, which computed them in TF32. 8 channels took 0.65
of torch.compile's time, and 0.8 of cuDNN's in float32."""
SHORT_FLOAT32_SUM = 256
"""`SHORT_SUM` for a float32 convolution if TF32 is not admitted."""
LONG_SUM = 0
"""`SHORT_SUM` for a convolution with `FEW_CHANNELS` or more, whose input has to be copied."""
GROUP_SUM = 512
"""Most terms of the sum of a convolution with groups."""
MOST_CHANNELS = 256
"""Most output channels that an epilogue reduces over: one tile must have all of them."""
LARGE = 1 << 31
"""Elements of a sample that are too many for 32-bit indices."""
REDUCTIONS = ("sum", "max", "min", "amax", "amin")
LEAST_OPERATIONS = 1 << 26
"""Fewest multiplications of a convolution; with fewer, kernel launches take most of the time."""
LEAST_OCCUPIED, SPLIT_SUM = 0.5, 512
"""A convolution in one or two dimensions stays with the library if fewer than this share of the
processors has a tile, and its sum has more than `SPLIT_SUM` terms: the library splits such sums
over processors. An estimate; the library's kernels in three dimensions are slower."""


@dataclass(frozen=True)
class Volume:
    """Strides of a tensor, in elements, over samples, channels and places.

    Element (s, c, p) is at `offset + sample * s + channel * c + place * p`.
    """

    tensor: str
    dtype: str
    sample: int
    channel: int
    place: int
    offset: int


@dataclass(frozen=True)
class Pool:
    """A pool behind a convolution, with windows side by side."""

    anchor: Node
    sizes: tuple[int, ...]
    """Extents of a window."""
    counts: tuple[int, ...]
    """Windows along each dimension."""
    after: tuple[Node, ...]
    """Elementwise nodes behind the pool."""

    @property
    def elements(self) -> int:
        """Elements of a window."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class Partials:
    """Names of tensors with sums over the places of each tile, which a kernel stores in addition.

    A name is "" if the tensor is not stored.
    """

    value: str
    """Value of the epilogue that is summed."""
    sums: str
    means: str
    deviations: str
    """Sums of squared differences from the mean of the tile."""
    counts: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stored tensors."""
        return tuple(n for n in (self.sums, self.means, self.deviations, self.counts) if n)


@dataclass(frozen=True)
class Convolution:
    """A convolution with channels-last operands, and the group behind it as its epilogue."""

    node: Node
    transposed: bool
    samples: int
    channels_in: int
    channels_out: int
    axes: tuple[Axis, ...]
    left: Volume
    """Input; its channels or its places are adjacent in memory."""
    right: str
    """Weight as (output channels, *taps, input channels); "" if `left` is the result of the
    library's convolution, without its bias."""
    bias: Volume | None
    epilogue: tuple[Node, ...]
    reads: dict[tuple[str, str], Volume]
    """Tensors that the epilogue reads, by the names of the reading node and of its argument."""
    outputs: tuple[str, ...]
    places: dict[str, tuple[int, ...]]
    """Names of the computed nodes as keys, as in `Group.places`."""
    dtypes: dict[str, str]
    """Tensors that are read, with their dtypes, in order of first use."""
    reduces: bool = False
    """True if the epilogue reduces over the channels."""
    copied: bool = False
    """True if the input was copied, and rounded, by a kernel of our own."""
    scale: str = ""
    """Tensor with the scale of each output channel, if the operands are scaled float16; else ""."""
    groups: int = 1
    """Groups of channels; `channels_in` are those of one group."""
    again: tuple[Volume, str] | None = None
    """Input and weight in float32, if the sum reads float16 copies. A tile with NaN is computed
    again from them."""
    pool: Pool | None = None
    """Pool behind the epilogue."""
    copy: tuple[str, str] = ()  # type: ignore[assignment]
    """A stored value, and its scaled float16 copy in channels-last layout for the next convolution;
    () without a copy."""
    partials: Partials | None = None
    """Partial sums over places; a tile then has places of one sample only."""

    @property
    def is_copy(self) -> bool:
        """True if the kernel only copies an input to channels-last layout."""
        return self.node.op == COPY

    @property
    def taps(self) -> int:
        """Elements of the window."""
        return math.prod(axis.kernel for axis in self.axes)

    @property
    def pair(self) -> int | None:
        """Index of the last axis, if its two phases are computed together; else None."""
        last = self.axes[-1]
        return len(self.axes) - 1 if self.transposed and last.stride == 2 < last.outputs else None

    @property
    def rows(self) -> frozenset[str]:
        """Names of the epilogue's nodes that have one value for all channels of a place."""
        size = self.node.size // self.channels_out
        return frozenset(n.name for n in self.epilogue if n.size == size and self.reduces)

    @property
    def merged(self) -> bool:
        """True if taps and channels are one index of the sum."""
        return self.taps > 1 and self.left.channel != 1

    @property
    def columns(self) -> int:
        """Output channels of a group."""
        return self.channels_out // self.groups

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the kernel computes."""
        pooled = (self.pool.anchor, *self.pool.after) if self.pool else ()
        return (self.node, *self.epilogue, *pooled)

    @property
    def tensors(self) -> dict[str, str]:
        """dtype of each tensor that is read, in order of first use."""
        return self.dtypes


def copy_operands(graph: Graph, target: Target, keep: frozenset[str], every: bool = False) -> Graph:
    """Put channels-last copies in front of each convolution that qualifies, and mark it as own.

    Weights that the tensor cores read in TF32 are rounded once, with their copy. With `every`, sums
    of any length qualify.
    """
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.origin in keep or not _qualifies(graph, node, target, every):
            nodes.append(node)
            continue
        x, weight = graph.node(str(node.args[0])), graph.node(str(node.args[1]))
        names = [x.name, weight.name]
        copies: list[tuple[Any, ...]] = []
        channels = x.shape[1] // settings_of(node)["groups"]
        rounded = weight.dtype == "float32" and runs_in_tf32(target, channels)
        extra: list[str] = []
        if not is_pointwise(node, weight):
            copied = channels >= FEW_CHANNELS or not _read_in_place(graph, x)
            halves = copied and rounded and runs_in_halves(graph, x, target)
            call, moved = WEIGHT, (weight.shape[0], *weight.shape[2:], weight.shape[1])
            if node.op.startswith("F.conv_transpose"):
                call, moved = TRANSPOSED_WEIGHT, (*weight.shape[1:], weight.shape[0])
            names[1] = f"{node.name}_taps"
            if copied:
                names[0] = f"{node.name}_channels_last"
                shape = (x.shape[0], *x.shape[2:], x.shape[1])
                copies.append((names[0], _copy_call(graph, x), x, shape))
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
            copy = Node(name, Kind.LIBRARY, text, args, shape, (*types, source.dtype)[0])
            nodes.append(replace(copy, origin=node.origin))
        nodes.append(replace(node, op=f"own {node.op}", args=(*names, *node.args[2:], *extra)))
    return replace(graph, nodes=tuple(nodes))


def runs_in_halves(graph: Graph, x: Node, target: Target) -> bool:
    """Return True if a copy of the input of a TF32 convolution is scaled to float16."""
    own = x.dtype == "float32" and _copy_call(graph, x) == COPY
    return own and x.shape[1] >= FEW_CHANNELS and runs_in_tf32(target, x.shape[1])


def _halves(
    node: Node, weight: Node, name: str, scale: str, call: str, moved: tuple[int, ...]
) -> list[tuple[Any, ...]]:
    """Return the nodes of a weight in float16 and of its scales: name, text, source, shape, dtype.

    They are computed once, in float64.
    """
    out = int(node.op.startswith("F.conv_transpose"))
    shape = ", ".join("-1" if d == out else "1" for d in range(len(weight.shape)))
    texts = SCALE.replace("OUT", str(out)), call.format(HALVES.replace("SHAPE", shape))
    PREPARATIONS.update(texts)
    return [
        (scale, texts[0], weight, (weight.shape[out],), "float32"),
        (name, texts[1], weight, moved, "float16"),
    ]


def runs_in_tf32(target: Target, channels_in: int) -> bool:
    """Return True if the kernel of a float32 convolution may read its operands in TF32."""
    return target.tf32_convolutions and channels_in > target.exact_channels


def _copy_call(graph: Graph, x: Node) -> str:
    """Return the call that copies an input: `COPY` if `volume_of` has its strides, else torch's."""
    try:
        volume_of(graph, x.name, x.shape)
    except NestError:
        return CHANNELS_LAST
    return COPY


def is_pointwise(node: Node, weight: Node) -> bool:
    """Return True for a convolution that is one matrix product for each sample.

    Its input needs no copy: a row of the product's left operand is one place.
    """
    settings = settings_of(node)
    steps = set(settings["stride"]) == {1} and set(settings["padding"]) == {0}
    plain = not node.op.removeprefix("own ").startswith("F.conv_transpose")
    return plain and steps and math.prod(weight.shape[2:]) == 1


def with_convolutions(
    steps: Sequence[Step | Any], graph: Graph
) -> tuple[Step | Convolution | Any, ...]:
    """Replace each convolution with copied operands, and its epilogue group, by one step."""
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
    """Return the group that reduces a convolution over its channels, if it is the only reader."""
    if node.name in graph.outputs or node.shape[1] > MOST_CHANNELS:
        return None
    readers = {user.name for user in graph.users()[node.name]}
    span = (math.prod(node.shape[2:]), node.shape[1])
    for step in steps:
        if isinstance(step, Group) and readers <= set(step.places):
            fits = step.family == "streaming" and step.reduced == (span,) and step.size == node.size
            return step if fits else None
    return None


def _read_in_place(graph: Graph, x: Node) -> bool:
    """Return True if places of the input are adjacent in memory."""
    try:
        return volume_of(graph, x.name, x.shape).place == 1
    except NestError:
        return False


def _adjacent_channels(graph: Graph, weight: Node) -> bool:
    """Return True if the weight of a pointwise convolution is a matrix with adjacent channels."""
    try:
        found = volume_of(graph, weight.name, weight.shape)
    except NestError:
        return False
    return (found.sample, found.channel, found.offset) == (weight.shape[1], 1, 0)


def _qualifies(graph: Graph, node: Node, target: Target, every: bool) -> bool:
    if node.kind is not Kind.LIBRARY or target.capability < (8, 0) or not node.contiguous:
        return False
    transposed = node.op.startswith("F.conv_transpose")
    if not transposed and not node.op.startswith(("F.conv1d(", "F.conv2d(", "F.conv3d(")):
        return False
    settings = settings_of(node)
    x, weight = graph.node(str(node.args[0])), graph.node(str(node.args[1]))
    whole = all(isinstance(v, list) for k, v in settings.items() if k != "groups")
    if not whole or len(x.shape) != len(node.shape):
        return False
    if max(n.size // n.shape[0] for n in (x, node)) >= LARGE:
        return False
    if settings["groups"] != 1 and (transposed or not _few_of_group(graph, x, weight)):
        return False
    taps = math.prod(weight.shape[2:])
    points = x.size // x.shape[1] if transposed else node.size // node.shape[1]
    if points * taps * weight.shape[0] * weight.shape[1] < LEAST_OPERATIONS:
        return False
    plane = node.op.startswith(("F.conv1d(", "F.conv2d("))
    if plane and taps * x.shape[1] > SPLIT_SUM and not _is_occupied(node, target):
        return False
    if is_pointwise(node, weight):
        readable = _read_in_place(graph, x) and _adjacent_channels(graph, weight)
        return weight.shape[1] >= LEAST_CHANNELS and readable
    if settings["groups"] != 1:
        return True
    few = SHORT_SUM
    if x.dtype == "float32" and not runs_in_tf32(target, x.shape[1]):
        few = SHORT_EXACT_SUM if target.tf32_convolutions else SHORT_FLOAT32_SUM
    short = taps * x.shape[1] <= (few if x.shape[1] < FEW_CHANNELS else LONG_SUM)
    short = short or runs_in_halves(graph, x, target)
    return every or transposed or node.op.startswith("F.conv3d(") or short


def _few_of_group(graph: Graph, x: Node, weight: Node) -> bool:
    """Return True for groups of several channels with a short sum, read without a copy."""
    channels, taps = weight.shape[1], math.prod(weight.shape[2:])
    few = taps == 1 or (channels < FEW_CHANNELS and taps * channels <= GROUP_SUM)
    return channels > 1 and few and _read_in_place(graph, x)


def _is_occupied(node: Node, target: Target) -> bool:
    """Return True if enough processors have a tile of 128 places and up to 128 channels."""
    tiles = math.ceil(node.size // node.shape[1] / 128) * math.ceil(node.shape[1] / 128)
    return tiles >= LEAST_OCCUPIED * target.processors


def settings_of(node: Node) -> dict[str, Any]:
    """Return stride, padding, output padding, dilation and groups of a convolution's call."""
    rank = len(node.shape) - 2
    given = ast.parse(node.op.removeprefix("own ").format("x", "w", "b"), mode="eval").body
    assert isinstance(given, ast.Call)
    named = {word.arg: word.value for word in given.keywords if word.arg != "bias"}
    values = {str(name): ast.literal_eval(value) for name, value in named.items()}
    defaults = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}
    for name, default in defaults.items():
        value = values.get(name, default)
        if isinstance(value, int):
            value = [value] * rank
        if isinstance(value, list | tuple):
            value = list(value) * (rank if len(value) == 1 else 1)
        values[name] = value
    return values | {"groups": values.get("groups", 1)}


def _convolution(node: Node, group: Group | None, graph: Graph) -> Convolution | None:
    """Return the convolution; None if its group cannot be the epilogue."""
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
    if groups > 1 and any(n.kind is Kind.REDUCE for n in epilogue):
        return None
    sizes = (node.size, node.size // node.shape[1] if group is not None and group.reduced else 0)
    if any(graph.node(name).size not in sizes for name in outputs):
        return None
    try:
        reads = {
            (n.name, arg): _read_by(graph, group, n, arg, node.shape)
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
        x.shape[-1] if _is_last(x) or node.op == TRANSPOSED else x.shape[1] // groups,
        node.shape[-1 if node.op == COPY else 1],
        axes,
        left,
        right.tensor,
        Volume(bias[0].name, bias[0].dtype, 0, 1, 0, 0) if bias else None,
        epilogue,
        reads,
        outputs,
        dict.fromkeys(inner, ()),
        dtypes,
        any(n.kind is Kind.REDUCE for n in epilogue),
        x.op == COPY,
        halves[2].name if halves else "",
        groups,
        again,
    )


def _given(graph: Graph, x: Node, node: Node) -> tuple[Volume, Volume]:
    """Return the input of a kernel without a product (`COPY`, `TRANSPOSED`) and an empty weight."""
    right = Volume("", "", 0, 0, 0, 0)
    if node.op == COPY:
        return volume_of(graph, x.name, x.shape), right
    return Volume(x.name, x.dtype, x.size // x.shape[0], 1, x.shape[-1], 0), right


def convolution_axes(graph: Graph, node: Node) -> tuple[tuple[Axis, ...], bool]:
    """Return the axes of a convolution with copied operands, and if it is transposed."""
    x, weight = (graph.node(str(arg)) for arg in node.args[:2])
    return _operands(graph, node, x, weight)[2], node.op.startswith("own F.conv_transpose")


def _is_last(x: Node) -> bool:
    return x.op in (CHANNELS_LAST, COPY)


def _one_axis(node: Node) -> Axis:
    """Return one axis with all places, for a convolution that needs no coordinates of a place."""
    places = math.prod(node.shape[1:-1] if node.op == COPY else node.shape[2:])
    return Axis(places, places, 1, 1, 0, 1)


def _has_text(node: Node) -> bool:
    """Return True if the epilogue can compute this node."""
    match node.kind:
        case Kind.POINTWISE:
            return node.op in EXPRESSIONS
        case Kind.REDUCE:
            return node.op in REDUCTIONS
    return node.kind is Kind.VIEW


def _operands(
    graph: Graph, node: Node, x: Node, weight: Node
) -> tuple[Volume, Volume, tuple[Axis, ...]]:
    """Return input, weight and axes; all places of a pointwise convolution are one axis."""
    copied = _is_last(x)
    if not copied and is_pointwise(node, weight):
        volumes = (volume_of(graph, n.name, n.shape) for n in (x, weight))
        return *volumes, (_one_axis(node),)  # type: ignore[return-value]
    settings = settings_of(node)
    axes = tuple(
        Axis(
            x.shape[k + 2 - copied],
            node.shape[2 + k],
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
    return left, Volume(weight.name, weight.dtype, 0, 1, 0, 0), axes


def volume_of(graph: Graph, name: str, shape: tuple[int, ...]) -> Volume:
    """Return the strides of a tensor, broadcast to `shape`, which is (samples, channels, *places).

    Raises NestError if the places have no common stride.
    """
    node = graph.node(name)
    if node.kind in (Kind.WINDOW, Kind.INSIDE, Kind.GATHER):
        raise NestError(f"{name} is read under a condition")
    base, strides, offset = storage(graph, node)
    padded = (0,) * (len(shape) - len(node.shape)) + tuple(
        stride if extent > 1 else 0 for stride, extent in zip(strides, node.shape, strict=True)
    )
    steps, place = contiguous_strides(shape[2:]), padded[-1]
    pairs = zip(padded[2:], steps, shape[2:], strict=True)
    if any(stride != place * step for stride, step, extent in pairs if extent > 1):
        raise NestError(f"{name} has no single stride from place to place")
    return Volume(base.name, base.dtype, padded[0], padded[1], place, offset)


def _read_by(graph: Graph, group: Group, reader: Node, name: str, shape: tuple[int, ...]) -> Volume:
    """Return the strides with which `reader`, a node of the group, reads a tensor.

    `shape` is that of the convolution's result, (samples, channels, *places).

    Raises NestError if the tensor has no single stride along each of them.
    """
    node = graph.node(name)
    if node.kind in (Kind.WINDOW, Kind.INSIDE, Kind.GATHER):
        raise NestError(f"{name} is read under a condition")
    base, strides, offset = storage(graph, node)
    places = math.prod(shape[2:])
    if places == 1:
        raise NestError("one place for each sample")
    domain = group.places[reader.name]
    padded = (0,) * (len(reader.shape) - len(node.shape)) + tuple(
        stride if extent > 1 else 0 for stride, extent in zip(strides, node.shape, strict=True)
    )
    found: dict[int, set[int]] = {places * shape[1]: set(), places: set(), 1: set()}
    for extent, step, stride in zip(reader.shape, domain, padded, strict=True):
        if extent == 1:
            continue
        unit = max(size for size in found if step >= size)
        if unit != 1 and step != unit:
            raise NestError(f"{name} is read in parts of a sample or of its channels")
        if stride % step and unit == 1:
            raise NestError(f"{name} has no single stride from place to place")
        found[unit].add(stride // step if unit == 1 else stride)
    if any(len(values) > 1 for values in found.values()):
        raise NestError(f"{name} has no single stride")
    sample, channel, place = (next(iter(values), 0) for values in found.values())
    return Volume(base.name, base.dtype, sample, channel, place, offset)
