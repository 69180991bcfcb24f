"""Write one step of a loop as a torch.fx graph over slices of the tensors that all steps read.

The slice of an elementwise result is computed in the body from slices of its operands, so that the
whole result (exp(delta * A) of a selective scan, with all states of all steps) is never stored.
Products with a vector become elementwise products and sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cuagent.expert.capture.editing import Edit, called
from cuagent.expert.graph.lowering import argument, shape_of
from cuagent.expert.loops.hoist import AllSteps, sequence_of
from cuagent.expert.loops.program import Program
from cuagent.expert.loops.roll import Local, Progression, Rolled, Varying
from cuagent.expert.loops.slices import (
    NoLoop,
    equation,
    filling,
    is_pointwise,
    outer_product,
    slices,
)
from cuagent.expert.loops.spec import Slot, state_product

MOST_REPEATED = 32
"""Largest number of times that the body may compute an element of a value from outside of the
loop.
"""
CASTS = {"_to_copy", "to"}
COPIES = {"clone", "contiguous", "alias", "detach", "lift_fresh_copy"}
MOST_DEPTH, MOST_COLUMNS = 256, 1024
"""Largest size of a matrix that is multiplied with a state.

A thread reads the matrix from the cache in each step.
"""
PRODUCTS = {"linear", "matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "dot"}


class Body(Program):
    """The torch.fx graph of one step. `leaves` are the nodes outside the loop that it reads.

    A position is the index of an operator within a step.
    """

    def __init__(self, loop: Rolled, edit: Edit) -> None:
        super().__init__()
        self.loop, self.count = loop, len(loop.steps)
        self.steps = AllSteps(loop, edit)
        self.products = 0
        """Number of products of a value of the loop with a matrix from outside."""
        self.states: dict[int, Any] = {}
        """Placeholder of each state; the key is the position of the operator that computes the
        state.
        """
        self.known: dict[Any, Any] = {}
        state_sizes = [math.prod(shape_of(loop.steps[0][q])) for q in loop.initial]
        self.work = self.count * max(state_sizes, default=1)

    def state(self, position: int) -> Any:
        """Return the placeholder for the previous step's value of the operator at `position`."""
        if position not in self.states:
            example = self.loop.steps[1][position]
            initial = self.loop.initial[position]
            if hasattr(initial, "meta"):
                if shape_of(initial) != shape_of(example):
                    raise NoLoop("the first state has another shape")
                number = filling(initial)
                leaf = self.leaf(initial) if number is None else None
                slot = Slot(leaf, state=True, number=number or 0.0)
            else:
                slot = Slot(None, state=True, number=float(initial))
            self.states[position] = self.placeholder(slot, example.meta["val"])
        return self.states[position]

    def value(self, position: int) -> Any:
        """Return the body's node for the value of the operator at `position`."""
        if position not in self.known:
            self.known[position] = self._value(position)
        return self.known[position]

    def _value(self, position: int) -> Any:
        from torch.utils import _pytree as pytree

        node = self.loop.steps[0][position]
        if self.steps.is_hoisted(position):
            whole, dim = self.steps.node(Local(position, 0))
            return self.at(whole, dim, 0, 1)
        if not self.loop.timed[position]:
            return self.whole(node)
        args, options = self.loop.arguments[position]
        if called(node) == "copy":
            # The overwritten value, a slice of the result, gives only shape and dtype.
            return self._copied(node, self._operand(args[1]))
        sequence = sequence_of(self.loop, position)
        if sequence is not None:
            base, dim, first, step = sequence
            value = self.at(base, dim, first, step)
            return value if called(node) == "select" else self.unsqueezed(value, dim)
        leaves, spec = pytree.tree_flatten((args, options))
        if any(isinstance(leaf, Progression) for leaf in leaves):
            raise NoLoop(f"{called(node)} with a number of the step")
        values = [self._operand(leaf) for leaf in leaves]
        new_args, new_options = pytree.tree_unflatten(values, spec)
        return self.apply(node, new_args, new_options)

    def _operand(self, leaf: Any) -> Any:
        if isinstance(leaf, Local):
            return self.state(leaf.position) if leaf.lag else self.value(leaf.position)
        if isinstance(leaf, Varying):
            return self._family(leaf.nodes)
        return self.whole(leaf) if hasattr(leaf, "meta") else leaf

    def _family(self, nodes: Sequence[Any]) -> Any:
        """Return the body's node for an argument that is another slice of one tensor in each step.

        `nodes` has the slice that each step reads.
        """
        base, dim, first, step, keeps = slices(nodes)
        value = self.at(base, dim, first, step)
        return self.unsqueezed(value, dim) if keeps else value

    def whole(self, node: Any) -> Any:
        """Return the placeholder of an outer tensor that each step reads completely."""
        key = (node, None)
        if key not in self.known:
            slot = Slot(self.leaf(node))
            self.known[key] = self.placeholder(slot, node.meta["val"])
        return self.known[key]

    def at(self, node: Any, dim: int, first: int, step: int) -> Any:
        """Return the body's node for the slice of outer tensor `node` at index `first + k * step`
        in step k.
        """
        key = (node, dim, first, step)
        if key not in self.known:
            self.known[key] = self._at(node, dim, first, step)
        return self.known[key]

    def _at(self, node: Any, dim: int, first: int, step: int) -> Any:
        import torch

        aten, name, rank = torch.ops.aten, called(node), len(shape_of(node))
        if name in CASTS or (is_pointwise(node) and self._is_cheap(node)):
            args, options = torch.fx.map_arg(
                (node.args, dict(node.kwargs)), lambda a: self._part(a, node, dim, first, step)
            )
            return self.apply(node, args, options)
        match name:
            case _ if name in COPIES:
                return self.at(node.args[0], dim, first, step)
            case "einsum" if self._is_cheap(node) and (parts := outer_product(node)):
                operands, result = parts
                values, letters = [], []
                for source, word in zip(node.args[1], operands, strict=True):
                    place = word.find(result[dim])
                    value = self.whole(source)
                    if place >= 0:
                        value = self.at(source, place, first, step)
                    values.append(value)
                    letters.append(word.replace(result[dim], ""))
                return self.einsum(values, letters, result.replace(result[dim], ""))
            case "flip" if node.args[1] == [dim] or node.args[1] == [dim - rank]:
                last = shape_of(node)[dim] - 1
                return self.at(node.args[0], dim, last - first, -step)
            case "unsqueeze":
                place = node.args[1] % rank
                if place != dim:
                    inner = self.at(node.args[0], dim - (place < dim), first, step)
                    return self.unsqueezed(inner, place - (place > dim))
            case "transpose":
                a, b = (d % rank for d in node.args[1:3])
                order = list(range(rank))
                order[a], order[b] = b, a
                return self._permuted(node.args[0], order, dim, first, step)
            case "permute":
                return self._permuted(
                    node.args[0], [d % rank for d in node.args[1]], dim, first, step
                )
            case "slice" if argument(node, 1, "dim", 0) % rank == dim:
                start = argument(node, 2, "start") or 0
                extent = shape_of(node.args[0])[dim]
                by = argument(node, 4, "step", 1)
                begin = slice(start, None, by).indices(extent)[0]
                return self.at(node.args[0], dim, begin + first * by, step * by)
            case "slice":
                place = argument(node, 1, "dim", 0) % rank
                inner = self.at(node.args[0], dim, first, step)
                rest = [argument(node, 2, "start"), argument(node, 3, "end")]
                rest.append(argument(node, 4, "step", 1))
                return self.call(aten.slice.Tensor, (inner, place - (place > dim), *rest))
            case "expand" if shape_of(node.args[0])[dim - rank :][:1] == shape_of(node)[dim:][:1]:
                source = node.args[0]
                inner_dim = dim - rank + len(shape_of(source))
                if inner_dim >= 0:
                    inner = self.at(source, inner_dim, first, step)
                    sizes = [*shape_of(node)[:dim], *shape_of(node)[dim + 1 :]]
                    return self.call(aten.expand.default, (inner, sizes))
        slot = Slot(self.leaf(node), dim, first, step)
        value = node.meta["val"]
        return self.placeholder(
            slot, value.new_empty([*value.shape[:dim], *value.shape[dim + 1 :]])
        )

    def _is_cheap(self, node: Any) -> bool:
        """Return True if the body would compute an element of `node` at most `MOST_REPEATED`
        times.
        """
        return MOST_REPEATED * math.prod(shape_of(node)) >= self.work

    def _part(self, arg: Any, node: Any, dim: int, first: int, step: int) -> Any:
        """Return the slice of `arg` that is needed for a slice of the elementwise operator
        `node`.
        """
        import torch

        place = dim - len(shape_of(node)) + len(shape_of(arg))
        if place < 0:
            return self.whole(arg)
        if shape_of(arg)[place] == 1 and shape_of(node)[dim] != 1:
            return self.call(torch.ops.aten.select.int, (self.whole(arg), place, 0))
        return self.at(arg, place, first, step)

    def _permuted(self, source: Any, order: list[int], dim: int, first: int, step: int) -> Any:
        import torch

        inner = self.at(source, order[dim], first, step)
        rest = [d - (d > order[dim]) for k, d in enumerate(order) if k != dim]
        if rest == sorted(rest):
            return inner
        return self.call(torch.ops.aten.permute.default, (inner, rest))

    def apply(self, node: Any, args: Any, options: Any) -> Any:
        """Add an operator of the loop to the body and return its node.

        Products and compound operators become simple operators.
        """
        import torch

        aten, name = torch.ops.aten, called(node)
        if name == "einsum":
            operands, result = equation(args[0])
            return self.einsum(list(args[1]), operands, result)
        if name == "linear":
            value = self._state_product(args[0], args[1], True)
            return value if len(args) < 3 else self.call(aten.add.Tensor, (value, args[2]))
        if name == "addmm" and not options:
            value = self._state_product(args[1], args[2], False)
            return self.call(aten.add.Tensor, (value, args[0]))
        if name in ("matmul", "bmm", "mv", "mm"):
            if shape_of(args[1])[-1] > 1 and self._is_weight(args[1]):
                return self._state_product(args[0], args[1], False)
            return self.product(args[0], args[1])
        if name in PRODUCTS:
            raise NoLoop(f"{name} with the state")
        if name == "lerp":
            start, end, weight = args
            gap = self.call(aten.sub.Tensor, (end, start))
            return self.call(aten.add.Tensor, (start, self.call(aten.mul.Tensor, (gap, weight))))
        if name in ("addcmul", "addcdiv"):
            second = aten.mul if name == "addcmul" else aten.div
            term = self.call(second.Tensor, (args[1], args[2]))
            factor = options.get("value", 1)
            term = term if factor == 1 else self.call(aten.mul.Tensor, (term, factor))
            return self.call(aten.add.Tensor, (args[0], term))
        if name in COPIES:
            return args[0]
        return self.call(node.target, args, options)

    def _copied(self, node: Any, source: Any) -> Any:
        """Return `source` expanded and converted to the shape and dtype of `node`, which copies
        it.
        """
        import torch

        aten, like = torch.ops.aten, node.meta["val"]
        if shape_of(source) != shape_of(node):
            source = self.call(aten.expand.default, (source, list(shape_of(node))))
        if source.meta["val"].dtype == like.dtype:
            return source
        return self.call(aten._to_copy.default, (source,), {"dtype": like.dtype})

    def _is_weight(self, node: Any) -> bool:
        return any(
            n is node and slot.dim is None and not slot.state and len(shape_of(n)) == 2
            for n, slot in self.slots
        )

    def _state_product(self, x: Any, weight: Any, transposed: bool) -> Any:
        """Add the product of `x`, which depends on a state, with a matrix that all steps read."""
        if not self._is_weight(weight) or len(shape_of(x)) != 2:
            raise NoLoop("a product with the state")
        (slot,) = (slot for n, slot in self.slots if n is weight)
        assert slot.leaf is not None
        outer = self.leaves[slot.leaf]
        while called(outer) in ("t", "transpose", "permute") and shape_of(outer):
            swapped = called(outer) != "permute" or list(outer.args[1]) == [1, 0]
            transposed, outer = transposed != swapped, outer.args[0]
        if shape_of(x)[1] > MOST_DEPTH or math.prod(shape_of(outer)) > MOST_DEPTH * MOST_COLUMNS:
            raise NoLoop("a product with a large matrix")
        self.products += 1
        return self.call(state_product, (x, self.whole(outer)), {"transposed": transposed})
