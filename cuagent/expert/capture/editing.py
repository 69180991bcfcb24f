"""Edit a copy of a captured torch.fx graph before it is lowered.

A rewrite replaces operators by calls with equal results. Names of nodes do not change, because
placeholders are found by name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cuagent.expert.capture.export import Captured
from cuagent.expert.graph.lowering import operator_name

ASSERTION = "_assert_tensor_metadata"
"""Name of the operator by which torch.export checks dtypes; it reads tensors and returns
nothing.
"""
MAX_CONSTANT = 1 << 26
"""Largest number of elements of a constant tensor that is evaluated."""


class Edit:
    """A copy of a captured graph, with methods that change it."""

    def __init__(self, captured: Captured) -> None:
        import torch

        self._captured = captured
        self.graph = torch.fx.Graph()
        self._constants: dict[Any, Any] = {}
        copies: dict[Any, Any] = {}
        for node in captured.nodes:
            if operator_name(node) == ASSERTION:
                continue
            copies[node] = self.graph.node_copy(node, lambda n: copies[n])
            copies[node].name = node.name

    @property
    def nodes(self) -> list[Any]:
        """The nodes of the copy, in order."""
        return list(self.graph.nodes)

    @property
    def outputs(self) -> tuple[Any, ...]:
        """Values that the copy returns."""
        *_, last = self.graph.nodes
        return tuple(last.args[0])

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        options: Mapping[str, Any] | None = None,
        shape: Sequence[int] | None = None,
        like: Any = None,
    ) -> Any:
        """Add a call of `function` at the insertion point; return its node.

        `options` are its keyword arguments. The result's shape and dtype are found by tracing, or
        are `shape` and the dtype of `like`.
        """
        import torch

        node = self.graph.call_function(function, tuple(args), dict(options or {}))
        if shape is not None:
            node.meta["val"] = like.meta["val"].new_empty(tuple(shape))
        else:
            values = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            mode = torch._guards.detect_fake_mode(values)
            assert mode is not None
            with mode, torch.no_grad():
                node.meta["val"] = function(*values[0], **values[1])
        return node

    def replace(self, old: Any, new: Any) -> None:
        """Make all nodes that read `old` read `new` instead."""
        old.replace_all_uses_with(new)

    def constant(self, node: Any) -> Any:
        """Return the value of a node that depends on constants alone; None for any other node."""
        if node not in self._constants:
            self._constants[node] = self._evaluated(node)
        return self._constants[node]

    def _evaluated(self, node: Any) -> Any:
        import torch

        if node.op == "placeholder":
            tensor = self._captured.constants.get(node.name)
            return None if tensor is None else tensor.cpu()
        target = node.target
        if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
            return None
        value = node.meta.get("val")
        random = torch.Tag.nondeterministic_seeded in target.tags
        if random or not isinstance(value, torch.Tensor) or value.numel() > MAX_CONSTANT:
            return None
        if any(self.constant(source) is None for source in node.all_input_nodes):
            return None
        args, options = torch.fx.map_arg((node.args, dict(node.kwargs)), self.constant)
        if "device" in options:
            options = {**options, "device": torch.device("cpu"), "pin_memory": False}
        try:
            return target(*args, **options)
        except (RuntimeError, TypeError):
            return None

    def number(self, value: Any) -> float | None:
        """Return a Python number, or the value of a constant with one element; None for anything
        else.
        """
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if not hasattr(value, "meta"):
            return None
        tensor = self.constant(value)
        one = tensor is not None and tensor.numel() == 1
        return float(tensor) if one else None

    def result(self) -> Captured:
        """Return the changed graph, in executable order, without nodes on which no output
        depends.
        """
        needed = set(self.graph.find_nodes(op="output"))
        for node in reversed(self._sorted()):
            if node in needed or node.op == "placeholder":
                needed.update([node, *node.all_input_nodes])
        nodes = tuple(node for node in self._sorted() if node in needed)
        return replace(self._captured, nodes=nodes, outputs=tuple(nodes[-1].args[0]))

    def _sorted(self) -> list[Any]:
        """Return the nodes in executable order, which otherwise is the existing order."""
        done: dict[Any, None] = {}
        for node in self.graph.nodes:
            stack = [node]
            while stack:
                missing = [n for n in stack[-1].all_input_nodes if n not in done]
                if missing and stack[-1] not in done:
                    stack += missing
                else:
                    done.setdefault(stack.pop())
        return list(done)


def called(node: Any) -> str:
    """Return the name of the operator that a node calls; "" for placeholders and results."""
    return operator_name(node) if node.op == "call_function" else ""


def calls_any(captured: Captured, names: Collection[str]) -> bool:
    """Return True if a captured graph calls one of these operators.

    A rewrite asks this first, because the copy of a large graph takes long.
    """
    return any(called(node) in names for node in captured.nodes)


def is_item(node: Any) -> bool:
    """Return True for a node that selects one of several results of an operator (`getitem`)."""
    return node.op == "call_function" and node.target is operator.getitem
