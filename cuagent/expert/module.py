"""The text of `model_new.py`: a subclass of the reference whose forward calls the kernels.

The reference class travels in the text, so that constructor and state_dict are its own. Values that
depend on parameters alone (folded weights) are made lazily and made again whenever one of those
parameters was replaced or changed in place; they live outside the state_dict. For inputs that the
kernels were not made for, in training and under autograd, the reference's own forward runs.
"""

from __future__ import annotations

import keyword
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cuagent.expert.expressions import PYTHON
from cuagent.expert.fuse import Group, Step
from cuagent.expert.graph import Graph, Kind, Node
from cuagent.expert.nest import Nest

PREPARED = "prepared_"


@dataclass(frozen=True)
class KernelCall:
    """A group as a file in kernels/ with one launcher of the file's name."""

    name: str
    path: str
    text: str
    nest: Nest
    workspace: int = 0
    """Floats of scratch memory that the launcher takes after its tensors."""


@dataclass(frozen=True)
class ModuleText:
    """What `render` needs beside the steps."""

    graph: Graph
    prepared: frozenset[str]
    reference: str
    entry: str
    arguments: tuple[str, ...]
    attribute: Callable[[str], str]
    """state_dict name to the expression that reaches it from `self`."""
    notes: Sequence[str] = ()


def render(parts: ModuleText, steps: Sequence[Step], kernels: Mapping[int, KernelCall]) -> str:
    """`kernels` maps the position of a group in `steps` to its kernel."""
    return "\n".join(_Module(parts, steps, kernels).lines()) + "\n"


class _Module:
    def __init__(
        self, parts: ModuleText, steps: Sequence[Step], kernels: Mapping[int, KernelCall]
    ) -> None:
        self.parts, self.steps, self.kernels = parts, steps, kernels
        self.graph = parts.graph
        self.users = self.graph.users()
        self.consumed: dict[str, str] = {}
        self.kept = self._prepared_for_steps()

    def lines(self) -> list[str]:
        parts = self.parts
        loads = [
            f'{call.name} = load("{call.path}").{call.name}'
            for call in {c.path: c for c in self.kernels.values()}.values()
        ]
        base = parts.entry if parts.entry != "ModelNew" else "Reference"
        notes = [f"    - {note}" for note in parts.notes]
        wanted = ["import torch", "import torch.nn.functional as F"]
        wanted += ["from cuagent.kernels import load"] if loads else []
        return [
            '"""Written by the cuagent expert; the kernels are beside this file."""',
            "",
            *(line for line in wanted if line not in parts.reference.splitlines()),
            parts.reference,
            "",
            "",
            *loads,
            "",
            "",
            f"class ModelNew({base}):",
            f'    """{base} with kernels of its own.',
            *(["", *notes] if notes else []),
            '    """',
            "",
            *textwrap.indent("\n".join(self._fits()), "    ").splitlines(),
            "",
            *textwrap.indent("\n".join(self._forward()), "    ").splitlines(),
            *textwrap.indent("\n".join(self._prepare()), "    ").splitlines(),
        ]

    def _names(self) -> list[str]:
        return list(self.parts.arguments)

    def _fits(self) -> list[str]:
        tests = []
        for name, expression in self.graph.inputs.items():
            node = self.graph.node(name)
            tests.append(
                f"{expression}.shape == {node.shape} and {expression}.dtype is torch.{node.dtype}"
                f" and {expression}.is_contiguous()"
            )
        joined = "".join(f"\n    and {t}" for t in tests)
        return [
            f"def _fits(self, {', '.join(self._names())}):",
            '    """Whether the kernels were made for this call."""',
            f"    return not (self.training or torch.is_grad_enabled()){joined}".replace(
                "return not", "return (not" if tests else "return not"
            ).replace("\n", "\n    ")
            + (")" if tests else ""),
        ]

    def _forward(self) -> list[str]:
        names = ", ".join(self._names())
        out = [
            f"def forward(self, {names}):",
            f"    if not self._fits({names}):",
            f"        return super().forward({names})",
        ]
        for name, expression in self.graph.inputs.items():
            if self.users[name] and expression != self._name(name):
                out.append(f"    {self._name(name)} = {expression}")
        if self.kept:
            held = ", ".join(self._name(n) for n in self.kept)
            out.append(f"    {held}{',' if len(self.kept) == 1 else ''} = self._prepare()")
        for position, step in enumerate(self.steps):
            if isinstance(step, Group):
                out += [f"    {line}" for line in self._launch(step, self.kernels[position])]
            else:
                out += [f"    {line}" for line in self._library(step)]
        results = [self._value(name) for name in self.graph.outputs]
        out.append(f"    return {self.graph.template.format(*results)}")
        return out

    def _name(self, name: str) -> str:
        # A local variable may not hide an argument, a kernel or a keyword.
        taken = {call.name for call in self.kernels.values()} | {"torch", "load", "self", "F"}
        if name in self.graph.inputs:
            return name if name in self.parts.arguments else f"{name}_"
        if keyword.iskeyword(name) or name in taken or name in self.parts.arguments:
            return f"{name}_"
        return name

    def _value(self, name: str) -> str:
        """The expression of a value in forward."""
        node = self.graph.node(name)
        if name in self.kept:
            return self._name(name)
        match node.kind:
            case Kind.PARAMETER:
                return self.parts.attribute(node.op)
            case Kind.CONSTANT:
                return node.op
            case Kind.VIEW if not self._written(name):
                return f"{self._value(node.inputs[0])}.view{_shape(node.shape)}"
            case Kind.STRIDED:
                return node.op.format(self._value(node.inputs[0]))
        return self._name(name)

    def _written(self, name: str) -> bool:
        return any(isinstance(s, Group) and name in s.outputs for s in self.steps)

    def _in_group(self, name: str) -> bool:
        return any(isinstance(s, Group) and name in s.places for s in self.steps)

    def _library(self, node: Node) -> list[str]:
        if node.kind is not Kind.LIBRARY:
            return []
        call = node.op.format(*(self._value(a) for a in node.inputs))
        read_by_kernel = any(
            isinstance(s, Group) and node.name in self._tensors(k) for k, s in enumerate(self.steps)
        )
        if not node.contiguous and read_by_kernel:
            call += ".contiguous()"
        shape = f"  # {_dims(node)}" if node.dtype else ""
        return [f"{self._name(node.name)} = {call}{shape}"]

    def _tensors(self, position: int) -> list[str]:
        return list(self.kernels[position].nest.tensors_read)

    def _launch(self, group: Group, call: KernelCall) -> list[str]:
        lines, args = [], []
        reads = sum(self.graph.node(t).size for t in call.nest.tensors_read)
        for output in group.outputs:
            node = self.graph.node(output)
            owner = self._reusable(group, call, node)
            if owner is None:
                lines.append(f"{self._name(output)} = {self._empty(node)}")
            else:
                shaped = (
                    ""
                    if self.graph.node(owner).shape == node.shape
                    else f".view{_shape(node.shape)}"
                )
                lines.append(f"{self._name(output)} = {self._name(owner)}{shaped}  # in place")
            args.append(self._name(output))
        args += [self._memory(t) for t in call.nest.tensors_read]
        writes = sum(self.graph.node(o).size for o in group.outputs)
        if call.workspace:
            args.append(self._empty_of((call.workspace,), "float32"))
        lines.append(f"# reads {_bytes(reads * 4)}, writes {_bytes(writes * 4)}")
        lines.append(f"{call.name}({', '.join(args)})")
        return lines

    def _memory(self, tensor: str) -> str:
        return self._value(tensor)

    def _empty(self, node: Node) -> str:
        return self._empty_of(node.shape, node.dtype)

    def _empty_of(self, shape: tuple[int, ...], dtype: str) -> str:
        first = next((n for n in self.graph.inputs if self.users[n]), None)
        device = f", device={self._name(first)}.device" if first else ""
        return f"torch.empty({_shape(shape)}, dtype=torch.{dtype}{device})"

    def _reusable(self, group: Group, call: KernelCall, output: Node) -> str | None:
        """A library result that nobody else reads, element for element where `output` goes."""
        written = call.nest.writes[output.name]
        for tensor in call.nest.tensors_read:
            node = self.graph.node(tensor)
            if node.kind is not Kind.LIBRARY or not node.op.startswith(FRESH):
                continue
            if tensor in self.graph.outputs or tensor in self.consumed or node.size != output.size:
                continue
            readers = {u.name for u in self._readers(tensor)}
            if (
                not readers <= set(group.places)
                or not node.contiguous
                or node.dtype != output.dtype
            ):
                continue
            accesses = [a for a in call.nest.reads.values() if a.tensor == tensor]
            if all(a.strides == written.strides and a.offset == 0 for a in accesses):
                self.consumed[tensor] = output.name
                return tensor
        return None

    def _readers(self, name: str) -> list[Node]:
        """Nodes that read a tensor's memory, through views that no kernel computes."""
        found: list[Node] = []
        for user in self.users[name]:
            if user.kind in (Kind.VIEW, Kind.STRIDED) and not self._in_group(user.name):
                found += self._readers(user.name)
                if user.name in self.graph.outputs:
                    found.append(user)
            else:
                found.append(user)
        return found

    def _prepared_for_steps(self) -> list[str]:
        """Prepared values that are computed, not parameters as they are, and that a step reads."""
        read: list[str] = []
        for position, step in enumerate(self.steps):
            if isinstance(step, Group):
                read += self._tensors(position)
            else:
                read += step.inputs
        read += self.graph.outputs
        bases = []
        for name in read:
            node = self.graph.node(name)
            while node.kind in (Kind.VIEW, Kind.STRIDED) and node.name in self.parts.prepared:
                node = self.graph.node(node.inputs[0])
            computed = node.kind in (Kind.POINTWISE, Kind.LIBRARY, Kind.CONSTANT)
            if node.name in self.parts.prepared and computed:
                bases.append(node.name)
        return list(dict.fromkeys(bases))

    def _prepare(self) -> list[str]:
        if not self.kept:
            return []
        needed = set(self.kept)
        for node in reversed(self.graph.nodes):
            if node.name in needed:
                needed.update(node.inputs)
        chain = [n for n in self.graph.nodes if n.name in needed]
        sources = [n for n in chain if n.kind is Kind.PARAMETER]
        listed = "".join(f"\n        {self.parts.attribute(n.op)}," for n in sources)
        body = [f"{n.name} = {self.parts.attribute(n.op)}.double()" for n in sources]
        for node in chain:
            values = [a if isinstance(a, str) else repr(a) for a in node.args]
            if node.kind is Kind.VIEW:
                body.append(f"{node.name} = {values[0]}.view{_shape(node.shape)}")
            elif node.kind is Kind.CONSTANT:
                body.append(f"{node.name} = {node.op}")
            elif node.kind is Kind.POINTWISE:
                body.append(f"{node.name} = {PYTHON[node.op].format(*values)}")
            elif node.kind is Kind.LIBRARY:
                body.append(f"{node.name} = {node.op.format(*values)}")
        given = ", ".join(
            f"{n}.to(torch.{self.graph.node(n).dtype}).contiguous()" for n in self.kept
        )
        return [
            "",
            "def _prepare(self):",
            '    """What depends on parameters alone: made again when one of them changes."""',
            f"    sources = ({listed}",
            "    )",
            "    stamp = [",
            "        (id(t), t.data_ptr(), 0 if t.is_inference() else t._version)",
            "        for t in sources",
            "    ]",
            '    if self.__dict__.get("_stamp") != stamp:',
            *(f"        {line}" for line in body),
            f"        self._prepared = ({given},)",
            "        self._stamp = stamp",
            "    return self._prepared",
        ]


FRESH = ("F.linear(", "F.conv", "torch.matmul(", "torch.mm(", "torch.bmm(", "torch.addmm(")
"""Library calls whose result is memory of its own."""


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _dims(node: Node) -> str:
    return f"{node.dtype}[{', '.join(map(str, node.shape))}]"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
