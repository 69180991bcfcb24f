"""Write a matrix product with its epilogue as a Triton kernel.

float32 operands are split into parts whose three products are added: in each tile (`tf32x3`), or
into float16 parts by a kernel beforehand (see `halves`). Half types accumulate in float32. Sizes,
strides and offsets of the tensors are constants of the text; the sizes of tiles are parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cuagent.expert.products import halves
from cuagent.expert.products.epilogue import epilogue, pointer, times, variable
from cuagent.expert.products.halves import PARTS, PARTS_KERNEL
from cuagent.expert.products.product import Matrix, Product
from cuagent.expert.products.tiles import GROUP, Tile
from cuagent.expert.streaming.expressions import identifier

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
ELEMENTS = {"float16": "tl.float16", "bfloat16": "tl.bfloat16", "float32": "tl.float32"}


def header(texts: Sequence[str]) -> list[str]:
    """Return the import lines that the given texts of kernels and launches need."""
    blocks = ["from triton.tools.tensor_descriptor import TensorDescriptor"]
    return HEADER.splitlines() + (blocks if any("_in.load([" in text for text in texts) else [])


def render(name: str, product: Product, dtype_of: Callable[[str], str]) -> str:
    """Return the Triton text of the product's kernel. `dtype_of`: returns the dtype in which an
    output is stored."""
    outputs = [f"{identifier(n)}_out" for n in product.outputs]
    tensors = [pointer(n) for n in product.tensors]
    tensors = [t for t in tensors if t not in map(pointer, product.parts)]
    tensors += PARTS if product.split else []
    rows, columns, depth = product.rows, product.columns, product.depth
    head = f'    """{rows} x {columns} x {depth}, {product.node.dtype}: '
    head += f'{2e-9 * product.batch * rows * columns * depth:.3g} Gflop."""'
    lines = [
        *(PARTS_KERNEL.format(name=name).splitlines() if product.split else []),
        "@triton.jit",
        f"def {name}(",
        f"    {', '.join([*outputs, *tensors])},",
        "    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,",
        "):",
        head,
        *_tile(product),
        "    k = tl.arange(0, DEPTH)",
        *(halves.pointers(product) if product.split else pointers(product)),
        "    total = tl.zeros((ROWS, COLUMNS), tl.float32)",
        *(["    total_2 = tl.zeros((ROWS, COLUMNS), tl.float32)"] if product.second else []),
    ]
    end = "end" if product.triangle else f"{depth}"
    lines += _triangle(product)
    if product.split:
        lines += halves.loop(product, end)
    else:
        lines += [f"    for start in range(0, {end}, DEPTH):", *sum_step(product)]
    return "\n".join([*lines, *_end(product, dtype_of)])


def pointers(product: Product) -> list[str]:
    """Return the lines that compute pointers to the first tile along K of both operands."""
    rows, columns = product.rows, product.columns
    rights = [("right", product.right)]
    rights += [("right_2", product.second.right)] if product.second else []
    return [
        f"    left = {operand(product.left, 'm', rows)}[:, None] + k[None, :]"
        f"{times(product.left.column)}",
        *(
            f"    {name} = {operand(right, 'n', columns)}[None, :] + k[:, None]"
            f"{times(right.column)}"
            for name, right in rights
        ),
    ]


def _triangle(product: Product) -> list[str]:
    """Return the lines that skip the sum (by an end of K of 0) in a tile outside of the kept
    triangle."""
    side, diagonal = product.kept
    if not side:
        return []
    largest = "tl.max(n) - tl.min(m)" if side == "triu" else "tl.max(m) - tl.min(n)"
    least = diagonal if side == "triu" else -diagonal
    return [f"    end = tl.where({largest} >= {least}, {product.depth}, 0)"]


def _tile(product: Product) -> list[str]:
    """Return the lines that compute the row and column indices of a program's tile."""
    rows, columns, depth = product.rows, product.columns, halves.padded(product.depth)
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
    """Return the lines that compute the epilogue and store the outputs."""
    rows, columns = product.rows, product.columns
    second = product.second
    lines = epilogue(
        product.node.name,
        product.bias,
        product.epilogue,
        product.reads,
        address_of(product),
        second=(second.node.name, second.bias) if second is not None else None,
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


def operand(matrix: Matrix, index: str, count: int) -> str:
    """Return the Triton expression of pointers to each row's first element along K. Rows past the
    end are wrapped to valid ones."""
    return f"({_start(matrix)} + {index} % {count}{times(matrix.row)})"


def _start(matrix: Matrix) -> str:
    """Return the Triton expression of the pointer to the first element of a tensor, or of the
    current batch index's matrix."""
    text = pointer(matrix.tensor)
    if matrix.offset:
        text += f" + {matrix.offset}"
    return f"{text} + sample{times(matrix.sample)}" if matrix.sample else text


def sum_step(product: Product) -> list[str]:
    """Return the lines that add the products of one step along K to `total`."""
    mask = "" if product.depth % 128 == 0 else f"k[None, :] < {product.depth} - start"
    other = mask.replace("k[None, :]", "k[:, None]")
    left, right = (f", mask={m}, other=0.0" if m else "" for m in (mask, other))
    precision = ', input_precision="tf32x3"' if product.node.dtype == "float32" else ""
    lines = [
        f"        a = tl.load(left + start{times(product.left.column)}{left})",
        f"        b = tl.load(right + start{times(product.right.column)}{right})",
        f"        total = tl.dot(a, b, total{precision})",
    ]
    if (second := product.second) is not None:
        lines.append(f"        b_2 = tl.load(right_2 + start{times(second.right.column)}{right})")
        lines.append("        total_2 = tl.dot(a, b_2, total_2)")
    return lines


def address_of(product: Product) -> Callable[[Matrix], str]:
    """Return the function that writes the Triton expression of pointers to a tensor's tile."""

    def address(matrix: Matrix) -> str:
        text = _start(matrix)
        if matrix.row:
            text += f" + m[:, None] % {product.rows}{times(matrix.row)}"
        if matrix.column:
            text += f" + n[None, :] % {product.columns}{times(matrix.column)}"
        return text

    return address


def launch(name: str, product: Product, tile: Tile, arguments: list[str]) -> list[str]:
    """Return the lines of Python that launch the kernel, preceded by the splitting kernels if the
    operands are split."""
    count = math.ceil(product.rows / tile.rows) * math.ceil(product.columns / tile.columns)
    sizes = f"{tile.rows}, {tile.columns}, {tile.depth}"
    grid = f"{count}, {product.batch}" if product.batch > 1 else f"{count},"
    lines: list[str] = []
    if product.split:
        lines, arguments = halves.launches(name, product, tile, arguments)
    return [
        *lines,
        f"{name}[({grid})](",
        f"    {', '.join(arguments)},",
        f"    {sizes}, num_warps={tile.warps}, num_stages={tile.stages},",
        ")",
    ]
