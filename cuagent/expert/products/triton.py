"""Write a matrix product with its epilogue as a Triton kernel.

float32 operands are split into TF32 parts whose three products are added (`tf32x3`); half types
accumulate in float32. Offsets are constants of the text, except those of the tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cuagent.expert.products.epilogue import epilogue, pointer, times, variable
from cuagent.expert.products.match import Matrix, Product
from cuagent.expert.products.tiles import GROUP, Tile, ranked, splits_of
from cuagent.expert.streaming.expressions import identifier

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
ELEMENTS = {"float16": "tl.float16", "bfloat16": "tl.bfloat16", "float32": "tl.float32"}


JOIN = (32, 64)
"""Rows and columns of a program that adds the parts of a split product."""


def plan(product: Product, processors: int, rank: int) -> tuple[Tile, int]:
    """Return the tile of this rank in the cost model, and the parts into which K is split."""
    rows, columns, depth = product.rows, product.columns, product.depth
    dtype, batch = product.node.dtype, product.batch
    tiles = ranked(rows, columns, dtype, processors, depth, batch)
    tile = tiles[min(rank, len(tiles) - 1)]
    alone = batch == 1 and not product.triangle
    splits = splits_of(tile, rows, columns, depth, processors) if alone else 1
    return tile, splits if splits > 1 and _parts(depth, splits) > 1 else 1


def render(name: str, product: Product, dtype_of: Callable[[str], str], splits: int = 1) -> str:
    """Return the text of the kernel. `dtype_of` gives the stored dtype of an output.

    With several `splits` the kernel writes the sums over parts of K, and a second kernel adds them
    in a fixed order and computes the epilogue.
    """
    outputs = [f"{identifier(n)}_out" for n in product.outputs]
    tensors = [pointer(n) for n in product.tensors]
    operands = [pointer(n) for n in dict.fromkeys((product.left.tensor, product.right.tensor))]
    rows, columns, depth = product.rows, product.columns, product.depth
    head = f'    """{rows} x {columns} x {depth}, {product.node.dtype}: '
    head += f'{2e-9 * product.batch * rows * columns * depth:.3g} Gflop."""'
    lines = [
        "@triton.jit",
        f"def {name}(",
        f"    {', '.join(['parts', *operands] if splits > 1 else [*outputs, *tensors])},",
        "    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,",
        "):",
        head,
        *_tile(product),
        "    k = tl.arange(0, DEPTH)",
        f"    left = {_operand(product.left, 'm', rows)}[:, None] + k[None, :]"
        f"{times(product.left.column)}",
        f"    right = {_operand(product.right, 'n', columns)}[None, :] + k[:, None]"
        f"{times(product.right.column)}",
        "    total = tl.zeros((ROWS, COLUMNS), tl.float32)",
    ]
    if splits == 1:
        lines += _triangle(product)
        end = "end" if product.triangle else f"{depth}"
        lines.append(f"    for start in range(0, {end}, DEPTH):")
        lines += _step(product) + _end(product, dtype_of)
        return "\n".join(lines)
    length = _part(depth, splits)
    lines += [
        "    part = tl.program_id(1)",
        f"    end = tl.minimum((part + 1) * {length}, {depth})",
        f"    for start in range(part * {length}, end, DEPTH):",
        *_step(product),
        f"    inside = (m[:, None] < {rows}) & (n[None, :] < {columns})",
        f"    place = (part * {rows} + m[:, None]) * {columns} + n[None, :]",
        "    tl.store(parts + place, total, mask=inside)",
        "",
        "",
        "@triton.jit",
        f"def {name}_joined(",
        f"    {', '.join([*outputs, 'parts', *tensors])},",
        "    ROWS: tl.constexpr, COLUMNS: tl.constexpr,",
        "):",
        *_tile(product),
        f"    place = m[:, None] % {rows} * {columns} + n[None, :] % {columns}",
        "    total = tl.zeros((ROWS, COLUMNS), tl.float32)",
        f"    for part in range({_parts(depth, splits)}):",
        f"        total += tl.load(parts + part * {rows * columns} + place)",
        *_end(product, dtype_of),
    ]
    return "\n".join(lines)


def _triangle(product: Product) -> list[str]:
    """Return the lines that set the end of K to 0 for a tile outside of the kept triangle."""
    side, diagonal = product.kept
    if not side:
        return []
    largest = "tl.max(n) - tl.min(m)" if side == "triu" else "tl.max(m) - tl.min(n)"
    least = diagonal if side == "triu" else -diagonal
    return [f"    end = tl.where({largest} >= {least}, {product.depth}, 0)"]


def _part(depth: int, splits: int) -> int:
    """Return the K of each part but the last."""
    return math.ceil(depth / splits / 128) * 128


def _parts(depth: int, splits: int) -> int:
    return math.ceil(depth / _part(depth, splits))


def _tile(product: Product) -> list[str]:
    """Return the lines that find the rows and columns of a program."""
    rows, columns, depth = product.rows, product.columns, product.depth
    wide = product.batch * max(rows * depth, columns * depth, rows * columns) >= 1 << 31
    lines = [
        "    tile = tl.program_id(0)",
        f"    down = tl.cdiv({rows}, ROWS)",
        f"    across = tl.cdiv({columns}, COLUMNS)",
        f"    first = tile // ({GROUP} * across) * {GROUP}",
        f"    height = tl.minimum(down - first, {GROUP})",
        f"    m = (first + tile % ({GROUP} * across) % height) * ROWS + tl.arange(0, ROWS)",
        f"    n = tile % ({GROUP} * across) // height * COLUMNS + tl.arange(0, COLUMNS)",
    ]
    if product.batch > 1:
        lines.append(f"    sample = tl.program_id(1){'.to(tl.int64)' if wide else ''}")
    return lines + (["    m = m.to(tl.int64)", "    n = n.to(tl.int64)"] if wide else [])


def _end(product: Product, dtype_of: Callable[[str], str]) -> list[str]:
    """Return the lines of the epilogue and of the stores."""
    rows, columns = product.rows, product.columns
    lines = epilogue(
        product.node.name, product.bias, product.epilogue, product.reads, _address(product)
    )
    side, diagonal = product.kept
    if side:
        sign = ">=" if side == "triu" else "<="
        kept = f"n[None, :] - m[:, None] {sign} {diagonal}"
        value = variable(product.node.name)
        lines.append(f"    {variable(product.outputs[0])} = tl.where({kept}, {value}, 0.0)")
    lines.append(f"    inside = (m[:, None] < {rows}) & (n[None, :] < {columns})")
    start = f" + sample * {rows * columns}" if product.batch > 1 else ""
    for output in product.outputs:
        value = f"{variable(output)}.to({ELEMENTS[dtype_of(output)]})"
        place = f"{identifier(output)}_out{start} + m[:, None] * {columns} + n[None, :]"
        lines.append(f"    tl.store({place}, {value}, mask=inside)")
    return lines


def _operand(matrix: Matrix, index: str, count: int) -> str:
    """Return the pointers to the first elements along K; rows past the end read a row inside."""
    return f"({_start(matrix)} + {index} % {count}{times(matrix.row)})"


def _start(matrix: Matrix) -> str:
    """Return the pointer to the first element of the sample's matrix."""
    text = pointer(matrix.tensor)
    if matrix.offset:
        text += f" + {matrix.offset}"
    return f"{text} + sample{times(matrix.sample)}" if matrix.sample else text


def _step(product: Product) -> list[str]:
    mask = "" if product.depth % 128 == 0 else f"k[None, :] < {product.depth} - start"
    other = mask.replace("k[None, :]", "k[:, None]")
    left, right = (f", mask={m}, other=0.0" if m else "" for m in (mask, other))
    precision = ', input_precision="tf32x3"' if product.node.dtype == "float32" else ""
    return [
        f"        a = tl.load(left + start{times(product.left.column)}{left})",
        f"        b = tl.load(right + start{times(product.right.column)}{right})",
        f"        total = tl.dot(a, b, total{precision})",
    ]


def _address(product: Product) -> Callable[[Matrix], str]:
    """Return the function that writes the pointers to a tile of a tensor."""

    def address(matrix: Matrix) -> str:
        text = _start(matrix)
        if matrix.row:
            text += f" + m[:, None] % {product.rows}{times(matrix.row)}"
        if matrix.column:
            text += f" + n[None, :] % {product.columns}{times(matrix.column)}"
        return text

    return address


def launch(name: str, product: Product, tile: Tile, splits: int, arguments: list[str]) -> list[str]:
    """Return the lines of Python that launch the kernel."""
    rows, columns = product.rows, product.columns
    count = math.ceil(rows / tile.rows) * math.ceil(columns / tile.columns)
    sizes = f"{tile.rows}, {tile.columns}, {tile.depth}"
    warps = f"num_warps={tile.warps}, num_stages={tile.stages}"
    if splits == 1:
        grid = f"{count}, {product.batch}" if product.batch > 1 else f"{count},"
        return [
            f"{name}[({grid})](",
            f"    {', '.join(arguments)},",
            f"    {sizes}, {warps},",
            ")",
        ]
    parts, made = _parts(product.depth, splits), len(product.outputs)
    named = dict(zip(product.tensors, arguments[made:], strict=True))
    operands = dict.fromkeys((product.left.tensor, product.right.tensor))
    joins = math.ceil(rows / JOIN[0]) * math.ceil(columns / JOIN[1])
    shape = f"({parts}, {rows}, {columns})"
    return [
        f"{name}_parts = torch.empty({shape}, dtype=torch.float32, device={arguments[0]}.device)",
        f"{name}[({count}, {parts})](",
        f"    {', '.join([f'{name}_parts', *(named[tensor] for tensor in operands)])},",
        f"    {sizes}, {warps},",
        ")",
        f"{name}_joined[({joins},)](",
        f"    {', '.join([*arguments[:made], f'{name}_parts', *arguments[made:]])},",
        f"    {JOIN[0]}, {JOIN[1]}, num_warps=4,",
        ")",
    ]
