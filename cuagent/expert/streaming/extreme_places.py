"""Find an extreme and the index of the first element that has it in one pass (CUDA).

The lowered form of argmax is two reductions: the extreme, and the least index at which the value
equals the extreme or is NaN. The second would read each row again.
"""

from __future__ import annotations

from dataclasses import replace

from cuagent.expert.graph.graph import Kind, Node
from cuagent.expert.streaming.group import Group

PLACE = "place"
"""Operation of the reduction to an index; `spec` is the name of the reduction to the extreme, and
the arguments are its argument and the index of each element."""


def with_places(group: Group) -> Group:
    """Return the group with a reduction PLACE for each index of the first extreme."""
    nodes = {node.name: node for node in group.nodes}
    for node in group.nodes:
        if node.kind is not Kind.REDUCE or node.op != "min":
            continue
        equal = nodes.get(str(node.args[0]))
        if equal is None or equal.op != "index_if_equal" or equal.name in group.outputs:
            continue
        value, name, index = equal.args
        top, users = nodes.get(str(name)), [n for n in group.nodes if equal.name in n.inputs]
        if top is None or len(users) > 1 or not _is_extreme(top, node) or top.args != (value,):
            continue
        nodes[equal.name] = replace(equal, op="cast", args=(index,))
        nodes[node.name] = replace(node, op=PLACE, args=(value, equal.name), spec=top.name)
    return replace(group, nodes=tuple(nodes.values()))


def _is_extreme(top: Node, place: Node) -> bool:
    return top.kind is Kind.REDUCE and top.op in ("amax", "amin") and top.dims == place.dims
