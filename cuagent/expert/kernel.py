"""Data of a generated kernel (`KernelCall`), and the input of its generator (`Request`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cuagent.expert.graph.graph import Graph
from cuagent.expert.streaming.group import Group


@dataclass(frozen=True)
class KernelCall:
    """The generated kernel of a group: one source file in kernels/ with one launcher, both named
    `name`.
    """

    name: str
    path: str
    text: str
    group: Group
    tensors_read: dict[str, str]
    """dtype of each tensor that the launcher reads, in the order of its parameters after the
    outputs.
    """
    headers: tuple[str, ...] = ()
    """Headers that the kernel includes."""
    in_place: frozenset[tuple[str, str]] = frozenset()
    """(output, input) pairs that may share memory.

    The kernel reads an input element for the last time before it writes the output element at the
    same index.
    """
    offsets: Mapping[str, int] = field(default_factory=dict)
    """Index of the element to which the launcher expects a pointer, for each tensor where it is not
    0.
    """
    workspace: int = 0
    """Number of float32 elements of scratch memory, the launcher's last argument; 0 without it."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that the launcher reads, in the order of its parameters."""
        return tuple(self.tensors_read)


@dataclass(frozen=True)
class Request:
    """Everything that a generator needs for one kernel."""

    name: str
    group: Group
    graph: Graph
    title: str
    """Comment at the top of the kernel's source file."""
    tile: int = 64
    """CPU: number of adjacent rows processed together if the reduced dimension is not the
    innermost."""
    threads: int = 0
    """CUDA: threads per row; 0 chooses them from the row length."""
    vector: bool = True
    """CUDA: true to use 16-byte accesses if the shape allows them."""
    clusters: bool = False
    """CUDA: true if the GPU has clusters of blocks, and 228 KB of shared memory in each
    multiprocessor. GPUs of compute capability 12 have 100 KB."""
    rebased: bool = False
    """CPU: true if the launcher is called with pointers to the first elements that it reads
    (`KernelCall.offsets`)."""


def cpp_call(request: Request, text: str, tensors_read: dict[str, str]) -> KernelCall:
    """Return the `KernelCall` of a C++ source whose only header is `pointwise.h`."""
    path = f"kernels/{request.name}.cpp"
    return KernelCall(request.name, path, text, request.group, tensors_read, ("pointwise.h",))


def cuda_call(
    request: Request, text: str, tensors_read: dict[str, str], headers: tuple[str, ...]
) -> KernelCall:
    """Return the `KernelCall` of a CUDA C++ source."""
    path = f"kernels/{request.name}.cu"
    return KernelCall(request.name, path, text, request.group, tensors_read, headers)
