"""From captured aten operators to the expert's graph: what is fusible is taken apart.

Softmax, the norms and the losses become pointwise operations and row reductions; matrix products,
convolutions and everything unknown become library calls of the same operator. Reductions of
squares are taken about the mean (two passes), so that an offset costs no precision.
Invariant: every captured operator named in `keep` stays a library call, whatever it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuagent.expert.capture import Captured, CaptureError
from cuagent.expert.graph import Graph, Kind, Node, Operand, Shape

LARGEST_CONSTANT = 64
"""Elements of a tensor constant that is written into the text of the module."""

UNARY = {
    "neg", "abs", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal", "relu", "sigmoid",
    "tanh", "erf", "silu", "mish", "hardswish", "hardsigmoid", "sin", "cos", "floor", "ceil",
    "sign", "logical_not", "selu", "relu6", "softsign", "log_sigmoid",
}  # fmt: skip
BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "maximum": "maximum",
    "minimum": "minimum", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne",
    "logical_and": "logical_and", "logical_or": "logical_or",
}  # fmt: skip
LOADABLE = {"float32", "bool", "int64", "int32"}


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


def lower(captured: Captured, keep: frozenset[str] = frozenset()) -> Graph:
    """The expert's graph of a captured module, with the operators in `keep` left to torch."""
    from cuagent.expert import losses  # noqa: F401  (registers its rules)
    from cuagent.expert.operators import LOWERINGS

    low = Lowering()
    for fx in captured.nodes:
        if fx.op == "placeholder":
            _placeholder(low, captured, fx)
        elif fx.op == "call_function":
            low.origin = low.readable(fx.name)
            rule = LOWERINGS.get(operator_name(fx))
            made = rule(low, fx) if rule and low.origin not in keep and _loadable(fx) else None
            low.values[fx.name] = library(low, fx) if made is None else made
    names: list[str] = []
    words: list[str] = []
    for value in captured.outputs:
        operand = low.values[value.name] if hasattr(value, "name") else value
        if isinstance(operand, str):
            words.append(f"{{{len(names)}}}")
            names.append(operand)
        else:
            words.append(repr(operand))
    inputs = {
        str(low.values[n]): e for n, e in captured.inputs.items() if n not in captured.literals
    }
    template = _filled(captured.template, words)
    return Graph(tuple(low.nodes), tuple(names), inputs, template).live()


def _filled(template: str, words: Sequence[str]) -> str:
    """The template over all results as one over those that are tensors; braces stay doubled."""
    return re.sub(r"\{(\d+)\}", lambda match: words[int(match[1])], template)


def operator_name(fx: Any) -> str:
    """`aten.softmax.int` as `softmax`; other callables by their own name."""
    target = str(fx.target)
    return (
        target.split(".")[1]
        if target.startswith("aten.")
        else getattr(fx.target, "__name__", target)
    )


def _loadable(fx: Any) -> bool:
    """A float32 (or mask) tensor out, loadable tensors in, nothing empty."""
    if operator_name(fx) == "getitem":
        return True
    tensors = [fx, *fx.all_input_nodes]
    return all(
        hasattr(value := value_of(t), "shape")
        and dtype_of(t) in LOADABLE
        and math.prod(value.shape) > 0
        for t in tensors
    )


def value_of(fx: Any) -> Any:
    """The traced result; of several results the first."""
    value = fx.meta.get("val")
    return value[0] if isinstance(value, list | tuple) and value else value


def dtype_of(fx: Any) -> str:
    return str(value_of(fx).dtype).removeprefix("torch.")


def shape_of(fx: Any) -> Shape:
    return tuple(int(n) for n in value_of(fx).shape)


def _placeholder(low: Lowering, captured: Captured, fx: Any) -> None:
    name = fx.name
    if name in captured.literals:
        low.values[name] = captured.literals[name]
        return
    kind, op = Kind.INPUT, ""
    if name in captured.parameters:
        kind, op = Kind.PARAMETER, captured.parameters[name]
        # Parameters are named by their path, which is what a reader knows them by.
        name = re.sub(r"\W", "_", op)
    elif name in captured.constants:
        kind, op = Kind.CONSTANT, _constant(name, captured.constants[name])
    name = low.readable(name)
    low.values[fx.name] = low.add(Node(name, kind, op, (), shape_of(fx), dtype_of(fx)))


def _constant(name: str, tensor: Any) -> str:
    if tensor.numel() > LARGEST_CONSTANT:
        raise CaptureError(f"{name} is a constant of {tensor.numel()} elements; make it a buffer")
    return f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype}, device='{tensor.device}')"


def library(low: Lowering, fx: Any) -> str:
    """The same operator as a call of torch; its result is one tensor, or a tuple to index."""
    args: list[Operand] = []

    def text(value: Any) -> str:
        if hasattr(value, "meta"):
            operand = low.values[value.name]
            if not isinstance(operand, str):
                return repr(operand)
            if operand not in args:
                args.append(operand)
            return f"{{{args.index(operand)}}}"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(text, value)) + "]"
        return _literal(value)

    words = [text(arg) for arg in fx.args]
    words += [f"{key}={text(arg)}" for key, arg in fx.kwargs.items()]
    value = fx.meta.get("val")
    if operator_name(fx) == "getitem":
        call = f"{words[0]}[{words[1]}]"
    else:
        call = f"{_function(fx)}({', '.join(words)})"
    tensor = hasattr(value, "shape")
    return low.add(
        Node(
            low.origin,
            Kind.LIBRARY,
            call,
            tuple(args),
            shape_of(fx) if tensor else (),
            dtype_of(fx) if tensor else "",
            origin=low.origin,
            contiguous=not tensor or bool(value.is_contiguous()),
        )
    )


FUNCTIONAL = {
    "linear", "conv1d", "conv2d", "conv3d", "layer_norm", "group_norm", "relu", "gelu", "silu",
    "scaled_dot_product_attention", "softplus",
}  # fmt: skip
TORCH = {"matmul", "mm", "bmm", "addmm", "sigmoid", "tanh", "exp", "permute", "transpose"}


def _function(fx: Any) -> str:
    name = operator_name(fx)
    if name in FUNCTIONAL and _readable(fx):
        return f"F.{name}"
    return f"torch.{name}" if name in TORCH else f"torch.ops.{fx.target}"


def _readable(fx: Any) -> bool:
    # layer_norm and the convolutions take aten's positional order in F as well, group_norm's
    # last flag (cudnn) does not exist there.
    return operator_name(fx) not in ("layer_norm", "group_norm") or len(fx.args) <= 5


def _literal(value: Any) -> str:
    if type(value).__name__ == "device":
        return f"torch.device({str(value)!r})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


Rule = Callable[[Lowering, Any], str | None]
