"""Compute values of a loop that depend on no state by one call for all steps, before the loop."""

from __future__ import annotations

from typing import Any

from cuagent.expert.capture.editing import Edit, called
from cuagent.expert.graph.lowering import shape_of
from cuagent.expert.loops.roll import Local, Progression, Rolled, Varying
from cuagent.expert.loops.slices import NoLoop, is_matrix, is_pointwise, progression, slices

HOISTED = {"linear", "matmul", "mm", "addmm"}


class AllSteps:
    """Adds nodes before a loop that compute, for all steps together, values that depend on no
    state.
    """

    def __init__(self, loop: Rolled, edit: Edit) -> None:
        self.loop, self.edit, self.count = loop, edit, len(loop.steps)
        self.known: dict[int, tuple[Any, int]] = {}

    def is_hoisted(self, position: int) -> bool:
        """Return True if the operator is a product with matrices that depends on no state of the
        loop.

        One product then computes its values for all steps.
        """
        name, loop = called(self.loop.steps[0][position]), self.loop
        return name in HOISTED and loop.timed[position] and not loop.is_carried(position)

    def node(self, pattern: Any) -> tuple[Any, int]:
        """Return a node that stacks the values of an argument in all steps of the loop, and the
        dimension along which it stacks them.

        `pattern` is the argument in the loop body: a result of the body (`Local`) or a slice that
        moves from step to step (`Varying`).
        """
        import torch

        aten, loop = torch.ops.aten, self.loop
        if isinstance(pattern, Varying):
            base, dim, first, step, keeps = slices(pattern.nodes)
            if keeps:
                raise NoLoop("slices that keep their dimension")
            return self._range(base, dim, first, step), dim
        position = pattern.position
        if position in self.known:
            found: tuple[Any, int] = self.known[position]
            return found
        node, (args, options) = loop.steps[0][position], loop.arguments[position]
        sequence = sequence_of(loop, position)
        if sequence is not None and called(node) == "select":
            base, dim, first, step = sequence
            found = self._range(base, dim, first, step), dim
        elif self.is_hoisted(position):
            name, bias = called(node), None
            if name == "addmm":
                bias, *args = args
            if options or not isinstance(args[0], Local | Varying) or not is_matrix(args[1]):
                raise NoLoop(f"{name} in the body")
            inner, dim = self.node(args[0])
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
        self.known[position] = found
        return found

    def _pointwise_steps(self, node: Any, args: Any, options: Any) -> tuple[Any, int]:
        """Add one elementwise operator that computes the values of `node` in all steps of the loop.

        Returns the added node, and the dimension along which it stacks the steps. `args` and
        `options` are the arguments of the operator in the loop's body.
        """
        from torch.utils import _pytree as pytree

        rank = len(shape_of(node))
        leaves, spec = pytree.tree_flatten((args, options))
        values, dims = [], set()
        for leaf in leaves:
            value = leaf
            if isinstance(leaf, Local | Varying):
                value, dim = self.node(leaf)
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
        """Return a node with the slices of `base` that the steps read, in the order of the
        steps.
        """
        import torch

        aten = torch.ops.aten
        if (first, step, self.count) == (0, 1, shape_of(base)[dim]):
            return base
        low = first if step > 0 else first + (self.count - 1) * step
        end = low + (self.count - 1) * abs(step) + 1
        part = self.edit.call(aten.slice.Tensor, (base, dim, low, end, abs(step)))
        return part if step > 0 else self.edit.call(aten.flip.default, (part, [dim]))


def sequence_of(loop: Rolled, position: int) -> tuple[Any, int, int, int] | None:
    """Return the tensor that the operator at `position` slices, if each step takes the next slice.

    With it: the sliced dimension, the index in the first step, and the increment from step to step.
    None for other operators, and for slices that are the same in all steps.
    """
    node = loop.steps[0][position]
    (args, _), name = loop.arguments[position], called(node)
    if name not in ("select", "slice") or not any(isinstance(a, Progression) for a in args):
        return None
    base = args[0]
    if isinstance(base, Local) and not base.lag and not loop.timed[base.position]:
        base = loop.steps[0][base.position]
    if not hasattr(base, "meta"):
        raise NoLoop("a slice of a value of the loop")
    dim = node.args[1] % len(shape_of(base))
    extent = shape_of(base)[dim]
    indices = [range(extent)[int(step[position].args[2])] for step in loop.steps]
    if name == "slice" and shape_of(node)[dim] != 1:
        raise NoLoop("slices of more than one element")
    return (base, dim, *progression(indices))
