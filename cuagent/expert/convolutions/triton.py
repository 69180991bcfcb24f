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
from cuagent.expert.products.epilogue import argument, epilogue, times, variable
from cuagent.expert.products.tiles import Tile
from cuagent.expert.products.triton import ELEMENTS
from cuagent.expert.streaming.expressions import identifier

FIELDS = tuple(field.name for field in fields(Phase))


def render(name: str, conv: Convolution, dtype_of: Callable[[str], str], precision: str) -> str:
    """Return the text of the kernel. `precision` is that of `tl.dot` for float32 operands."""
    outputs = [f"{identifier(n)}_out" for n in conv.outputs]
    rank = len(conv.axes)
    constants = [f"{field}_{d}" for d in range(rank) for field in FIELDS]
    listed = ", ".join(f'"{word}"' for word in constants)
    arguments = ", ".join([*outputs, *(argument(n) for n in conv.tensors)])
    places = math.prod(axis.outputs for axis in conv.axes)
    lines = [
        f"@triton.jit(do_not_specialize=[{listed}])",
        f"def {name}(",
        f"    {arguments},",
        *(f"    {', '.join(f'{field}_{d}' for field in FIELDS)}," for d in range(rank)),
        "    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,",
        "):",
        f'    """{conv.samples} samples, {conv.channels_in} to {conv.channels_out} channels."""',
        f"    points = {_joined('points_{}', rank)}",
        f"    across = tl.cdiv({conv.channels_out}, COLUMNS)",
        "    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)",
        "    n = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)",
        f"    m = row % ({conv.samples} * points)",
        "    sample = m // points",
        "    rest = m % points",
        *_points(conv),
        *_sum(conv, precision),
        *epilogue(conv.node.name, conv.bias, conv.epilogue, conv.reads, _address(conv)),
    ]
    lines.append(
        f"    inside = (row[:, None] < {conv.samples} * points) "
        f"& (n[None, :] < {conv.channels_out})"
    )
    wide = f"sample[:, None] * {conv.channels_out * places}"
    for output in conv.outputs:
        value = f"{variable(output)}.to({ELEMENTS[dtype_of(output)]})"
        target = f"{identifier(output)}_out + {wide} + n[None, :] * {places} + place[:, None]"
        lines.append(f"    tl.store({target}, {value}, mask=inside)")
    return "\n".join(lines)


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
        f"    for step in range(0, {_joined('taps_{}', rank)} * blocks):",
        "        c = step % blocks * DEPTH + tl.arange(0, DEPTH)",
        "        tap = step // blocks",
    ]
    for d in reversed(range(rank)):
        lines.append(f"        j_{d} = tap % taps_{d}")
        lines.append(f"        tap = tap // taps_{d}")
    inside = []
    for d, size in enumerate(sizes):
        lines.append(f"        x_{d} = i_{d} + tap_step_{d} * j_{d}")
        inside.append(f"(x_{d} >= 0) & (x_{d} < {size})")
    source, element = (
        " + ".join(f"{text.format(d)}{times(s)}" for d, s in enumerate(contiguous_strides(shape)))
        for text, shape in (
            ("x_{}", sizes),
            ("(kernel_step_{0} * j_{0} + kernel_start_{0})", kernel),
        )
    )
    rows = f"(sample * {math.prod(sizes)} + {source}) * {channels}"
    weights = f"(columns * {taps} + {element}) * {channels}"
    partial = channels % 64 != 0
    left_mask = f"({' & '.join(inside)})[:, None]"
    right_mask = ""
    if partial:
        left_mask += f" & (c[None, :] < {channels})"
        right_mask = f", mask=c[:, None] < {channels}, other=0.0"
    left, right = argument(conv.left), argument(conv.right)
    tf32 = f', input_precision="{precision}"' if conv.node.dtype == "float32" else ""
    return [
        *lines,
        f"        left = {left} + ({rows})[:, None] + c[None, :]",
        f"        a = tl.load(left, mask={left_mask}, other=0.0)",
        f"        b = tl.load({right} + ({weights})[None, :] + c[:, None]{right_mask})",
        f"        total = tl.dot(a, b, total{tf32})",
    ]


def _address(conv: Convolution) -> Callable[[Volume], str]:
    def address(volume: Volume) -> str:
        text = argument(volume.tensor)
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


def rows_of(conv: Convolution) -> int:
    """Return the rows of the implicit product of one phase."""
    return conv.samples * math.prod(axis.points for axis in _all(conv)[0])
