"""Write the elements of a loop as C++ for both generators: addresses, loads and operations."""

from __future__ import annotations

from cuagent.expert.graph.graph import Node, contiguous_strides
from cuagent.expert.graph.storage import storage
from cuagent.expert.kernel import Request
from cuagent.expert.loops.elements import Element, Elements, Index, Target
from cuagent.expert.loops.spec import Loop, Result
from cuagent.expert.streaming.expressions import (
    TYPES,
    computed_type,
    expression,
    identifier,
    narrowed,
    number,
    widened,
)
from cuagent.expert.streaming.text import Writer


class LoopText:
    """Generates C++ text for one loop's kernel. A subclass decides where values are stored."""

    integer = "long"

    def __init__(self, request: Request) -> None:
        self.request, self.w = request, Writer()
        self.anchor = request.group.nodes[0]
        self.loop: Loop = self.anchor.spec
        self.elements = Elements(self.loop)
        self.leaves = [storage(request.graph, request.graph.node(a)) for a in self.anchor.inputs]
        self.tensors_read = {base.name: base.dtype for base, _, _ in self.leaves}
        self.parameters_of = {name: f"in_{k}" for k, name in enumerate(self.tensors_read)}
        self.lanes, self.channels = self.elements.lanes, self.elements.channels
        self.needed = self._needed()

    def _needed(self) -> list[int]:
        """Return the positions of the elements on which a state or a result depends, arguments
        first.
        """
        targets = [*self.elements.states, *(t for _, t, _ in self.outputs())]
        found = {t.element for t in targets}
        for k in reversed(range(len(self.elements.elements))):
            if k in found:
                found.update(a for a in self.elements.elements[k].args if isinstance(a, int))
        return sorted(found)

    def outputs(self) -> list[tuple[Node, Target, Result]]:
        """Return (result's node, element that is stored in it, form of the result) for each kernel
        output.
        """
        nodes = {0 if n is self.anchor else n.spec: n for n in self.request.group.nodes}
        return [
            (nodes[k], target, self.loop.results[k])
            for k, target in enumerate(self.elements.results)
            if k in nodes and nodes[k].name in self.request.group.outputs
        ]

    def parameters(self, qualifier: str) -> list[str]:
        """Return the launcher's C++ parameters: results first, then the tensors that are read."""
        outputs = {node.name: node for node, _, _ in self.outputs()}
        results = [
            f"{TYPES[outputs[n].dtype]}* {qualifier} out_{k}"
            for k, n in enumerate(self.request.group.outputs)
        ]
        return results + [
            f"const {TYPES[dtype]}* {qualifier} {self.parameters_of[name]}"
            for name, dtype in self.tensors_read.items()
        ]

    def head(self, *includes: str) -> None:
        w, loop = self.w, self.loop
        for line in self.request.title.splitlines():
            w(f"// {line}")
        states = f"{len(loop.states)} state" + ("s" if len(loop.states) > 1 else "")
        text = f"// {loop.steps} steps of {states}: {self.elements.channel_count} channels"
        lanes = self.elements.lane_count
        w(text + (f" of {lanes} elements each." if lanes > 1 else "."))
        for header in includes:
            w(
                f'#include "{header}"'
                if "_" in header or "pointwise" in header
                else f"#include <{header}>"
            )

    def axis(self, axis: int) -> str:
        """Return the C++ variable with the index along an axis."""
        return f"a{axis}"

    def is_lane(self, element: Element) -> bool:
        return not element.axes.isdisjoint(self.lanes)

    def load(self, element: Element, step: str) -> str:
        """Return the C++ expression that loads an element; `step` is the expression of the step's
        number.
        """
        slot = self.loop.slots[element.node.name]
        assert slot.leaf is not None
        base, found, offset = self.leaves[slot.leaf]
        strides = list(found)
        terms: list[tuple[str, int]] = []
        if slot.dim is not None:
            along = strides.pop(slot.dim)
            offset += slot.first * along
            terms.append((step, slot.stride * along))
        return self._read(base, terms, element.index, strides, offset)

    def first_value(self, position: int) -> str:
        """Return the C++ expression of the first value of the state number `position`."""
        slot = self.loop.slots[self.loop.states[position]]
        if slot.leaf is None:
            return number(slot.number)
        base, strides, offset = self.leaves[slot.leaf]
        return self._read(base, [], self.elements.states[position].index, list(strides), offset)

    def _read(
        self,
        base: Node,
        terms: list[tuple[str, int]],
        index: Index,
        strides: list[int],
        offset: int,
    ) -> str:
        terms = list(terms)
        for place, stride in zip(index, strides, strict=True):
            if place.axis is not None:
                terms.append((self.axis(place.axis), place.scale * stride))
            offset += place.offset * stride
        return widened(f"{self.parameters_of[base.name]}[{self._sum(terms, offset)}]", base.dtype)

    def _sum(self, terms: list[tuple[str, int]], offset: int) -> str:
        words = []
        for word, factor in terms:
            if factor:
                inner = word if word.isidentifier() else f"({word})"
                cast = f"static_cast<{self.integer}>({inner})" if self.integer == "long" else inner
                words.append(cast if factor == 1 else f"{cast} * {factor}")
        if offset or not words:
            words.append(str(offset))
        return " + ".join(words)

    def value(self, position: int, names: dict[int, str]) -> str:
        """Return the C++ expression of an operation; `names` are the expressions of its
        operands.
        """
        element = self.elements.elements[position]
        integers = ("int64", "int32")
        whole = any(
            self.elements.elements[a].node.dtype in integers
            for a in element.args
            if isinstance(a, int)
        )
        words = [names[a] if isinstance(a, int) else number(a, whole) for a in element.args]
        return expression(element.node, words)

    def declared(self, position: int) -> str:
        """Return the C++ type of a variable with the element at `position`."""
        return computed_type(self.elements.elements[position].node.dtype)

    def name(self, position: int) -> str:
        """Return the C++ name of the element at `position`."""
        return f"{identifier(self.elements.elements[position].node.name)}_{position}"

    def store(self, node: Node, target: Target, result: Result, value: str, step: str) -> str:
        """Return the C++ statement that writes `value` as an element of a result."""
        strides = list(contiguous_strides(node.shape))
        terms: list[tuple[str, int]] = []
        if result.dim is not None:
            along = strides.pop(result.dim)
            place = f"{self.loop.steps - 1} - {step}" if result.reverse else step
            terms.append((place, along))
        for p, stride in zip(target.index, strides, strict=True):
            if p.axis is not None:
                terms.append((self.axis(p.axis), stride))
        k = self.request.group.outputs.index(node.name)
        return f"out_{k}[{self._sum(terms, 0)}] = {narrowed(value, node.dtype)};"

    def guards(self, target: Target) -> str:
        """Return the C++ condition under which a channel writes a result that lacks some channel
        axes.

        It is true for index 0 on these axes, so that one of the channels with equal results writes
        it.
        """
        own = {p.axis for p in target.index}
        return " && ".join(f"{self.axis(a)} == 0" for a in self.channels if a not in own)
