"""Group the results of each recurrence into one kernel."""

from __future__ import annotations

from cuagent.expert.graph.graph import Graph, Kind
from cuagent.expert.streaming.group import Group

LAST = "last"
"""Operator (`Node.op`) of the node with the last c of an lstm."""


def recurrence_groups(graph: Graph) -> tuple[Group, ...]:
    """Return one group for each recurrence: h of all steps, and the last c if it is read."""
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
