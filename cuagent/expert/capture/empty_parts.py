"""Leave out the empty parts of concatenations, such as the columns behind a rotary embedding that
turns whole heads.

No kernel loads an empty tensor, so that torch would compute the concatenation.
"""

from __future__ import annotations

from cuagent.expert.capture.editing import Edit, called, calls_any
from cuagent.expert.capture.export import Captured
from cuagent.expert.graph.lowering import dtype_of, shape_of


def without_empty_parts(captured: Captured) -> Captured:
    """Return the graph with concatenations of their other parts; unchanged without empty parts.

    A concatenation that the remaining parts would give another dtype does not change.
    """
    if not calls_any(captured, ("cat",)):
        return captured
    edit, done = Edit(captured), False
    for node in edit.nodes:
        if called(node) != "cat":
            continue
        parts = [part for part in node.args[0] if 0 not in shape_of(part)]
        same = all(dtype_of(part) == dtype_of(node) for part in parts)
        if parts and same and len(parts) < len(node.args[0]):
            node.args = (parts, *node.args[1:])
            done = True
    return edit.result() if done else captured
