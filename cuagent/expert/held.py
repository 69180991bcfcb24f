"""Hold values in channels-last memory as channels-last tensors, so that calls need no views.

A node of such a value has the shape of its memory (samples, rows, columns, channels), but torch's
convolutions take and return tensors of the shape (samples, channels, rows, columns). A view takes 1
to 4 us of the host, as long as a launch, and a convolution with a kernel behind it would need
three. A variable therefore holds the tensor that the convolution returns, and the launchers of
kernels take it as it is (`Launcher.last`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cuagent.expert.graph.graph import Kind, Node, contiguous_strides
from cuagent.expert.kernel import KernelCall
from cuagent.expert.method import Computed, Method
from cuagent.expert.prepared import Prepared
from cuagent.expert.values import shape_text

STORED = re.compile(
    r"torch\.permute\((F\.conv(?:_transpose)?2d\(.*\)), \(0, 2, 3, 1\)\)\.contiguous\(\)"
)
"""Matches the text of a convolution whose result is stored in channels-last order; the group is
torch's call."""
READS = ("{0}.permute([0, 3, 1, 2])", "{0}.movedim(-1, 1)")
"""Texts of views of channels-last memory in the order of torch's images."""
BACK, FORTH = ".permute(0, 2, 3, 1)", ".permute(0, 3, 1, 2)"


class Held(Prepared):
    """Writes the Python expressions of values that variables hold as channels-last tensors."""

    def __init__(self, method: Method) -> None:
        super().__init__(method)
        self.held = self._held()
        self.variants: dict[str, str] = {}
        """Python expressions of launchers that take channels-last tensors, by name."""

    def _held(self) -> set[str]:
        """Return the names of the values that a variable holds as a channels-last tensor.

        These are results of convolutions, and results of kernels that convolutions read.
        """
        calls = self.kernels.values()
        on_gpu = all(c.path.endswith(".cu") for c in calls if isinstance(c, KernelCall))
        if self.parts.compile or not on_gpu:
            return set()
        made = [n for s in self.steps if isinstance(s, Computed) for n in s.outputs]
        found = {n for n in made if any(self._is_view(u) for u in self.users[n])}
        found |= {s.name for s in self.steps if isinstance(s, Node) and STORED.fullmatch(s.op)}
        others = {*self.graph.parts, *self.graph.inputs, *self.parts.prepared}
        return {n for n in found - others if self._is_image(self.graph.node(n))}

    def _is_image(self, node: Node) -> bool:
        return len(node.shape) == 4 and node.contiguous and not node.order

    def _is_view(self, node: Node) -> bool:
        return node.kind is Kind.STRIDED and node.op in READS and not self._in_group(node.name)

    def _value(self, name: str) -> str:
        if name in self.held:
            return f"{self._name(name)}{BACK}"
        node = self.graph.node(name)
        if self._is_view(node) and node.inputs[0] in self.held:
            return self._name(node.inputs[0])
        return super()._value(name)

    def _memory(self, tensor: str) -> str:
        return self._name(tensor) if tensor in self.held else super()._memory(tensor)

    def _empty(self, node: Node) -> str:
        if node.name not in self.held:
            return super()._empty(node)
        strides = _of_image(contiguous_strides(node.shape))
        return self._empty_of(_of_image(node.shape), node.dtype, strides)

    def _moved(self, text: str) -> str:
        """Return a Python expression without views that undo each other."""
        for pair in (BACK + FORTH, FORTH + BACK):
            text = text.replace(pair, "")
        return text

    def _stored(self, node: Node) -> str:
        """Return the call of a library's convolution whose result a variable holds.

        The library returns channels-last memory. A copy is made only if it does not.
        """
        found = STORED.fullmatch(node.op)
        assert found is not None
        call = found[1].format(*(self._value(a) for a in node.inputs))
        return f"{call}.contiguous(memory_format=torch.channels_last)"

    def _in_place(self, output: Node, owner: Node) -> str:
        """Return the expression of an output that overwrites the memory of `owner`."""
        if owner.name in self.held and owner.shape == output.shape:
            # The kernel takes the owner's tensor as it is.
            self.held.add(output.name)
            return self._name(owner.name)
        view = "" if owner.shape == output.shape else f".view{shape_text(output.shape)}"
        text = f"{self._value(owner.name)}{view}" if owner.name in self.held else ""
        text = text or f"{self._name(owner.name)}{view}"
        return self._moved(text + (FORTH if output.name in self.held else ""))

    def _launcher(self, call: KernelCall, tensors: Sequence[str]) -> str:
        """Return the name of the launcher that takes these tensors as variables hold them."""
        places = [k for k, name in enumerate(tensors) if name in self.held]
        if not places:
            return call.name
        name = self._unused(f"{call.name}_last_{'_'.join(map(str, places))}")
        self.variants[name] = f"{call.name}.last({', '.join(map(str, places))})"
        return name


def _of_image(values: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes or strides of channels-last memory in the order of torch's images."""
    samples, rows, columns, channels = values
    return samples, channels, rows, columns
