"""Write the body of a loop as a torch.fx graph over slices of the tensors that all steps read.

The slice of an elementwise result is computed in the body from slices of its operands, so that the
whole result (exp(delta * A) of a selective scan, with all states of all steps) is never stored.
Products with a vector become elementwise products and sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cuagent.expert.capture.editing import called, is_item
from cuagent.expert.graph.lowering import argument, shape_of
from cuagent.expert.loops.roll import Local, Progression, Rolled, Varying
from cuagent.expert.loops.spec import Slot

MOST_REPEATED = 32
"""Most times that an elementwise value outside of the loop is computed again in the body."""
CASTS = {"_to_copy", "to"}
COPIES = {"clone", "contiguous", "alias", "detach", "lift_fresh_copy"}
PRODUCTS = {"linear", "matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "dot"}


class NoLoop(Exception):
    """The body has an operator that a loop kernel does not compute."""


class Body:
    """A torch.fx graph of one step; `leaves` are the nodes outside that it reads."""

    def __init__(self, loop: Rolled, stored: dict[int, tuple[Any, int]] | None = None) -> None:
        import torch

        self.loop, self.graph = loop, torch.fx.Graph()
        self.count = len(loop.steps)
        self.stored = stored or {}
        """Values that are computed for all steps before the loop, with the dimension of steps."""
        self.leaves: list[Any] = []
        self.slots: list[tuple[Any, Slot]] = []
        """Placeholder and slot of each value from outside."""
        self.states: dict[int, Any] = {}
        self.known: dict[Any, Any] = {}
        state_sizes = [math.prod(shape_of(loop.steps[0][q])) for q in loop.initial]
        self.work = self.count * max(state_sizes, default=1)

    def state(self, position: int) -> Any:
        """Return the placeholder with the value of `position` in the step before."""
        if position not in self.states:
            example = self.loop.steps[1][position]
            initial = self.loop.initial[position]
            if hasattr(initial, "meta"):
                if shape_of(initial) != shape_of(example):
                    raise NoLoop("the first state has another shape")
                number = _filling(initial)
                leaf = self._leaf(initial) if number is None else None
                slot = Slot(leaf, state=True, number=number or 0.0)
            else:
                slot = Slot(None, state=True, number=float(initial))
            self.states[position] = self._placeholder(slot, example.meta["val"])
        return self.states[position]

    def value(self, position: int) -> Any:
        """Return the node of the body with the value of an operator of the loop."""
        if position not in self.known:
            self.known[position] = self._value(position)
        return self.known[position]

    def _value(self, position: int) -> Any:
        from torch.utils import _pytree as pytree

        node = self.loop.steps[0][position]
        if position in self.stored:
            whole, dim = self.stored[position]
            return self.at(whole, dim, 0, 1)
        if not self.loop.timed[position]:
            return self.whole(node)
        args, options = self.loop.arguments[position]
        if called(node) == "copy":
            # The value before, a slice of the result, gives shape and dtype alone.
            return self._copied(node, self._operand(args[1]))
        sequence = self._sequence(position)
        if sequence is not None:
            base, dim, first, step = sequence
            value = self.at(base, dim, first, step)
            return value if called(node) == "select" else self._unsqueezed(value, dim)
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

    def _sequence(self, position: int) -> tuple[Any, int, int, int] | None:
        """Return base, dimension, first index and step of a slice of a tensor that moves on."""
        node = self.loop.steps[0][position]
        (args, _), name = self.loop.arguments[position], called(node)
        if name not in ("select", "slice") or not any(isinstance(a, Progression) for a in args):
            return None
        base = args[0]
        if isinstance(base, Local) and not base.lag and not self.loop.timed[base.position]:
            base = self.loop.steps[0][base.position]
        if not hasattr(base, "meta"):
            raise NoLoop("a slice of a value of the loop")
        dim = node.args[1] % len(shape_of(base))
        extent = shape_of(base)[dim]
        indices = [range(extent)[self._index(step[position])] for step in self.loop.steps]
        if name == "slice" and shape_of(node)[dim] != 1:
            raise NoLoop("slices of more than one element")
        return (base, dim, *_progression(indices))

    @staticmethod
    def _index(node: Any) -> int:
        return int(node.args[2])

    def _family(self, nodes: Sequence[Any]) -> Any:
        """Return the value of a step from nodes outside of the loop, one for each step."""
        if all(is_item(n) and called(n.args[0]) == "unbind" for n in nodes):
            sources = {n.args[0] for n in nodes}
            if len(sources) == 1:
                (source,) = sources
                base = source.args[0]
                dim = argument(source, 1, "dim", 0) % len(shape_of(base))
                return self.at(base, dim, *_progression([n.args[1] for n in nodes]))
        if all(is_item(n) and called(n.args[0]) in ("split", "chunk") for n in nodes):
            sources = {n.args[0] for n in nodes}
            if len(sources) == 1:
                (source,) = sources
                base = source.args[0]
                dim = argument(source, 2, "dim", 0) % len(shape_of(base))
                if shape_of(nodes[0])[dim] == 1 and len(source.meta["val"]) == shape_of(base)[dim]:
                    value = self.at(base, dim, *_progression([n.args[1] for n in nodes]))
                    return self._unsqueezed(value, dim)
        if all(called(n) == "select" for n in nodes):
            bases = {(n.args[0], n.args[1]) for n in nodes}
            if len(bases) == 1:
                ((base, dim),) = bases
                dim %= len(shape_of(base))
                indices = [n.args[2] % shape_of(base)[dim] for n in nodes]
                return self.at(base, dim, *_progression(indices))
        raise NoLoop("another tensor in each step")

    def whole(self, node: Any) -> Any:
        """Return the placeholder of a tensor that all steps read."""
        key = (node, None)
        if key not in self.known:
            slot = Slot(self._leaf(node))
            self.known[key] = self._placeholder(slot, node.meta["val"])
        return self.known[key]

    def at(self, node: Any, dim: int, first: int, step: int) -> Any:
        """Return the slice of a tensor along `dim` at the index `first + k * step` of step k."""
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
                return self._einsum(values, letters, result.replace(result[dim], ""))
            case "flip" if node.args[1] == [dim] or node.args[1] == [dim - rank]:
                last = shape_of(node)[dim] - 1
                return self.at(node.args[0], dim, last - first, -step)
            case "unsqueeze":
                place = node.args[1] % rank
                if place != dim:
                    inner = self.at(node.args[0], dim - (place < dim), first, step)
                    return self._unsqueezed(inner, place - (place > dim))
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
        slot = Slot(self._leaf(node), dim, first, step)
        value = node.meta["val"]
        return self._placeholder(slot, value.new_empty([*value.shape[:dim], *value.shape[dim + 1 :]]))

    def _is_cheap(self, node: Any) -> bool:
        """Return True if computing a value in the body repeats it a few times at most."""
        return MOST_REPEATED * math.prod(shape_of(node)) >= self.work

    def _part(self, arg: Any, node: Any, dim: int, first: int, step: int) -> Any:
        """Return the slice of an operand of an elementwise operator."""
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
        """Add an operator to the body; products and compound operators in their parts."""
        import torch

        aten, name = torch.ops.aten, called(node)
        if name == "einsum":
            operands, result = equation(args[0])
            return self._einsum(list(args[1]), operands, result)
        if name in ("matmul", "bmm", "mv", "mm"):
            return self._product(args[0], args[1])
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
        """Return a value with the shape and dtype of a copy of it."""
        import torch

        aten, like = torch.ops.aten, node.meta["val"]
        if shape_of(source) != shape_of(node):
            source = self.call(aten.expand.default, (source, list(shape_of(node))))
        if source.meta["val"].dtype == like.dtype:
            return source
        return self.call(aten._to_copy.default, (source,), {"dtype": like.dtype})

    def _product(self, a: Any, b: Any) -> Any:
        """Add a product of matrices of which one has a single row or column, or of vectors."""
        import torch

        aten, ranks = torch.ops.aten, (len(shape_of(a)), len(shape_of(b)))
        if ranks[0] < 2 and ranks[1] < 2:
            return self._sum(self.call(aten.mul.Tensor, (a, b)), 0, False)
        if ranks[1] == 1:
            return self._sum(self.call(aten.mul.Tensor, (a, b)), -1, False)
        if ranks[0] == 1:
            column = self.call(aten.unsqueeze.default, (a, 1))
            return self._sum(self.call(aten.mul.Tensor, (column, b)), -2, False)
        rows, depth, columns = shape_of(a)[-2], shape_of(a)[-1], shape_of(b)[-1]
        if depth == 1:
            return self.call(aten.mul.Tensor, (a, b))
        if columns == 1:
            other = self.call(aten.transpose.int, (b, -1, -2))
            return self._sum(self.call(aten.mul.Tensor, (a, other)), -1, True)
        if rows == 1:
            other = self.call(aten.transpose.int, (a, -1, -2))
            return self._sum(self.call(aten.mul.Tensor, (other, b)), -2, True)
        raise NoLoop("a product with the state")

    def _einsum(self, values: list[Any], words: list[str], result: str) -> Any:
        """Add an einsum as elementwise products and one sum."""
        import torch

        aten = torch.ops.aten
        summed = [c for c in dict.fromkeys("".join(words)) if c not in result]
        letters = result + "".join(summed)
        total = None
        for value, word in zip(values, words, strict=True):
            order = sorted(range(len(word)), key=lambda k: letters.index(word[k]))
            if order != sorted(order):
                value = self.call(aten.permute.default, (value, order))
            for k, letter in enumerate(letters):
                if letter not in word:
                    value = self._unsqueezed(value, k)
            total = value if total is None else self.call(aten.mul.Tensor, (total, value))
        if not summed:
            return total
        dims = list(range(len(result), len(letters)))
        return self.call(aten.sum.dim_IntList, (total, dims))

    def _sum(self, value: Any, dim: int, keep: bool) -> Any:
        import torch

        return self.call(torch.ops.aten.sum.dim_IntList, (value, [dim], keep))

    def _unsqueezed(self, value: Any, dim: int) -> Any:
        import torch

        return self.call(torch.ops.aten.unsqueeze.default, (value, dim))

    def call(self, function: Any, args: Any, options: Any = None) -> Any:
        """Add a call with its traced value."""
        import torch

        node = self.graph.call_function(function, tuple(args), dict(options or {}))
        values = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        mode = torch._guards.detect_fake_mode(values)
        assert mode is not None
        with mode, torch.no_grad():
            node.meta["val"] = function(*values[0], **values[1])
        return node

    def _placeholder(self, slot: Slot, example: Any) -> Any:
        import torch

        before = next(iter(n for n in self.graph.nodes if n.op != "placeholder"), None)
        place = self.graph.inserting_before(before) if before else self.graph.inserting_after(None)
        if before is None:
            node = self.graph.placeholder(f"slot_{len(self.slots)}")
        else:
            with place:
                node = self.graph.placeholder(f"slot_{len(self.slots)}")
        mode = torch._guards.detect_fake_mode([example])
        assert mode is not None
        with mode:
            node.meta["val"] = torch.empty(example.shape, dtype=example.dtype, device=example.device)
        self.slots.append((node, slot))
        return node

    def _leaf(self, node: Any) -> int:
        if node not in self.leaves:
            self.leaves.append(node)
        return self.leaves.index(node)


def is_pointwise(node: Any) -> bool:
    """Return True for an elementwise operator without random numbers."""
    import torch

    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in target.tags and torch.Tag.nondeterministic_seeded not in target.tags


def equation(text: str) -> tuple[list[str], str]:
    """Return the letters of an einsum's operands and result; raise NoLoop for other forms."""
    left, arrow, result = text.replace(" ", "").partition("->")
    operands = left.split(",")
    words = [*operands, result]
    if not arrow or any("." in w or len(set(w)) < len(w) for w in words):
        raise NoLoop(f"einsum {text}")
    if not set(result) <= set("".join(operands)):
        raise NoLoop(f"einsum {text}")
    return operands, result


def outer_product(node: Any) -> tuple[list[str], str] | None:
    """Return the letters of an einsum that sums over none; None for any other."""
    try:
        operands, result = equation(node.args[0])
    except NoLoop:
        return None
    return (operands, result) if set("".join(operands)) == set(result) else None


def _progression(indices: Sequence[int]) -> tuple[int, int]:
    step = indices[1] - indices[0]
    if any(b - a != step for a, b in zip(indices, indices[1:], strict=False)):
        raise NoLoop("steps in another order")
    return indices[0], step


def _filling(node: Any) -> float | None:
    """Return the number that fills a tensor; None for other tensors."""
    match called(node):
        case "zeros" | "new_zeros" | "zeros_like":
            return 0.0
        case "ones" | "new_ones" | "ones_like":
            return 1.0
        case "full" | "new_full" | "full_like":
            value = argument(node, 2 if called(node) == "new_full" else 1, "fill_value")
            return float(value) if isinstance(value, int | float) else None
    return None
