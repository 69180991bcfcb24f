"""Name the values of a generated method, and write the Python expressions that read them."""

from __future__ import annotations

import builtins
import keyword
import re

from cuagent.expert.graph.graph import Kind, Node, Part, contiguous_strides
from cuagent.expert.method import Computed, Method

GLOBALS = frozenset(dir(builtins)) | {
    *("torch", "load", "self", "F", "triton", "tl", "sources", "known", "unchanged", "watch")
}
"""Names that a local variable of generated Python text must not hide."""

NEW = ("F.linear(", "torch.mm(", "torch.addmm(")
"""Starts of the texts of library calls that return new memory in the order of its shape."""
SEVERAL = re.compile(r"[\])]\s*[.\[]")
"""Matches the begin of each call behind another one in the text of a slice."""


class Values:
    """Names and Python expressions of the values of one generated method."""

    def __init__(self, method: Method) -> None:
        self.parts, self.steps, self.kernels = method.parts, method.steps, method.kernels
        self.graph = self.parts.graph
        self.users = self.graph.users()
        self.prepared_values = self._prepared_for_steps()

    def _unused(self, name: str) -> str:
        """Return an attribute name based on `name` that neither the reference's text nor its state
        uses.
        """
        parameters = {n.op for n in self.graph.nodes if n.kind is Kind.PARAMETER}
        while name in self.parts.reference or name in parameters:
            name += "_"
        return name

    def _names(self) -> list[str]:
        return list(self.parts.arguments)

    def _name(self, name: str) -> str:
        # A local variable must not shadow an argument, a kernel or a keyword.
        taken = {call.name for call in self.kernels.values()} | GLOBALS
        arguments = set(self.parts.arguments)
        if name in self.graph.inputs and name in arguments:
            return name
        free = not keyword.iskeyword(name) and name not in taken | arguments
        if free and name not in self.graph.inputs:
            return name
        others = {node.name for node in self.graph.nodes}
        name = f"{name}_"
        while name in taken | arguments | others:
            name += "_"
        return name

    def _value(self, name: str) -> str:
        """Return the Python expression that reads a value in the method."""
        node = self.graph.node(name)
        if name in self.prepared_values:
            return self._name(name)
        match node.kind:
            case Kind.PARAMETER:
                return _quick(node.op, self.parts.attribute(node.op))
            case Kind.CONSTANT:
                return node.op
            case Kind.VIEW if not self._is_output(name):
                return f"{self._value(node.inputs[0])}{view_text(node.shape)}"
            case Kind.STRIDED:
                return self._strided(node) or node.op.format(self._value(node.inputs[0]))
        part = self.graph.parts.get(name)
        if part and part.owner != name:
            return self._part(name, part)
        return self._name(name)

    def _strided(self, node: Node) -> str:
        """Return the Python expression that takes a slice of new memory by one call; "" if one call
        is enough anyway, or if the memory may begin elsewhere or have another order.

        A view, an index and a permutation took 14 us of the host, `as_strided` 4.
        """
        owner, views = self.graph.node(node.inputs[0]), 0
        while owner.kind is Kind.VIEW and not self._is_output(owner.name):
            owner, views = self.graph.node(owner.inputs[0]), views + 1
        calls = views + 1 + len(SEVERAL.findall(node.op))
        made = self._is_output(owner.name) or owner.op.startswith(NEW)
        known = made and owner.contiguous and not owner.order and owner.name not in self.graph.parts
        if calls < 2 or not known or self.parts.compile or owner.name in self.graph.inputs:
            return ""
        place = f"{shape_text(node.shape)}, {shape_text(node.strides)}, {node.offset}"
        return f"{self._name(owner.name)}.as_strided({place})"

    def _part(self, name: str, part: Part) -> str:
        """Return the Python expression of a value in the memory of a concatenation."""
        node, (dim,) = self.graph.node(name), self.graph.node(part.owner).dims
        start = part.offset // part.strides[dim]
        count = node.shape[dim]
        return f"{self._name(part.owner)}.narrow({dim}, {start}, {count})"

    def _is_output(self, name: str) -> bool:
        return any(isinstance(s, Computed) and name in s.outputs for s in self.steps)

    def _in_group(self, name: str) -> bool:
        return any(isinstance(s, Computed) and name in s.places for s in self.steps)

    def _tensors(self, position: int) -> list[str]:
        return list(self.kernels[position].tensors_read)

    def _readers(self, name: str) -> list[Node]:
        """Return the nodes that read the memory of tensor `name`, also through views outside of
        kernels.
        """
        found: list[Node] = []
        for user in self.users[name]:
            if user.kind in (Kind.VIEW, Kind.STRIDED) and not self._in_group(user.name):
                found += self._readers(user.name)
                if user.name in self.graph.outputs:
                    found.append(user)
            else:
                found.append(user)
        return found

    def _memory(self, tensor: str) -> str:
        """Return the Python expression of a contiguous tensor that begins with a value's first
        element.
        """
        part = self.graph.parts.get(tensor)
        if part is None or part.owner == tensor:
            node = self.graph.node(tensor)
            copied = node.kind is Kind.PARAMETER and not node.contiguous
            return self._value(tensor) + ".contiguous()" * copied
        begin = f".view(-1)[{part.offset}:]" if part.offset else ""
        return f"{self._name(part.owner)}{begin}"

    def _empty(self, node: Node) -> str:
        return self._empty_of(node.shape, node.dtype)

    def _empty_of(
        self, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None
    ) -> str:
        first = next((n for n in self.graph.inputs if self.users[n]), None)
        device = f", device={self._name(first)}.device" if first else ""
        # empty_strided takes less time than torch.empty with the same arguments (1.5 us, not 2.7).
        steps = shape_text(contiguous_strides(shape) if strides is None else strides)
        return f"torch.empty_strided({shape_text(shape)}, {steps}, dtype=torch.{dtype}{device})"

    def _prepared_for_steps(self) -> list[str]:
        """Return the names of the prepared values that the method reads or returns, without
        parameters.
        """
        read: list[str] = []
        for position, step in enumerate(self.steps):
            if isinstance(step, Computed):
                read += self._tensors(position)
            else:
                read += step.inputs
        read += self.graph.outputs
        bases = []
        for name in read:
            node = self.graph.node(name)
            while node.kind in (Kind.VIEW, Kind.STRIDED) and node.name in self.parts.prepared:
                node = self.graph.node(node.inputs[0])
            computed = node.kind in (Kind.POINTWISE, Kind.REDUCE, Kind.LIBRARY, Kind.CONSTANT)
            if node.name in self.parts.prepared and computed:
                bases.append(node.name)
        return list(dict.fromkeys(bases))


def shape_text(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def view_text(shape: tuple[int, ...]) -> str:
    """Return the Python text of a call of `view` with this shape.

    Without dimensions its argument is an empty tuple.
    """
    return f".view{shape_text(shape)}" if shape else ".view(())"


def _quick(name: str, expression: str) -> str:
    """Return a faster Python expression for a parameter, through `_modules` instead of attributes
    and indices, each of which takes some microseconds.

    `name` is its state_dict name. Other expressions than the attributes and indices of this name
    are returned unchanged.
    """
    *path, last = name.split(".")
    usual = "self" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path)
    if not path or expression != f"{usual}.{last}":
        return expression
    return "self" + "".join(f"._modules[{part!r}]" for part in path) + f".{last}"
