"""Generate the CUDA kernel that computes all steps of a recurrent cell.

A cluster of blocks computes some rows (sequences) of the batch for all steps, so that no step waits
for the whole grid. The weights of the state stay in registers: a warp has all gates of some units,
and each lane a part of the columns. If they do not fit, the cluster has 16 blocks, and each lane
has some of its columns in shared memory. After a step each unit is stored to the shared memory of
every block of the cluster, and one barrier of the cluster follows. Not covered: GPUs without
clusters, states whose weights do not fit into a cluster.
"""

from __future__ import annotations

import math

from cuagent.expert.graph.graph import Graph, Kind, Node, contiguous_strides
from cuagent.expert.graph.storage import NestError, storage
from cuagent.expert.kernel import KernelCall, Request, cuda_call
from cuagent.expert.recurrences.cells import Recurrence
from cuagent.expert.recurrences.cuda_layout import CLUSTERS, LANES, WARPS, layout
from cuagent.expert.recurrences.groups import LAST
from cuagent.expert.streaming.expressions import TYPES, identifier, narrowed, widened
from cuagent.expert.streaming.text import Writer

SUMS = """// Add the values of the lanes; lane k gets the sum of value k / (32 / COUNT).
template <int COUNT>
static __device__ __forceinline__ float scattered_sum(float (&values)[COUNT]) {
  const int lane = threadIdx.x & 31;
  int count = COUNT;
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    if (count > 1) {
      count >>= 1;
#pragma unroll
      for (int k = 0; k < COUNT / 2; ++k) {
        if (k < count) {
          const bool upper = lane & step;
          const float given = upper ? values[k] : values[k + count];
          const float kept = upper ? values[k + count] : values[k];
          values[k] = kept + __shfl_xor_sync(0xffffffffu, given, step);
        }
      }
    } else {
      values[0] += __shfl_xor_sync(0xffffffffu, values[0], step);
    }
  }
  return values[0];
}"""
EQUATIONS = {
    "rnn_tanh": ["const float h = hyperbolic_tangent(x[pass][0] + s[0]);"],
    "rnn_relu": ["const float h = relu(x[pass][0] + s[0]);"],
    "gru": [
        "const float reset = sigmoid(x[pass][0] + s[0]), keep = sigmoid(x[pass][1] + s[1]);",
        "const float fresh = hyperbolic_tangent(x[pass][2] + reset * s[2]);",
        "const float h = fresh + keep * (own[pass] - fresh);",
        "own[pass] = h;",
    ],
    "lstm": [
        "const float in = sigmoid(x[pass][0] + s[0]), forget = sigmoid(x[pass][1] + s[1]);",
        "const float fresh = hyperbolic_tangent(x[pass][2] + s[2]);",
        "const float out = sigmoid(x[pass][3] + s[3]);",
        "own[pass] = forget * own[pass] + in * fresh;",
        "const float h = out * hyperbolic_tangent(own[pass]);",
    ],
}
"""C++ lines with each cell's equations.

`x` are the projected inputs, `s` the weighted sums of the state, and `own` the part of the state
that the lane has for its unit: h of a gru, c of an lstm.
"""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a recurrence. Raises NestError if no layout fits."""
    kernel = _Kernel(request)
    text = kernel.text()
    return cuda_call(request, text, kernel.tensors_read, ("pointwise_cuda.h", "cluster_cuda.h"))


def _parameter(tensor: str) -> str:
    return f"{identifier(tensor)}_in"


def _stored(chunk: str) -> str:
    """Return the C++ pointer to a lane's four weights of a chunk in shared memory."""
    return f"(stored + ((u * GATES + g) * STORED + {chunk}) * {WARPS * LANES * 4})"


def _operand(graph: Graph, name: str) -> tuple[Node, tuple[int, ...], int]:
    """Return the tensor that the launcher reads for operand `name`, its strides, and an offset.

    The offset is that of the operand's first element in the tensor. A slice of adjacent elements is
    passed as a separate tensor, so that layers can share a kernel.
    """
    node = graph.node(name)
    if node.kind is Kind.STRIDED and node.strides == contiguous_strides(node.shape):
        return node, node.strides, 0
    return storage(graph, node)


class _Kernel:
    def __init__(self, request: Request) -> None:
        self.request, self.w = request, Writer()
        self.node = request.group.nodes[0]
        self.spec: Recurrence = self.node.spec
        spec = self.spec
        found = layout(spec.cell, spec.rows, spec.hidden, spec.processors, request.clusters)
        if found is None or self.node.dtype != "float32":
            raise NestError(f"{request.name}: the weights do not fit into registers")
        self.layout = found
        self.states = 2 if self.spec.cell == "lstm" else 1
        self.biased = len(self.node.args) == 2 + self.states + 1
        self.operands = [_operand(request.graph, a) for a in self.node.inputs]
        self.tensors_read = {base.name: base.dtype for base, _, _ in self.operands}

    def text(self) -> str:
        w, spec, form, name = self.w, self.spec, self.layout, self.request.name
        w(f"// {self.request.title}")
        w(f"// {spec.steps} steps of {spec.cell}: {spec.rows} rows, {spec.hidden} units.")
        w(f"// Clusters of {form.cluster} blocks, each with {form.rows} rows.")
        w('#include "pointwise_cuda.h"')
        w('#include "cluster_cuda.h"')
        w()
        w.lines += SUMS.splitlines()
        w()
        results = [f"{TYPES[n.dtype]}* {self._result(n.op)}" for n in self.request.group.nodes]
        reads = [f"const {TYPES[d]}* {_parameter(t)}" for t, d in self.tensors_read.items()]
        parameters = [*results, *reads]
        w(f"static __global__ void __cluster_dims__({form.cluster}, 1, 1)")
        w.open(f"__launch_bounds__({WARPS * LANES}) {name}_device({', '.join(parameters)})")
        self._constants()
        self._place()
        self._load()
        self._steps()
        w.close()
        w()
        w.open(f'extern "C" void {name}({", ".join(parameters)}, cudaStream_t stream)')
        blocks = math.ceil(spec.rows / form.rows) * form.cluster
        arguments = ", ".join(p.split()[-1] for p in parameters)
        if form.cluster > max(CLUSTERS):
            w(f"allow_cluster({name}_device);")
        size = spec.gates * form.units * form.stored * 4 * WARPS * LANES * 4
        if size:
            w(f"allow_shared({name}_device, {size});")
        w(f"{name}_device<<<{blocks}, {WARPS * LANES}, {size}, stream>>>({arguments});")
        w.close()
        return "\n".join(w.lines) + "\n"

    def _result(self, op: str) -> str:
        return "last" if op == LAST else "result"

    def _constants(self) -> None:
        w, spec, form = self.w, self.spec, self.layout
        w(f"constexpr int STEPS = {spec.steps}, ROWS = {spec.rows}, HIDDEN = {spec.hidden};")
        w(f"constexpr int GATES = {spec.gates}, SLOTS = {form.slots}, UNITS = {form.units};")
        w(f"constexpr int TOGETHER = {form.together}, PASSES = {form.passes};")
        w(f"constexpr int CHUNKS = {form.chunks}, CLUSTER = {form.cluster}, WARPS = {WARPS};")
        w("constexpr int VALUES = TOGETHER * UNITS * SLOTS, WIDTH = CHUNKS * 128;")
        w("constexpr int COPIES = 32 / VALUES, SHARE = COPIES * SLOTS;")
        w(f"constexpr int STORED = {form.stored}, KEPT = CHUNKS - STORED;")

    def _place(self) -> None:
        """Declare the rows and units that a lane computes."""
        w = self.w
        w("alignas(16) __shared__ float state[2][TOGETHER * PASSES][WIDTH];")
        w("const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;")
        w("const int first_unit = (blockIdx.x % CLUSTER * WARPS + warp) * UNITS;")
        w("const int first_row = blockIdx.x / CLUSTER * (TOGETHER * PASSES);")
        w("// After a sum, lanes with equal `item` have the gates of one unit and row.")
        w("const int item = lane / SHARE, part = lane % SHARE;")
        w("const int unit = first_unit + item % UNITS, turn = item / UNITS;")
        w("const bool exists = unit < HIDDEN;")

    def _load(self) -> None:
        """Write the loads of weights, biases and first states into registers."""
        w = self.w
        base, (outer, inner), offset = self.operands[1]
        w("float weight[UNITS][SLOTS][KEPT][4];")
        if self.layout.stored:
            memory = f"{self.request.name}_memory"
            w(f"extern __shared__ Elements<float, 4> {memory}[];")
            w(f"float* stored = reinterpret_cast<float*>({memory}) + threadIdx.x * 4;")
        for name, extent in (("u", "UNITS"), ("g", "SLOTS"), ("j", "CHUNKS"), ("q", "4")):
            w.pragma("unroll")
            w.open(f"for (int {name} = 0; {name} < {extent}; ++{name})")
        w("const int column = j * 128 + lane * 4 + q;")
        w("const bool inside = g < GATES && first_unit + u < HIDDEN && column < HIDDEN;")
        place = f"(g * HIDDEN + first_unit + u) * {outer} + column * {inner}"
        value = f"inside ? {_parameter(base.name)}[{offset} + {place}] : 0.f"
        if self.layout.stored:
            w(f"if (j >= KEPT && g < GATES) {_stored('j - KEPT')}[q] = {value};")
        w(f"if (j < KEPT) weight[u][g][j][q] = {value};")
        w.close(4)
        w("float bias[GATES] = {};")
        if self.biased:
            base, (inner,), offset = self.operands[2]
            w.pragma("unroll")
            w("for (int g = 0; g < GATES; ++g)")
            place = f"{offset} + (g * HIDDEN + unit) * {inner}"
            w(f"  if (exists) bias[g] = {_parameter(base.name)}[{place}];")
        states = self.operands[-self.states :]
        base, strides, offset = states[0]
        w(f"for (int k = threadIdx.x; k < TOGETHER * PASSES * WIDTH; k += {WARPS * LANES}) {{")
        w("  const int row = first_row + k / WIDTH, column = k % WIDTH;")
        place = f"{offset} + row * {strides[0]} + column * {strides[1]}"
        value = widened(f"{_parameter(base.name)}[{place}]", base.dtype)
        w("  const bool inside = row < ROWS && column < HIDDEN;")
        w(f"  state[0][k / WIDTH][column] = inside ? {value} : 0.f;")
        w("  state[1][k / WIDTH][column] = 0.f;")
        w("}")
        w("float x[PASSES][GATES], own[PASSES];")
        base, strides, offset = states[-1]
        w.pragma("unroll")
        w.open("for (int pass = 0; pass < PASSES; ++pass)")
        w("const int row = first_row + pass * TOGETHER + turn;")
        place = f"{offset} + row * {strides[0]} + unit * {strides[1]}"
        value = widened(f"{_parameter(base.name)}[{place}]", base.dtype)
        w(f"own[pass] = exists && row < ROWS ? {value} : 0.f;")
        w.close()
        self._inputs("0")

    def _inputs(self, step: str) -> None:
        """Write the loads of the projected inputs of step `step`."""
        w, spec = self.w, self.spec
        base, (outer, inner, unit), offset = self.operands[0]
        time, row = (inner, outer) if spec.batch_first else (outer, inner)
        order = f"({spec.steps - 1} - {step})" if spec.reverse else step
        w.pragma("unroll")
        w.open("for (int pass = 0; pass < PASSES; ++pass)")
        w("const int row = first_row + pass * TOGETHER + turn;")
        w.pragma("unroll")
        w.open("for (int g = 0; g < GATES; ++g)")
        place = f"{offset}l + {order} * {time}l + row * {row}l + (g * HIDDEN + unit) * {unit}"
        w(f"x[pass][g] = exists && row < ROWS ? {_parameter(base.name)}[{place}] : 0.f;")
        w.close(2)

    def _steps(self) -> None:
        w, spec = self.w, self.spec
        w("cluster_arrive();")
        w("cluster_wait();")
        w.open("for (int step = 0; step < STEPS; ++step)")
        w.pragma("unroll")
        w.open("for (int pass = 0; pass < PASSES; ++pass)")
        self._sums()
        w("float s[GATES];")
        w.pragma("unroll")
        w("for (int g = 0; g < GATES; ++g)")
        w("  s[g] = __shfl_sync(0xffffffffu, sum, item * SHARE + g * COPIES) + bias[g];")
        for line in EQUATIONS[spec.cell]:
            w(line)
        w("const int local = pass * TOGETHER + turn, row = first_row + local;")
        w.open("if (exists)")
        w.pragma("unroll")
        w("for (int rank = part; rank < CLUSTER; rank += SHARE)")
        w("  store_remote(&state[(step + 1) & 1][local][unit], rank, h);")
        order = f"({spec.steps - 1}l - step)" if spec.reverse else "(long)step"
        value = narrowed("h", self.node.dtype)
        w(f"if (part == 0 && row < ROWS) result[({order} * ROWS + row) * HIDDEN + unit] = {value};")
        w.close(2)
        w("cluster_arrive();")
        w.open("if (step + 1 < STEPS)")
        self._inputs("(step + 1)")
        w.close()
        w("cluster_wait();")
        w.close()
        if len(self.request.group.nodes) == 2:
            w.pragma("unroll")
            w.open("for (int pass = 0; pass < PASSES; ++pass)")
            w("const int row = first_row + pass * TOGETHER + turn;")
            value = narrowed("own[pass]", self.node.dtype)
            w(f"if (exists && part == 0 && row < ROWS) last[row * HIDDEN + unit] = {value};")
            w.close()

    def _sums(self) -> None:
        """Write the products of the weights with the states of the rows of one pass."""
        w = self.w
        w("float sums[VALUES] = {};")
        for stored in (False, True) if self.layout.stored else (False,):
            w.pragma("unroll")
            w.open(f"for (int j = 0; j < {'STORED' if stored else 'KEPT'}; ++j)")
            if stored:
                w("float loaded[UNITS][GATES][4];")
                for name, extent in (("u", "UNITS"), ("g", "GATES")):
                    w.pragma("unroll")
                    w(f"for (int {name} = 0; {name} < {extent}; ++{name})")
                w(f"  load_vector({_stored('j')}, loaded[u][g]);")
            w.pragma("unroll")
            w.open("for (int r = 0; r < TOGETHER; ++r)")
            w("float h[4];")
            column = "(j + KEPT) * 128" if stored else "j * 128"
            w(f"load_vector(&state[step & 1][pass * TOGETHER + r][{column} + lane * 4], h);")
            for name, extent in (("u", "UNITS"), ("g", "GATES"), ("q", "4")):
                w.pragma("unroll")
                w(f"for (int {name} = 0; {name} < {extent}; ++{name})")
            value = "loaded[u][g][q]" if stored else "weight[u][g][j][q]"
            w(f"  sums[(r * UNITS + u) * SLOTS + g] += {value} * h[q];")
            w.close(2)
        w("const float sum = scattered_sum(sums);")
