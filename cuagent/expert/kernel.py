"""Define a generated kernel as the text of the module needs it, and the request for one."""

from __future__ import annotations

from dataclasses import dataclass

from cuagent.expert.graph.graph import Graph
from cuagent.expert.streaming.fuse import Group


@dataclass(frozen=True)
class KernelCall:
    """A group as a file in kernels/ with one launcher, which has the file's name."""

    name: str
    path: str
    text: str
    group: Group
    tensors_read: dict[str, str]
    """dtype of each tensor that the launcher takes after its outputs, in order."""
    headers: tuple[str, ...] = ()
    """Headers that the kernel includes."""
    in_place: frozenset[tuple[str, str]] = frozenset()
    """Outputs, each with a tensor whose memory it may take: elements are read where they are
    written."""
    workspace: int = 0
    """Floats of workspace that the launcher takes after its tensors."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Tensors that the launcher reads, in the order of its parameters."""
        return tuple(self.tensors_read)


@dataclass(frozen=True)
class Request:
    """Everything that a generator needs for one kernel."""

    name: str
    group: Group
    graph: Graph
    title: str
    tile: int = 64
    """CPU: adjacent rows that are processed together if a reduction is not innermost."""
    threads: int = 0
    """CUDA threads per row; 0 chooses them from the row length."""
    vector: bool = True
    """CUDA: true to use 16-byte accesses if the shape allows them."""


def cpp_call(request: Request, text: str, tensors_read: dict[str, str]) -> KernelCall:
    """Return a kernel in C++ that needs the header of pointwise functions alone."""
    path = f"kernels/{request.name}.cpp"
    return KernelCall(request.name, path, text, request.group, tensors_read, ("pointwise.h",))


def cuda_call(
    request: Request, text: str, tensors_read: dict[str, str], headers: tuple[str, ...]
) -> KernelCall:
    """Return a kernel in CUDA C++."""
    path = f"kernels/{request.name}.cu"
    return KernelCall(request.name, path, text, request.group, tensors_read, headers)
