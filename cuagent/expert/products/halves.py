"""Split float32 operands of a product into scaled float16 parts, and write the sum over the parts.

A float16 number has 11 significant bits, like one of TF32, and tensor cores multiply it at twice
the rate. Each row of an operand along K is scaled by a power of two, so that its largest element
has exponent 14. An element is `(high + low / 2048) * scale` and has 22 bits. A product omits `low *
low`, as three products of TF32 do. Elements 2^28 times smaller than the largest of their row would
lose bits. Such a row, and one with infinity or NaN, gets the scale NaN. Tiles with such a row are
computed again from the float32 operands, in TF32 parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuagent.expert.products.epilogue import pointer, times
from cuagent.expert.products.product import Matrix, Product
from cuagent.expert.products.tiles import Tile

PARTS = ["left_high_in", "left_low_in", "left_scale_in"]
PARTS += [part.replace("left", "right") for part in PARTS]
"""Names of the kernel parameters for the parts and scales of both operands, if these are split
beforehand."""
LEAST_IN_BLOCKS = 1 << 32
"""Least number of multiplications of a product whose tiles are loaded as blocks (TMA)."""
STEP = 64
"""Multiple to which K of the parts is padded with zeros."""
SCALE = (
    "(lambda w, most: torch.where(((w == 0) | (w.abs() >= most[:, None] * 2.0**-28)).all(1)"
    " & (most < 2.0**63) & ((most >= 2.0**-63) | (most == 0)),"
    " torch.exp2(most.log2().floor().clamp(min=-63) - 14), torch.nan))({0}, {0}.abs().amax(1))"
)
"""Python expression of the scale of each row of a weight {0}; NaN for a row that cannot be
split."""
SCALED = "F.pad({0} / {1}[:, None].nan_to_num(1.0), (0, {2}))"
HIGH = f"{SCALED}.to(torch.float16)"
LOW = f"(({SCALED} - {HIGH}) * 2048).to(torch.float16)"
"""Python expression of the low part of a float64 weight {0} with scales {1}; `HIGH` is that of the
high part. Each row is padded with {2} zeros."""
PARTS_KERNEL = '''@triton.jit
def {name}_parts(
    high_out, low_out, scale_out, given,
    COUNT: tl.constexpr, K: tl.constexpr, PADDED: tl.constexpr, OFFSET: tl.constexpr,
    SAMPLE: tl.constexpr, ROW: tl.constexpr, COLUMN: tl.constexpr,
    ROWS: tl.constexpr, DEPTH: tl.constexpr,
):
    """Split rows of float32 into two float16 parts, scaled by a power of two (NaN: no fit)."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, DEPTH)
    sample = tl.program_id(1).to(tl.int64)
    x_row = given + OFFSET + sample * SAMPLE + (m.to(tl.int64) % COUNT * ROW)[:, None]
    most = tl.zeros((ROWS, DEPTH), tl.int32)
    least = tl.full((ROWS, DEPTH), 0x7FFFFFFF, tl.int32)
    for start in range(0, K, DEPTH):
        place = (k + start)[None, :]
        x = tl.load(x_row + place * COLUMN, mask=place < K, other=0.0)
        bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        most = tl.maximum(most, bits)
        least = tl.minimum(least, tl.where(bits == 0, 0x7FFFFFFF, bits))
    empty = tl.max(most, 1) == 0
    top = tl.max(most, 1) >> 23
    fits = (top >= 64) & (top <= 190) & (top - (tl.min(least, 1) >> 23) <= 28)
    factor = (tl.where(fits, 268 - top, 127) << 23).to(tl.float32, bitcast=True)
    scale = (tl.where(fits, top - 14, 127) << 23).to(tl.float32, bitcast=True)
    scale = tl.where(fits | empty, scale, float("nan"))
    first = sample * COUNT + m
    tl.store(scale_out + first, scale, mask=m < COUNT)
    for start in range(0, PADDED, DEPTH):
        place = (k + start)[None, :]
        x = tl.load(x_row + place * COLUMN, mask=place < K, other=0.0) * factor[:, None]
        high = x.to(tl.float16)
        low = ((x - high.to(tl.float32)) * 2048.0).to(tl.float16)
        inside = (m < COUNT)[:, None] & (place < PADDED)
        tl.store(high_out + first[:, None] * PADDED + place, high, mask=inside)
        tl.store(low_out + first[:, None] * PADDED + place, low, mask=inside)


'''


def padded(depth: int) -> int:
    """Return K of the parts: `depth` rounded up to a multiple of STEP."""
    return -(-depth // STEP) * STEP


def in_blocks(product: Product) -> bool:
    """Return True if tiles of the parts are loaded as blocks (TMA).

    On an H200 a product of 4096 x 4096 x 4096 took 0.71 ms with blocks and 0.93 ms with pointers.
    The descriptors of the blocks cost the host some microseconds in each call.
    """
    return product.batch * product.rows * product.columns * product.depth >= LEAST_IN_BLOCKS


def pointers(product: Product) -> list[str]:
    """Return the lines of Triton code that compute the addresses of the parts' tiles and load the
    scales."""
    sides = (("left", product.left, "m[:, None]", product.rows, "k[None, :]"),
             ("right", product.right, "n[None, :]", product.columns, "k[:, None]"))  # fmt: skip
    lines = []
    for side, matrix, index, count, along in sides:
        start = f" + sample.to(tl.int64) * {count}" if matrix.sample else ""
        for part in () if in_blocks(product) else ("high", "low"):
            first = f"({index} % {count}{start}) * {padded(product.depth)} + {along}"
            lines.append(f"    {side}_{part} = {side}_{part}_in + {first}")
        word = index[0]
        if in_blocks(product):
            row = f"tl.min({word}){start}"
            lines.append(f"    {side}_row = ({row}).to(tl.int32)")
        lines.append(f"    {side}_scale = tl.load({side}_scale_in + {word} % {count}{start})")
    return lines


def loop(product: Product, end: str) -> list[str]:
    """Return the lines of Triton code that compute `total` from the parts, or from float32 if a row
    cannot be split.

    The products `high * high` of each step are added to `total` by a float32 addition, which
    rounds. Tensor cores would truncate the sum, so the compiler must not merge the addition into
    theirs.
    """
    left = _strided(product.left, f"m[:, None] % {product.rows}")
    right = _strided(product.right, f"n[None, :] % {product.columns}")
    left_k, right_k = (f"(start + {k}){times(m.column)}" for k, m in (
        ("q[None, :]", product.left), ("q[:, None]", product.right),
    ))  # fmt: skip
    depth = product.depth
    masks = [f", mask={k} < {depth} - start, other=0.0" if depth % 32 else ""
             for k in ("q[None, :]", "q[:, None]")]  # fmt: skip
    loads = [
        f"{part}_{word} = tl.load({side}_{part} + start)"
        if not in_blocks(product)
        else f"{part}_{word} = {side}_{part}_in.load([{side}_row, start]){turned}"
        for part in ("high", "low")
        for side, word, turned in (("left", "m", ""), ("right", "n", ".T"))
    ]
    return [
        "    small = tl.zeros((ROWS, COLUMNS), tl.float32)",
        f"    for start in range(0, {end}, DEPTH):",
        *(f"        {load}" for load in loads),
        "        small = tl.dot(low_m, high_n, small)",
        "        small = tl.dot(high_m, low_n, small)",
        "        total = tl.fma(tl.dot(high_m, high_n), 1.0, total)",
        "    total = (total + small * (1.0 / 2048.0)) * left_scale[:, None] * right_scale[None, :]",
        "    unfit = tl.sum((left_scale != left_scale).to(tl.int32))",
        "    unfit += tl.sum((right_scale != right_scale).to(tl.int32))",
        "    if unfit > 0:",
        "        total = tl.zeros((ROWS, COLUMNS), tl.float32)",
        "        q = tl.arange(0, 32)",
        f"        for start in tl.range(0, {end}, 32, num_stages=1):",
        f"            a = tl.load({left} + {left_k}{masks[0]})",
        f"            b = tl.load({right} + {right_k}{masks[1]})",
        '            total = tl.dot(a, b, total, input_precision="tf32x3")',
    ]


def _strided(matrix: Matrix, index: str) -> str:
    """Return the Triton expression of pointers to the first element of each row of a float32
    operand."""
    text = pointer(matrix.tensor) + (f" + {matrix.offset}" if matrix.offset else "")
    text += f" + sample{times(matrix.sample)}" if matrix.sample else ""
    return f"{text} + {index}{times(matrix.row)}"


def launches(
    name: str, product: Product, tile: Tile, arguments: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return (lines of Python that launch the splitting kernels, all arguments of the product's
    kernel)."""
    tensors, depth = list(product.tensors), product.depth
    lines, parts = [], []
    for side, matrix, count in (
        ("left", product.left, product.rows), ("right", product.right, product.columns),
    ):  # fmt: skip
        place = len(product.outputs)
        if side == "right" and product.parts:
            parts += [arguments[place + tensors.index(part)] for part in product.parts]
            continue
        x = arguments[place + tensors.index(matrix.tensor)]
        batch = product.batch if matrix.sample else 1
        made = [f"{name}_{side}_{part}" for part in ("high", "low", "scale")]
        shape, like = (batch * count, padded(depth)), f"device={x}.device"
        rows, block = (4, 1024) if matrix.column == 1 else (32, 128)
        lines += [
            *(f"{part} = torch.empty({shape}, dtype=torch.float16, {like})" for part in made[:2]),
            f"{made[2]} = torch.empty({batch * count}, dtype=torch.float32, {like})",
            f"{name}_parts[({math.ceil(count / rows)}, {batch})](",
            f"    {', '.join(made)}, {x},",
            f"    {count}, {depth}, {padded(depth)}, {matrix.offset},",
            f"    {matrix.sample}, {matrix.row}, {matrix.column}, {rows}, {block}, num_warps=8,",
            ")",
        ]
        parts += made
    others = [a for a in arguments if a not in parts]
    if in_blocks(product):
        for k, size in ((0, tile.rows), (1, tile.rows), (3, tile.columns), (4, tile.columns)):
            parts[k] = f"TensorDescriptor.from_tensor({parts[k]}, [{size}, {tile.depth}])"
    return lines, [*others, *parts]
