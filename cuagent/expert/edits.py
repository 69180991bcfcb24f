"""Replace nodes of a graph, and find the nodes that depend on parameters alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cuagent.expert.graph.graph import Graph, Kind, Node, Operand
from cuagent.expert.streaming.expressions import PYTHON, PYTHON_REDUCTIONS

LARGE = 16 << 20
"""Number of elements of a value from which on a kernel computes it in each call from operands that
are smaller by broadcasting: reading it would take longer."""
PREPARATIONS: set[str] = set()
"""Texts of library calls that rewrites apply to parameters; each rewrite adds its own."""


@dataclass
class Editor:
    """Pending edits of a graph.

    `replaced` maps a node's name to the nodes that replace it, `renamed` a name to the name that
    its readers use instead.
    """

    graph: Graph
    replaced: dict[str, list[Node]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)

    def result(self) -> Graph:
        """Return the graph after the edits, without nodes on which no output depends."""

        def name(operand: Operand) -> Operand:
            while isinstance(operand, str) and operand in self.renamed:
                operand = self.renamed[operand]
            return operand

        def renamed(node: Node) -> Node:
            args = tuple(map(name, node.args))
            return node if args == node.args else replace(node, args=args)

        nodes = [
            renamed(node) for old in self.graph.nodes for node in self.replaced.get(old.name, [old])
        ]
        outputs = tuple(str(name(o)) for o in self.graph.outputs)
        return replace(self.graph, nodes=_sorted(nodes), outputs=outputs).live()


def _sorted(nodes: list[Node]) -> tuple[Node, ...]:
    """Return the nodes with arguments before their readers, otherwise in the given order."""
    names = {node.name for node in nodes}
    done: set[str] = set()
    ordered: list[Node] = []
    remaining = nodes
    while remaining:
        later = []
        for node in remaining:
            if all(a in done or a not in names for a in node.inputs):
                ordered.append(node)
                done.add(node.name)
            else:
                later.append(node)
        assert len(later) < len(remaining), "a rewrite made a cycle"
        remaining = later
    return tuple(ordered)


def prepared_names(graph: Graph) -> frozenset[str]:
    """Return the names of the nodes that depend on parameters alone.

    The module computes them once, and again when a parameter changes.
    """
    known = len(PREPARATIONS)  # texts are only ever added
    cached: tuple[int, frozenset[str]] = graph.__dict__.get("_prepared_names", (-1, frozenset()))
    if cached[0] != known:
        cached = known, _prepared_names(graph)
        object.__setattr__(graph, "_prepared_names", cached)
    return cached[1]


def _prepared_names(graph: Graph) -> frozenset[str]:
    prepared: set[str] = set()
    for node in graph.nodes:
        leaf = node.kind in (Kind.PARAMETER, Kind.CONSTANT)
        computable = (
            (node.kind is Kind.POINTWISE and node.op in PYTHON and not _expands(node, graph))
            or (node.kind is Kind.REDUCE and node.op in PYTHON_REDUCTIONS)
            or node.kind is Kind.VIEW
            or node.op in PREPARATIONS
        )
        known = all(a in prepared for a in node.inputs)
        if leaf or (computable and node.inputs and known) or (node.constant and known):
            prepared.add(node.name)
    return frozenset(prepared)


def _expands(node: Node, graph: Graph) -> bool:
    """Return True if a value is large and all of its operands are smaller, by broadcasting."""
    return node.size >= LARGE and all(graph.node(a).size < node.size for a in node.inputs)
