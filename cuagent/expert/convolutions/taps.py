"""Write the Triton lines that sum over the taps and input channels of a convolution."""

from __future__ import annotations

import re
from dataclasses import replace

from cuagent.expert.convolutions.convolution import Convolution, Volume
from cuagent.expert.convolutions.phases import axis_phases
from cuagent.expert.convolutions.points import (
    INVERSE,
    divides_by_inverse,
    first_inputs,
    flat_index,
    over_axes,
    phase_of_pair,
)
from cuagent.expert.convolutions.scaling import INPUT_SCALE, SCALED
from cuagent.expert.graph.graph import contiguous_strides
from cuagent.expert.products.epilogue import pointer, times


def sum_over_taps(conv: Convolution, precision: str) -> list[str]:
    """Return the Triton lines that compute `total`, the convolution's sum.

    For a pair of phases the rows of both alternate.
    """
    if not conv.right:
        return _given(conv, precision)
    if conv.again:
        return _sum_of_halves(conv, conv.again, precision)
    if conv.pair is None:
        return _loop(conv, precision, "total")
    lines, d = [], conv.pair
    for first in (0, 1):
        phase = phase_of_pair(conv, first)
        lines += [
            f"    {field}_{d} = {getattr(phase, field)}"
            for field in ("taps", "kernel_start", "input_start")
        ]
        lines += _loop(conv, precision, f"total_{first}")
    lines.append("    total = tl.join(total_0, total_1).permute(0, 2, 1)")
    lines.append("    total = total.reshape(2 * ROWS, COLUMNS)")
    return lines


def _sum_of_halves(conv: Convolution, again: tuple[Volume, str], precision: str) -> list[str]:
    """Return the Triton lines that compute `total` from scaled float16, and again from `again` if
    NaN.
    """
    left, right = again
    exact = replace(conv, left=left, right=right, scale="", again=None, copied=False)
    scale = f"tl.load({pointer(conv.scale)} + n % {conv.channels_out})"
    lines = [*first_inputs(exact), *sum_over_taps(exact, precision)]
    # One stage, so that this loop needs no more shared memory than the first one.
    lines = [re.sub(r"in range\((.*)\):$", r"in tl.range(\1, num_stages=1):", li) for li in lines]
    halves = [
        *sum_over_taps(replace(conv, again=None), precision),
        f"    total *= {scale}[None, :] * {1 / INPUT_SCALE!r}",
    ]
    unequal = "tl.sum((total != total).to(tl.int32)) > 0"
    if conv.flagged:
        halves.append(f"    tl.store(flags + tile, ({unequal}).to(tl.int32))")
        both = (("if EXACT:", lines), ("else:", halves))
        return [line for word, part in both for line in (f"    {word}", *_indented(part))]
    return [*halves, f"    if {unequal}:", *_indented(lines)]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _given(conv: Convolution, precision: str) -> list[str]:
    """Return the Triton lines that load `total` in a kernel without a product.

    It is a result of the library, or an input to copy.
    """
    left = f"{pointer(conv.left.tensor)}{f' + {conv.left.offset}' if conv.left.offset else ''}"
    left += f" + first[:, None] + n[None, :]{times(conv.left.channel)}"
    rows = conv.samples * (conv.pool.elements if conv.pool else 1)
    mask = f"(row < {rows} * points)[:, None] & (n[None, :] < {conv.channels_out})"
    cast = ".to(tl.float32)" if conv.left.dtype != "float32" else ""
    rounds = conv.is_copy and conv.left.dtype == "float32" and precision == "tf32"
    if conv.is_copy and conv.node.dtype != conv.left.dtype:
        return [f"    total = tl.load({left}, mask={mask}, other=0.0)", *SCALED]
    return [
        f"    total = tl.load({left}, mask={mask}, other=0.0){cast}",
        *(line.removeprefix("    ") for line in (_rounded("total") if rounds else [])),
    ]


def _loop(conv: Convolution, precision: str, total: str) -> list[str]:
    """Return the Triton lines of the loop over taps and input channels."""
    float32 = conv.node.dtype == "float32" and not conv.scale
    tf32 = f', input_precision="{precision}"' if float32 else ""
    left, right = pointer(conv.left.tensor), pointer(conv.right)
    left += f" + {conv.left.offset}" if conv.left.offset else ""
    element = f"columns * {conv.channels_in * conv.taps}"
    left_mask, right_mask = _bounds(conv)
    return [
        f"    {total} = tl.zeros((ROWS, COLUMNS), tl.float32)",
        *_steps(conv),
        f"        a = tl.load({left} + first[:, None] + {_source(conv)}[None, :]{left_mask})",
        *(_rounded("a") if float32 and precision == "tf32" and not conv.copied else []),
        f"        columns = n % {conv.channels_out}",
        f"        b = tl.load({right} + ({element})[None, :] + ({_weight(conv)})[:, None]"
        f"{right_mask})",
        f"        {total} = tl.dot(a, b, {total}{tf32})",
    ]


def _steps(conv: Convolution) -> list[str]:
    """Return the loop's first line and the lines that find the channels and taps of its step.

    A step has DEPTH channels of one tap, or DEPTH elements of the merged index.
    """
    rank, channels = len(conv.axes), conv.channels_in
    taps = over_axes("taps_{}", rank)
    if conv.merged:
        lines = [
            f"    depth = {taps} * {channels}",
            "    for step in range(0, tl.cdiv(depth, DEPTH)):",
            "        k = step * DEPTH + tl.arange(0, DEPTH)",
            f"        c = k % {channels}",
            f"        tap = k // {channels}",
        ]
    else:
        # A window of one element with a stride has phases without a tap.
        found = (p for axis in conv.axes for p in axis_phases(axis, conv.transposed))
        several = conv.taps > 1 or any(phase.taps == 0 for phase in found)
        count = f"{taps} * blocks" if several else "blocks"
        start = "step % blocks * DEPTH" if conv.taps > 1 else "step * DEPTH"
        lines = [
            f"    blocks = tl.cdiv({channels}, DEPTH)",
            f"    for step in range(0, {count}):",
            f"        c = {start} + tl.arange(0, DEPTH)",
            *(["        tap = step // blocks"] if conv.taps > 1 else []),
        ]
    if conv.taps > 1:
        for d in reversed(range(1, rank)):
            if divides_by_inverse(conv, d):
                lines += [
                    f"        quotient = tap * inverse_{d} >> {INVERSE.bit_length() - 1}",
                    f"        j_{d} = tap - quotient * taps_{d}",
                    "        tap = quotient",
                ]
            else:
                lines += [f"        j_{d} = tap % taps_{d}", f"        tap = tap // taps_{d}"]
        lines.append("        j_0 = tap")
    return lines


def _source(conv: Convolution) -> str:
    """Return the Triton expression of the memory distance from a row's first input to the current
    input.
    """
    sizes = contiguous_strides(tuple(axis.inputs for axis in conv.axes))
    moves = [
        f"{f'({word})' if ' ' in word else word}{times(size)}"
        for d, size in enumerate(sizes)
        if (word := _moved(conv, d))
    ]
    source = " + ".join(moves)
    if source and conv.left.place != 1:
        source = f"({source}){times(conv.left.place)}"
    channel = f"c{times(conv.left.channel)}"
    return f"({channel} + {source})" if source else f"({channel})"


def _weight(conv: Convolution) -> str:
    """Return the Triton expression of the current weight's index within an output channel."""
    if conv.taps == 1:
        return "c"
    kernel = tuple(axis.kernel for axis in conv.axes)
    tap = flat_index("(kernel_step_{0} * j_{0} + kernel_start_{0})", kernel)
    return f"({tap}){times(conv.channels_in)} + c"


def _bounds(conv: Convolution) -> tuple[str, str]:
    """Return the mask arguments of the loads of input and weight; "" where all elements exist."""
    masks, end = _masks(conv), ""
    if conv.merged:
        masks, end = [*masks, "(k[None, :] < depth)"], "k[:, None] < depth"
    elif conv.channels_in % conv.most_depth != 0:
        count = conv.channels_in
        masks, end = [*masks, f"(c[None, :] < {count})"], f"c[:, None] < {count}"
    left = f", mask={' & '.join(masks)}, other=0.0" if masks else ""
    return left, f", mask={end}, other=0.0" if end else ""


def _moved(conv: Convolution, d: int) -> str:
    """Return the Triton expression of the distance along dimension `d` from a row's first input to
    a tap's.

    It is "" if the distance is 0.
    """
    axis = conv.axes[d]
    if axis.together:
        return f"-({axis.dilation} * j_{d} // {axis.stride})" if axis.kernel > 1 else ""
    words = [f"tap_step_{d} * j_{d}"] if conv.taps > 1 and axis.kernel > 1 else []
    words += [f"input_start_{d}"] if d == conv.pair else []
    return " + ".join(words)


def _masks(conv: Convolution) -> list[str]:
    """Return the Triton conditions under which a tap reads inside of the input."""
    tests = []
    for d, axis in enumerate(conv.axes):
        moved = _moved(conv, d)
        vector = conv.merged and axis.kernel > 1
        term = f"({moved}){'[None, :]' if vector else ''}" if moved else ""
        where = f"(i_{d}[:, None]{f' + {term}' if term else ''})"
        first, last = _reach(conv, d)
        tests += [f"({where} >= 0)"] if first < 0 else []
        tests += [f"({where} < {axis.inputs})"] if last >= axis.inputs else []
        if axis.together:
            rest = f"({axis.dilation} * j_{d} % {axis.stride})" if axis.kernel > 1 else "0"
            rest += "[None, :]" if vector else ""
            tests.append(f"(rest_{d}[:, None] == {rest})")
    return tests


def _reach(conv: Convolution, d: int) -> tuple[int, int]:
    """Return the first and the last index along dimension `d` that taps may read.

    All phases have rows for the points of the longest one.
    """
    axis = conv.axes[d]
    if axis.together:
        low, high = axis.padding // axis.stride, (axis.outputs - 1 + axis.padding) // axis.stride
        return low - axis.dilation * (axis.kernel - 1) // axis.stride, high
    found = axis_phases(axis, conv.transposed)
    if d == conv.pair:
        found = [phase_of_pair(conv, first) for first in (0, 1)]
    points = max(phase.points for phase in found)
    read = [
        p.input_step * t + p.tap_step * j + p.input_start
        for p in found
        for t in (0, points - 1)
        for j in (0, p.taps - 1)
    ]
    return min(read), max(read)


def _rounded(word: str) -> list[str]:
    """Return the Triton lines that round tile `word` to the nearest TF32 numbers, as cuDNN does."""
    bits = f"({word}.to(tl.int32, bitcast=True) + 4096) & -8192"
    return [
        f"        nearest = ({bits}).to(tl.float32, bitcast=True)",
        f"        {word} = tl.where({word} == {word}, nearest, {word})",
    ]
