"""Copy a value once where a module copies it several times in a row.

`x.reshape(a).transpose(1, 2).reshape(b).transpose(1, 3).reshape(c)` divides an image into patches
and copies it at each reshape. The result is one permutation of the factors of x's dimensions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from cuagent.expert.capture.editing import Edit, called, calls_any
from cuagent.expert.capture.export import Captured
from cuagent.expert.capture.factors import (
    COPIES,
    FOLLOWED,
    Chain,
    emitted,
    followed,
    whole_chain,
)
from cuagent.expert.graph.lowering import shape_of


def with_single_copies(captured: Captured) -> Captured:
    """Return the graph in which rows of copies are one copy each; unchanged without any."""
    if not calls_any(captured, COPIES):
        return captured
    edit, done = Edit(captured), False
    for node in edit.nodes:
        if _is_end(node):
            chain, copies = _chain(node)
            if chain is not None and copies > 1:
                _copy_once(edit, node, chain)
                done = True
    return edit.result() if done else captured


def _is_end(node: Any) -> bool:
    """Return True for a contiguous copy, or view of one, that no single view or copy follows."""
    if called(node) not in FOLLOWED or not node.users or not node.meta["val"].is_contiguous():
        return False
    (user, *others) = node.users
    return bool(others) or called(user) not in FOLLOWED or called(user) == "select"


def _chain(node: Any) -> tuple[Chain | None, int]:
    """Return the chain from the first value that others read, or that is not followed, to `node`,
    with the number of its copies; None if a value in between has no chain."""
    path = [node]
    while called(inner := path[-1].args[0]) in FOLLOWED - {"select"} and len(inner.users) == 1:
        path.append(inner)
    if called(path[-1]) == "select" or 0 in shape_of(inner):
        return None, 0
    chain: Chain | None = whole_chain(inner)
    for step in reversed(path):
        chain = followed(step, chain) if chain is not None else None
    moved = [step for step in path if called(step) in COPIES and not _keeps(step)]
    return chain, len(moved)


def _keeps(copy: Any) -> bool:
    """Return True if a copy has the layout of its argument, as behind a dropout."""
    return bool(copy.args[0].meta["val"].is_contiguous())


def _copy_once(edit: Edit, node: Any, chain: Chain) -> None:
    import torch

    aten = torch.ops.aten
    edit.graph.inserting_before(node)
    apart = replace(chain, dims=tuple((factor,) for dim in chain.dims for factor in dim))
    moved = emitted(edit, apart)
    copy = edit.call(aten.clone.default, (moved,), {"memory_format": torch.contiguous_format})
    copy.name = f"{node.name}_once"
    shape = list(shape_of(node))
    assert math.prod(shape) == math.prod(shape_of(copy))
    edit.replace(node, edit.call(aten.view.default, (copy, shape)))
