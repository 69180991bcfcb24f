"""Decide which convolutions a generated kernel may compute faster than cuDNN.

These are transposed, three-dimensional and pointwise ones, and others with a short sum (few input
channels). On an H200 the library's time was 4 to 17 times the floor on transposed and
three-dimensional ones, and pointwise kernels took 0.55 to 0.95 of cuDNN's time. Two-dimensional
ones with long sums were slower than cuDNN's.
"""

from __future__ import annotations

import math

from cuagent.expert.capture.subject import Target
from cuagent.expert.convolutions.convolution import COPY, FEW, VECTOR, settings_of, volume_of
from cuagent.expert.graph.graph import Graph, Kind, Node
from cuagent.expert.graph.storage import NestError

CHANNELS_LAST = "{0}.movedim(1, -1).contiguous()"
LEAST_CHANNELS = 2
"""Least number of input channels of a pointwise convolution.

With few channels a tile is mostly zeros, but memory accesses take the time. With 6 to 64 channels
on 128 x 256 x 256 places, the library and a kernel for bias and ReLU took 2.1 ms on an H200.
Writing the result takes 0.55 ms of these.
"""
FEW_CHANNELS = FEW
"""Number of input channels below which a kernel sums over one index of taps and channels.

Its tiles are then full, and the input is read without a copy.
"""
SHORT_SUM = 512
"""Largest number of terms (taps times input channels) in the sum of a 1-D or 2-D convolution that
qualifies, unless it is pointwise or its input is copied to float16.

11x11 windows of three channels in TF32 took 0.48 of torch.compile's time on an H200. Scaled float16
took 0.4 of cuDNN's time in TF32 on 3x3 layers of 64 to 512 channels.
"""
SHORT_EXACT_SUM = 96
"""Replacement of `SHORT_SUM` for a convolution that needs float32 precision although TF32 is
admitted.

16 channels in 3x3 windows took 1.76 times the time of cuDNN, which computed them in TF32. 8
channels took 0.65 of torch.compile's time, and 0.8 of cuDNN's in float32.
"""
FEW_COLUMNS = 16
"""Largest number of output channels of a float32 convolution in three dimensions that gets a
generated kernel although its sum has at most SHORT_EXACT_SUM terms.

Times on an H200 in ms of sums of 81 terms (3 channels), by the kernel with its epilogue, and by
cuDNN in float32 with kernels behind it: 16 outputs 0.36 and 0.51, 24 outputs 1.34 and 0.72, 64
outputs 2.95 and 1.95. With 315 terms and 64 outputs the kernel took 0.74 of cuDNN's time.
"""
SHORT_FLOAT32_SUM = 256
"""Replacement of `SHORT_SUM` for a float32 convolution where TF32 is not admitted."""
LONG_SUM = 0
"""Replacement of `SHORT_SUM` for a convolution with at least `FEW_CHANNELS`, whose input is copied.

0: none qualifies.
"""
GROUP_SUM = 512
"""Largest number of terms in the sum of a grouped convolution that gets a generated kernel."""
SINGLE, TOGETHER = 10, 3
"""Estimated instructions for one input element: to load and round one of float32 in a sum over one
index of taps and channels, and to load one of VECTOR adjacent ones of float16."""
INSTRUCTIONS_PER_SECOND = 132 * 128 * 1.7e9
"""Instructions of single threads that an H200 issues per second."""
COPIED_BYTES_PER_SECOND = 3.8e12
"""Rate at which a kernel reads and writes a copy. 32 channels of 8 x 512 x 1024 places took 0.19 ms
on an H200."""
LARGE = 1 << 31
"""Number of elements of a sample from which 32-bit indices overflow."""
LEAST_OPERATIONS = 1 << 26
"""Least number of multiplications of a convolution that gets a generated kernel.

With fewer, kernel launches take most of the time.
"""
LEAST_OCCUPIED, SPLIT_SUM = 0.5, 512
"""Bounds below which a 1-D or 2-D convolution stays with the library.

It stays if fewer than the share LEAST_OCCUPIED of the multiprocessors has a tile and its sum has
more than SPLIT_SUM terms. The library splits such sums over multiprocessors. The bounds are an
estimate; the library's kernels in three dimensions are slower.
"""


def runs_in_halves(graph: Graph, node: Node, x: Node, target: Target) -> bool:
    """Return True if the input of a TF32 convolution is copied to scaled float16."""
    own = x.dtype == "float32" and copy_call(graph, x) == COPY
    if not own or not runs_in_tf32(target, captured_channels(node, x.shape[1])):
        return False
    return x.shape[1] >= FEW_CHANNELS or _copy_pays(graph, node, x)


def _copy_pays(graph: Graph, node: Node, x: Node) -> bool:
    """Return True if a copy of few channels to scaled float16 costs less time than it saves.

    The kernel then loads VECTOR channels of a tap together, and rounds no operand.
    """
    weight = graph.node(str(node.args[1]))
    taps, channels = math.prod(weight.shape[2:]), x.shape[1]
    if taps == 1 or channels % VECTOR or settings_of(node)["groups"] != 1:
        return False
    transposed = node.op.removeprefix("own ").startswith("F.conv_transpose")
    points = x.size // channels if transposed else node.size // node.shape[1]
    saved = points * taps * channels * (SINGLE - TOGETHER)
    # The copy reads 4 bytes and writes 2.
    return saved / INSTRUCTIONS_PER_SECOND > 6 * x.size / COPIED_BYTES_PER_SECOND


def runs_in_tf32(target: Target, channels_in: int) -> bool:
    """Return True if the kernel of a float32 convolution may round its operands to TF32."""
    return target.tf32_convolutions and channels_in > target.exact_channels


def captured_channels(node: Node, channels: int) -> int:
    """Return the number of input channels of the captured convolution, which decides on TF32.

    `channels` is that of the node; a rewrite may have joined several sums of the input.
    """
    return node.spec if isinstance(node.spec, int) else channels


def loses_precision(graph: Graph, node: Node, target: Target) -> bool:
    """Return True if torch's convolution runs in TF32, though the captured one does not.

    The reason is a rewrite that has joined channels: with many of them the library uses TF32.
    """
    x = graph.node(str(node.args[0]))
    captured = captured_channels(node, x.shape[1])
    exact = not runs_in_tf32(target, captured)
    return x.dtype == "float32" and exact and runs_in_tf32(target, x.shape[1])


def copy_call(graph: Graph, x: Node) -> str:
    """Return the text of the call that copies an input to channels-last layout.

    It is `COPY` if `volume_of` knows the input's strides, else torch's call.
    """
    try:
        volume_of(graph, x.name, x.shape)
    except NestError:
        return CHANNELS_LAST
    return COPY


def is_pointwise(node: Node, weight: Node) -> bool:
    """Return True if a convolution is one matrix product per sample: window 1, stride 1, no
    padding.

    Its input needs no copy, because a row of the product's left operand is one spatial position.
    """
    settings = settings_of(node)
    steps = set(settings["stride"]) == {1} and set(settings["padding"]) == {0}
    plain = not node.op.removeprefix("own ").startswith("F.conv_transpose")
    return plain and steps and math.prod(weight.shape[2:]) == 1


def is_read_in_place(graph: Graph, x: Node) -> bool:
    """Return True if adjacent spatial positions of the input are adjacent in memory: it needs no
    copy.
    """
    try:
        return volume_of(graph, x.name, x.shape).place == 1
    except NestError:
        return False


def _adjacent_channels(graph: Graph, weight: Node) -> bool:
    """Return True if a pointwise convolution's weight is a matrix whose input channels are adjacent
    in memory."""
    try:
        found = volume_of(graph, weight.name, weight.shape)
    except NestError:
        return False
    return (found.sample, found.channel, found.offset) == (weight.shape[1], 1, 0)


def qualifies(graph: Graph, node: Node, target: Target, every: bool) -> bool:
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
    if settings["groups"] != 1 and not _few_of_group(graph, node, x, weight):
        return False
    taps = math.prod(weight.shape[2:])
    points = x.size // x.shape[1] if transposed else node.size // node.shape[1]
    if points * taps * weight.shape[0] * weight.shape[1] < LEAST_OPERATIONS:
        return False
    plane = node.op.startswith(("F.conv1d(", "F.conv2d("))
    if plane and taps * x.shape[1] > SPLIT_SUM and not _is_occupied(node, target):
        return False
    if is_pointwise(node, weight):
        readable = is_read_in_place(graph, x) and _adjacent_channels(graph, weight)
        return weight.shape[1] >= LEAST_CHANNELS and readable
    if settings["groups"] != 1:
        return True
    few, volume = SHORT_SUM, node.op.startswith("F.conv3d(")
    slow = False
    if x.dtype == "float32" and not runs_in_tf32(target, captured_channels(node, x.shape[1])):
        few = SHORT_EXACT_SUM if target.tf32_convolutions else SHORT_FLOAT32_SUM
        slow = volume and taps * x.shape[1] <= SHORT_EXACT_SUM and weight.shape[0] > FEW_COLUMNS
    short = taps * x.shape[1] <= (few if x.shape[1] < FEW_CHANNELS else LONG_SUM)
    short = short or runs_in_halves(graph, node, x, target)
    return every or transposed or ((volume or short) and not slow)


def _few_of_group(graph: Graph, node: Node, x: Node, weight: Node) -> bool:
    """Return True if a grouped convolution gets a generated kernel.

    It must have several channels per group, a short sum, and an input that needs no copy.
    """
    settings = settings_of(node)
    channels, taps = x.shape[1] // settings["groups"], math.prod(weight.shape[2:])
    if node.op.startswith("F.conv_transpose"):
        # Each output has the taps of one phase.
        pairs = zip(settings["stride"], settings["dilation"], strict=True)
        steps = (stride // math.gcd(stride, dilation) for stride, dilation in pairs)
        sizes = zip(weight.shape[2:], steps, strict=True)
        taps = math.prod(math.ceil(size / step) for size, step in sizes)
    few = is_pointwise(node, weight)
    few = few or (channels < FEW_CHANNELS and taps * channels <= GROUP_SUM)
    return channels > 1 and few and is_read_in_place(graph, x)


def _is_occupied(node: Node, target: Target) -> bool:
    """Return True if enough multiprocessors have a tile of 128 positions and up to 128 channels."""
    tiles = math.ceil(node.size // node.shape[1] / 128) * math.ceil(node.shape[1] / 128)
    return tiles >= LEAST_OCCUPIED * target.processors
