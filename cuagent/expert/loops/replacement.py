"""Replace one rolled loop by a call of `spec.time_loop`, and make its readers read the results.

A value that is read from several steps becomes a result with a dimension for the steps. Elementwise
operations on such a result become part of the loop.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cuagent.expert.capture.editing import Edit, called
from cuagent.expert.graph.graph import FLOATS, ITEM_BYTES, Graph, Kind, Node
from cuagent.expert.graph.lowering import (
    LOWERINGS,
    Lowering,
    argument,
    dtype_of,
    operator_name,
    shape_of,
)
from cuagent.expert.loops.body import Body
from cuagent.expert.loops.elements import Elements
from cuagent.expert.loops.roll import Local, Progression, Rolled
from cuagent.expert.loops.slices import NoLoop, is_pointwise
from cuagent.expert.loops.spec import Loop, Result, time_loop, weights_of

MOST_LEAVES = 16
"""Largest number of outer tensors that one loop may read."""


@dataclass
class _Output:
    """A value of the body that nodes outside of the loop read.

    The loop's result replaces `nodes`.
    """

    value: Any
    result: Result
    nodes: list[Any] = field(default_factory=list)


class Replacement:
    """Replacement of one loop. The graph is changed only after all checks have passed.

    A position is the index of an operator in the body.
    """

    def __init__(self, edit: Edit, loop: Rolled, name: str) -> None:
        self.edit, self.loop, self.name = edit, loop, name
        self.steps, self.count = loop.steps, len(loop.steps)
        self.place = {n: (k, q) for k, step in enumerate(loop.steps) for q, n in enumerate(step)}
        edit.graph.inserting_before(loop.steps[0][0])
        self.body = Body(loop, edit)
        self.outputs: list[_Output] = []
        self.sequences: dict[int, _Output] = {}
        """Outputs with an operator's values in all steps; the key is the operator's position.

        For slices that are written into a tensor the key is -1 - position.
        """
        self.scatters: dict[Any, tuple[_Output, int, int]] = {}
        """(output, dimension, first index) of the slices that the steps write into a tensor.

        The key is the tensor's node in the last step.
        """

    def run(self, device: str) -> None:
        for position in range(len(self.steps[0])):
            self._add_readers(position)
        if not self.outputs:
            raise NoLoop("no result is read")
        for output in list(self.outputs):
            self._grow(output)
        self.outputs = [o for o in self.outputs if o.nodes or o in self._kept()]
        spec = self._spec()
        if self.body.products and device != "cpu":
            raise NoLoop("products of the state have no kernel for this device")
        self._replace(spec)

    def _kept(self) -> list[_Output]:
        return [*self.sequences.values()]

    def _outside(self, node: Any) -> list[Any]:
        return [user for user in node.users if user not in self.place]

    def _add_readers(self, position: int) -> None:
        """Add outputs for the values of the operator at `position` that nodes outside of the loop
        read.
        """
        readers = [
            (k, u) for k in range(self.count) for u in self._outside(self.steps[k][position])
        ]
        if not readers:
            return
        if self._is_scatter(position):
            self._add_scatter(position, readers)
            return
        lists = [u for _, u in readers if called(u) in ("stack", "cat") and len(u.args[0]) > 1]
        if not lists and all(k == self.count - 1 for k, _ in readers):
            node = self.steps[-1][position]
            value = self.body.value(position)
            self.outputs.append(_Output(value, Result(None), [node]))
            return
        self._add_sequence(position, list(dict.fromkeys(lists)), readers)

    def _add_sequence(
        self, position: int, lists: Sequence[Any], readers: Sequence[tuple[int, Any]]
    ) -> None:
        value = self.body.value(position)
        result = Result(0)
        if lists:
            user, rank = lists[0], len(shape_of(self.steps[0][position]))
            dim = argument(user, 1, "dim", 0) % (rank + (called(user) == "stack"))
            place = self._segment(user.args[0], position)
            result = Result(dim, reverse=place is not None and place[1] < 0)
            whole = place is not None and len(user.args[0]) == self.count
            single = all(u is user for _, u in readers)
            if called(user) == "cat" and shape_of(self.steps[0][position])[dim] != 1:
                whole = False
            if whole and single:
                if called(user) == "cat":
                    value = self._squeezed(value, dim)
                self.outputs.append(_Output(value, result, [user]))
                return
        output = _Output(value, result)
        self.outputs.append(output)
        self.sequences[position] = output

    def _squeezed(self, value: Any, dim: int) -> Any:
        import torch

        return self.body.call(torch.ops.aten.select.int, (value, dim, 0))

    def _segment(self, items: Sequence[Any], position: int) -> tuple[int, int] | None:
        """Test if `items` are the values of the operator at `position` in all steps, in order.

        Returns the first step and the direction: 1, or -1 from the last step to the first. None for
        other items.
        """
        found = [self.place.get(item) for item in items]
        ks = [f[0] if f and f[1] == position else -1 for f in found]
        if ks == list(range(self.count)):
            return 0, 1
        if ks == list(range(self.count))[::-1]:
            return self.count - 1, -1
        return None

    def _is_scatter(self, position: int) -> bool:
        """Return True if the operator at `position` writes one slice of a tensor in each step."""
        args, _ = self.loop.arguments[position]
        name = called(self.steps[0][position])
        chained = name == "select_scatter" and args[0] == Local(position, 1)
        return chained and isinstance(args[3], Progression)

    def _add_scatter(self, position: int, readers: Sequence[tuple[int, Any]]) -> None:
        (args, _), last = self.loop.arguments[position], self.steps[-1][position]
        source, index = args[1], args[3]
        if any(k < self.count - 1 for k, _ in readers) or not isinstance(source, Local):
            raise NoLoop("a tensor is read between writes of its slices")
        if source.lag or abs(index.step) != 1 or dtype_of(last) not in FLOATS:
            raise NoLoop("slices are written in another order")
        dim = args[2] % len(shape_of(last))
        output = _Output(self.body.value(source.position), Result(dim, index.step < 0))
        self.outputs.append(output)
        first = index.first if index.step > 0 else index.first - self.count + 1
        if first < 0:
            first += shape_of(last)[dim]
        if self.count == shape_of(last)[dim]:
            output.nodes.append(last)
        else:
            self.scatters[last] = (output, dim, first)
            self.sequences[-1 - position] = output

    def _grow(self, output: _Output) -> None:
        """Move elementwise operations on an output with all steps into the loop's body."""
        if output.result.dim is None or len(output.nodes) != 1:
            return
        dim, (node,) = output.result.dim, output.nodes
        if self.count != shape_of(node)[dim]:
            return
        first, step = (self.count - 1, -1) if output.result.reverse else (0, 1)
        grown = {node: output.value}
        depends = self._dependents()
        for user in self.edit.nodes:
            sources = list(user.all_input_nodes)
            joined = any(s in grown for s in sources) and is_pointwise(user)
            if not joined or shape_of(user) != shape_of(node) or dtype_of(user) not in FLOATS:
                continue
            if any(s in depends and s not in grown for s in sources):
                continue
            self._join(user, grown, dim, first, step)
        self.outputs.remove(output)
        for member, value in grown.items():
            if any(u not in grown for u in member.users):
                self.outputs.append(_Output(value, output.result, [member]))

    def _join(self, user: Any, grown: dict[Any, Any], dim: int, first: int, step: int) -> None:
        import torch

        body = self.body
        leaves = len(body.leaves)

        def part(arg: Any) -> Any:
            return grown[arg] if arg in grown else body._part(arg, user, dim, first, step)

        args, options = torch.fx.map_arg((user.args, dict(user.kwargs)), part)
        value = body.apply(user, args, options)
        if len(body.leaves) <= max(leaves, MOST_LEAVES):
            grown[user] = value

    def _dependents(self) -> set[Any]:
        """Return the nodes of the loop, and all nodes that depend on them."""
        found = set(self.place)
        for node in self.edit.nodes:
            if any(source in found for source in node.all_input_nodes):
                found.add(node)
        return found

    def _spec(self) -> Loop:
        """Return the `Loop` with the lowered body.

        Raises NoLoop if an operator has no lowering rule.
        """
        body, updates = self.body, []
        done: list[int] = []
        # The update of a state may read further states.
        while len(done) < len(body.states):
            for position in list(body.states):
                if position not in done:
                    done.append(position)
                    updates.append((position, body.value(position)))
        order = {position: k for k, position in enumerate(body.states)}
        updates.sort(key=lambda pair: order[pair[0]])
        if not updates or len(body.leaves) > MOST_LEAVES:
            raise NoLoop("no state, or too many tensors")
        returned = (*(value for _, value in updates), *(o.value for o in self.outputs))
        if not body.products and all(slot.dim is None for _, slot in body.slots):
            raise NoLoop("no slice of a step is read: one kernel of all operators is better")
        body.graph.output(returned)
        graph, names = _lowered(body.graph, returned)
        slots = {names[node]: slot for node, slot in body.slots}
        results = tuple(o.result for o in self.outputs)
        loop = Loop(self.count, graph, slots, results, body.graph)
        weights = weights_of(loop)
        matrices = {leaf for leaf, _ in weights}
        read = [loop.slots[e.node.name] for e in Elements(loop).elements if e.kind == "load"]
        if len(matrices) < len(weights) or any(slot.leaf in matrices for slot in read):
            raise NoLoop("a matrix that is read in two ways")
        return loop

    def _replace(self, spec: Loop) -> None:
        edit = self.edit
        edit.graph.inserting_before(self.steps[-1][-1])
        leaves = tuple(self.body.leaves)
        example = self.steps[0][0]
        call = edit.call(time_loop, (leaves,), {"loop": spec}, (), example)
        call.name = self.name
        call.meta["val"] = tuple(self._example(output) for output in self.outputs)
        items = {}
        for k, output in enumerate(self.outputs):
            items[id(output)] = item = edit.call(operator.getitem, (call, k))
            for node in output.nodes:
                edit.replace(node, item)
        for position, output in self.sequences.items():
            if position >= 0:
                self._replace_readers(position, output, items[id(output)])
        for last, (output, dim, first) in self.scatters.items():
            self._replace_scatter(last, items[id(output)], dim, first)

    def _example(self, output: _Output) -> Any:
        value, dim = output.value.meta["val"], output.result.dim
        shape = list(value.shape)
        if dim is not None:
            shape.insert(dim, self.count)
        like = self.steps[0][0].meta["val"]
        return like.new_empty(shape, dtype=value.dtype)

    def _replace_scatter(self, last: Any, item: Any, dim: int, first: int) -> None:
        import torch

        initial = self.steps[0][self.place[last][1]].args[0]
        args = (initial, item, dim, first, first + self.count)
        self.edit.replace(last, self.edit.call(torch.ops.aten.slice_scatter.default, args))

    def _replace_readers(self, position: int, output: _Output, item: Any) -> None:
        """Make the readers of the values of the operator at `position` read the loop's result
        `item`.

        A stack or cat reads ranges of steps, all other readers single steps.
        """
        import torch

        aten, edit = torch.ops.aten, self.edit
        dim = output.result.dim
        assert dim is not None

        def step(k: int) -> Any:
            place = self.count - 1 - k if output.result.reverse else k
            return edit.call(aten.select.int, (item, dim, place))

        readers = [u for s in self.steps for u in self._outside(s[position])]
        for user in dict.fromkeys(readers):
            if called(user) in ("stack", "cat"):
                self._replace_list(user, position, output, item)
        for k, nodes in enumerate(self.steps):
            outside = self._outside(nodes[position])
            if outside:
                value = step(k)
                for user in outside:
                    user.replace_input_with(nodes[position], value)

    def _replace_list(self, user: Any, position: int, output: _Output, item: Any) -> None:
        """Replace consecutive steps in the list of a stack or cat by ranges of the result
        `item`.
        """
        import torch

        aten, edit = torch.ops.aten, self.edit
        shape = shape_of(self.steps[0][position])
        stacked, along = called(user) == "stack", output.result.dim
        dim = argument(user, 1, "dim", 0) % (len(shape) + stacked)
        if output.result.reverse or dim != along:
            return
        parts: list[Any] = []
        items, k = list(user.args[0]), 0
        while k < len(items):
            first = self.place.get(items[k])
            end = k
            if first and first[1] == position:
                while end < len(items) and self.place.get(items[end]) == (
                    first[0] + end - k,
                    position,
                ):
                    end += 1
            if end > k + 1 and first:
                range_ = (item, dim, first[0], first[0] + end - k)
                part = edit.call(aten.slice.Tensor, range_)
                if not stacked:
                    merged = [*shape[:dim], (end - k) * shape[dim], *shape[dim + 1 :]]
                    part = edit.call(aten.reshape.default, (part, merged))
                parts.append(part)
                k = end
            else:
                one = items[k]
                parts.append(edit.call(aten.unsqueeze.default, (one, dim)) if stacked else one)
                k += 1
        if len(parts) < len(items):
            joined = parts[0] if len(parts) == 1 else edit.call(aten.cat.default, (parts, dim))
            edit.replace(user, joined)


def _lowered(program: Any, returned: Sequence[Any]) -> tuple[Graph, dict[Any, str]]:
    """Return a loop's body as the expert's graph, and the name of each placeholder's input node in
    it.

    Raises NoLoop for operators without a lowering rule and for dtypes without arithmetic.
    """
    low = Lowering()
    inputs: dict[Any, str] = {}
    for fx in program.nodes:
        if fx.op == "output":
            continue
        if dtype_of(fx) not in ITEM_BYTES:
            raise NoLoop(f"{dtype_of(fx)} in the body")
        if fx.op == "placeholder":
            name = low.readable_name(fx.name)
            inputs[fx] = low.add(Node(name, Kind.INPUT, "", (), shape_of(fx), dtype_of(fx)))
            low.values[fx.name] = name
            continue
        low.origin = low.readable_name(fx.name)
        rule = LOWERINGS.get(operator_name(fx))
        value = rule(low, fx) if rule else None
        if value is None:
            raise NoLoop(f"{operator_name(fx)} in the body")
        low.values[fx.name] = low.stored_as(value, dtype_of(fx))
    names = [low.values[node.name] for node in returned]
    if not all(isinstance(name, str) and low.by_name[name].dtype in FLOATS for name in names):
        raise NoLoop("a state or result that is no floating tensor")
    return Graph(tuple(low.nodes), tuple(map(str, names))), inputs
