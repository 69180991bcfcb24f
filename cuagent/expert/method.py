"""Data of a generated method: the graph that it computes, its steps, and the steps' kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cuagent.expert.attention.kernel import AttentionStep
from cuagent.expert.convolutions.convolution import Convolution
from cuagent.expert.einsums.match import EinsumStep
from cuagent.expert.graph.graph import Graph
from cuagent.expert.kernel import KernelCall
from cuagent.expert.mlps.chain import LayerChain
from cuagent.expert.products.product import Product
from cuagent.expert.streaming.group import Group, Step

FILL = "torch.ops.aten.masked_fill.Scalar("
"""Start of the text of a masked_fill call, which overwrites the elements that a mask selects."""
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
"""Starts of the texts of library calls that return new memory."""


TritonStep = Product | LayerChain | Convolution | EinsumStep | AttentionStep
"""A step that a Triton kernel computes."""


@dataclass(frozen=True)
class TritonCall:
    """A Triton kernel, whose text is part of the module: one or several products, a convolution, an
    einsum or an attention.
    """

    name: str
    text: str
    step: TritonStep
    launch: Callable[..., list[str]]
    """Function (kernel's name, arguments) -> Python lines that launch the kernel."""

    @property
    def tensors_read(self) -> tuple[str, ...]:
        """Names of the tensors that the kernel reads, in the order of its parameters."""
        return tuple(self.step.tensors)


Call = KernelCall | TritonCall
Computed = Group | TritonStep
"""A step that a generated kernel computes. Torch computes steps of type `Node`."""
Steps = Sequence[Step | TritonStep]


@dataclass(frozen=True)
class ModuleText:
    """Inputs of `module.render` for one method, without its steps and kernels."""

    graph: Graph
    prepared: frozenset[str]
    """Names of the nodes that depend on parameters alone; the module computes them once."""
    reference: str
    entry: str
    arguments: tuple[str, ...]
    attribute: Callable[[str], str]
    """Function that maps a state_dict name to its Python expression, such as
    `self.net[0].weight`.
    """
    notes: Sequence[str] = ()
    compile: str = ""
    """Mode of torch.compile for everything except the kernels; "" for eager execution."""
    replayed: bool = False
    """True to replay the forward as a CUDA graph, which the module captures itself."""
    states: tuple[str, ...] = ()
    """Python expressions of the attributes that forward overwrites, in the order in which they
    follow the result in the graph's template."""
    method: str = "forward"
    """Name of the method that computes the graph: `forward`, or `backward` of a training step."""


@dataclass(frozen=True)
class Method:
    """A generated method: the steps of its graph, and the kernel of each step that has one."""

    parts: ModuleText
    steps: Steps
    kernels: Mapping[int, Call]
