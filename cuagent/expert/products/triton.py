"""Write a matrix product with its epilogue as a Triton kernel.

float32 operands are split into TF32 parts whose three products are added (`tf32x3`); half types
accumulate in float32. Offsets are constants of the text, except those of the tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cuagent.expert.products.epilogue import epilogue, pointer, times, variable
from cuagent.expert.products.match import Matrix, Product
from cuagent.expert.products.tiles import GROUP, Tile
from cuagent.expert.streaming.expressions import identifier

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
ELEMENTS = {"float16": "tl.float16", "bfloat16": "tl.bfloat16", "float32": "tl.float32"}


def render(name: str, product: Product, dtype_of: Callable[[str], str]) -> str:
    """Return the text of the kernel. `dtype_of` gives the stored dtype of an output."""
    outputs = [f"{identifier(n)}_out" for n in product.outputs]
    tensors = [pointer(n) for n in product.tensors]
    rows, columns, depth = product.rows, product.columns, product.depth
    wide = max(rows * depth, columns * depth, rows * columns) >= 1 << 31
    lines = [
        "@triton.jit",
        f"def {name}(",
        f"    {', '.join([*outputs, *tensors])},",
        "    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,",
        "):",
        f'    """{rows} x {columns} x {depth}, {product.node.dtype}: '
        f'{2e-9 * rows * columns * depth:.3g} Gflop."""',
        "    tile = tl.program_id(0)",
        f"    down = tl.cdiv({rows}, ROWS)",
        f"    across = tl.cdiv({columns}, COLUMNS)",
        f"    first = tile // ({GROUP} * across) * {GROUP}",
        f"    height = tl.minimum(down - first, {GROUP})",
        f"    m = (first + tile % ({GROUP} * across) % height) * ROWS + tl.arange(0, ROWS)",
        f"    n = tile % ({GROUP} * across) // height * COLUMNS + tl.arange(0, COLUMNS)",
        "    k = tl.arange(0, DEPTH)",
        *(["    m = m.to(tl.int64)", "    n = n.to(tl.int64)"] if wide else []),
        f"    left = {_operand(product.left, 'm', rows)}[:, None] + k[None, :]",
        f"    right = {_operand(product.right, 'n', columns)}[None, :] + k[:, None]",
        "    total = tl.zeros((ROWS, COLUMNS), tl.float32)",
        f"    for start in range(0, {depth}, DEPTH):",
        *_step(product),
        *epilogue(
            product.node.name, product.bias, product.epilogue, product.reads, _address(product)
        ),
    ]
    lines.append(f"    inside = (m[:, None] < {rows}) & (n[None, :] < {columns})")
    for output in product.outputs:
        value = f"{variable(output)}.to({ELEMENTS[dtype_of(output)]})"
        place = f"{identifier(output)}_out + m[:, None] * {columns} + n[None, :]"
        lines.append(f"    tl.store({place}, {value}, mask=inside)")
    return "\n".join(lines)


def _operand(matrix: Matrix, index: str, count: int) -> str:
    """Return the pointers to the first elements along K; rows past the end read a row inside."""
    start = f" + {matrix.offset}" if matrix.offset else ""
    return f"({pointer(matrix.tensor)}{start} + {index} % {count}{times(matrix.row)})"


def _step(product: Product) -> list[str]:
    mask = "" if product.depth % 128 == 0 else f"k[None, :] < {product.depth} - start"
    other = mask.replace("k[None, :]", "k[:, None]")
    left, right = (f", mask={m}, other=0.0" if m else "" for m in (mask, other))
    precision = ', input_precision="tf32x3"' if product.node.dtype == "float32" else ""
    return [
        f"        a = tl.load(left + start{left})",
        f"        b = tl.load(right + start{right})",
        f"        total = tl.dot(a, b, total{precision})",
    ]


def _address(product: Product) -> Callable[[Matrix], str]:
    """Return the function that writes the pointers to a tile of a tensor."""

    def address(matrix: Matrix) -> str:
        text = pointer(matrix.tensor)
        if matrix.offset:
            text += f" + {matrix.offset}"
        if matrix.row:
            text += f" + m[:, None] % {product.rows}{times(matrix.row)}"
        if matrix.column:
            text += f" + n[None, :] % {product.columns}{times(matrix.column)}"
        return text

    return address


def launch(name: str, product: Product, tile: Tile, arguments: list[str]) -> list[str]:
    """Return the lines of Python that launch the kernel."""
    count = math.ceil(product.rows / tile.rows) * math.ceil(product.columns / tile.columns)
    sizes = f"{tile.rows}, {tile.columns}, {tile.depth}"
    return [
        f"{name}[({count},)](",
        f"    {', '.join(arguments)},",
        f"    {sizes}, num_warps={tile.warps}, num_stages={tile.stages},",
        ")",
    ]
