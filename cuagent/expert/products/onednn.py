"""Compute products on a CPU by oneDNN where torch takes a slower library or adds copies.

- float32: torch multiplies with MKL, which has no 512-bit kernels for processors of AMD. Linear
  layers took half the time with oneDNN: 192 rows of 192 to 576 features 193 us instead of 420, at
  the same error (one thread of a Zen 5, torch 2.13).
- bfloat16: torch adds the bias of a linear layer in another step, 106 us instead of 121 for the
  same layer. It copies images to another layout before and after a pointwise convolution, which as
  a product took 44 us instead of 102 for 64 channels of 2 x 24 x 24 places.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import replace
from pathlib import Path

from cuagent.expert.graph.graph import Graph, Kind, Node

LEAST_PRODUCTS = 1_500_000
"""Least number of multiplications for which the slower call of oneDNN pays: it takes some 8 us more
than MKL's."""
LINEAR = "torch.ops.mkldnn._linear_pointwise({0}, {1}, {2}, 'none', [], '')"
"""Call of oneDNN for x, w[features, inputs] and a bias or None."""
OURS = re.compile(r"torch\.(ops\.mkldnn\._linear_pointwise|(matmul|baddbmm)\(\{\d\}\.view\()")
"""Matches the calls that this module writes."""


@functools.cache
def has_slow_mkl(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return True if MKL has no kernels for the widest vectors of this processor."""
    try:
        text = cpuinfo.read_text("utf-8", errors="replace")
    except OSError:
        return False
    words = set(text.split())
    return {"AuthenticAMD", "avx512f"} <= words


@functools.cache
def has_onednn() -> bool:
    """Return True if torch has the calls of oneDNN that this module writes."""
    import torch

    calls = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return calls and torch.backends.mkldnn.is_available()


@functools.cache
def has_bf16() -> bool:
    """Return True if oneDNN computes bfloat16 on this processor; else its calls raise an error."""
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def by_onednn(graph: Graph, device: str, keep: frozenset[str]) -> Graph:
    """Return the graph with calls of oneDNN in place of torch's products."""
    if device != "cpu" or not has_onednn():
        return graph
    nodes = tuple(
        _changed(graph, n) if n.kind is Kind.LIBRARY and n.origin not in keep else n
        for n in graph.nodes
    )
    return replace(graph, nodes=nodes)


def origins_by_onednn(graph: Graph) -> tuple[str, ...]:
    """Return the captured operators that `by_onednn` changed."""
    changed = (n for n in graph.nodes if n.kind is Kind.LIBRARY and OURS.match(n.op))
    return tuple(dict.fromkeys(n.origin for n in changed if n.origin))


def _changed(graph: Graph, node: Node) -> Node:
    dtypes = {graph.node(a).dtype for a in node.inputs}
    if dtypes != {node.dtype} or node.constant or node.order or not node.contiguous:
        return node
    if node.dtype == "float32":
        text = _of_floats(graph, node) if has_slow_mkl() else None
    else:
        halves = node.dtype == "bfloat16" and has_bf16()
        text = _of_halves(graph, node) if halves else None
    return replace(node, op=text) if text else node


def _of_floats(graph: Graph, node: Node) -> str | None:
    """Return the call for a product with a matrix, or for a pointwise convolution of one image."""
    if len(node.inputs) < 2:
        return None
    weight = graph.node(node.inputs[1])
    matrix = len(weight.shape) == 2
    if node.size * _depth(graph, node) < LEAST_PRODUCTS:
        return None
    match node.op:
        case "F.linear({0}, {1})":
            return LINEAR.format("{0}", "{1}", None)
        case "F.linear({0}, {1}, bias={2})":
            return LINEAR
        case "torch.matmul({0}, {1})" | "torch.mm({0}, {1})" if matrix and len(node.shape) > 1:
            return LINEAR.format("{0}", "{1}.t()", None)
    if _is_pointwise(graph, node) and node.shape[0] == 1 and len(node.inputs) == 2:
        channels, inputs = weight.shape[:2]
        call = LINEAR.format(
            f"{{1}}.view({channels}, {inputs})", f"{{0}}.view({inputs}, -1).t()", None
        )
        return f"{call}.view({list(node.shape)})"
    return None


def _of_halves(graph: Graph, node: Node) -> str | None:
    """Return the call for a linear layer with a bias, or for a pointwise convolution."""
    if node.op == "F.linear({0}, {1}, bias={2})":
        return LINEAR
    if not _is_pointwise(graph, node):
        return None
    channels, inputs = graph.node(node.inputs[1]).shape[:2]
    count = node.shape[0]
    places = f"{{0}}.view({count}, {inputs}, -1)"
    if len(node.inputs) == 2:
        call = f"torch.matmul({{1}}.view({channels}, {inputs}), {places})"
    else:
        sizes = f"{count}, {channels}"
        bias = f"{{2}}.view(1, {channels}, 1).expand({sizes}, {math.prod(node.shape[2:])})"
        matrix = f"{{1}}.view(1, {channels}, {inputs}).expand({sizes}, {inputs})"
        call = f"torch.baddbmm({bias}, {matrix}, {places})"
    return f"{call}.view({list(node.shape)})"


POINTWISE = {f"F.conv{n}d({{0}}, {{1}}{bias})" for n in (1, 2, 3) for bias in ("", ", bias={2}")}
"""Calls of convolutions of stride 1 without padding and groups."""


def _is_pointwise(graph: Graph, node: Node) -> bool:
    if node.op not in POINTWISE:
        return False
    x, weight = (graph.node(a) for a in node.inputs[:2])
    plain = x.contiguous and not x.order and x.kind not in (Kind.STRIDED, Kind.WINDOW)
    # An image without a batch dimension has one dimension less than the weight.
    batched = len(node.shape) == len(x.shape) == len(weight.shape)
    return plain and batched and math.prod(weight.shape[2:]) == 1


def _depth(graph: Graph, node: Node) -> int:
    """Return the number of products that are added for a result."""
    weight = graph.node(node.inputs[1])
    if node.op.startswith(("torch.matmul", "torch.mm")):
        return weight.shape[-2] if len(weight.shape) > 1 else 1
    return math.prod(weight.shape[1:])
