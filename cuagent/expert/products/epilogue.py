"""Write the elementwise operations that follow a product or a convolution as Triton code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from cuagent.expert.graph.graph import Kind, Node, Operand
from cuagent.expert.products.expressions import expression
from cuagent.expert.streaming.expressions import identifier


class Read(Protocol):
    """Protocol of a tensor that an epilogue reads: its name in the kernel's text, and its dtype."""

    @property
    def tensor(self) -> str: ...

    @property
    def dtype(self) -> str: ...


Place = TypeVar("Place", bound=Read)


def epilogue(
    product: str,
    bias: Place | None,
    nodes: Sequence[Node],
    reads: Mapping[tuple[str, str], Place],
    address: Callable[[Place], str],
    reduction: Callable[[str, str], str] | None = None,
    second: tuple[str, Place | None] | None = None,
) -> list[str]:
    """Return the lines of Triton code that compute `nodes` from the product, which the variable
    `total` contains.

    `product`: name of the product's node. `reads`: tensor to load, by (reader, argument).
    `address`: returns the text of the pointers to a tensor's tile. `reduction`: returns the text of
    a reduction over the columns, given an operator and the text of its operand. `second`: name and
    bias of another product, which the variable `total_2` contains.
    """
    lines: list[str] = []
    loaded: dict[Place, str] = {}

    def value(read: Place) -> str:
        if read not in loaded:
            word = f"{identifier(read.tensor)}_{len(loaded)}"
            cast = ".to(tl.float32)" if read.dtype in ("float16", "bfloat16") else ""
            lines.append(f"    {word} = tl.load({address(read)}){cast}")
            loaded[read] = word
        return loaded[read]

    def operand(node: Node, arg: Operand) -> str:
        if not isinstance(arg, str):
            return _number(arg)
        if (node.name, arg) in reads:
            return value(reads[node.name, arg])
        return variable(arg)

    for total, name, of in (("total", product, bias), *([("total_2", *second)] if second else [])):
        shift = f" + {value(of)}" if of is not None else ""
        lines.append(f"    {variable(name)} = {total}{shift}")
    for node in nodes:
        words = [operand(node, arg) for arg in node.args]
        if node.kind is Kind.VIEW:
            text = words[0]
        elif node.kind is Kind.REDUCE and reduction is not None:
            text = reduction(node.op, words[0])
        else:
            text = expression(node.op, node.dtype, words)
        lines.append(f"    {variable(node.name)} = {text}")
    return lines


def pointer(tensor: str) -> str:
    """Return the name of the kernel parameter for a tensor that the kernel reads. No variable has
    this name."""
    return f"{identifier(tensor)}_in"


def variable(name: str) -> str:
    """Return the name of the kernel's local variable for a node's value."""
    return f"{identifier(name)}_v"


def times(stride: int) -> str:
    """Return the text " * stride" to multiply an index by its stride; "" for a stride of 1."""
    return f" * {stride}" if stride != 1 else ""


def _number(value: float | int) -> str:
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    return f"{float(value)!r}" if value >= 0 else f"({float(value)!r})"
