"""Generate the C++ kernel that computes all steps of a recurrent cell on the CPU.

Each thread computes some rows (sequences) of the batch for all steps, so that no step waits for
another thread. A step goes through panels of 16 units: the product of the panel's weights with the
state, in registers for up to 6 or 12 rows, then the activations of these units. A panel is read
from the cache for all rows of the thread. Not covered: more threads than rows of the batch.
"""

from __future__ import annotations

from cuagent.expert.graph.storage import storage
from cuagent.expert.kernel import KernelCall, Request
from cuagent.expert.recurrences.cells import Recurrence
from cuagent.expert.recurrences.groups import LAST
from cuagent.expert.streaming.expressions import TYPES, identifier, narrowed, widened
from cuagent.expert.streaming.text import Writer

UNITS = 16
"""Number of hidden units in one panel of weights: one vector of 64 bytes, or two of 32."""
MOST_TOGETHER = 12
PARALLEL_OPERATIONS = 1 << 18
"""Number of multiplications below which a parallel region costs more than it saves."""
LOCALS = {
    "old", "state", "cell", "sums", "buffer", "threads", "thread", "start", "rows", "result",
    "last", "multiply", "units", "part", "equal_part", "all", "weights",
}  # fmt: skip
"""Names of local variables of the kernel; a parameter with such a name is renamed."""
PRODUCT = f"""// A panel has {UNITS} units. GCC keeps vectors of 64 bytes in memory on AVX2.
#ifdef __AVX512F__
constexpr int WIDTH = 16;
constexpr long TOGETHER = 12;  // rows whose sums are in registers: 12 of 32
#else
constexpr int WIDTH = 8;
constexpr long TOGETHER = 6;  // 12 of 16 registers, two for each row
#endif
constexpr int VECTORS = {UNITS} / WIDTH;
typedef float units __attribute__((vector_size(4 * WIDTH), aligned(4)));

// sums[r] = bias + the products of `panel` (depth x {UNITS}) with the states of ROWS rows.
template <int ROWS>
static inline void multiply(const float* state, const float* panel, const float* bias, long depth,
                            float* sums, long stride) {{
  units all[ROWS][VECTORS];
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v)
      all[r][v] = bias ? *(const units*)(bias + v * WIDTH) : units{{}};
  for (long k = 0; k < depth; ++k) {{
    units weights[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) weights[v] = *(const units*)(panel + k * {UNITS} + v * WIDTH);
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r) {{
      const float factor = state[r * depth + k];
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) all[r][v] += weights[v] * factor;
    }}
  }}
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) *(units*)(sums + r * stride + v * WIDTH) = all[r][v];
}}

// The products of up to TOGETHER rows.
static inline void multiply(long rows, const float* state, const float* panel, const float* bias,
                            long depth, float* sums, long stride) {{
  switch (rows) {{
{{cases}}
  }}
}}

// Rows that are computed together, so that the parts of `rows` are as equal as possible.
static inline long equal_part(long rows) {{
  const long parts = (rows + TOGETHER - 1) / TOGETHER;
  return (rows + parts - 1) / parts;
}}
"""
CASES = [
    f"    case {k}: multiply<{k}>(state, panel, bias, depth, sums, stride); break;"
    for k in range(1, MOST_TOGETHER + 1)
]
PRODUCT = PRODUCT.replace(
    "{cases}", "\n".join([*CASES[:6], "#ifdef __AVX512F__", *CASES[6:], "#endif"])
)
EQUATIONS = {
    "rnn_tanh": ["const float h = hyperbolic_tangent(x[0] + s[0]);"],
    "rnn_relu": ["const float h = relu(x[0] + s[0]);"],
    "gru": [
        "const float reset = sigmoid(x[0] + s[0]), keep = sigmoid(x[1] + s[1]);",
        "const float fresh = hyperbolic_tangent(x[2] + reset * s[2]);",
        "const float h = fresh + keep * (old[r * {hidden} + unit + k] - fresh);",
    ],
    "lstm": [
        "const float in = sigmoid(x[0] + s[0]), forget = sigmoid(x[1] + s[1]);",
        "const float fresh = hyperbolic_tangent(x[2] + s[2]), out = sigmoid(x[3] + s[3]);",
        "float& c = cell[r * {hidden} + unit + k];",
        "c = forget * c + in * fresh;",
        "const float h = out * hyperbolic_tangent(c);",
    ],
}


def generate(request: Request) -> KernelCall:
    """Return the kernel of a recurrence. Raises NestError if an operand has no strides."""
    kernel = _Kernel(request)
    text, path = kernel.text(), f"kernels/{request.name}.cpp"
    return KernelCall(
        request.name, path, text, request.group, kernel.tensors_read, ("pointwise.h",)
    )


def _parameter(tensor: str) -> str:
    word = identifier(tensor)
    return f"{word}_in" if word in LOCALS else word


class _Kernel:
    def __init__(self, request: Request) -> None:
        self.request, self.w = request, Writer()
        self.node = request.group.nodes[0]
        self.spec: Recurrence = self.node.spec
        self.states = 2 if self.spec.cell == "lstm" else 1
        self.biased = len(self.node.args) == 2 + self.states + 1
        self.operands = [storage(request.graph, request.graph.node(a)) for a in self.node.inputs]
        self.tensors_read = {base.name: base.dtype for base, _, _ in self.operands}

    def text(self) -> str:
        w, spec = self.w, self.spec
        w(f"// {self.request.title}")
        w(f"// {spec.steps} steps of {spec.cell}: {spec.rows} rows, {spec.hidden} units.")
        w('#include "pointwise.h"')
        w("#include <algorithm>")
        w("#include <vector>")
        w("#include <omp.h>")
        w()
        w.lines += PRODUCT.splitlines()
        w()
        results = [f"{TYPES[n.dtype]}* {self._result(n.op)}" for n in self.request.group.nodes]
        reads = [f"const {TYPES[d]}* {_parameter(t)}" for t, d in self.tensors_read.items()]
        w.open(f'extern "C" void {self.request.name}({", ".join([*results, *reads])})')
        operations = spec.steps * spec.rows * spec.gates * spec.hidden**2
        if operations > PARALLEL_OPERATIONS and spec.rows > 1:
            w.pragma("omp parallel")
        w.open("")
        self._thread()
        w.close(2)
        return "\n".join(w.lines) + "\n"

    def _result(self, op: str) -> str:
        return "last" if op == LAST else "result"

    def _thread(self) -> None:
        w, spec = self.w, self.spec
        hidden, states = spec.hidden, self.operands[-self.states :]
        w("const long threads = omp_get_num_threads(), thread = omp_get_thread_num();")
        w(f"const long start = {spec.rows} * thread / threads;")
        w(f"const long rows = {spec.rows} * (thread + 1) / threads - start;")
        w(f"std::vector<float> buffer(rows * {(1 + self.states) * hidden});")
        w(f"float *old = buffer.data(), *state = old + rows * {hidden};")
        if self.states == 2:
            w(f"float* cell = state + rows * {hidden};")
        w(f"float sums[TOGETHER][{spec.gates}][{UNITS}];")
        w("const long part = equal_part(rows);")
        w.open("for (long r = 0; r < rows; ++r)")
        w.open(f"for (long k = 0; k < {hidden}; ++k)")
        for name, (base, strides, offset) in zip(("old", "cell"), states, strict=False):
            place = f"{offset} + (start + r) * {strides[0]} + k * {strides[1]}"
            value = widened(f"{_parameter(base.name)}[{place}]", base.dtype)
            w(f"{name}[r * {hidden} + k] = {value};")
        w.close(2)
        order = f"{spec.steps - 1} - t" if spec.reverse else "t"
        w.open(f"for (long t = 0; t < {spec.steps}; ++t)")
        w(f"const long step = {order};")
        w.open(f"for (long unit = 0; unit < {hidden}; unit += {UNITS})")
        whole = hidden % UNITS == 0
        w(f"const long count = {UNITS if whole else f'std::min({UNITS}l, {hidden} - unit)'};")
        w.open("for (long first = 0; first < rows; first += part)")
        w("const long together = std::min(part, rows - first);")
        self._products()
        self._activations()
        w.close(2)
        w("std::swap(old, state);")
        w.close()
        if len(self.request.group.nodes) == 2:
            value = narrowed("cell[k]", self.node.dtype)
            w(f"for (long k = 0; k < rows * {hidden}; ++k) last[start * {hidden} + k] = {value};")

    def _products(self) -> None:
        """Write the products of one panel of weights with the states of some rows."""
        w, spec = self.w, self.spec
        hidden, gates = spec.hidden, spec.gates
        panels = _parameter(self.operands[1][0].name)
        bias = "nullptr"
        if self.biased:
            bias = f"{_parameter(self.operands[2][0].name)} + unit * {gates} + g * {UNITS}"
        w.open(f"for (long g = 0; g < {gates}; ++g)")
        w(f"const float* panel = {panels} + (unit * {gates} + g * {UNITS}) * {hidden};")
        w(f"const float* bias = {bias};")
        w(f"const float* states = old + first * {hidden};")
        rest = f"states, panel, bias, {hidden}, sums[0][g], {gates * UNITS}"
        w(f"multiply(together, {rest});")
        w.close()

    def _activations(self) -> None:
        """Write the cell's equations for the units of one panel."""
        w, spec = self.w, self.spec
        hidden, gates = spec.hidden, spec.gates
        base, (outer, inner, unit), offset = self.operands[0]
        step, row = (inner, outer) if spec.batch_first else (outer, inner)
        source = f"{_parameter(base.name)} + {offset}"
        w.open("for (long r = first; r < first + together; ++r)")
        w(f"const float* input = {source} + step * {step} + (start + r) * {row} + unit * {unit};")
        w(f"const long place = (step * {spec.rows} + start + r) * {hidden} + unit;")
        w.pragma("omp simd")
        w.open("for (long k = 0; k < count; ++k)")
        w(f"float x[{gates}], s[{gates}];")
        for g in range(gates):
            w(f"x[{g}] = input[({g * hidden} + k) * {unit}], s[{g}] = sums[r - first][{g}][k];")
        for line in EQUATIONS[spec.cell]:
            w(line.format(hidden=hidden))
        w(f"state[r * {hidden} + unit + k] = h;")
        w(f"result[place + k] = {narrowed('h', self.node.dtype)};")
        w.close(2)
