"""Group the nodes of each loop over time, so that one kernel computes all its results."""

from __future__ import annotations

from cuagent.expert.graph.graph import Graph, Kind
from cuagent.expert.loops.spec import RESULT
from cuagent.expert.streaming.group import Group


def loop_groups(graph: Graph) -> tuple[Group, ...]:
    """Return one group for each loop; it contains the results that other nodes read."""
    users = graph.users()
    groups = []
    for node in graph.nodes:
        if node.kind is not Kind.LOOP or node.op == RESULT:
            continue
        others = [user for user in users[node.name] if user.op == RESULT]
        read = node.name in graph.outputs or len(others) < len(users[node.name])
        nodes = (node, *others)
        names = tuple(n.name for n in (nodes if read else others))
        places: dict[str, tuple[int, ...]] = dict.fromkeys((n.name for n in nodes), ())
        groups.append(Group(nodes, places, node.size, (), names, "loops"))
    return tuple(groups)
