"""Data of a generated method: the graph that it computes, its steps and their kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cuagent.expert.attention.kernel import AttentionStep
from cuagent.expert.convolutions.convolution import Convolution
from cuagent.expert.graph.graph import Graph
from cuagent.expert.kernel import KernelCall
from cuagent.expert.products.match import Product
from cuagent.expert.streaming.group import Group, Step

FILL = "torch.ops.aten.masked_fill.Scalar("
"""Prefix of the library call masked_fill, which overwrites the elements that a mask selects."""
FRESH = (
    "F.linear(",
    "F.conv",
    "torch.matmul(",
    "torch.mm(",
    "torch.bmm(",
    "torch.addmm(",
    "torch.baddbmm(",
    "torch.ops.mkldnn._linear_pointwise(",
    "torch.permute(F.conv",
)
"""Prefixes of library calls that return new memory."""


@dataclass(frozen=True)
class TritonCall:
    """A Triton kernel in the text of the module: a product, a convolution or an attention."""

    name: str
    text: str
    step: Product | Convolution | AttentionStep
    launch: Callable[..., list[str]]
    """Function from the kernel's name and `arguments` to the lines that launch it."""

    @property
    def tensors_read(self) -> tuple[str, ...]:
        """Tensors that the kernel reads, in the order of its parameters."""
        return tuple(self.step.tensors)


Call = KernelCall | TritonCall
Computed = Group | Product | Convolution | AttentionStep
"""A step that a generated kernel computes. Steps of type `Node` are left to torch."""
Steps = Sequence[Step | Product | Convolution | AttentionStep]


@dataclass(frozen=True)
class ModuleText:
    """Inputs of `module.render` for one method, except its steps and kernels."""

    graph: Graph
    prepared: frozenset[str]
    """Names of the nodes that depend on parameters alone, and are computed once."""
    reference: str
    entry: str
    arguments: tuple[str, ...]
    attribute: Callable[[str], str]
    """Function from a state_dict name to its expression from `self`."""
    notes: Sequence[str] = ()
    compile: str = ""
    """Mode of torch.compile for everything but the kernels; "" runs it eagerly."""
    method: str = "forward"
    """The method that the graph becomes: `forward`, or `backward` of a training step."""


@dataclass(frozen=True)
class Method:
    """A graph that becomes a method, its steps, and the kernel at each position that has one."""

    parts: ModuleText
    steps: Steps
    kernels: Mapping[int, Call]
