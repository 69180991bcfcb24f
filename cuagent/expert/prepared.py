"""Write the method that computes "prepared" values: values that depend on parameters alone.

The method computes them at first use, and again if a parameter has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuagent.expert.graph.graph import FLOATS, Kind, Node
from cuagent.expert.graph.orders import inverse
from cuagent.expert.method import FILL, Method
from cuagent.expert.rules.library import literal
from cuagent.expert.streaming.expressions import PYTHON_REDUCTIONS, on_parameters
from cuagent.expert.values import Values, view_text

WIDTH = 100
"""Length of the lines of generated Python text, where it can be broken."""


def in_lines(items: Sequence[str]) -> list[str]:
    """Return the lines of a tuple of Python expressions: one line if they are short, else one for
    each item."""
    text = f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    return [text] if len(text) < WIDTH - 20 else ["(", *(f"    {item}," for item in items), ")"]


class Prepared(Values):
    """Generates the method that computes one method's prepared values, and the text that reads
    them.
    """

    def __init__(self, method: Method) -> None:
        super().__init__(method)
        end = "" if self.parts.method == "forward" else f"_{self.parts.method}"
        self.prepare = self._unused(f"_prepare{end}")
        self.cache = self._unused(f"_prepared_values{end}")
        self.watch, self.unchanged = self._unused("watch"), self._unused("unchanged")

    def imported(self) -> list[str]:
        """Return the names to import from `cuagent.kernels`, which detect changed parameters."""
        names = (("unchanged", self.unchanged), ("watch", self.watch))
        if not self.prepared_values:
            return []
        return [name if name == own else f"{name} as {own}" for name, own in names]

    def may_be_none(self, name: str) -> bool:
        """Return True if a prepared value is a mask that only masked_fill calls read.

        If no element of such a mask is true, it is None and these calls are skipped.
        """
        node = self.graph.node(name)
        if name not in self.prepared_values or name in self.graph.outputs:
            return False
        fills = all(
            isinstance(s, Node) and s.op.startswith(FILL) and s.inputs[1:] == (name,)
            for s in self.steps
            if name in (s.inputs if isinstance(s, Node) else [n for m in s.nodes for n in m.inputs])
        )
        return fills and node.constant and node.dtype == "bool"

    def _prepare(self) -> list[str]:
        if not self.prepared_values:
            return []
        needed = set(self.prepared_values)
        for node in reversed(self.graph.nodes):
            if node.name in needed:
                needed.update(node.inputs)
        chain = [n for n in self.graph.nodes if n.name in needed]
        sources = [n for n in chain if n.kind is Kind.PARAMETER]
        listed = "".join(f"\n            {n.op!r}," for n in sources)
        name = self._name
        body = [
            f"{name(n.name)} = {self.parts.attribute(n.op)}"
            + (".double()" if n.dtype in FLOATS else "")
            for n in sources
        ]
        body += [line for node in chain for line in self._computed(node)]
        values = in_lines(
            [
                f"{name(n)}.to(torch.{self.graph.node(n).dtype}){_arranged(self.graph.node(n))}"
                + (f" if {name(n)}.any() else None" if self.may_be_none(n) else "")
                for n in self.prepared_values
            ]
        )
        return [
            "",
            f"def {self.prepare}(self):",
            '    """Values that depend on parameters alone; computed again when one changes."""',
            f'    known = self.__dict__.get("{self.cache}")',
            f"    if known is None or known[0] is None or not {self.unchanged}(known[0]):",
            f"        sources = ({listed}",
            "        )",
            *(f"        {line}" for line in body),
            f"        known = {self.watch}(self, sources), {values[0]}",
            *(f"        {line}" for line in values[1:]),
            f'        self.__dict__["{self.cache}"] = known',
            "    return known[1]",
        ]

    def _computed(self, node: Node) -> list[str]:
        """Return the Python line that computes a node's value in fp64; [] for a parameter."""
        name = self._name
        values = [name(a) if isinstance(a, str) else literal(a) for a in node.args]
        if node.kind is Kind.VIEW:
            value = f"{values[0]}{view_text(node.shape)}"
        elif node.kind is Kind.CONSTANT:
            value = node.op
        elif node.kind is Kind.POINTWISE:
            value = on_parameters(node, values)
        elif node.kind is Kind.REDUCE:
            keepdim = len(node.shape) == len(self.graph.node(node.inputs[0]).shape)
            options = f"{list(node.dims)}, keepdim={keepdim}"
            value = f"{values[0]}.{PYTHON_REDUCTIONS[node.op]}({options})"
        elif node.constant:
            value = node.op.format(*map(self._as_in_reference, node.inputs))
        elif node.kind is Kind.LIBRARY:
            value = node.op.format(*values)
        else:
            return []
        return [f"{name(node.name)} = {value}"]

    def _as_in_reference(self, name: str) -> str:
        """Return the Python expression of a prepared value in the dtype that it has in the
        reference.

        Inside the method, floating values are in fp64 until they are stored.
        """
        node = self.graph.node(name)
        if node.constant:
            return self._name(name)
        if node.kind is Kind.PARAMETER:
            return self.parts.attribute(node.op)
        return f"{self._name(name)}.to(torch.{node.dtype})"


def _arranged(node: Node) -> str:
    """Return the Python calls that store a prepared value contiguously in its dimension order."""
    if not node.order:
        return ".contiguous()"
    return f".permute{node.order}.contiguous().permute{inverse(node.order)}"
