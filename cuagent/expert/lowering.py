"""What all lowering rules share: the nodes made so far, the registry, and how an fx node is read.

A rule gives the name of the node that stands for an operator's result, or None where this use of
it (a dtype, a mode, a layout) is not covered and the operator stays a library call. The rules are
in `elementwise`, `reductions`, `normalisations`, `contractions` and `losses`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuagent.expert.graph import Kind, Node, Operand, Shape


@dataclass
class Lowering:
    """The nodes made so far, and the name that each captured value goes by."""

    nodes: list[Node] = field(default_factory=list)
    values: dict[str, Operand] = field(default_factory=dict)
    several: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Results of lowered operators that give more than one."""
    by_name: dict[str, Node] = field(default_factory=dict)
    origin: str = ""
    origins: set[str] = field(default_factory=set)

    def add(self, node: Node) -> str:
        self.nodes.append(node)
        self.by_name[node.name] = node
        return node.name

    def readable(self, name: str) -> str:
        """A captured operator's name without aten's internal words, still unique."""
        short = re.sub(r"^_*(native_)?|_legit_no_training", "", name)
        while short in self.origins:
            short += "_"
        self.origins.add(short)
        return short

    def fresh(self, hint: str) -> str:
        name = f"{self.origin}_{hint}" if hint else self.origin
        while name in self.by_name:
            name += "_"
        return name

    def shape(self, operand: Operand) -> Shape:
        return self.by_name[operand].shape if isinstance(operand, str) else ()

    def pointwise(
        self, op: str, *args: Operand, hint: str | None = None, dtype: str = "float32"
    ) -> str:
        shape = broadcast([self.shape(arg) for arg in args])
        name = self.fresh(op if hint is None else hint)
        return self.add(Node(name, Kind.POINTWISE, op, args, shape, dtype, origin=self.origin))

    def reduce(self, op: str, arg: str, dims: Sequence[int], keep: bool, hint: str = "") -> str:
        """A sum, max or min over `dims`."""
        shape = self.shape(arg)
        axes = tuple(sorted(d % len(shape) for d in dims)) if shape else ()
        out = tuple(1 if k in axes else n for k, n in enumerate(shape) if keep or k not in axes)
        if math.prod(shape[k] for k in axes) == 1:
            return self.view(arg, out, hint or op)
        name = self.fresh(hint or op)
        return self.add(Node(name, Kind.REDUCE, op, (arg,), out, dims=axes, origin=self.origin))

    def mean(self, arg: str, dims: Sequence[int], keep: bool, hint: str = "mean") -> str:
        shape = self.shape(arg)
        count = math.prod(shape[d] for d in dims)
        total = self.reduce("sum", arg, dims, keep, hint + "_sum")
        return self.pointwise("mul", total, 1.0 / count, hint=hint)

    def pick(self, arg: str, labels: str) -> str:
        """`arg[r, labels[r]]` for every row of a matrix; a label out of range picks column 0."""
        rows, columns = self.shape(arg)
        name, args = self.fresh("picked"), (arg, labels)
        return self.add(
            Node(name, Kind.PICK, "pick", args, (rows,), dims=(columns,), origin=self.origin)
        )

    def view(self, arg: str, shape: Shape, hint: str = "view") -> str:
        node = self.by_name[arg]
        if node.shape == shape:
            return arg
        return self.add(
            Node(self.fresh(hint), Kind.VIEW, "view", (arg,), shape, node.dtype, origin=self.origin)
        )


def broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))


Rule = Callable[[Lowering, Any], str | None]
LOWERINGS: dict[str, Rule] = {}


def rule(*names: str) -> Any:
    def register(function: Rule) -> Rule:
        for name in names:
            LOWERINGS[name] = function
        return function

    return register


def operator_name(fx: Any) -> str:
    """`aten.softmax.int` as `softmax`; other callables by their own name."""
    target = str(fx.target)
    return (
        target.split(".")[1]
        if target.startswith("aten.")
        else getattr(fx.target, "__name__", target)
    )


def target_of(fx: Any) -> str:
    """`permute` of aten.permute.default; "" for placeholders."""
    parts = str(fx.target).split(".")
    return parts[1] if parts[0] == "aten" else ""


def value_of(fx: Any) -> Any:
    """The traced result; of several results the first."""
    value = fx.meta.get("val")
    return value[0] if isinstance(value, list | tuple) and value else value


def dtype_of(fx: Any) -> str:
    return str(value_of(fx).dtype).removeprefix("torch.")


def shape_of(fx: Any) -> Shape:
    return tuple(int(n) for n in value_of(fx).shape)


def operand(low: Lowering, value: Any) -> Operand | None:
    """The node or the number that an fx argument stands for; None for anything else."""
    if hasattr(value, "meta"):
        return low.values.get(value.name)
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float) and not math.isnan(value) else None


def argument(fx: Any, position: int, name: str, default: Any = None) -> Any:
    """An operator's argument, given by position or by name."""
    if position < len(fx.args):
        return fx.args[position]
    return fx.kwargs.get(name, default)


def floating(fx: Any) -> bool:
    return dtype_of(fx) == "float32"
