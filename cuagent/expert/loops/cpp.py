"""Generate C++ kernels of loops over time: `rows_cpp`, or `products_cpp` for products of states."""

from __future__ import annotations

from cuagent.expert.kernel import KernelCall, Request, cpp_call
from cuagent.expert.loops.elements import Elements
from cuagent.expert.loops.products_cpp import ProductsKernel
from cuagent.expert.loops.rows_cpp import RowsKernel


def generate(request: Request) -> KernelCall:
    """Return the kernel of a loop. Raises NestError if an operand has no strides."""
    loop = Elements(request.group.nodes[0].spec)
    kernel = ProductsKernel(request) if loop.has_products else RowsKernel(request)
    return cpp_call(request, kernel.text(), kernel.tensors_read)
