"""Define the state of a lowering, the registry of lowering rules, and functions that read fx nodes.

Lowering translates a captured graph of aten operators (`torch.fx`) into the nodes of `graph.py`. A
rule adds nodes for one operator and returns the name of the node with its result. It returns None
if it does not cover this use of the operator (a dtype, a mode, a layout); the operator then stays a
library call. The rules are in `cuagent.expert.rules`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cuagent.expert.graph.graph import COMPUTED, FLOATS, INTEGERS, Kind, Node, Operand, Shape


@dataclass
class Lowering:
    """State of a lowering: the nodes made so far, and the node or number for each captured
    value."""

    nodes: list[Node] = field(default_factory=list)
    values: dict[str, Operand] = field(default_factory=dict)
    multiple: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the nodes of all results, for each lowered operator that returns more than one."""
    by_name: dict[str, Node] = field(default_factory=dict)
    numbers: dict[str, float | int] = field(default_factory=dict)
    """Values of constants without dimensions, by the names of their nodes."""
    origin: str = ""
    """Name of the captured operator that is being lowered."""
    origins: set[str] = field(default_factory=set)
    joins: frozenset[str] | None = None
    """Names of the concatenations of convolutions that become choices by index; the others stay
    calls, whose arguments kernels write in place (`joins`). None: all become choices."""
    many_lookups: bool = False
    """True if a kernel may join many looked-up parts: on a GPU each thread loads one of them."""
    layouts: bool = False
    """True if some values have permuted dimensions in memory; `graph.layouts` then changes the
    finished graph."""

    def add(self, node: Node) -> str:
        """Append a node to the graph and return its name."""
        self.nodes.append(node)
        self.by_name[node.name] = node
        return node.name

    def readable_name(self, name: str) -> str:
        """Return a unique name for a captured operator, without aten's internal words
        (`_native_batch_norm`: `batch_norm`)."""
        short = re.sub(r"^_*(native_)?|_legit_no_training", "", name)
        while short in self.origins:
            short += "_"
        self.origins.add(short)
        return short

    def unique_name(self, hint: str) -> str:
        """Return an unused node name made of the current operator's name and `hint`."""
        name = f"{self.origin}_{hint}" if hint else self.origin
        while name in self.by_name:
            name += "_"
        return name

    def shape(self, operand: Operand) -> Shape:
        """Return the shape of an operand: of the named node, or () for a number."""
        return self.by_name[operand].shape if isinstance(operand, str) else ()

    def pointwise(
        self, op: str, *args: Operand, hint: str | None = None, dtype: str = "float32"
    ) -> str:
        """Add a pointwise node over broadcast operands; return its name. `hint` replaces `op` in
        the name.

        Integer operands of an operation with a floating-point result are cast first: C++ would drop
        a quotient's fraction. A constant without dimensions becomes a number, because it may lie in
        the memory of the CPU.
        """
        replaced = dtype in FLOATS or dtype == "bool"
        if replaced and any(arg not in self.numbers for arg in args if isinstance(arg, str)):
            args = tuple(
                self.numbers.get(arg, arg) if isinstance(arg, str) else arg for arg in args
            )
        if dtype in FLOATS and op not in ("cast", "where"):
            args = tuple(self.as_number(arg) for arg in args)
        shape = broadcast([self.shape(arg) for arg in args])
        name = self.unique_name(op if hint is None else hint)
        return self.add(Node(name, Kind.POINTWISE, op, args, shape, dtype, origin=self.origin))

    def as_number(self, arg: Operand) -> Operand:
        """Return an operand in which integers are converted to float32."""
        whole = isinstance(arg, str) and self.by_name[arg].dtype in INTEGERS
        return self.pointwise("cast", arg, hint="number") if whole else arg

    def reduce(self, op: str, arg: str, dims: Sequence[int], keep: bool, hint: str = "") -> str:
        """Add a sum, max or min of `arg` over `dims`; return its name. A reduction over one element
        becomes a view. `keep`: keep the reduced dimensions with size 1."""
        shape = self.shape(arg)
        axes = tuple(sorted(d % len(shape) for d in dims)) if shape else ()
        out = tuple(1 if k in axes else n for k, n in enumerate(shape) if keep or k not in axes)
        if math.prod(shape[k] for k in axes) == 1:
            return self.view(arg, out, hint or op)
        name = self.unique_name(hint or op)
        return self.add(Node(name, Kind.REDUCE, op, (arg,), out, dims=axes, origin=self.origin))

    def mean(self, arg: str, dims: Sequence[int], keep: bool, hint: str = "mean") -> str:
        """Add a mean of `arg` over `dims`, as a sum times a constant; return its name."""
        shape = self.shape(arg)
        count = math.prod(shape[d] for d in dims)
        total = self.reduce("sum", arg, dims, keep, hint + "_sum")
        return self.pointwise("mul", total, 1.0 / count, hint=hint)

    def stored_as(self, name: str, dtype: str) -> str:
        """Return a node with the value of node `name`, stored as `dtype`.

        A node of the current operator changes its own dtype. Any other node is read by a new cast.
        """
        node = self.by_name[name]
        if node.dtype == dtype or dtype not in FLOATS or node.dtype not in FLOATS:
            return name
        if node.origin != self.origin or node.kind not in COMPUTED:
            return self.pointwise("cast", name, hint="cast", dtype=dtype)
        typed = replace(node, dtype=dtype)
        self.nodes[self.nodes.index(node)] = typed
        self.by_name[name] = typed
        return name

    def view(self, arg: str, shape: Shape, hint: str = "view") -> str:
        """Add a view of `arg` with another shape and return its name; return `arg` if it already
        has that shape."""
        node = self.by_name[arg]
        if node.shape == shape:
            return arg
        return self.add(
            Node(
                self.unique_name(hint),
                Kind.VIEW,
                "view",
                (arg,),
                shape,
                node.dtype,
                origin=self.origin,
            )
        )


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which the given shapes broadcast."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))


Rule = Callable[[Lowering, Any], str | None]
LOWERINGS: dict[str, Rule] = {}


def rule(*names: str) -> Any:
    """Return a decorator that registers a function as the lowering rule of the named aten
    operators."""

    def register(function: Rule) -> Rule:
        for name in names:
            LOWERINGS[name] = function
        return function

    return register


def operator_name(fx: Any) -> str:
    """Return an fx node's operator name, such as `softmax` for `aten.softmax.int`; for other
    callables their `__name__`."""
    target = str(fx.target)
    return (
        target.split(".")[1]
        if target.startswith("aten.")
        else getattr(fx.target, "__name__", target)
    )


def target_of(fx: Any) -> str:
    """Return an fx node's aten operator, such as `permute` for aten.permute.default; "" for other
    targets."""
    parts = str(fx.target).split(".")
    return parts[1] if parts[0] == "aten" else ""


def value_of(fx: Any) -> Any:
    """Return the traced result (a fake tensor) of an fx node; for several results, the first."""
    value = fx.meta.get("val")
    return value[0] if isinstance(value, list | tuple) and value else value


def dtype_of(fx: Any) -> str:
    """Return the dtype of an fx node's traced result, such as `float32`."""
    return str(value_of(fx).dtype).removeprefix("torch.")


def shape_of(fx: Any) -> Shape:
    """Return the shape of an fx node's traced result."""
    return tuple(int(n) for n in value_of(fx).shape)


def operand(low: Lowering, value: Any) -> Operand | None:
    """Return the node name or the number that represents an fx argument; None for any other
    argument."""
    if hasattr(value, "meta"):
        return low.values.get(value.name)
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float) and not math.isnan(value) else None


def argument(fx: Any, position: int, name: str, default: Any = None) -> Any:
    """Return an argument of an fx node that may be given by position or by name; `default` if it is
    absent."""
    if position < len(fx.args):
        return fx.args[position]
    return fx.kwargs.get(name, default)


def floating(fx: Any) -> bool:
    """Return True if an fx node's traced result is float32, float16 or bfloat16."""
    return dtype_of(fx) in FLOATS
