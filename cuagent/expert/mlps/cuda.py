"""Generate CUDA kernels of small linear layers that follow each other.

A block computes one row. The inputs of each layer are in shared memory in float32. LANES adjacent
threads compute one output: each multiplies vectors of the weight's row, and a butterfly adds their
sums. So the accesses of a warp to the weights are contiguous.

In the generated text `i0` is the row, `k` an input and `j3` an element of a vector.
"""

from __future__ import annotations

import math
from typing import cast

from cuagent.expert.anchored.launcher import write_launcher
from cuagent.expert.anchored.values import Values
from cuagent.expert.graph.graph import ITEM_BYTES, Kind
from cuagent.expert.kernel import KernelCall, Request, cuda_call
from cuagent.expert.mlps.match import Layer
from cuagent.expert.streaming.cuda_text import headers_of
from cuagent.expert.streaming.expressions import computed_type, expression, identifier, number
from cuagent.expert.streaming.text import Writer

VECTOR_BYTES, WARP = 16, 32
THREADS = ((1 << 15, 256), (1 << 17, 512), (math.inf, 1024))
"""(bytes of weights, threads of a block): more threads for more weights, whose loads then overlap.
An estimate."""
TOGETHER = 4
"""Number of outputs of a thread whose loads the compiler may issue together."""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a group with small linear layers."""
    kernel = _Mlp(request)
    return cuda_call(request, kernel.text(), kernel.values.tensors_read, kernel.includes)


class _Mlp:
    def __init__(self, request: Request) -> None:
        self.request, self.w = request, Writer()
        self.anchor = next(n for n in request.group.nodes if n.kind is Kind.MLP)
        self.layers = cast("tuple[Layer, ...]", self.anchor.spec)
        self.values = Values(request.graph, request.group, self.anchor, self.w)
        self.includes = headers_of(request.group, self.values.tensors_read)
        source, *weights = (request.graph.node(str(arg)) for arg in self.anchor.args)
        self.width = VECTOR_BYTES // ITEM_BYTES[weights[0].dtype] if request.vector else 1
        size = sum(layer.inputs * layer.outputs for layer in self.layers)
        size *= ITEM_BYTES[weights[0].dtype]
        self.threads = request.threads or next(n for most, n in THREADS if size <= most)
        self.source = source

    def text(self) -> str:
        w, name, rows = self.w, self.request.name, self.anchor.shape[0]
        sizes = (self.layers[0].inputs, *(layer.outputs for layer in self.layers))
        for line in self.request.title.splitlines():
            w(f"// {line}")
        w(f"// {rows} rows, linear layers of {' to '.join(map(str, sizes))} features.")
        for header in self.includes:
            w(f'#include "{header}"')
        w()
        parameters = self.values.parameters()
        bounds = f"__launch_bounds__({self.threads})"
        w.open(f"static __global__ void {bounds} {name}_device({', '.join(parameters)})")
        w("const int i0 = blockIdx.x;")
        for k, layer in enumerate(self.layers):
            w(f"alignas(16) __shared__ float staged_{k}[{layer.inputs}];")
        w.open(f"for (int k = threadIdx.x; k < {sizes[0]}; k += {self.threads})")
        w(f"staged_0[k] = {self.values.at(self.source.name, ('i0', 'k'))};")
        w.close()
        self.values.fresh()
        arguments = list(self.anchor.args[1:])
        for k, layer in enumerate(self.layers):
            weight = str(arguments.pop(0))
            bias = str(arguments.pop(0)) if layer.bias else ""
            w("__syncthreads();")
            self._layer(k, layer, weight, bias)
        w.close()
        w()
        write_launcher(w, name, parameters, rows * self.threads, self.threads)
        return "\n".join(w.lines) + "\n"

    def _layer(self, k: int, layer: Layer, weight: str, bias: str) -> None:
        """Write the sums of one layer, the operations behind it, and the stores of its values."""
        w, vector = self.w, math.gcd(layer.inputs, self.width)
        lanes = min(WARP, 1 << (layer.inputs // vector - 1).bit_length())
        each = self.threads // lanes
        whole = layer.outputs % each == 0
        w.open("")
        w(f"constexpr int INPUTS = {layer.inputs}, VECTOR = {vector}, LANES = {lanes};")
        w("const int place_in_row = threadIdx.x % LANES * VECTOR;")
        w.pragma(f"unroll {TOGETHER}")
        w.open(f"for (int first = 0; first < {layer.outputs}; first += {each})")
        w("const int column = first + threadIdx.x / LANES;")
        w("float total = 0.f;")
        test = "" if whole else f"if (column < {layer.outputs})"
        w.open(test)
        self._sum(k, weight)
        w.close()
        if lanes > 1:
            w.pragma("unroll")
            w("for (int step = LANES / 2; step > 0; step /= 2)")
            w("  total += __shfl_xor_sync(0xffffffffu, total, step);")
        w.open(f"if (place_in_row == 0{'' if whole else f' && column < {layer.outputs}'})")
        self._values(k, layer, bias)
        w.close(3)

    def _sum(self, k: int, weight: str) -> None:
        base = identifier(self.request.graph.owner(weight))
        w = self.w
        w.pragma("unroll")
        w.open("for (int k = place_in_row; k < INPUTS; k += LANES * VECTOR)")
        w("float tap_weights[VECTOR];")
        w(f"load_vector({base} + column * INPUTS + k, tap_weights);")
        w.pragma("unroll")
        w(f"for (int j3 = 0; j3 < VECTOR; ++j3) total += tap_weights[j3] * staged_{k}[k + j3];")
        w.close()

    def _values(self, k: int, layer: Layer, bias: str) -> None:
        """Write the operations behind a layer, and the store to memory or shared memory."""
        w, words = self.w, {layer.product: "result"}
        added = f" + {self.values.at(bias, ('column',))}" if bias else ""
        self.values.fresh()
        w(f"const float result = total{added};")
        for node in layer.after:
            words[node.name] = word = f"{identifier(node.name)}_"
            operands = [words[a] if isinstance(a, str) else number(a) for a in node.args]
            w(f"const {computed_type(node.dtype)} {word} = {expression(node, operands)};")
        value = words[layer.value]
        if k + 1 < len(self.layers):
            w(f"staged_{k + 1}[column] = {value};")
            return
        self.values.result = value
        self.values.stores(("i0", "column", *["0"] * (len(self.anchor.shape) - 2)))
        self.values.fresh()
