"""List the families of kernels; each has one generator for the CPU and one for CUDA.

A new family is a folder with `cpp.generate` and `cuda.generate`, a kind of node in `graph.graph`, a
module of lowering rules that `rules/__init__.py` imports, and its lines here. Products,
convolutions and attentions are Triton kernels: `calls.triton_call` generates them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from cuagent.expert.graph.graph import Kind
from cuagent.expert.graph.storage import NestError
from cuagent.expert.kernel import KernelCall, Request

FAMILIES = {
    "streaming": "elementwise operations and reductions, in one loop nest",
    "scans": "cumulative sums and products",
    "scatters": "sums and extremes of rows by index (CPU)",
    "selections": "the largest or smallest elements of rows, in order (CPU)",
    "pooling": "extremes and means of windows; interpolation",
    "loops": "all steps of a loop that updates a state elementwise",
    "depthwise": "convolutions of each channel by itself",
    "mlps": "small linear layers that follow each other (CUDA; of many rows in Triton)",
    "recurrences": "all steps of a recurrent cell",
}
"""Description of what each family's kernels compute; the key is the family's folder in
`cuagent.expert`.
"""

ANCHORS = {
    Kind.SCAN: "scans",
    Kind.SCATTER: "scatters",
    Kind.SELECTION: "selections",
    Kind.POOL: "pooling",
    Kind.RESAMPLE: "pooling",
    Kind.DEPTHWISE: "depthwise",
    Kind.MLP: "mlps",
}
"""Family whose kernel computes a node of each kind, with the elementwise operations around it."""


def generate(device: str, request: Request) -> KernelCall:
    """Return the kernel of a group. Raises NestError if its family has no kernel for it."""
    assert request.group.family in FAMILIES
    language = "cuda" if device == "cuda" else "cpp"
    name = f"cuagent.expert.{request.group.family}.{language}"
    if find_spec(name) is None:
        raise NestError(f"{request.group.family} have no kernel in {language}")
    module = import_module(name)
    generator: Callable[[Request], KernelCall] = module.generate
    return generator(request)
