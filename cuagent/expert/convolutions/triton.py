"""Write a convolution with its epilogue as a Triton kernel: an implicit matrix product.

A row is one output point of one sample, a column one output channel, and the sum runs over taps and
input channels. One launch computes one phase; its constants are arguments, so that all phases share
one compiled kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, fields

from cuagent.expert.convolutions.match import Convolution, Volume
from cuagent.expert.convolutions.phases import Phase, phases
from cuagent.expert.graph.graph import contiguous_strides
from cuagent.expert.products.epilogue import epilogue, pointer, times, variable
from cuagent.expert.products.tiles import Tile
from cuagent.expert.products.triton import ELEMENTS
from cuagent.expert.streaming.expressions import identifier

SHALLOW = Tile(128, 128, 64, 8, 2, 1.0)
"""Tile of a pointwise convolution whose channels are one step of the sum. On an H200 it was 1.4
times as fast as 128 x 128 x 32 on 64 channels."""
FIELDS = tuple(field.name for field in fields(Phase))


def render(name: str, conv: Convolution, dtype_of: Callable[[str], str], precision: str) -> str:
    """Return the text of the kernel. `precision` is that of `tl.dot` for float32 operands."""
    outputs = [f"{identifier(n)}_out" for n in conv.outputs]
    rank = len(conv.axes)
    given = [f"{field}_{d}" for d in range(rank) for field in FIELDS] if len(_all(conv)) > 1 else []
    listed = ", ".join(f'"{word}"' for word in given)
    arguments = ", ".join([*outputs, *(pointer(n) for n in conv.tensors)])
    places = math.prod(axis.outputs for axis in conv.axes)
    inputs = conv.channels_in * math.prod(axis.inputs for axis in conv.axes)
    wide = conv.samples * max(inputs, conv.channels_out * places) >= 1 << 31
    lines = [
        f"@triton.jit(do_not_specialize=[{listed}])" if given else "@triton.jit",
        f"def {name}(",
        f"    {arguments},",
        *(
            f"    {', '.join(given[k : k + len(FIELDS)])},"
            for k in range(0, len(given), len(FIELDS))
        ),
        "    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,",
        "):",
        f'    """{conv.samples} samples, {conv.channels_in} to {conv.channels_out} channels."""',
        *([] if given else _constants_of(_all(conv)[0])),
        f"    points = {_joined('points_{}', rank)}",
        f"    across = tl.cdiv({conv.channels_out}, COLUMNS)",
        "    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)",
        "    n = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)",
        f"    m = row % ({conv.samples} * points)",
        f"    sample = {'(m // points).to(tl.int64)' if wide else 'm // points'}",
        "    rest = m % points",
        *_points(conv),
        *_sum(conv, precision),
        *epilogue(conv.node.name, conv.bias, conv.epilogue, conv.reads, _address(conv)),
    ]
    lines.append(
        f"    inside = (row[:, None] < {conv.samples} * points) "
        f"& (n[None, :] < {conv.channels_out})"
    )
    start = f"sample[:, None] * {conv.channels_out * places}"
    for output in conv.outputs:
        value = f"{variable(output)}.to({ELEMENTS[dtype_of(output)]})"
        target = f"{identifier(output)}_out + {start} + n[None, :] * {places} + place[:, None]"
        lines.append(f"    tl.store({target}, {value}, mask=inside)")
    return "\n".join(lines)


def _constants_of(phase: tuple[Phase, ...]) -> list[str]:
    """Return the lines that define the constants of the only phase.

    Triton derives which addresses are adjacent from constants, not from arguments.
    """
    return [
        f"    {field}_{d} = {value}"
        for d, axis in enumerate(phase)
        for field, value in zip(FIELDS, astuple(axis), strict=True)
    ]


def _joined(pattern: str, rank: int) -> str:
    return " * ".join(pattern.format(d) for d in range(rank))


def _points(conv: Convolution) -> list[str]:
    """Return the lines that turn a row into its point, its output place and its first input."""
    lines = []
    strides = contiguous_strides(tuple(axis.outputs for axis in conv.axes))
    for d in reversed(range(len(conv.axes))):
        lines.append(f"    t_{d} = rest % points_{d}")
        lines.append(f"    rest = rest // points_{d}")
    terms = [
        f"(output_step_{d} * t_{d} + output_start_{d}){times(stride)}"
        for d, stride in enumerate(strides)
    ]
    lines.append(f"    place = {' + '.join(terms)}")
    lines += [
        f"    i_{d} = input_step_{d} * t_{d} + input_start_{d}" for d in range(len(conv.axes))
    ]
    return lines


def _sum(conv: Convolution, precision: str) -> list[str]:
    """Return the loop over taps and blocks of input channels."""
    rank, channels = len(conv.axes), conv.channels_in
    sizes = tuple(axis.inputs for axis in conv.axes)
    kernel = tuple(axis.kernel for axis in conv.axes)
    taps = math.prod(kernel)
    lines = [
        f"    blocks = tl.cdiv({channels}, DEPTH)",
        f"    columns = n % {conv.channels_out}",
        "    total = tl.zeros((ROWS, COLUMNS), tl.float32)",
    ]
    if taps == 1:
        lines.append("    for step in range(0, blocks):")
        lines.append("        c = step * DEPTH + tl.arange(0, DEPTH)")
    else:
        lines.append(f"    for step in range(0, {_joined('taps_{}', rank)} * blocks):")
        lines.append("        c = step % blocks * DEPTH + tl.arange(0, DEPTH)")
        lines.append("        tap = step // blocks")
        for d in reversed(range(rank)):
            lines.append(f"        j_{d} = tap % taps_{d}")
            lines.append(f"        tap = tap // taps_{d}")
    inside = []
    for d, axis in enumerate(conv.axes):
        moved = f" + tap_step_{d} * j_{d}" if taps > 1 else ""
        lines.append(f"        x_{d} = i_{d}{moved}")
        if axis.inputs != axis.outputs or taps > 1:
            inside.append(f"(x_{d} >= 0) & (x_{d} < {axis.inputs})")
    source = _place("x_{0}", sizes)
    weights = f"columns * {channels}"
    if taps > 1:
        element = _place("(kernel_step_{0} * j_{0} + kernel_start_{0})", kernel)
        weights = f"(columns * {taps} + {element}) * {channels}"
    left, right = conv.left, pointer(conv.right)
    rows = f"sample{times(left.sample)} + ({source}){times(left.place)}"
    masks = [f"({' & '.join(inside)})[:, None]"] if inside else []
    right_mask = ""
    if channels % 64 != 0:
        masks.append(f"(c[None, :] < {channels})")
        right_mask = f", mask=c[:, None] < {channels}, other=0.0"
    left_mask = f", mask={' & '.join(masks)}, other=0.0" if masks else ""
    tf32 = f', input_precision="{precision}"' if conv.node.dtype == "float32" else ""
    start = f"{pointer(left.tensor)}{f' + {left.offset}' if left.offset else ''}"
    return [
        *lines,
        f"        left = {start} + ({rows})[:, None] + c[None, :]{times(left.channel)}",
        f"        a = tl.load(left{left_mask})",
        *(_rounded("a") if conv.node.dtype == "float32" and precision == "tf32" else []),
        f"        b = tl.load({right} + ({weights})[None, :] + c[:, None]{right_mask})",
        f"        total = tl.dot(a, b, total{tf32})",
    ]


def _rounded(word: str) -> list[str]:
    """Return the lines that round a tile to the nearest numbers of TF32, as cuDNN does."""
    bits = f"({word}.to(tl.int32, bitcast=True) + 4096) & -8192"
    return [
        f"        nearest = ({bits}).to(tl.float32, bitcast=True)",
        f"        {word} = tl.where({word} == {word}, nearest, {word})",
    ]


def _place(pattern: str, sizes: tuple[int, ...]) -> str:
    """Return the flat index over `sizes` of the indices that `pattern` names."""
    strides = enumerate(contiguous_strides(sizes))
    return " + ".join(f"{pattern.format(d)}{times(s)}" for d, s in strides)


def _address(conv: Convolution) -> Callable[[Volume], str]:
    def address(volume: Volume) -> str:
        text = pointer(volume.tensor)
        if volume.offset:
            text += f" + {volume.offset}"
        if volume.sample:
            text += f" + sample[:, None]{times(volume.sample)}"
        if volume.channel:
            text += f" + n[None, :] % {conv.channels_out}{times(volume.channel)}"
        if volume.place:
            text += f" + place[:, None]{times(volume.place)}"
        return text

    return address


def launches(name: str, conv: Convolution, tile: Tile, arguments: list[str]) -> list[str]:
    """Return the lines of Python that launch the kernel, once for each phase."""
    across = math.ceil(conv.channels_out / tile.columns)
    sizes = f"{tile.rows}, {tile.columns}, {tile.depth}"
    listed = [(_programs(conv, phase, tile) * across, _constants(phase)) for phase in _all(conv)]
    if len(listed) == 1:
        return [
            f"{name}[({listed[0][0]},)](",
            f"    {', '.join(arguments)},",
            f"    {sizes}, num_warps={tile.warps}, num_stages={tile.stages},",
            ")",
        ]
    return [
        "for programs, phase in (",
        *(
            f"    ({programs}, ({', '.join(map(str, constants))})),"
            for programs, constants in listed
        ),
        "):",
        f"    {name}[(programs,)](",
        f"        {', '.join(arguments)},",
        f"        *phase, {sizes}, num_warps={tile.warps}, num_stages={tile.stages},",
        "    )",
    ]


def _all(conv: Convolution) -> list[tuple[Phase, ...]]:
    return list(phases(conv.axes, conv.transposed))


def _programs(conv: Convolution, phase: tuple[Phase, ...], tile: Tile) -> int:
    return math.ceil(conv.samples * math.prod(axis.points for axis in phase) / tile.rows)


def _constants(phase: tuple[Phase, ...]) -> tuple[int, ...]:
    return tuple(value for axis in phase for value in astuple(axis))


def is_shallow(conv: Convolution) -> bool:
    """Return True if the best tile known is `SHALLOW`."""
    taps = math.prod(axis.kernel for axis in conv.axes)
    float32 = conv.node.dtype == "float32"
    return float32 and taps == 1 and conv.channels_in <= 64 < conv.channels_out


def rows_of(conv: Convolution) -> int:
    """Return the rows of the implicit product of one phase."""
    return conv.samples * math.prod(axis.points for axis in _all(conv)[0])
