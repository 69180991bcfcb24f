"""Write attention as a Triton kernel: scores in tiles, with a running maximum and a running sum
(FlashAttention).

One block computes some rows of one head in a loop over the keys. float32 operands are split into
TF32 parts (`tf32x3`); half types accumulate in float32. With few rows the keys are split over
several blocks, and a second kernel combines the results of the parts. A row whose scores are all
-inf gives NaN, as in torch.

The largest score less the maximum must be 0. The compiler may join the last multiplication of the
scores with this subtraction into one operation with one rounding. The difference is then a rounding
error of the maximum, and its power is infinite for scores of more than 2^31. So a positive scale is
applied after the subtraction, and kernels whose scores end with another product are compiled
without fused multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cuagent.expert.attention.kernel import AttentionStep, Blocks, Place
from cuagent.expert.products.epilogue import times
from cuagent.expert.products.triton import ELEMENTS
from cuagent.expert.streaming.expressions import identifier

ROW, COLUMN = "m[:, None]", "n[None, :]"
LEAST_LATE = 1e-30
"""Least scale, and inverse of the largest, that is applied to differences of scores. As float32
they are neither 0 nor infinite."""


def render(name: str, step: AttentionStep, splits: int) -> str:
    """Return the text of the attention kernel; with `splits` > 1, also of the kernel that combines
    the parts."""
    tensors = ", ".join(f"{identifier(tensor)}_in" for tensor in step.tensors)
    lines = [
        "@triton.jit",
        f"def {name}(",
        f"    out, {'parts, ' if splits > 1 else ''}{tensors},",
        "    ROWS: tl.constexpr, COLUMNS: tl.constexpr,",
        "):",
        f'    """{step.batch * step.heads} heads, {step.rows} x {step.columns} scores of depth '
        f'{step.depth}."""',
        "    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)",
        f"    batch = tl.program_id(1) // {step.heads}",
        f"    head = tl.program_id(1) % {step.heads}",
        f"    group = head{f' // {step.groups}' if step.groups > 1 else ''}",
        f"    d = tl.arange(0, {_power(step.depth)})",
        f"    e = tl.arange(0, {_power(step.width)})",
        *_loads(step),
        '    top = tl.full((ROWS,), float("-inf"), tl.float32)',
        "    total = tl.zeros((ROWS,), tl.float32)",
        f"    result = tl.zeros((ROWS, {_power(step.width)}), tl.float32)",
        *_range(step, splits),
        *(f"        {line}" for line in _tile(step)),
        *_stores(step, splits),
    ]
    text = "\n".join(lines)
    return text if splits == 1 else f"{text}\n\n\n{_joiner(name, step, splits)}"


def _power(size: int) -> int:
    """Return the side of a tile that covers `size` elements: a power of 2, at least 16 for the
    tensor cores."""
    return max(16, 1 << (size - 1).bit_length())


def _base(place: Place, head: str) -> str:
    text = f"{identifier(place.tensor)}_in"
    if place.offset:
        text += f" + {place.offset}"
    for word, stride in (("batch", place.strides[0]), (head, place.strides[1])):
        if stride:
            text += f" + {word}.to(tl.int64){times(stride)}"
    return text


def _pointers(base: str, terms: tuple[tuple[str, int], ...]) -> str:
    return " + ".join([base, *(f"{word}{times(stride)}" for word, stride in terms if stride)])


def _loads(step: AttentionStep) -> list[str]:
    query, key, value = step.operands[:3]
    source = _pointers("queries", ((ROW, query.strides[2]), ("d[None, :]", query.strides[3])))
    inside = f"({ROW} < {step.rows}) & (d[None, :] < {step.depth})"
    return [
        f"    queries = {_base(query, 'head')}",
        f"    keys = {_base(key, 'group')}",
        f"    values = {_base(value, 'group')}",
        f"    q = tl.load({source}, mask={inside}, other=0.0)",
    ]


def _range(step: AttentionStep, splits: int) -> list[str]:
    """Return the lines that begin the loop over tiles of keys. A causal loop ends at the block's
    last row."""
    end = str(step.columns)
    lines = []
    if step.is_causal:
        lines.append(f"    end = tl.minimum((tl.program_id(0) + 1) * ROWS, {step.columns})")
        end = "end"
    if splits == 1:
        return [*lines, f"    for start in range(0, {end}, COLUMNS):"]
    # All parts have the same number of tiles; the last one may have fewer.
    return [
        *lines,
        f"    share = tl.cdiv(tl.cdiv({step.columns}, COLUMNS), {splits}) * COLUMNS",
        "    begin = tl.program_id(2) * share",
        f"    for start in range(begin, tl.minimum(begin + share, {end}), COLUMNS):",
    ]


def _tile(step: AttentionStep) -> list[str]:
    """Return the lines of the loop's body, which process one tile of scores."""
    _, key, value = step.operands[:3]
    dtype, power = step.node.dtype, _power_of(step)
    precision = ', input_precision="tf32x3"' if dtype == "float32" else ""
    keys = _pointers("keys", ((COLUMN, key.strides[2]), ("d[:, None]", key.strides[3])))
    places = (("n[:, None]", value.strides[2]), ("e[None, :]", value.strides[3]))
    values = _pointers("values", places)
    return [
        "n = start + tl.arange(0, COLUMNS)",
        f"k = tl.load({keys}, mask=({COLUMN} < {step.columns}) & (d[:, None] < {step.depth}), "
        "other=0.0)",
        f"s = tl.dot(q, k{precision})",
        *_scores(step),
        f's = tl.where({COLUMN} < {step.columns}, s, float("-inf"))',
        "new = tl.maximum(top, tl.max(s, 1))",
        # A row without a key so far has no finite maximum.
        'shift = tl.where(new == float("-inf"), 0.0, new)',
        f"p = {power('s - shift[:, None]')}",
        f"scale = {power('top - shift')}",
        "total = total * scale + tl.sum(p, 1)",
        f"v = tl.load({values}, mask=(n[:, None] < {step.columns}) & (e[None, :] < {step.width}), "
        "other=0.0)",
        f"result = tl.dot(p.to({ELEMENTS[dtype]}), v, result * scale[:, None]{precision})",
        "top = new",
    ]


def _late_scale(step: AttentionStep) -> float | None:
    """Return the scale of the scores if it may be applied after the maximum was subtracted; None if
    not.

    All other operations then fill with -inf, which a positive scale does not change.
    """
    first, *others = step.spec.steps or ((),)
    if not first or first[0] != "scale" or not LEAST_LATE < first[1] < 1 / LEAST_LATE:
        return None
    fills = all(name in ("fill", "causal") and words[-1] == -math.inf for name, *words in others)
    return float(first[1]) if fills else None


def _power_of(step: AttentionStep) -> Callable[[str], str]:
    """Return the function that writes the power of a difference of scores."""
    scale = _late_scale(step)
    if scale is None:
        return "tl.exp({})".format
    return f"tl.exp2(({{}}) * {scale / math.log(2)!r})".format


def _ends_with_product(step: AttentionStep) -> bool:
    """Return True if the last arithmetic on the scores is a multiplication."""
    names = [name for name, *_ in step.spec.steps if name not in ("fill", "causal")]
    return _late_scale(step) is None and names[-1:] in (["scale"], ["mul"])


def _scores(step: AttentionStep) -> list[str]:
    """Return the lines that apply the operations on the scores to one tile."""
    inside = f"({ROW} < {step.rows}) & ({COLUMN} < {step.columns})"
    lines = []

    def loaded(place: Place, other: str) -> str:
        base = f"({_base(place, 'head')})"
        pointers = _pointers(base, ((ROW, place.strides[2]), (COLUMN, place.strides[3])))
        if not place.strides[2] and not place.strides[3]:
            return f"tl.load({pointers})"
        mask = inside
        if not place.strides[2]:
            mask = f"{COLUMN} < {step.columns}"
        elif not place.strides[3]:
            mask = f"{ROW} < {step.rows}"
        return f"tl.load({pointers}, mask={mask}, other={other})"

    late = _late_scale(step) is not None
    for name, *words in step.spec.steps[late:]:
        match name:
            case "scale":
                lines.append(f"s = s * {words[0]!r}")
            case "mul" | "add":
                value = f"{loaded(step.operands[3 + words[0]], '0.0')}.to(tl.float32)"
                sign = "*" if name == "mul" else "+"
                weight = f" * {words[1]!r}" if name == "add" and words[1] != 1 else ""
                lines.append(f"s = s {sign} {value}{weight}")
            case "tanh":
                lines.append("s = tanh_of_element(s)")
            case "fill":
                mask = loaded(step.operands[3 + words[0]], "0")
                fill, removes = _number(words[2]), words[1]
                chosen = f"{fill}, s" if removes else f"s, {fill}"
                lines.append(f"s = tl.where({mask} != 0, {chosen})")
            case "causal":
                lines.append(f"s = tl.where({COLUMN} > {ROW}, {_number(words[0])}, s)")
    return lines


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _target(step: AttentionStep) -> str:
    """Return the Triton expression of the pointers to this block's tile of the result."""
    width, heads, rows = step.width, step.heads, step.rows
    if step.spec.heads_inside:
        place = f"(batch.to(tl.int64) * {rows} * {heads} + head) * {width}"
        return f"out + {place} + {ROW} * {heads * width} + e[None, :]"
    return f"out + tl.program_id(1).to(tl.int64) * {rows * width} + {ROW} * {width} + e[None, :]"


def _stores(step: AttentionStep, splits: int) -> list[str]:
    inside = f"({ROW} < {step.rows}) & (e[None, :] < {step.width})"
    if splits == 1:
        value = f"(result / total[:, None]).to({ELEMENTS[step.node.dtype]})"
        return [f"    tl.store({_target(step)}, {value}, mask={inside})"]
    width, pairs = step.width + 2, step.batch * step.heads
    return [
        f"    part = (tl.program_id(2) * {pairs} + tl.program_id(1)).to(tl.int64) * {step.rows}",
        f"    place = parts + (part + m) * {width}",
        f"    tl.store(place[:, None] + e[None, :], result, mask={inside})",
        f"    tl.store(place + {step.width}, top, mask=m < {step.rows})",
        f"    tl.store(place + {step.width + 1}, total, mask=m < {step.rows})",
    ]


def _joiner(name: str, step: AttentionStep, splits: int) -> str:
    """Return the text of the kernel that combines the results of the parts of the keys."""
    power = _power_of(step)
    width, pairs = step.width + 2, step.batch * step.heads
    value = f"(result / total[:, None]).to({ELEMENTS[step.node.dtype]})"
    inside = f"({ROW} < {step.rows}) & (e[None, :] < {step.width})"
    lines = [
        "@triton.jit",
        f"def {name}_joined(out, parts, ROWS: tl.constexpr):",
        f'    """Join {splits} parts of the keys."""',
        "    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)",
        f"    batch = tl.program_id(1) // {step.heads}",
        f"    head = tl.program_id(1) % {step.heads}",
        f"    e = tl.arange(0, {_power(step.width)})",
        '    top = tl.full((ROWS,), float("-inf"), tl.float32)',
        "    total = tl.zeros((ROWS,), tl.float32)",
        f"    result = tl.zeros((ROWS, {_power(step.width)}), tl.float32)",
        f"    for part in range({splits}):",
        f"        first = (part * {pairs} + tl.program_id(1)).to(tl.int64) * {step.rows}",
        f"        place = parts + (first + m) * {width}",
        f"        peak = tl.load(place + {step.width}, mask=m < {step.rows}, other=0.0)",
        f"        share = tl.load(place + {step.width + 1}, mask=m < {step.rows}, other=1.0)",
        f"        value = tl.load(place[:, None] + e[None, :], mask={inside}, other=0.0)",
        "        new = tl.maximum(top, peak)",
        '        shift = tl.where(new == float("-inf"), 0.0, new)',
        f"        before, now = {power('top - shift')}, {power('peak - shift')}",
        "        total = total * before + share * now",
        "        result = result * before[:, None] + value * now[:, None]",
        "        top = new",
        f"    tl.store({_target(step)}, {value}, mask={inside})",
    ]
    return "\n".join(lines)


def launch(name: str, step: AttentionStep, tile: Blocks, arguments: list[str]) -> list[str]:
    """Return the lines of Python that launch the kernel, and the combining kernel if the keys are
    split."""
    pairs = step.batch * step.heads
    down = math.ceil(step.rows / tile.rows)
    words = f"{tile.rows}, {tile.columns}, num_warps={tile.warps}, num_stages={tile.stages}"
    words += ", enable_fp_fusion=False" if _ends_with_product(step) else ""
    out, *tensors = arguments
    if tile.splits == 1:
        return [
            f"{name}[({down}, {pairs})](",
            f"    {', '.join([out, *tensors])},",
            f"    {words},",
            ")",
        ]
    shape = (tile.splits, pairs, step.rows, step.width + 2)
    return [
        f"{name}_parts = torch.empty({shape}, dtype=torch.float32, device={out}.device)",
        f"{name}[({down}, {pairs}, {tile.splits})](",
        f"    {', '.join([out, f'{name}_parts', *tensors])},",
        f"    {words},",
        ")",
        f"{name}_joined[({down}, {pairs})]({out}, {name}_parts, {tile.rows}, num_warps=4)",
    ]
