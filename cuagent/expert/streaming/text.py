"""Write lines, names and expressions of a kernel; the C++ and the CUDA generator derive from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cuagent.expert.graph.graph import FLOATS, INTEGERS, Kind, Node, Operand
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
    """Collects lines of C++ text, with the current indentation depth."""

    lines: list[str] = field(default_factory=list)
    depth: int = 0

    def __call__(self, text: str = "") -> None:
        self.lines.append("  " * self.depth + text if text else "")

    def pragma(self, text: str) -> None:
        """Write a pragma, without indentation."""
        self.lines.append("#pragma " + text)

    def open(self, text: str) -> None:
        """Write `text` and an opening brace, and indent the following lines."""
        self(f"{text} {{".lstrip())
        self.depth += 1

    def close(self, count: int = 1) -> None:
        """Write `count` closing braces."""
        for _ in range(count):
            self.depth -= 1
            self("}")


DECLARATION = re.compile(r"\s*(?:const|constexpr) [\w ]+?\*?(\w+)(?:\[\w+\])? = [^;]*;$")


def without_unused(lines: list[str]) -> list[str]:
    """Return the lines without constants that no later line of their block uses.

    A generator knows only at the end if a row's index was needed. The lines are scanned from the
    end, so that constants used only by an unused constant are removed too.
    """
    result: list[str] = []
    for line in reversed(lines):
        match = DECLARATION.match(line)
        if match is None or _is_read(match[1], line, result):
            result.append(line)
    return result[::-1]


def _is_read(word: str, declaration: str, later: list[str]) -> bool:
    """Return True if a later line in the block of `declaration` contains `word`.

    `later` has the lines after it in reverse order. The block ends at the first line with less
    indentation.
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
    """Generates variable names and C++ expressions for the values of one kernel.

    `defined` maps the expression of a loaded element to its variable in the current scope.
    """

    def __init__(self, name: str, nest: Nest, title: str, plan: Plan) -> None:
        self.name, self.nest, self.title, self.plan = name, nest, title, plan
        self.w = Writer()
        self.row_dims = [k for k, d in enumerate(nest.dimensions) if not d.reduced]
        self.column_dims = [k for k, d in enumerate(nest.dimensions) if d.reduced]
        self.stage = plan.stages[0]
        self.defined: dict[str, str] = {}
        self.row_suffix = ""
        """Subscript of row values, such as `[k]`, if several rows are processed together."""
        self.slices: dict[str, str] = {}
        """Variable with a gather's slice number, for gathers whose slice is constant in the
        innermost loop.
        """
        self.declared_slices = 0
        self.starts: dict[str, tuple[str, str]] = {}
        """Declared start of each access whose conditions are constant in the innermost loop.

        The value is (variable with the index of the first element, expression of the distance from
        it).
        """
        self.segment: tuple[int, int, int] | None = None
        """(dimension, first index, end) if the current loop covers only a part of a dimension; else
        None.
        """

    def _declare(self, node: Node, suffix: str) -> None:
        """Declare a variable with a node's value; `suffix` is the end of its name."""
        word = f"{identifier(node.name)}{suffix}"
        self.w(f"const {computed_type(node.dtype)} {word} = {self._value(node)};")

    def _pointer(self, tensor: str) -> str:
        return identifier(tensor)

    def _row_outputs(self) -> list[str]:
        """Return the names of the group's outputs with one value per row."""
        return [
            name
            for name in self.nest.group.outputs
            if not self.plan.is_element(self.plan.source(name))
        ]

    def _value(self, node: Node) -> str:
        operands = [self._operand(node, a) for a in node.args]
        if node.op == "where" and operands[0] in CONSTANTS:
            return operands[1 + CONSTANTS.index(operands[0])]
        if node.op == "sub" and any(self._may_be_product(node, a) for a in node.inputs):
            return f"difference({', '.join(operands)})"
        return expression(node, operands)

    def _may_be_product(self, node: Node, arg: str) -> bool:
        """Return True if a compiler could join the last operation of an argument, which this kernel
        computes, with a subtraction into one operation with one rounding."""
        if node.dtype not in FLOATS or (node.name, arg) in self.nest.reads:
            return False
        source = self.plan.nodes[str(self.plan.source(arg))]
        return source.kind is Kind.POINTWISE and source.op not in ROUNDED

    def _operand(self, node: Node, arg: Operand) -> str:
        if not isinstance(arg, str):
            whole = any(self._dtype(node, a) in INTEGERS for a in node.inputs)
            whole |= node.dtype in INTEGERS
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
        """Return a text that identifies the element of an access: its address and its condition."""
        if access.is_index:
            return f"index {self._index(access)}"
        element = f"{self._pointer(access.tensor)}[{self._index(access)}]" if access.tensor else ""
        if access.row:
            element += f" of slice {self._element(access.row.index)}"
        return f"{element}{self._condition(access)}"

    def _load(self, access: Access) -> str:
        """Return the C++ expression that loads an element and converts it to the computed type."""
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
        """Declare a variable with a gather's slice number (negative if out of range); return its
        name.
        """
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
        """Return the C++ condition of an access with guards; "" if it has none."""
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
        """Return the largest value that the sum of the loop indices times `steps` takes."""
        return sum(s * (d.extent - 1) for s, d in zip(steps, self.nest.dimensions, strict=True))

    def _range(self, steps: Sequence[int]) -> tuple[int, int]:
        """Return the least and largest value of the sum of the loop indices times `steps` in this
        segment.
        """
        first, last = 0, self._last(steps)
        if self.segment is not None:
            k, start, end = self.segment
            first += steps[k] * start
            last -= steps[k] * (self.nest.dimensions[k].extent - end)
        return first, last

    def _assign(self, name: str, value: str) -> str:
        """Return the C++ statement that stores `value` as the current element of output `name`."""
        write = self.nest.writes[name]
        return f"{identifier(name)}_out[{self._index(write)}] = {narrowed(value, write.dtype)};"

    def _index(self, access: Access) -> str:
        return self._sum(access.strides, access.offset)

    def _sum(self, steps: Sequence[int], offset: int = 0) -> str:
        """Return the C++ expression of the sum of the loop indices times `steps`, plus `offset`."""
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


ROUNDED = ("add", "sub", "div", "sqrt")
"""Operations whose C++ expression does not end with a product."""
CONSTANTS = ("true", "false")


def _chosen(condition: str, value: str) -> str:
    """Return the C++ expression that is `value` where `condition` is true, else 0."""
    if condition in ("", "true"):
        return value
    return "0" if condition == "false" else f"({condition} ? {value} : 0)"
