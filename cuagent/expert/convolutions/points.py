"""Write the Triton lines that give each row of a convolution its output point.

A row of the implicit product is one output point of one sample. Of a transposed convolution each
program computes the points of one phase. A stride of 2 along the last dimension is an exception: a
program computes a pair of phases and stores them side by side, because stores to every second place
would cost twice the memory traffic. With larger strides a program may compute all outputs along the
last dimension (`Axis.together`).
"""

from __future__ import annotations

import math
from dataclasses import fields

from cuagent.expert.convolutions.convolution import Convolution
from cuagent.expert.convolutions.phases import Phase, axis_phases, transposed_phase
from cuagent.expert.convolutions.tiles import phase_count
from cuagent.expert.graph.graph import contiguous_strides
from cuagent.expert.products.epilogue import times

INVERSE = 1 << 16
"""Scale of the inverse of a number of taps."""


def phase_constants(conv: Convolution) -> list[str]:
    """Return the Triton lines that define the constants of the program's phase.

    Triton derives which addresses are adjacent from constants, not from loaded numbers.
    """
    count = phase_count(conv)
    lines = []
    if count > 1:
        lines += [f"    phase = program % {count}", f"    program = program // {count}"]
        lines += ["    whole_phase = phase"] if conv.partials else []
    for d, axis in enumerate(conv.axes):
        found = axis_phases(axis, conv.transposed)
        if d == conv.pair:
            found = [phase_of_pair(conv, 0)]
        if len(found) > 1:
            lines.append(f"    first_{d} = phase % {len(found)}")
            lines.append(f"    phase = phase // {len(found)}")
        for field in (field.name for field in fields(Phase)):
            values = [getattr(phase, field) for phase in found]
            if field == "points":
                # A division by a constant takes a fifth of the instructions of another one.
                lines += [f"    count_{d} = {_chosen(f'first_{d}', values)}"] * is_uneven(conv, d)
                values = [conv.pool.counts[d] if conv.pool else max(values)]
            lines.append(f"    {field}_{d} = {_chosen(f'first_{d}', values)}")
            if field == "taps" and divides_by_inverse(conv, d):
                values = [INVERSE // taps + 1 if taps else 0 for taps in values]
                lines.append(f"    inverse_{d} = {_chosen(f'first_{d}', values)}")
    return lines


def divides_by_inverse(conv: Convolution, d: int) -> bool:
    """Return True if the sum divides by the number of taps along dimension `d` by a multiplication.

    That number is then not the same in all phases. With the inverse rounded up, the quotient n // t
    is exact if n * t < INVERSE.
    """
    counts = {phase.taps for phase in axis_phases(conv.axes[d], conv.transposed)}
    small = conv.taps * max(counts) < INVERSE
    return 0 < d != conv.pair and len(counts) > 1 and small


def is_uneven(conv: Convolution, d: int) -> bool:
    """Return True if the phases along dimension `d` have different numbers of points.

    Shorter phases then have rows of points that do not exist.
    """
    counts = {phase.points for phase in axis_phases(conv.axes[d], conv.transposed)}
    return d != conv.pair and len(counts) > 1


def has_other_rows(conv: Convolution) -> bool:
    """Return True if some rows, except past the last one, are points that do not exist."""
    odd = conv.pair is not None and conv.axes[-1].outputs % 2 == 1
    return odd or any(is_uneven(conv, d) for d in range(len(conv.axes)))


def _chosen(index: str, values: list[int]) -> str:
    """Return the Triton expression that selects `values[index]`."""
    if len(set(values)) == 1:
        return str(values[0])
    text = str(values[-1])
    for k in reversed(range(len(values) - 1)):
        text = f"tl.where({index} == {k}, {values[k]}, {text})"
    return text


def phase_of_pair(conv: Convolution, first: int) -> Phase:
    """Return phase `first` (0 or 1) of the last dimension, with the number of points of the longer
    phase.
    """
    axis = conv.axes[-1]
    return transposed_phase(axis, first, -(-axis.outputs // 2))


def tiles_of_samples(conv: Convolution) -> list[str]:
    """Return the Triton line that counts the tiles of a sample in a phase; [] if tiles mix
    samples.
    """
    return [f"    tiles = tl.cdiv({points_of_phase(conv)}, ROWS)"] if conv.partials else []


def tile_index(conv: Convolution) -> str:
    """Return the Triton expression of a program's tile number within its phase (or its sample's
    phase).
    """
    return "(program % tiles)" if conv.partials else "program"


def points_of_phase(conv: Convolution) -> int:
    """Return the number of output points of the largest phase."""
    return math.prod(
        max(p.points for p in axis_phases(axis, conv.transposed)) for axis in conv.axes
    )


def is_wide(conv: Convolution) -> bool:
    """Return True if memory offsets of the convolution need 64-bit integers."""
    places = math.prod(axis.outputs for axis in conv.axes)
    inputs = conv.groups * conv.channels_in * math.prod(axis.inputs for axis in conv.axes)
    return conv.samples * max(inputs, conv.channels_out * places) >= 1 << 31


def point_coordinates(conv: Convolution) -> list[str]:
    """Return the Triton lines that find the sample, the output point and the first input of each
    row.
    """
    lines = _coordinates(conv)
    for d, axis in enumerate(conv.axes):
        if axis.together:
            moved = f"(t_{d} + {axis.padding})"
            lines.append(f"    i_{d} = {moved} // {axis.stride}")
            lines.append(f"    rest_{d} = {moved} % {axis.stride}")
        else:
            lines.append(f"    i_{d} = input_step_{d} * t_{d} + input_start_{d}")
    if conv.pair is not None:
        lines.append(f"    i_{conv.pair} = t_{conv.pair}")
    return [*lines, *first_inputs(conv)]


def _coordinates(conv: Convolution) -> list[str]:
    """Return the Triton lines that convert row numbers to samples and output points."""
    elements = conv.pool.elements if conv.pool else 1
    if conv.partials:
        wide = ".to(tl.int64)" if is_wide(conv) else ""
        lines = [
            "    m = row % points",
            f"    sample = (tl.zeros_like(row) + program // tiles){wide}",
            "    rest = m",
        ]
        return lines + [
            line
            for d in reversed(range(len(conv.axes)))
            for line in (f"    t_{d} = rest % points_{d}", f"    rest = rest // points_{d}")
        ]
    lines = [
        f"    m = row{f' // {elements}' if conv.pool else ''} % ({conv.samples} * points)",
        f"    sample = {'(m // points).to(tl.int64)' if is_wide(conv) else 'm // points'}",
        "    rest = m % points",
        *([f"    element = row % {elements}"] if conv.pool else []),
    ]
    for d in reversed(range(len(conv.axes))):
        size = conv.pool.sizes[d] if conv.pool else 1
        inner = f" * {size} + element % {size}" if size > 1 else ""
        lines += [f"    t_{d} = rest % points_{d}{inner}", f"    rest = rest // points_{d}"]
        lines += [f"    element = element // {size}"] if size > 1 else []
    return lines


def first_inputs(conv: Convolution) -> list[str]:
    """Return the Triton lines that compute the memory offset of each row's first input."""
    source = flat_index("i_{0}", tuple(axis.inputs for axis in conv.axes))
    source = f"({source}){times(conv.left.place)}" if conv.left.place != 1 else source
    lines = [f"    first = sample{times(conv.left.sample)} + {source}"]
    if conv.groups > 1:
        lines[0] += f" + group * {conv.channels_in * conv.left.channel}"
    if conv.left.place == 1 and conv.left.channel != 1 and _is_adjacent(conv):
        adjacent = conv.pool.sizes[-1] if conv.pool else "ROWS"
        lines.append(f"    first = tl.max_contiguous(first, {adjacent})")
    return lines


def _is_adjacent(conv: Convolution) -> bool:
    """Return True if neighbouring rows read neighbouring inputs, except at the ends of lines.

    They do not if a line has one output point but several inputs. A hint would be wrong for all
    rows then.
    """
    last = conv.axes[-1]
    if last.together:
        return False
    points = math.ceil(last.outputs / last.stride) if conv.transposed else last.outputs
    return (conv.transposed or last.stride == 1) and (points > 1 or last.inputs == 1)


def output_places(conv: Convolution) -> list[str]:
    """Return the Triton lines that compute the output position of each row, and a mask of valid
    rows.
    """
    lines, count = [], "ROWS"
    if conv.pair is not None:
        count = "2 * ROWS"
        lines = [
            f"    row = {tile_index(conv)} * ROWS + tl.arange(0, 2 * ROWS) // 2",
            "    side = tl.arange(0, 2 * ROWS) % 2",
            *_coordinates(conv),
        ]
    strides = contiguous_strides(tuple(axis.outputs for axis in conv.axes))
    terms = [
        f"(output_step_{d} * t_{d} + {'side' if d == conv.pair else f'output_start_{d}'})"
        f"{times(stride)}"
        for d, stride in enumerate(strides)
    ]
    lines.append(f"    place = {' + '.join(terms)}")
    last = conv.axes[-1]
    adjacent = conv.pair is not None or not conv.transposed or last.stride == 1 or last.together
    if len(conv.axes) == 1 and adjacent and conv.pair is None and not conv.pool:
        # The compiler removes an addition of 0, and a hint on its result with it.
        lines[-1] = "    place = m % points"
    if adjacent and not conv.pool:
        lines.append(f"    place = tl.max_contiguous(place, {count})")
    lines.append(f"    inside = row < {'' if conv.partials else f'{conv.samples} * '}points")
    if conv.pair is not None and last.outputs % 2:
        found = f"output_step_{conv.pair} * t_{conv.pair} + side"
        lines.append(f"    inside = inside & ({found} < {last.outputs})")
    uneven = (d for d in range(len(conv.axes)) if is_uneven(conv, d))
    lines += [f"    inside = inside & (t_{d} < count_{d})" for d in uneven]
    return lines


def over_axes(pattern: str, rank: int) -> str:
    """Return a product over the dimensions as text: over_axes("n{}", 2) == "n0 * n1"."""
    return " * ".join(pattern.format(d) for d in range(rank))


def flat_index(pattern: str, sizes: tuple[int, ...]) -> str:
    """Return the flat index over `sizes` as text: flat_index("i{}", (4, 5)) == "i0 * 5 + i1"."""
    strides = enumerate(contiguous_strides(sizes))
    return " + ".join(f"{pattern.format(d)}{times(s)}" for d, s in strides)
