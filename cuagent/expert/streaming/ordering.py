"""Order groups and library calls so that each step comes after the steps whose results it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cuagent.expert.graph.graph import Graph, Kind, Node
from cuagent.expert.streaming.group import Group, Step
from cuagent.expert.streaming.places import Draft


def ordered(
    graph: Graph, draft_of: Mapping[str, Draft], outside: frozenset[str]
) -> tuple[Step, ...]:
    """Return the steps that compute a graph, in order.

    `draft_of` maps each node in a group to its group. Nodes in `outside` are in no step.
    """
    steps: list[Step] = []
    done: set[str] = set(outside)
    pending = _blocks(graph, draft_of)
    users = graph.users()
    while pending:
        ready = next((item for item in pending if _is_ready(graph, item[0], done)), None)
        assert ready is not None, "fusion made a cycle"
        pending.remove(ready)
        names, draft = ready
        done |= set(names)
        if draft is not None:
            steps.append(_group(graph, users, names, draft))
        elif names[0] not in outside:
            steps.append(graph.node(names[0]))
    return tuple(steps)


def _blocks(graph: Graph, draft_of: Mapping[str, Draft]) -> list[tuple[list[str], Draft | None]]:
    """Return the names of the nodes of each step, with its group; the group is None for a single
    node.
    """
    blocks: list[tuple[list[str], Draft | None]] = []
    seen: set[int] = set()
    for node in graph.nodes:
        draft = draft_of.get(node.name)
        if draft is None:
            blocks.append(([node.name], None))
        elif id(draft) not in seen:
            seen.add(id(draft))
            blocks.append((in_order(graph, draft.places), draft))
    return blocks


def in_order(graph: Graph, names: Iterable[str]) -> list[str]:
    """Return `names` in the order of the graph."""
    chosen = set(names)
    return [node.name for node in graph.nodes if node.name in chosen]


def _is_ready(graph: Graph, names: list[str], done: set[str]) -> bool:
    available = done | set(names)
    return all(a in available for n in names for a in graph.node(n).inputs)


def _group(
    graph: Graph, users: Mapping[str, Sequence[Node]], names: list[str], draft: Draft
) -> Group:
    """Return the `Group` for a finished draft; `names` are its nodes in order."""
    if draft.claimed is not None:
        return draft.claimed
    members = set(names)
    read_outside = (
        n for n in names if n in graph.outputs or any(u.name not in members for u in users[n])
    )
    outputs = tuple(dict.fromkeys(_base(graph, n, members) for n in read_outside))
    nodes = tuple(graph.node(n) for n in names)
    return Group(nodes, dict(draft.places), draft.size, draft.reduced or (), outputs)


def _base(graph: Graph, name: str, members: set[str]) -> str:
    """Return the name of the group's node whose memory the view `name` shows; `name` for other
    nodes.
    """
    node = graph.node(name)
    while node.kind is Kind.VIEW and node.inputs[0] in members:
        node = graph.node(node.inputs[0])
    return node.name
