"""Write one step of a loop as a torch.fx graph of elementwise operations and sums."""

from __future__ import annotations

from typing import Any

from cuagent.expert.graph.lowering import shape_of
from cuagent.expert.loops.slices import NoLoop
from cuagent.expert.loops.spec import Slot


class Program:
    """A torch.fx graph of one step.

    `leaves` are the outer nodes whose values its placeholders read.
    """

    def __init__(self) -> None:
        import torch

        self.graph = torch.fx.Graph()
        self.leaves: list[Any] = []
        self.slots: list[tuple[Any, Slot]] = []
        """(placeholder, slot) of each value from outside the step."""

    def call(self, function: Any, args: Any, options: Any = None) -> Any:
        """Add a call of `function`; return its node with traced shape and dtype."""
        import torch

        node = self.graph.call_function(function, tuple(args), dict(options or {}))
        values = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        mode = torch._guards.detect_fake_mode(values)
        assert mode is not None
        with mode, torch.no_grad():
            node.meta["val"] = function(*values[0], **values[1])
        return node

    def placeholder(self, slot: Slot, example: Any) -> Any:
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

    def leaf(self, node: Any) -> int:
        if node not in self.leaves:
            self.leaves.append(node)
        return self.leaves.index(node)

    def product(self, a: Any, b: Any) -> Any:
        """Add a product of vectors, or of matrices of which one has a single row or column.

        It becomes elementwise products and a sum.
        """
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

    def einsum(self, values: list[Any], words: list[str], result: str) -> Any:
        """Add an einsum as elementwise products and one sum; `words` are the letters of each
        operand.
        """
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
                    value = self.unsqueezed(value, k)
            total = value if total is None else self.call(aten.mul.Tensor, (total, value))
        if not summed:
            return total
        dims = list(range(len(result), len(letters)))
        return self.call(aten.sum.dim_IntList, (total, dims))

    def _sum(self, value: Any, dim: int, keep: bool) -> Any:
        import torch

        return self.call(torch.ops.aten.sum.dim_IntList, (value, [dim], keep))

    def unsqueezed(self, value: Any, dim: int) -> Any:
        import torch

        return self.call(torch.ops.aten.unsqueeze.default, (value, dim))
