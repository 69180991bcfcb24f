"""Write the indices and the head of a scan's kernel, for the C++ and the CUDA generator."""

from __future__ import annotations

import math

from cuagent.expert.anchored.values import Index, Values, flattened
from cuagent.expert.graph.graph import Kind
from cuagent.expert.kernel import Request
from cuagent.expert.streaming.text import Writer

IDENTITY = {"sum": "0", "prod": "1", "max": "-INFINITY", "min": "INFINITY"}


class ScanText:
    """Generates C++ text for the kernel of a scan.

    The scan runs over dimension `dim` with `length` elements, for each of `rows` rows.
    """

    def __init__(self, request: Request) -> None:
        anchor = next(n for n in request.group.nodes if n.kind is Kind.SCAN)
        graph, group, self.anchor = flattened(request.graph, request.group, anchor)
        self.request, self.w = request, Writer()
        self.values = Values(graph, group, self.anchor, self.w)
        self.shape = self.anchor.shape
        (self.dim,) = self.anchor.dims
        self.length = self.shape[self.dim]
        self.rows = math.prod(self.shape) // self.length
        self.others = [k for k, n in enumerate(self.shape) if k != self.dim and n > 1]
        self.innermost = all(n == 1 for n in self.shape[self.dim + 1 :])
        self.reverse = self.anchor.spec.reverse
        self.op = self.anchor.op

    def index(self) -> Index:
        """Return the C++ index variables of all dimensions."""
        return tuple(f"i{k}" if n > 1 or k == self.dim else "0" for k, n in enumerate(self.shape))

    def head(self, *includes: str) -> None:
        for line in self.request.title.splitlines():
            self.w(f"// {line}")
        order = "from the last element on" if self.reverse else "from the first element on"
        self.w(f"// {self.rows} rows of {self.length} elements, {order}.")
        for header in includes:
            self.w(f'#include "{header}"')
        self.w()

    def decode(self, flat: str, integer: str, dims: list[int]) -> None:
        """Declare the index variables of the dimensions `dims`, computed from the flat index
        `flat`.
        """
        step = 1
        for k in reversed(dims):
            whole = flat if step == 1 else f"{flat} / {step}"
            step *= self.shape[k]
            last = k == dims[0]
            self.w(f"const {integer} i{k} = {whole if last else f'{whole} % {self.shape[k]}'};")

    def argument(self) -> str:
        """Declare a variable with the element that the scan adds or multiplies; return its name."""
        return self.values.at(self.anchor.args[0], self.index())
