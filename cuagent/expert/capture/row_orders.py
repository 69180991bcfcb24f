"""Compute linear layers in the order of their argument's rows, and views without their copies.

A linear layer computes each row alone, so rows that are permuted before it may be permuted behind
it instead. The views that follow undo or absorb the permutation, and torch copies neither argument
nor result. `nn.MultiheadAttention` permutes samples and tokens in this way. An attention reads
permuted queries, keys and values, so copies before it are left out. All values are unchanged.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from cuagent.expert.capture.editing import Edit, called
from cuagent.expert.capture.export import Captured
from cuagent.expert.capture.factors import (
    COPIES,
    FOLLOWED,
    VIEWS,
    Chain,
    Factor,
    emitted,
    followed,
    whole_chain,
)
from cuagent.expert.graph.graph import ITEM_BYTES
from cuagent.expert.graph.lowering import dtype_of, shape_of

ATTENTIONS = {"scaled_dot_product_attention", "attention", "scored_attention"}
ALIGNED = 16
"""Bytes of which a head's size must be a multiple, as the library's attention demands."""


def with_row_orders(captured: Captured) -> Captured:
    """Return the graph with these linear layers and attentions replaced; unchanged without any."""
    values = [node.meta.get("val") for node in captured.nodes]
    empty = any(hasattr(value, "numel") and value.numel() == 0 for value in values)
    if empty or not any(called(node) in ("transpose", "permute") for node in captured.nodes):
        return captured
    edit = Edit(captured)
    done = _Orders(edit).run()
    return edit.result() if done else captured


class _Orders:
    def __init__(self, edit: Edit) -> None:
        self.edit = edit
        self.chains: dict[Any, Chain] = {}
        self.fresh: set[Any] = set()
        """New linear layers, and attentions whose result may have other strides than before."""

    def run(self) -> bool:
        """Change the copy of the graph; return False if nothing changed or it must not be used."""
        for node in self.edit.nodes:
            if node.op == "output":
                return bool(self.fresh) and not any(self._is_fresh(v) for v in node.args[0])
            if node.op != "call_function":
                continue
            chain = followed(node, self._chain(node.args[0])) if self._reads_one(node) else None
            if chain is not None:
                self.chains[node] = chain
            elif called(node) == "linear":
                self._linear(node)
            elif not self._reader(node):
                return False
        return False

    def _reads_one(self, node: Any) -> bool:
        return called(node) in FOLLOWED and hasattr(node.args[0], "meta")

    def _chain(self, node: Any) -> Chain:
        if node not in self.chains:
            self.chains[node] = whole_chain(node)
        return self.chains[node]

    def _is_fresh(self, value: Any) -> bool:
        if not hasattr(value, "meta"):
            return False
        return value in self.fresh or self._source(value) in self.fresh

    def _source(self, node: Any) -> Any:
        return self.chains[node].source if node in self.chains else node

    def _linear(self, node: Any) -> None:
        """Replace a linear layer whose rows are permuted by one of the rows in order."""
        chain = self._chain(node.args[0])
        rows = [factor for dim in chain.dims[:-1] for factor in dim]
        places = chain.source.meta["val"].stride()
        ordered = sorted(rows, key=lambda f: -places[f.dim] * f.step)
        # Only a view of the rows in order and whole saves the copy.
        factors = [*ordered, *chain.dims[-1]]
        whole = factors == sorted(factors, key=lambda f: -places[f.dim] * f.step)
        whole &= any(f.dim == len(places) - 1 and f.step == 1 for f in chain.dims[-1][-1:])
        whole &= (
            0 not in places and places[-1] == 1 and _is_view(Chain(chain.source, chain.dims[-1:]))
        )
        if rows == ordered or not whole:
            if self._is_fresh(node.args[0]):
                self._read(node, 0, as_is=True)
            return
        self.edit.graph.inserting_before(node)
        dims = (*((f,) for f in ordered), chain.dims[-1])
        x = emitted(self.edit, Chain(chain.source, dims, chain.fixed))
        new = self.edit.call(node.target, (x, *node.args[1:]), node.kwargs)
        new.name = f"{node.name}_ordered"
        self.fresh.add(new)
        place = {f: Factor(d, 1, f.size) for d, f in enumerate(ordered)}
        last = Factor(len(ordered), 1, shape_of(node)[-1])
        moved = tuple(tuple(place[f] for f in dim) for dim in chain.dims[:-1])
        self.chains[node] = Chain(new, (*moved, (last,) if last.size > 1 else ()))

    def _reader(self, node: Any) -> bool:
        """Let an operator read the new values; return False if its result would have another
        layout."""
        if called(node) in ATTENTIONS and self._reads_views(node):
            self.fresh.add(node)
            for place in range(3):
                self._read(node, place, as_is=True)
            self._trace(node)
            return True
        places = [k for k, a in enumerate(node.args) if self._is_fresh(a)]
        read = [a for a in node.all_input_nodes if self._is_fresh(a)]
        if len(set(read)) != len(places):
            return False  # in a list or a keyword argument
        before, single = _strides(node), hasattr(node.meta.get("val"), "stride")
        if not all(self._read(node, place, as_is=False) for place in places):
            return False
        if places:
            self._trace(node)
        return not places or (single and before == _strides(node))

    def _reads_views(self, node: Any) -> bool:
        """Return True if an attention reads views of other values, of which one is fresh or was
        copied, and whose rows of a head stay adjacent and aligned."""
        operands = node.args[:3]
        if len(operands) < 3 or len(shape_of(operands[0])) != 4:
            return False
        if called(node) == "attention" and not node.kwargs["heads_inside"]:
            return False  # the result is copied if the queries' heads are inside
        chains = [self._chain(a) for a in operands]
        size = shape_of(operands[0])[-1] * ITEM_BYTES[dtype_of(operands[0])]
        inner = all(
            c.dims[-1] == (Factor(len(shape_of(c.source)) - 1, 1, shape_of(a)[-1]),)
            and c.source.meta["val"].is_contiguous()
            and _is_view(c)
            for c, a in zip(chains, operands, strict=True)
        )
        copied = any(_was_copied(a) or self._is_fresh(a) for a in operands)
        return inner and copied and size % ALIGNED == 0

    def _read(self, node: Any, place: int, as_is: bool) -> bool:
        """Let an operator read its argument as a view of the source.

        Return False if the argument was contiguous, the view is not, and the operator does not read
        any view (`as_is`): a new copy would gain nothing, and steps of a loop would read it.
        """
        old = node.args[place]
        self.edit.graph.inserting_before(node)
        new = emitted(self.edit, self._chain(old))
        node.update_arg(place, new)
        return as_is or new.meta["val"].is_contiguous() or not old.meta["val"].is_contiguous()

    def _trace(self, node: Any) -> None:
        """Trace an operator again, with its new arguments."""
        new = self.edit.call(node.target, node.args, node.kwargs)
        node.meta["val"] = new.meta["val"]
        self.edit.graph.erase_node(new)


def _is_view(chain: Chain) -> bool:
    """Return True if torch can join the factors of each dimension without a copy."""
    steps = chain.source.meta["val"].stride()
    places = [[(steps[f.dim] * f.step, f.size) for f in dim] for dim in chain.dims]
    return all(
        outer == inner * size for dim in places for (outer, _), (inner, size) in pairwise(dim)
    )


def _strides(node: Any) -> Any:
    value = node.meta.get("val")
    return value.stride() if hasattr(value, "stride") else None


def _was_copied(node: Any) -> bool:
    """Return True if a copy is among the views of which a value consists."""
    while node.op == "call_function" and called(node) in {*VIEWS, "transpose", "permute", "select"}:
        node = node.args[0]
    return called(node) in COPIES
