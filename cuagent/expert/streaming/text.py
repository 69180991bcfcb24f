"""Write lines, names and expressions of a kernel; shared by the C++ and the CUDA generator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cuagent.expert.graph.graph import INTEGERS, Kind, Node, Operand
from cuagent.expert.streaming.expressions import (
    computed_type,
    expression,
    identifier,
    narrowed,
    number,
    widened,
)
from cuagent.expert.streaming.nest import Access, Nest
from cuagent.expert.streaming.stages import Plan


@dataclass
class Writer:
    """Lines of C++ with indentation."""

    lines: list[str] = field(default_factory=list)
    depth: int = 0

    def __call__(self, text: str = "") -> None:
        self.lines.append("  " * self.depth + text if text else "")

    def pragma(self, text: str) -> None:
        """Write a pragma, without indentation."""
        self.lines.append("#pragma " + text)

    def open(self, text: str) -> None:
        """Open a block after `text`."""
        self(f"{text} {{".lstrip())
        self.depth += 1

    def close(self, count: int = 1) -> None:
        """Close `count` blocks."""
        for _ in range(count):
            self.depth -= 1
            self("}")


DECLARATION = re.compile(r"\s*(?:const|constexpr) [\w ]+?\*?(\w+)(?:\[\w+\])? = [^;]*;$")


def without_unused(lines: list[str]) -> list[str]:
    """Remove constants that no later line in their block reads.

    A generator knows only after the last access if a row's index was needed. The scan runs from the
    end, so that constants used only by an unused constant are removed too.
    """
    result: list[str] = []
    for line in reversed(lines):
        match = DECLARATION.match(line)
        if match is None or _is_read(match[1], line, result):
            result.append(line)
    return result[::-1]


def _is_read(word: str, declaration: str, later: list[str]) -> bool:
    """Return True if a later line of the block has `word`; `later` is in reverse order.

    The block ends at the first line with less indentation.
    """
    depth = _depth(declaration)
    for line in reversed(later):
        if line and line[0] != "#" and _depth(line) < depth:
            return False
        if re.search(rf"\b{word}\b", line):
            return True
    return False


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


class KernelText:
    """Names and expressions of the kernel that is being written.

    `defined` maps loaded elements to their variables in the current scope.
    """

    def __init__(self, name: str, nest: Nest, title: str, plan: Plan) -> None:
        self.name, self.nest, self.title, self.plan = name, nest, title, plan
        self.w = Writer()
        self.row_dims = [k for k, d in enumerate(nest.dimensions) if not d.reduced]
        self.column_dims = [k for k, d in enumerate(nest.dimensions) if d.reduced]
        self.stage = plan.stages[0]
        self.defined: dict[str, str] = {}
        self.row_suffix = ""
        """Subscript of row values if several rows are processed together."""
        self.slices: dict[str, str] = {}
        """Variable with the slice number of each gather whose slice is constant along the innermost
        loop."""
        self.declared_slices = 0
        self.starts: dict[str, tuple[str, str]] = {}
        """For each access whose conditions are constant along the innermost loop: the variable with
        the index of its first element, and the distance from there to the current one."""
        self.segment: tuple[int, int, int] | None = None
        """Dimension, first index and end of the current loop over a part of a dimension; None if
        whole."""

    def _declare(self, node: Node, suffix: str) -> None:
        """Write the definition of a node's value."""
        word = f"{identifier(node.name)}{suffix}"
        self.w(f"const {computed_type(node.dtype)} {word} = {self._value(node)};")

    def _pointer(self, tensor: str) -> str:
        return identifier(tensor)

    def _row_outputs(self) -> list[str]:
        """Return the outputs with one value per row."""
        return [
            name
            for name in self.nest.group.outputs
            if not self.plan.is_element(self.plan.source(name))
        ]

    def _value(self, node: Node) -> str:
        operands = [self._operand(node, a) for a in node.args]
        if node.op == "where" and operands[0] in CONSTANTS:
            return operands[1 + CONSTANTS.index(operands[0])]
        return expression(node, operands)

    def _operand(self, node: Node, arg: Operand) -> str:
        if not isinstance(arg, str):
            whole = any(self._dtype(node, a) in INTEGERS for a in node.inputs)
            return number(arg, whole)
        access = self.nest.reads.get((node.name, arg))
        if access is not None:
            return self.defined.get(self._element(access)) or self._load(access)
        return self._variable(self.plan.source(arg))

    def _dtype(self, node: Node, arg: str) -> str:
        access = self.nest.reads.get((node.name, arg))
        return access.dtype if access else self.plan.nodes[arg].dtype

    def _variable(self, source: Operand) -> str:
        assert isinstance(source, str)
        node = self.plan.nodes[source]
        word = identifier(source)
        if node.kind is Kind.REDUCE or source in self.nest.by_row:
            return word + self.row_suffix
        return f"{word}_saved" if source in self.stage.reload else f"{word}_v"

    def _element(self, access: Access) -> str:
        """Return text that identifies an element: its address and its condition."""
        if access.is_index:
            return f"index {self._index(access)}"
        element = f"{self._pointer(access.tensor)}[{self._index(access)}]" if access.tensor else ""
        if access.row:
            element += f" of slice {self._element(access.row.index)}"
        return f"{element}{self._condition(access)}"

    def _load(self, access: Access) -> str:
        """Return the expression that loads an element, converted to the type of computation."""
        condition = self._condition(access)
        if access.is_index:
            return f"static_cast<float>(static_cast<int>({self._index(access)}))"
        if not access.tensor:
            return condition
        if start := self.starts.get(self._element(access)):
            # Where the conditions do not hold, any element of the tensor is loaded; no value uses
            # it.
            value = widened(f"{self._pointer(access.tensor)}[{' + '.join(start)}]", access.dtype)
            return f"or_bits({value}, {self._row(access)}_nan)" if access.row else value
        if access.row:
            row = self._row(access)
            place = f"slice_or_first({row}) * {access.row.stride} + {self._index(access)}"
            value = widened(f"{self._pointer(access.tensor)}[{place}]", access.dtype)
            return _chosen(condition, f"or_bits({value}, {row}_nan)")
        value = widened(f"{self._pointer(access.tensor)}[{self._index(access)}]", access.dtype)
        return _chosen(condition, value)

    def _row(self, access: Access) -> str:
        """Declare a gather's slice number, negative if out of range, and return its variable."""
        row = access.row
        assert row is not None
        key = self._element(access)
        if key in self.slices:
            return self.slices[key]
        word = f"slice_{self.declared_slices}"
        self.declared_slices += 1
        wraps = "true" if row.wraps else "false"
        value = f"checked_slice<{row.extent}, {wraps}>({self._load(row.index)})"
        condition = self._condition(access)
        self.w(f"const long {word} = {f'{condition} ? {value} : 0' if condition else value};")
        # A choice of NaN in the loop would keep compilers from vectorizing it well.
        self.w(f"const int {word}_nan = {word} < 0 ? NAN_BITS : 0;")
        return word

    def _condition(self, access: Access) -> str:
        """Return the condition of an access with guards; "" if it has none."""
        terms = []
        for guard in access.guards:
            index = self._sum(guard.steps)
            first, last = self._range(guard.steps)
            if guard.low > last or guard.high <= first:
                return "false"
            if guard.low > first:
                terms.append(f"{index} >= {guard.low}")
            if guard.high <= last:
                terms.append(f"{index} < {guard.high}")
        return f"({' && '.join(terms)})" if terms else "true" if access.guards else ""

    def _last(self, steps: Sequence[int]) -> int:
        """Return the largest value of the sum of the indices times `steps`."""
        return sum(s * (d.extent - 1) for s, d in zip(steps, self.nest.dimensions, strict=True))

    def _range(self, steps: Sequence[int]) -> tuple[int, int]:
        """Return the bounds of the sum of the indices times `steps` within the current segment."""
        first, last = 0, self._last(steps)
        if self.segment is not None:
            k, start, end = self.segment
            first += steps[k] * start
            last -= steps[k] * (self.nest.dimensions[k].extent - end)
        return first, last

    def _assign(self, name: str, value: str) -> str:
        """Return the statement that stores an output's element."""
        write = self.nest.writes[name]
        return f"{identifier(name)}_out[{self._index(write)}] = {narrowed(value, write.dtype)};"

    def _index(self, access: Access) -> str:
        return self._sum(access.strides, access.offset)

    def _sum(self, steps: Sequence[int], offset: int = 0) -> str:
        """Return the sum of the nest's indices times `steps`, plus `offset`."""
        terms = [
            f"i{k}" if step == 1 else f"i{k} * {step}"
            for k, step in enumerate(steps)
            if step and self.nest.dimensions[k].extent > 1
        ]
        if not terms:
            return str(offset)
        if offset:
            terms.append(str(abs(offset)))
        return " + ".join(terms) if offset >= 0 else f"{' + '.join(terms[:-1])} - {terms[-1]}"


CONSTANTS = ("true", "false")


def _chosen(condition: str, value: str) -> str:
    """Return the expression of an element that is 0 where its condition does not hold."""
    if condition in ("", "true"):
        return value
    return "0" if condition == "false" else f"({condition} ? {value} : 0)"
