"""Write the Triton lines after the sum of a convolution: pools, sums of tiles and stores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from cuagent.expert.convolutions.convolution import Convolution, Partials, Pool, Volume
from cuagent.expert.convolutions.points import has_other_rows, is_wide
from cuagent.expert.convolutions.scaling import SCALED
from cuagent.expert.convolutions.tiles import phase_count
from cuagent.expert.graph.graph import Part
from cuagent.expert.products.epilogue import epilogue, pointer, times, variable
from cuagent.expert.products.triton import ELEMENTS
from cuagent.expert.streaming.expressions import identifier


def address_of(conv: Convolution) -> Callable[[Volume], str]:
    """Return a function that writes the pointers to a tile of a given tensor in Triton."""

    def address(volume: Volume) -> str:
        text = pointer(volume.tensor)
        if volume.offset:
            text += f" + {volume.offset}"
        if volume.sample:
            text += f" + sample[:, None]{times(volume.sample)}"
        if volume.channel:
            text += f" + n[None, :] % {conv.channels_out}{times(volume.channel)}"
        if volume.place:
            # A row without a point reads a place that exists.
            places = math.prod(axis.outputs for axis in conv.axes)
            word = f"(place % {places})" if has_other_rows(conv) else "place"
            text += f" + {word}[:, None]{times(volume.place)}"
        return text

    return address


def reduction_of(conv: Convolution) -> Callable[[str, str], str]:
    """Return a function that writes a reduction over the channels in Triton; an extreme keeps
    NaN.
    """

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


def pooled(conv: Convolution, pool: Pool) -> list[str]:
    """Return the Triton lines that pool the rows of each window, and compute the operations after
    it.
    """
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
        f"    sample = {'(m // points).to(tl.int64)' if is_wide(conv) else 'm // points'}",
        f"    place = tl.max_contiguous(m % points, ROWS // {count})",
        f"    inside = row < {conv.samples} * points",
        *epilogue(pool.anchor.name, None, pool.after, conv.reads, address_of(conv)),
    ]


def tile_sums(conv: Convolution, partials: Partials) -> list[str]:
    """Return the Triton lines that sum a value over the positions of a tile, and store the sums."""
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


def stores(
    conv: Convolution, dtype_of: Callable[[str], str], parts: Mapping[str, Part]
) -> Iterator[str]:
    """Yield the Triton lines that store the outputs, and the scaled copy for the next
    convolution.
    """
    places = math.prod(axis.outputs for axis in conv.axes)
    places = math.prod(conv.pool.counts) if conv.pool else places
    full = f"inside[:, None] & ({_exists(conv).replace('n', 'n[None, :]', 1)})"
    others = (*(conv.partials.names if conv.partials else ()), *conv.copy[1:])
    for output in (name for name in conv.outputs if name not in others):
        value = f"{variable(output)}.to({ELEMENTS[dtype_of(output)]})"
        pitch = parts[output].strides[0] if output in parts else conv.channels_out * places
        words, mask = [f"sample[:, None] * {pitch}"], full
        if conv.is_copy:
            words += [f"place[:, None] * {conv.channels_out}", "n[None, :]"]
        elif output in conv.rows:
            words, mask = [f"sample[:, None] * {places}", "place[:, None]"], "inside[:, None]"
        elif conv.last:
            step = parts[output].strides[-2] if output in parts else conv.channels_out
            words += [f"place[:, None] * {step}", "n[None, :]"]
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


def _exists(conv: Convolution) -> str:
    """Return the Triton condition that a column is an output channel of the program's group."""
    return f"n < {conv.channels_out}" if conv.groups == 1 else f"n < (group + 1) * {conv.columns}"
