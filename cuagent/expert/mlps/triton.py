"""Write linear layers of many rows that follow each other as one Triton kernel.

The first layer's sum goes over its inputs in steps, as in a product's kernel. Each later layer is
one product of the values in registers with its whole weight. Values are rounded to the layers'
dtype between two layers, as torch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cuagent.expert.mlps.chain import LayerChain, padded
from cuagent.expert.products.epilogue import epilogue, pointer, times, variable
from cuagent.expert.products.product import Product
from cuagent.expert.products.qualify import LEAST_ROWS
from cuagent.expert.products.triton import (
    ELEMENTS,
    address_of,
    operand,
    pointers,
    sum_step,
)
from cuagent.expert.streaming.expressions import identifier


@dataclass(frozen=True)
class RowTile:
    """Rows of a block, inputs of the first layer in one step, and Triton's number of warps."""

    rows: int
    depth: int
    warps: int


TILES = (RowTile(64, 64, 4), RowTile(128, 32, 8), RowTile(32, 64, 4), RowTile(LEAST_ROWS, 64, 2))
"""Sizes of a block's tile, in the order in which they are tried. Estimates, not measured."""


def tiles(chain: LayerChain, processors: int) -> tuple[RowTile, ...]:
    """Return the tiles for a chain, the best by an estimate first: the first one of TILES that
    gives each of the `processors` a block, or the one of the fewest rows."""
    rows = chain.layers[0].rows
    full = [tile for tile in TILES if math.ceil(rows / tile.rows) >= processors]
    first = full[0] if full else TILES[-1]
    return (first, *(tile for tile in TILES if tile is not first))


def render(name: str, chain: LayerChain, dtype_of: Callable[[str], str]) -> str:
    """Return the Triton text of the chain's kernel. `dtype_of`: returns the dtype in which an
    output is stored."""
    first = chain.layers[0]
    outputs = [f"{identifier(n)}_out" for n in chain.outputs]
    work = sum(layer.rows * layer.columns * layer.depth for layer in chain.layers)
    wide = first.rows * max(chain.widths) >= 1 << 31
    lines = [
        "@triton.jit",
        f"def {name}(",
        f"    {', '.join([*outputs, *map(pointer, chain.tensors)])},",
        "    ROWS: tl.constexpr, DEPTH: tl.constexpr,",
        "):",
        f'    """{first.rows} rows, layers of {" to ".join(map(str, chain.widths))} features, '
        f'{first.node.dtype}: {2e-9 * work:.3g} Gflop."""',
        "    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)",
        *(["    m = m.to(tl.int64)"] if wide else []),
        *_first(first),
    ]
    for before, layer in zip(chain.layers, chain.layers[1:], strict=False):
        lines += _later(before, layer)
    last = chain.layers[-1]
    lines.append(f"    inside = (m[:, None] < {last.rows}) & (n[None, :] < {last.columns})")
    for output in chain.outputs:
        value = f"{variable(output)}.to({ELEMENTS[dtype_of(output)]})"
        place = f"{identifier(output)}_out + m[:, None] * {last.columns} + n[None, :]"
        lines.append(f"    tl.store({place}, {value}, mask=inside)")
    return "\n".join(lines)


def launch(name: str, arguments: list[str], chain: LayerChain, tile: RowTile) -> list[str]:
    """Return the lines of Python that launch the kernel."""
    count = math.ceil(chain.layers[0].rows / tile.rows)
    return [
        f"{name}[({count},)](",
        f"    {', '.join(arguments)},",
        f"    {tile.rows}, {tile.depth}, num_warps={tile.warps}, num_stages=2,",
        ")",
    ]


def _first(layer: Product) -> list[str]:
    """Return the lines of the first layer, up to the values behind it."""
    return [
        f"    n = tl.arange(0, {padded(layer.columns)})",
        "    k = tl.arange(0, DEPTH)",
        *pointers(layer),
        f"    total = tl.zeros((ROWS, {padded(layer.columns)}), tl.float32)",
        f"    for start in range(0, {layer.depth}, DEPTH):",
        *sum_step(layer),
        *_values(layer),
    ]


def _later(before: Product, layer: Product) -> list[str]:
    """Return the lines of a layer whose inputs are the values of the layer before it."""
    value, kind = variable(before.outputs[0]), ELEMENTS[layer.node.dtype]
    whole = padded(layer.depth) == layer.depth
    # Padded columns repeat others. Their products with zeros would be NaN if these are infinite.
    inputs = value if whole else f"tl.where(n[None, :] < {layer.depth}, {value}, 0.0)"
    mask = "" if whole else f", mask=k[:, None] < {layer.depth}, other=0.0"
    precision = ', input_precision="tf32x3"' if layer.node.dtype == "float32" else ""
    right = f"{operand(layer.right, 'n', layer.columns)}[None, :]"
    return [
        f"    a = ({inputs}).to({kind})",
        "    k = n",
        f"    n = tl.arange(0, {padded(layer.columns)})",
        f"    b = tl.load({right} + k[:, None]{times(layer.right.column)}{mask})",
        f"    total = tl.dot(a, b{precision})",
        *_values(layer),
    ]


def _values(layer: Product) -> list[str]:
    """Return the lines that compute the values behind a layer's sum."""
    return epilogue(layer.node.name, layer.bias, layer.epilogue, layer.reads, address_of(layer))
