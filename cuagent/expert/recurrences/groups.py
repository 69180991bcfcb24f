"""Group the nodes of each recurrence, so that one kernel computes all its results."""

from __future__ import annotations

from cuagent.expert.graph.graph import Graph, Kind
from cuagent.expert.streaming.group import Group

LAST = "last"
"""`Node.op` of the node with an lstm's cell state c after the last step."""


def recurrence_groups(graph: Graph) -> tuple[Group, ...]:
    """Return one group for each recurrence: h of all steps, and the last c if a node reads it."""
    users = graph.users()
    groups = []
    for node in graph.nodes:
        if node.kind is not Kind.RECURRENCE or node.op == LAST:
            continue
        nodes = (node, *(user for user in users[node.name] if user.op == LAST))
        names = tuple(n.name for n in nodes)
        places: dict[str, tuple[int, ...]] = dict.fromkeys(names, ())
        groups.append(Group(nodes, places, node.size, (), names, "recurrences"))
    return tuple(groups)
