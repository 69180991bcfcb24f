"""Write a convolution with its epilogue as a Triton kernel: an implicit matrix product.

A row is one output point of one sample, a column one output channel, and the sum runs over taps and
input channels. Of a transposed convolution each program computes the points of one phase. A stride
of 2 along the last dimension is an exception: a program computes both phases and stores them side
by side, because stores to every second place would cost twice the memory traffic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from cuagent.expert.convolutions.convolution import Convolution, Partials, Pool, Volume
from cuagent.expert.convolutions.phases import Phase, axis_phases, transposed_phase
from cuagent.expert.convolutions.tiles import phase_count
from cuagent.expert.graph.graph import contiguous_strides
from cuagent.expert.products.epilogue import epilogue, pointer, times, variable
from cuagent.expert.products.tiles import Tile
from cuagent.expert.products.triton import ELEMENTS
from cuagent.expert.streaming.expressions import identifier

VARYING = ("points", "taps", "output_start", "input_start", "kernel_start")
"""Fields of a phase that differ between the phases of one dimension."""


INPUT_SCALE = 16.0
"""Factor by which inputs are multiplied before they become float16."""
SCALED = f"""\
    most = tl.max(total.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    fits = ((most >= 0x38800000) & (most < 0x45000000)) | (most == 0)
    total = tl.where(fits[:, None], total * {INPUT_SCALE!r}, float("nan"))""".splitlines()
"""Lines that scale the channels of a place for float16: NaN unless the largest is in [2^-14, 2^11).

Smaller channels then have an error below 2^-15 of the largest one.
"""


def render(name: str, conv: Convolution, dtype_of: Callable[[str], str], precision: str) -> str:
    """Return the text of the kernel. `precision` is that of `tl.dot` for float32 operands."""
    outputs = [f"{identifier(n)}_out" for n in conv.outputs]
    arguments = ", ".join([*outputs, *(pointer(n) for n in conv.tensors)])
    lines = [
        "@triton.jit",
        f"def {name}(",
        f"    {arguments},",
        "    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,",
        "):",
        f'    """{conv.samples} samples, {conv.channels_in} to {conv.channels_out} channels."""',
        "    program = tl.program_id(0)",
        f"    across = tl.cdiv({conv.columns}, COLUMNS)",
        "    n = program % across * COLUMNS + tl.arange(0, COLUMNS)",
        "    program = program // across",
        *(_group(conv) if conv.groups > 1 else []),
        *_phase(conv),
        f"    points = {_joined('points_{}', len(conv.axes))}",
        *_tiles_of_samples(conv),
        f"    row = {_tile(conv)} * ROWS + tl.arange(0, ROWS)",
        *_points(conv),
        *_sums(conv, precision),
        *_places(conv),
        *epilogue(
            conv.node.name, conv.bias, conv.epilogue, conv.reads, _address(conv), _reduction(conv)
        ),
        *(_pooled(conv, conv.pool) if conv.pool else []),
        *(_partials(conv, conv.partials) if conv.partials else []),
        *_stores(conv, dtype_of),
    ]
    return "\n".join(lines)


def _group(conv: Convolution) -> list[str]:
    """Return the lines that choose the group of a program, and its output channels.

    Columns past the end of a group multiply weights of the next one, and are not stored.
    """
    return [
        f"    group = program % {conv.groups}",
        f"    program = program // {conv.groups}",
        f"    n += group * {conv.columns}",
    ]


def _exists(conv: Convolution) -> str:
    """Return the condition that a column is an output channel of the program's group."""
    return f"n < {conv.channels_out}" if conv.groups == 1 else f"n < (group + 1) * {conv.columns}"


def _tiles_of_samples(conv: Convolution) -> list[str]:
    """Return the line that counts the tiles of a sample in a phase, if tiles have one sample."""
    return [f"    tiles = tl.cdiv({_points_of_phase(conv)}, ROWS)"] if conv.partials else []


def _tile(conv: Convolution) -> str:
    return "(program % tiles)" if conv.partials else "program"


def _points_of_phase(conv: Convolution) -> int:
    """Return the points of the largest phase."""
    return math.prod(
        max(p.points for p in axis_phases(axis, conv.transposed)) for axis in conv.axes
    )


def _partials(conv: Convolution, partials: Partials) -> list[str]:
    """Return the lines that sum a value over the places of a tile, and store the sums."""
    word, first = variable(partials.value), phase_count(conv) > 1
    inside = _exists(conv)
    tile = f"({'whole_phase * tiles + ' if first else ''}program % tiles)"
    count = f"{phase_count(conv)} * tiles"
    lines = [
        f"    kept = tl.where(inside[:, None], {word}, 0.0)",
        "    sums = tl.sum(kept, 0)",
        f"    target = ((program // tiles) * {conv.channels_out} + n) * ({count}) + {tile}",
    ]
    values = {partials.sums: "sums", partials.means: "means", partials.deviations: "deviations",
              partials.counts: "tl.zeros_like(sums) + count"}  # fmt: skip
    if partials.deviations:
        lines += [
            "    count = tl.sum(inside.to(tl.float32), 0)",
            "    means = sums / tl.maximum(count, 1.0)",
            f"    moved = tl.where(inside[:, None], {word} - means[None, :], 0.0)",
            "    deviations = tl.sum(moved * moved, 0)",
        ]
    return lines + [
        f"    tl.store({identifier(name)}_out + target, {values[name]}, mask={inside})"
        for name in partials.names
    ]


def _pooled(conv: Convolution, pool: Pool) -> list[str]:
    """Return the lines that pool the rows of each window, and compute the operations behind."""
    count = pool.elements
    word = variable(str(pool.anchor.args[0]))
    windows = f"tl.reshape({word}, (ROWS // {count}, {count}, COLUMNS))"
    if pool.anchor.op == "mean":
        lines = [f"    total = tl.sum({windows}, 1) * {1 / count!r}"]
    else:
        lines = [
            f"    windows = {windows}",
            "    unequal = tl.max((windows != windows).to(tl.int32), 1)",
            '    total = tl.where(unequal > 0, float("nan"), tl.max(windows, 1))',
        ]
    return [
        *lines,
        f"    row = program * (ROWS // {count}) + tl.arange(0, ROWS // {count})",
        f"    m = row % ({conv.samples} * points)",
        f"    sample = {'(m // points).to(tl.int64)' if _is_wide(conv) else 'm // points'}",
        f"    place = tl.max_contiguous(m % points, ROWS // {count})",
        f"    inside = row < {conv.samples} * points",
        *epilogue(pool.anchor.name, None, pool.after, conv.reads, _address(conv)),
    ]


def _is_wide(conv: Convolution) -> bool:
    """Return True if offsets need 64 bits."""
    places = math.prod(axis.outputs for axis in conv.axes)
    inputs = conv.channels_in * math.prod(axis.inputs for axis in conv.axes)
    return conv.samples * max(inputs, conv.channels_out * places) >= 1 << 31


def _phase(conv: Convolution) -> list[str]:
    """Return the lines that define the constants of the program's phase.

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
            found = [_of_pair(conv, 0)]
        if len(found) > 1:
            lines.append(f"    first_{d} = phase % {len(found)}")
            lines.append(f"    phase = phase // {len(found)}")
        for field in (field.name for field in fields(Phase)):
            values = [getattr(phase, field) for phase in found]
            values = [conv.pool.counts[d]] if conv.pool and field == "points" else values
            lines.append(f"    {field}_{d} = {_chosen(f'first_{d}', values)}")
    return lines


def _chosen(index: str, values: list[int]) -> str:
    """Return the Triton expression that selects `values[index]`."""
    if len(set(values)) == 1:
        return str(values[0])
    text = str(values[-1])
    for k in reversed(range(len(values) - 1)):
        text = f"tl.where({index} == {k}, {values[k]}, {text})"
    return text


def _of_pair(conv: Convolution, first: int) -> Phase:
    """Return phase `first` (0 or 1) of the last dimension, with the points of the longer phase."""
    axis = conv.axes[-1]
    return transposed_phase(axis, first, -(-axis.outputs // 2))


def _joined(pattern: str, rank: int) -> str:
    return " * ".join(pattern.format(d) for d in range(rank))


def _coordinates(conv: Convolution) -> list[str]:
    """Return the lines that turn rows into samples and points."""
    elements = conv.pool.elements if conv.pool else 1
    if conv.partials:
        wide = ".to(tl.int64)" if _is_wide(conv) else ""
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
        f"    sample = {'(m // points).to(tl.int64)' if _is_wide(conv) else 'm // points'}",
        "    rest = m % points",
        *([f"    element = row % {elements}"] if conv.pool else []),
    ]
    for d in reversed(range(len(conv.axes))):
        size = conv.pool.sizes[d] if conv.pool else 1
        inner = f" * {size} + element % {size}" if size > 1 else ""
        lines += [f"    t_{d} = rest % points_{d}{inner}", f"    rest = rest // points_{d}"]
        lines += [f"    element = element // {size}"] if size > 1 else []
    return lines


def _points(conv: Convolution) -> list[str]:
    """Return the lines that find the first input of each row."""
    rank = len(conv.axes)
    lines = _coordinates(conv)
    lines += [f"    i_{d} = input_step_{d} * t_{d} + input_start_{d}" for d in range(rank)]
    if conv.pair is not None:
        lines.append(f"    i_{conv.pair} = t_{conv.pair}")
    return [*lines, *_first(conv)]


def _first(conv: Convolution) -> list[str]:
    """Return the lines that find the place of each row's first input in memory."""
    source = _place("i_{0}", tuple(axis.inputs for axis in conv.axes))
    source = f"({source}){times(conv.left.place)}" if conv.left.place != 1 else source
    lines = [f"    first = sample{times(conv.left.sample)} + {source}"]
    if conv.groups > 1:
        lines[0] += f" + group * {conv.channels_in * conv.left.channel}"
    step = 1 if conv.transposed else conv.axes[-1].stride
    if conv.left.place == 1 and conv.left.channel != 1 and step == 1:
        adjacent = conv.pool.sizes[-1] if conv.pool else "ROWS"
        lines.append(f"    first = tl.max_contiguous(first, {adjacent})")
    return lines


def _sums(conv: Convolution, precision: str) -> list[str]:
    """Return the lines that compute `total`; the rows of a pair of phases alternate."""
    if not conv.right:
        return _given(conv, precision)
    if conv.again:
        return _sums_of_halves(conv, conv.again, precision)
    if conv.pair is None:
        return _sum(conv, precision, "total")
    lines, d = [], conv.pair
    for first in (0, 1):
        phase = _of_pair(conv, first)
        lines += [
            f"    {field}_{d} = {getattr(phase, field)}"
            for field in ("taps", "kernel_start", "input_start")
        ]
        lines += _sum(conv, precision, f"total_{first}")
    lines.append("    total = tl.join(total_0, total_1).permute(0, 2, 1)")
    lines.append("    total = total.reshape(2 * ROWS, COLUMNS)")
    return lines


def _sums_of_halves(conv: Convolution, again: tuple[Volume, str], precision: str) -> list[str]:
    """Return the lines that compute `total` from scaled operands, and again where that is NaN."""
    left, right = again
    exact = replace(conv, left=left, right=right, scale="", again=None, copied=False)
    scale = f"tl.load({pointer(conv.scale)} + n % {conv.channels_out})"
    lines = [*_first(exact), *_sums(exact, precision)]
    # One stage, so that this loop needs no more shared memory than the first one.
    lines = [re.sub(r"in range\((.*)\):$", r"in tl.range(\1, num_stages=1):", li) for li in lines]
    return [
        *_sums(replace(conv, again=None), precision),
        f"    total *= {scale}[None, :] * {1 / INPUT_SCALE!r}",
        "    if tl.sum((total != total).to(tl.int32)) > 0:",
        *(f"    {line}" for line in lines),
    ]


def _given(conv: Convolution, precision: str) -> list[str]:
    """Return the lines that read a result of the library, or an input to copy."""
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


def _sum(conv: Convolution, precision: str, total: str) -> list[str]:
    """Return the loop over taps and input channels."""
    rank, channels = len(conv.axes), conv.channels_in
    sizes = contiguous_strides(tuple(axis.inputs for axis in conv.axes))
    kernel = tuple(axis.kernel for axis in conv.axes)
    merged = conv.merged
    lines = [f"    {total} = tl.zeros((ROWS, COLUMNS), tl.float32)"]
    taps = _joined("taps_{}", rank)
    if merged:
        lines += [
            f"    depth = {taps} * {channels}",
            "    for step in range(0, tl.cdiv(depth, DEPTH)):",
            "        k = step * DEPTH + tl.arange(0, DEPTH)",
            f"        c = k % {channels}",
            f"        tap = k // {channels}",
        ]
    else:
        count = f"{taps} * blocks" if conv.taps > 1 else "blocks"
        start = "step % blocks * DEPTH" if conv.taps > 1 else "step * DEPTH"
        lines += [
            f"    blocks = tl.cdiv({channels}, DEPTH)",
            f"    for step in range(0, {count}):",
            f"        c = {start} + tl.arange(0, DEPTH)",
            *(["        tap = step // blocks"] if conv.taps > 1 else []),
        ]
    if conv.taps > 1:
        for d in reversed(range(rank)):
            last = d == 0
            lines.append(f"        j_{d} = tap" if last else f"        j_{d} = tap % taps_{d}")
            lines += [] if last else [f"        tap = tap // taps_{d}"]
    moves = [
        f"{f'({word})' if ' ' in word else word}{times(size)}"
        for d, size in enumerate(sizes)
        if (word := _moved(conv, d))
    ]
    source = " + ".join(moves)
    if source and conv.left.place != 1:
        source = f"({source}){times(conv.left.place)}"
    channel = f"c{times(conv.left.channel)}"
    source = f"({channel} + {source})" if source else f"({channel})"
    element = f"columns * {channels * conv.taps}"
    weight = "c"
    if conv.taps > 1:
        tap = _place("(kernel_step_{0} * j_{0} + kernel_start_{0})", kernel)
        weight = f"({tap}){times(channels)} + c"
    masks, end = _masks(conv), ""
    if merged:
        masks, end = [*masks, "(k[None, :] < depth)"], "k[:, None] < depth"
    elif channels % 64 != 0:
        masks, end = [*masks, f"(c[None, :] < {channels})"], f"c[:, None] < {channels}"
    left_mask = f", mask={' & '.join(masks)}, other=0.0" if masks else ""
    right_mask = f", mask={end}, other=0.0" if end else ""
    float32 = conv.node.dtype == "float32" and not conv.scale
    tf32 = f', input_precision="{precision}"' if float32 else ""
    left, right = pointer(conv.left.tensor), pointer(conv.right)
    left += f" + {conv.left.offset}" if conv.left.offset else ""
    return [
        *(line for line in lines),
        f"        a = tl.load({left} + first[:, None] + {source}[None, :]{left_mask})",
        *(_rounded("a") if float32 and precision == "tf32" and not conv.copied else []),
        f"        columns = n % {conv.channels_out}",
        f"        b = tl.load({right} + ({element})[None, :] + ({weight})[:, None]{right_mask})",
        f"        {total} = tl.dot(a, b, {total}{tf32})",
    ]


def _moved(conv: Convolution, d: int) -> str:
    """Return the expression of the distance along a dimension from a row's first input to a tap's.

    It is "" if the distance is 0.
    """
    words = [f"tap_step_{d} * j_{d}"] if conv.taps > 1 and conv.axes[d].kernel > 1 else []
    words += [f"input_start_{d}"] if d == conv.pair else []
    return " + ".join(words)


def _masks(conv: Convolution) -> list[str]:
    """Return the conditions under which a tap reads inside of the input."""
    tests = []
    for d, axis in enumerate(conv.axes):
        moved = _moved(conv, d)
        vector = conv.merged and axis.kernel > 1
        term = f"({moved}){'[None, :]' if vector else ''}" if moved else ""
        where = f"(i_{d}[:, None]{f' + {term}' if term else ''})"
        first, last = _reach(conv, d)
        tests += [f"({where} >= 0)"] if first < 0 else []
        tests += [f"({where} < {axis.inputs})"] if last >= axis.inputs else []
    return tests


def _reach(conv: Convolution, d: int) -> tuple[int, int]:
    """Return the first and the last index that taps read along a dimension."""
    found = axis_phases(conv.axes[d], conv.transposed)
    if d == conv.pair:
        found = [_of_pair(conv, first) for first in (0, 1)]
    read = [
        p.input_step * t + p.tap_step * j + p.input_start
        for p in found
        for t in (0, p.points - 1)
        for j in (0, p.taps - 1)
    ]
    return min(read), max(read)


def _rounded(word: str) -> list[str]:
    """Return the lines that round a tile to the nearest numbers of TF32, as cuDNN does."""
    bits = f"({word}.to(tl.int32, bitcast=True) + 4096) & -8192"
    return [
        f"        nearest = ({bits}).to(tl.float32, bitcast=True)",
        f"        {word} = tl.where({word} == {word}, nearest, {word})",
    ]


def _places(conv: Convolution) -> list[str]:
    """Return the lines that find the output place of each row, and which rows exist."""
    lines, count = [], "ROWS"
    if conv.pair is not None:
        count = "2 * ROWS"
        lines = [
            f"    row = {_tile(conv)} * ROWS + tl.arange(0, 2 * ROWS) // 2",
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
    adjacent = conv.pair is not None or not conv.transposed or conv.axes[-1].stride == 1
    if len(conv.axes) == 1 and adjacent and conv.pair is None and not conv.pool:
        # The compiler removes an addition of 0, and a hint on its result with it.
        lines[-1] = "    place = m % points"
    if adjacent and not conv.pool:
        lines.append(f"    place = tl.max_contiguous(place, {count})")
    lines.append(f"    inside = row < {'' if conv.partials else f'{conv.samples} * '}points")
    if conv.pair is not None and conv.axes[-1].outputs % 2:
        last = f"output_step_{conv.pair} * t_{conv.pair} + side"
        lines.append(f"    inside = inside & ({last} < {conv.axes[-1].outputs})")
    return lines


def _stores(conv: Convolution, dtype_of: Callable[[str], str]) -> Iterator[str]:
    places = math.prod(axis.outputs for axis in conv.axes)
    places = math.prod(conv.pool.counts) if conv.pool else places
    full = f"inside[:, None] & ({_exists(conv).replace('n', 'n[None, :]', 1)})"
    others = (*(conv.partials.names if conv.partials else ()), *conv.copy[1:])
    for output in (name for name in conv.outputs if name not in others):
        value = f"{variable(output)}.to({ELEMENTS[dtype_of(output)]})"
        words, mask = [f"sample[:, None] * {conv.channels_out * places}"], full
        if conv.is_copy:
            words += [f"place[:, None] * {conv.channels_out}", "n[None, :]"]
        elif output in conv.rows:
            words, mask = [f"sample[:, None] * {places}", "place[:, None]"], "inside[:, None]"
        else:
            words += [f"n[None, :] * {places}", "place[:, None]"]
        target = " + ".join([f"{identifier(output)}_out", *words])
        yield f"    tl.store({target}, {value}, mask={mask})"
    if conv.copy:
        value, copy = conv.copy
        yield f"    total = {variable(value)}"
        yield from SCALED
        target = f"(sample[:, None] * {places} + place[:, None]) * {conv.channels_out} + n[None, :]"
        yield f"    tl.store({identifier(copy)}_out + {target}, total.to(tl.float16), mask={full})"


def _reduction(conv: Convolution) -> Callable[[str, str], str]:
    """Return the function that writes a reduction over the channels; an extreme keeps NaN."""

    def reduction(op: str, word: str) -> str:
        empty = {"sum": "0.0", "max": 'float("-inf")', "min": 'float("inf")'}[op.removeprefix("a")]
        if conv.channels_out & (conv.channels_out - 1) or conv.channels_out < 16:
            word = f"tl.where(n[None, :] < {conv.channels_out}, {word}, {empty})"
        if op == "sum":
            return f"tl.sum({word}, 1)[:, None]"
        extreme = f"tl.{op.removeprefix('a')}({word}, 1)[:, None]"
        unequal = f"tl.max(({word} != {word}).to(tl.int32), 1)[:, None]"
        return f'tl.where({unequal} > 0, float("nan"), {extreme})'

    return reduction


def _place(pattern: str, sizes: tuple[int, ...]) -> str:
    """Return the flat index over `sizes`; `pattern` names the index of each dimension."""
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
            # A row of a pair past the end reads a place that exists.
            places = math.prod(axis.outputs for axis in conv.axes)
            odd = conv.pair is not None and conv.axes[-1].outputs % 2
            word = f"(place % {places})" if odd else "place"
            text += f" + {word}[:, None]{times(volume.place)}"
        return text

    return address


def launches(name: str, conv: Convolution, tile: Tile, arguments: list[str]) -> list[str]:
    """Return the lines of Python that launch the kernel."""
    across = math.ceil(conv.columns / tile.columns) * conv.groups
    points = math.prod(
        max(p.points for p in axis_phases(axis, conv.transposed)) for axis in conv.axes
    )
    if conv.pool:
        points = math.prod(conv.pool.counts) * conv.pool.elements
    count = math.ceil(conv.samples * points / tile.rows)
    if conv.partials:
        count = conv.samples * math.ceil(_points_of_phase(conv) / tile.rows)
    programs = count * across * phase_count(conv)
    return [
        f"{name}[({programs},)](",
        f"    {', '.join(arguments)},",
        f"    {tile.rows}, {tile.columns}, {tile.depth}, "
        f"num_warps={tile.warps}, num_stages={tile.stages},",
        ")",
    ]
