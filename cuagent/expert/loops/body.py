"""Write the body of a loop as a torch.fx graph over slices of the tensors that all steps read.

The slice of an elementwise result is computed in the body from slices of its operands, so that the
whole result (exp(delta * A) of a selective scan, with all states of all steps) is never stored.
Products with a vector become elementwise products and sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cuagent.expert.capture.editing import Edit, called, is_item
from cuagent.expert.graph.lowering import argument, shape_of
from cuagent.expert.loops.roll import Local, Progression, Rolled, Varying
from cuagent.expert.loops.spec import Slot, state_product

MOST_REPEATED = 32
"""Most times that an elementwise value outside of the loop is computed again in the body."""
CASTS = {"_to_copy", "to"}
COPIES = {"clone", "contiguous", "alias", "detach", "lift_fresh_copy"}
HOISTED = {"linear", "matmul", "mm", "addmm"}
MOST_PRODUCT = 1024
"""Largest extent of a matrix that is multiplied with a state."""
PRODUCTS = {"linear", "matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "dot"}


class NoLoop(Exception):
    """The body has an operator that a loop kernel does not compute."""


class Body:
    """A torch.fx graph of one step; `leaves` are the nodes outside that it reads."""

    def __init__(self, loop: Rolled, edit: Edit) -> None:
        import torch

        self.loop, self.edit, self.graph = loop, edit, torch.fx.Graph()
        self.count = len(loop.steps)
        self.products = 0
        """Products of values of the loop with matrices."""
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
        if self.is_hoisted(position):
            whole, dim = self.all_steps(Local(position, 0))
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
        base, dim, first, step, keeps = _slices(nodes)
        value = self.at(base, dim, first, step)
        return self._unsqueezed(value, dim) if keeps else value

    def is_hoisted(self, position: int) -> bool:
        """Return True for a product that no state enters: one product computes it for all steps."""
        name, loop = called(self.loop.steps[0][position]), self.loop
        return name in HOISTED and loop.timed[position] and not loop.is_carried(position)

    def all_steps(self, pattern: Any) -> tuple[Any, int]:
        """Return a node outside of the loop with a value of all steps, and the steps' dimension."""
        import torch

        aten, loop = torch.ops.aten, self.loop
        if isinstance(pattern, Varying):
            base, dim, first, step, keeps = _slices(pattern.nodes)
            if keeps:
                raise NoLoop("slices that keep their dimension")
            return self._range(base, dim, first, step), dim
        position = pattern.position
        if ("all", position) in self.known:
            found: tuple[Any, int] = self.known["all", position]
            return found
        node, (args, options) = loop.steps[0][position], loop.arguments[position]
        sequence = self._sequence(position)
        if sequence is not None and called(node) == "select":
            base, dim, first, step = sequence
            found = self._range(base, dim, first, step), dim
        elif self.is_hoisted(position):
            name, bias = called(node), None
            if name == "addmm":
                bias, *args = args
            if options or not isinstance(args[0], Local | Varying) or not _is_matrix(args[1]):
                raise NoLoop(f"{name} in the body")
            inner, dim = self.all_steps(args[0])
            if dim == len(shape_of(inner)) - 1:
                raise NoLoop("a product along the steps")
            if name == "linear":
                whole = self.edit.call(aten.linear.default, (inner, *args[1:]))
            else:
                whole = self.edit.call(aten.matmul.default, (inner, args[1]))
            if bias is not None:
                whole = self.edit.call(aten.add.Tensor, (whole, bias))
            found = whole, dim
        elif is_pointwise(node):
            found = self._pointwise_steps(node, args, options)
        else:
            raise NoLoop(f"{called(node)} before a product")
        self.known["all", position] = found
        return found

    def _pointwise_steps(self, node: Any, args: Any, options: Any) -> tuple[Any, int]:
        """Return an elementwise operator applied to all steps."""
        from torch.utils import _pytree as pytree

        rank = len(shape_of(node))
        leaves, spec = pytree.tree_flatten((args, options))
        values, dims = [], set()
        for leaf in leaves:
            value = leaf
            if isinstance(leaf, Local | Varying):
                value, dim = self.all_steps(leaf)
                dims.add(dim)
            if hasattr(value, "meta"):
                short = len(shape_of(value)) == rank + isinstance(leaf, Local | Varying)
                if not short and len(shape_of(value)) > 1:
                    raise NoLoop("operands of other ranks")
            values.append(value)
        if len(dims) != 1 or dims == {rank}:
            raise NoLoop("steps along other dimensions")
        if any(hasattr(v, "meta") and len(shape_of(v)) == rank > 1 for v in values):
            raise NoLoop("operands of other ranks")
        new_args, new_options = pytree.tree_unflatten(values, spec)
        return self.edit.call(node.target, new_args, new_options), dims.pop()

    def _range(self, base: Any, dim: int, first: int, step: int) -> Any:
        """Return the slices of all steps of a tensor, in the order of the steps."""
        import torch

        aten = torch.ops.aten
        if (first, step, self.count) == (0, 1, shape_of(base)[dim]):
            return base
        low = first if step > 0 else first + (self.count - 1) * step
        end = low + (self.count - 1) * abs(step) + 1
        part = self.edit.call(aten.slice.Tensor, (base, dim, low, end, abs(step)))
        return part if step > 0 else self.edit.call(aten.flip.default, (part, [dim]))

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
        return self._placeholder(
            slot, value.new_empty([*value.shape[:dim], *value.shape[dim + 1 :]])
        )

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
        if name == "linear":
            value = self._state_product(args[0], args[1], True)
            return value if len(args) < 3 else self.call(aten.add.Tensor, (value, args[2]))
        if name == "addmm" and not options:
            value = self._state_product(args[1], args[2], False)
            return self.call(aten.add.Tensor, (value, args[0]))
        if name in ("matmul", "bmm", "mv", "mm"):
            if shape_of(args[1])[-1] > 1 and self._is_weight(args[1]):
                return self._state_product(args[0], args[1], False)
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

    def _is_weight(self, node: Any) -> bool:
        return any(
            n is node and slot.dim is None and not slot.state and len(shape_of(n)) == 2
            for n, slot in self.slots
        )

    def _state_product(self, x: Any, weight: Any, transposed: bool) -> Any:
        """Add the product of a matrix that depends on the state with one that all steps read."""
        if not self._is_weight(weight) or len(shape_of(x)) != 2:
            raise NoLoop("a product with the state")
        (slot,) = (slot for n, slot in self.slots if n is weight)
        assert slot.leaf is not None
        outer = self.leaves[slot.leaf]
        while called(outer) in ("t", "transpose", "permute") and shape_of(outer):
            swapped = called(outer) != "permute" or list(outer.args[1]) == [1, 0]
            transposed, outer = transposed != swapped, outer.args[0]
        if max(shape_of(outer)) > MOST_PRODUCT:
            raise NoLoop("a product with a large matrix")
        self.products += 1
        return self.call(state_product, (x, self.whole(outer)), {"transposed": transposed})

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
            node.meta["val"] = torch.empty(
                example.shape, dtype=example.dtype, device=example.device
            )
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
    return (
        torch.Tag.pointwise in target.tags and torch.Tag.nondeterministic_seeded not in target.tags
    )


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


def _is_matrix(node: Any) -> bool:
    return hasattr(node, "meta") and len(shape_of(node)) == 2


def _slices(nodes: Sequence[Any]) -> tuple[Any, int, int, int, bool]:
    """Return base, dimension, first index and step of slices, and if they keep the dimension."""
    if all(is_item(n) and called(n.args[0]) in ("unbind", "split", "chunk") for n in nodes):
        sources = {n.args[0] for n in nodes}
        (source, *others) = sources
        base, name = source.args[0], called(source)
        dim = argument(source, 1 if name == "unbind" else 2, "dim", 0) % len(shape_of(base))
        whole = len(source.meta["val"]) == shape_of(base)[dim]
        if not others and whole:
            return (base, dim, *_progression([n.args[1] for n in nodes]), name != "unbind")
    if all(called(n) == "select" for n in nodes):
        (base, dim), *others = {(n.args[0], n.args[1]) for n in nodes}
        if not others:
            dim %= len(shape_of(base))
            indices = [n.args[2] % shape_of(base)[dim] for n in nodes]
            return (base, dim, *_progression(indices), False)
    raise NoLoop("another tensor in each step")


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
