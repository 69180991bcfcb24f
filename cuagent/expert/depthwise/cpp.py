"""Choose the schedule of a depthwise convolution on the CPU."""

from __future__ import annotations

from cuagent.expert.depthwise import cpp_lines, cpp_planes
from cuagent.expert.graph.graph import Kind
from cuagent.expert.graph.storage import NestError
from cuagent.expert.kernel import KernelCall, Request

FEW_TAPS = 3
"""Largest number of weights of a one-row window for which a kernel reads the input without a
copy.
"""


def generate(request: Request) -> KernelCall:
    """Return the CPU kernel of a group with a depthwise convolution. Raises NestError for long
    rows.

    A plane is copied first (`cpp_planes`) if each of its elements is read often.
    """
    anchor = next(n for n in request.group.nodes if n.kind is Kind.DEPTHWISE)
    *outer, last = anchor.spec.sides
    if any(side.kernel > 1 for side in outer) or last.kernel > FEW_TAPS:
        try:
            return cpp_planes.generate(request)
        except NestError:
            pass
    return cpp_lines.generate(request)
