"""Loops over time that update a state elementwise: which are found, and that kernels are right."""

from __future__ import annotations

import runpy

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]
from captured_graphs import assert_equal_results  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import open_subject
from cuagent.expert.loops.match import with_loops
from cuagent.expert.loops.periods import Repeat, repeats
from cuagent.task import load_task

pytestmark = pytest.mark.slow


def text_of(init: str, forward: str, inputs: str, dtype: str = "torch.float32") -> str:
    lines = "\n        ".join(forward.split("\n"))
    return f"""
import torch
from torch import nn
import torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
        self.to({dtype})
    def forward(self, x, *more):
        {lines}
def get_inputs(): return [t.to({dtype}) for t in ({inputs},)]
def get_init_inputs(): return []
"""


SELECTIVE = """delta, b, c, z = more
a = -torch.exp(self.a)
delta = F.softplus(delta)
decay = torch.exp(delta.unsqueeze(-1) * a)
fed = delta.unsqueeze(-1) * b.unsqueeze(2) * x.unsqueeze(-1)
h = torch.zeros(x.shape[0], x.shape[2], a.shape[1], dtype=x.dtype, device=x.device)
ys = []
for t in range(x.shape[1]):
    h = decay[:, t] * h + fed[:, t]
    ys.append((h * c[:, t].unsqueeze(1)).sum(-1))
y = torch.stack(ys, dim=1) + x * self.d
return y * F.silu(z)"""
SELECTIVE_INPUTS = (
    "torch.randn(B, L, D), torch.randn(B, L, D), torch.randn(B, L, N), torch.randn(B, L, N), "
    "torch.randn(B, L, D)"
)
EINSUM = """delta, b, c, _ = more
decay = torch.exp(torch.einsum('bld,dn->bldn', delta, -self.a.exp()))
fed = torch.einsum('bld,bln,bld->bldn', delta, b, x)
h = x.new_zeros(x.shape[0], x.shape[2], self.a.shape[1])
ys = []
for t in range(x.shape[1]):
    h = decay[:, t] * h + fed[:, t]
    ys.append(torch.einsum('bdn,bn->bd', h, c[:, t, :]))
return torch.stack(ys, dim=1) + x * self.d, h"""


def selective(batch: int, length: int, width: int, states: int, dtype: str = "float32") -> str:
    sizes = {"B": batch, "L": length, "D": width, "N": states}
    inputs = SELECTIVE_INPUTS
    for letter, size in sizes.items():
        inputs = inputs.replace(f"{letter},", f"{size},").replace(f"{letter})", f"{size})")
    init = f"self.a = nn.Parameter(torch.rand({width}, {states})); "
    init += f"self.d = nn.Parameter(torch.rand({width}))"
    return text_of(init, SELECTIVE, inputs, f"torch.{dtype}")


AVERAGE = """h = x[:, 0]
ys = [h]
for t in range(1, x.shape[1]):
    h = 0.9 * h + 0.1 * x[:, t]
    ys.append(h)
return torch.stack(ys, dim=1)"""
NOTHING = "pass"
LOOPS = {
    "moving average": (NOTHING, AVERAGE, "torch.randn(3, 17, 37)"),
    "moving average with lerp, last value alone": (
        "self.w = nn.Parameter(torch.rand(5))",
        "h = torch.zeros_like(x[0])\nfor y in x:\n    h = torch.lerp(h, y, self.w)\nreturn h",
        "torch.randn(9, 2, 5)",
    ),
    "gated, reversed in time, results inserted in front": (
        NOTHING,
        """f = torch.sigmoid(more[0])
h = torch.zeros(x.shape[0], x.shape[2], dtype=x.dtype, device=x.device)
ys = []
for t in reversed(range(x.shape[1])):
    h = f[:, t] * h + (1 - f[:, t]) * torch.tanh(x[:, t])
    ys.insert(0, h)
return torch.stack(ys, 1) * more[0]""",
        "torch.randn(2, 11, 33), torch.randn(2, 11, 33)",
    ),
    "flipped inputs, time first, results joined": (
        NOTHING,
        """h = more[0]
ys = []
for y in x.flip(0):
    h = torch.tanh(h * 0.5 + y)
    ys.append(h.unsqueeze(0))
return torch.cat(ys, 0), h""",
        "torch.randn(7, 3, 5), torch.randn(3, 5)",
    ),
    "both directions": (
        NOTHING,
        """h = g = torch.zeros(x.shape[0], x.shape[2], dtype=x.dtype, device=x.device)
ys, zs = [], []
for t in range(x.shape[1]):
    h = 0.5 * h + x[:, t]
    ys.append(h)
for t in range(x.shape[1] - 1, -1, -1):
    g = 0.5 * g + x[:, t]
    zs.append(g)
return torch.stack(ys, 1) + torch.stack(zs[::-1], 1)""",
        "torch.randn(2, 12, 19)",
    ),
    "slices written to a tensor": (
        NOTHING,
        """out = torch.empty_like(x)
h = x[:, 0] * 0
for t in range(x.shape[1]):
    h = h * 0.7 + x[:, t].relu()
    out[:, t] = h
return out""",
        "torch.randn(2, 13, 6)",
    ),
    "two states, one read after the other changed": (
        NOTHING,
        """c = torch.zeros(x.shape[0], x.shape[2], dtype=x.dtype, device=x.device)
n = torch.ones_like(c)
ys = []
for t in range(x.shape[1]):
    f = torch.sigmoid(more[0][:, t] + n)
    c, n = f * c + (1 - f) * x[:, t], f * n + c
    ys.append(c / (n.abs() + 1))
return torch.stack(ys, 1)""",
        "torch.randn(2, 9, 21), torch.randn(2, 9, 21)",
    ),
    "two averages of one input": (
        NOTHING,
        """a = b = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
for t in range(x.shape[1]):
    a = 0.9 * a + 0.1 * x[:, t]
    b = 0.99 * b + 0.01 * x[:, t]
return a - b, b""",
        "torch.randn(35, 20)",
    ),
    "differences to the step before": (
        NOTHING,
        """h, last = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
ys = []
for t in range(x.shape[1]):
    h = 0.3 * h + (x[:, t] - last)
    last = x[:, t]
    ys.append(h)
return torch.stack(ys, -1)""",
        "torch.randn(4, 10, 6)",
    ),
    "linear attention": (
        NOTHING,
        """k, v = more
s = torch.zeros(x.shape[0], x.shape[1], x.shape[3], v.shape[3], dtype=x.dtype, device=x.device)
ys = []
for t in range(x.shape[2]):
    s = s + k[:, :, t].unsqueeze(-1) * v[:, :, t].unsqueeze(-2)
    ys.append((x[:, :, t].unsqueeze(-2) @ s).squeeze(-2))
return torch.stack(ys, 2)""",
        "torch.randn(2, 3, 8, 5), torch.randn(2, 3, 8, 5), torch.randn(2, 3, 8, 7)",
    ),
    "delta rule: an update with a sum over the state": (
        NOTHING,
        """k, v, b = more
k = F.normalize(k, dim=-1)
s = torch.zeros(x.shape[0], x.shape[2], v.shape[2], dtype=x.dtype, device=x.device)
ys = []
for t in range(x.shape[1]):
    old = (s * k[:, t].unsqueeze(-1)).sum(1)
    s = s + k[:, t].unsqueeze(-1) * ((v[:, t] - old) * b[:, t].sigmoid()).unsqueeze(1)
    ys.append(torch.einsum('bk,bkv->bv', x[:, t], s))
return torch.stack(ys, 1), s""",
        "torch.randn(2, 9, 6), torch.randn(2, 9, 6), torch.randn(2, 9, 5), torch.randn(2, 9, 1)",
    ),
    "first result alone and states of some steps": (
        NOTHING,
        """h = torch.zeros_like(x[0])
ys = []
for y in x:
    h = torch.maximum(h * 0.8, y)
    ys.append(h)
return ys[0] + ys[3], torch.stack(ys[1:], 0)""",
        "torch.randn(8, 5, 3)",
    ),
    "a channel dimension before the time, one channel": (
        NOTHING,
        """h = torch.zeros(x.shape[0], 1, dtype=x.dtype, device=x.device)
ys = []
for t in range(x.shape[2]):
    h = h * 0.9 + x[:, :, t]
    ys.append(h)
return torch.stack(ys, 2)""",
        "torch.randn(3, 1, 40)",
    ),
    "einsums": (
        "self.a = nn.Parameter(torch.rand(6, 4)); self.d = nn.Parameter(torch.rand(6))",
        EINSUM,
        "torch.randn(2, 7, 6), torch.rand(2, 7, 6), torch.randn(2, 7, 4), torch.randn(2, 7, 4), "
        "torch.randn(1)",
    ),
}
GATES = (
    "s = lambda *n: nn.Parameter(torch.rand(*n) - 0.5); "
    "self.w = nn.ParameterList(s(6, 20) for _ in range(4)); "
    "self.u = nn.ParameterList(s(20, 20) for _ in range(4)); "
    "self.b = nn.ParameterList(s(20) for _ in range(4)); "
    "self.i, self.h = nn.Linear(6, 80), nn.Linear(20, 80, bias=False)"
)
CELLS = {
    "gru whose reset comes before the product": (
        GATES,
        """h = torch.zeros(x.shape[0], 20, dtype=x.dtype, device=x.device)
ys = []
for t in range(x.shape[1]):
    y = x[:, t]
    z = torch.sigmoid(y @ self.w[0] + h @ self.u[0] + self.b[0])
    r = torch.sigmoid(y @ self.w[1] + h @ self.u[1] + self.b[1])
    n = torch.tanh(y @ self.w[2] + (r * h) @ self.u[2] + self.b[2])
    h = (1 - z) * h + z * n
    ys.append(h)
return torch.stack(ys, 1)""",
        "torch.randn(9, 7, 6)",
    ),
    "lstm of two layers of gates, time first": (
        GATES,
        """h, c = more
ys = []
for y in x:
    i, f, g, o = (self.i(y) + self.h(h)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    ys.append(h)
return torch.stack(ys), h, c""",
        "torch.randn(5, 3, 6), torch.randn(3, 20), torch.randn(3, 20)",
    ),
    "rnn of one row, transposed matrix, changed inputs, last state": (
        GATES,
        """h = more[0]
for t in range(x.shape[1]):
    h = torch.tanh((x[:, t] * 2).relu() @ self.w[0] + h @ self.u[0].t() + self.b[0])
return h""",
        "torch.randn(1, 6, 6), torch.randn(1, 20)",
    ),
    "minimal gated unit, reversed": (
        GATES,
        """h = torch.zeros(x.shape[0], 20, dtype=x.dtype, device=x.device)
ys = []
for t in reversed(range(x.shape[1])):
    f = torch.sigmoid(torch.addmm(self.b[0], x[:, t], self.w[0]) + h @ self.u[0])
    h = h + f * (torch.tanh(x[:, t] @ self.w[1] + (f * h) @ self.u[1]) - h)
    ys.append(h)
return torch.stack(ys[::-1], 1).relu()""",
        "torch.randn(4, 8, 6)",
    ),
}
TORCH_CELLS = {
    "lstm": CELLS["lstm of two layers of gates, time first"],
    "rnn_tanh": CELLS["rnn of one row, transposed matrix, changed inputs, last state"],
    "gru": (
        GATES,
        """h = torch.zeros(x.shape[0], 20, dtype=x.dtype, device=x.device)
ys = []
for t in range(x.shape[1]):
    y = x[:, t]
    z = torch.sigmoid(y @ self.w[0] + h @ self.u[0] + self.b[0])
    r = torch.sigmoid(torch.addmm(self.b[1], y, self.w[1]) + h @ self.u[1])
    n = torch.tanh(y @ self.w[2] + r * (h @ self.u[2] + self.b[2]) + self.b[3])
    h = (1 - z) * h + z * n
    ys.append(h)
return torch.stack(ys, 1), h""",
        "torch.randn(9, 7, 6)",
    ),
}
JOINED = (
    "self.i, self.o = nn.Linear(26, 20), nn.Linear(20, 3)",
    """h = more[0]
ys = []
for t in range(x.shape[0]):
    h = torch.tanh(self.i(torch.cat((x[t], h), dim=1)))
    ys.append(self.o(h))
return torch.stack(ys), h""",
    "torch.randn(7, 4, 6), torch.randn(4, 20)",
)
PROJECTED = (
    "self.f, self.c = nn.Linear(6, 20), nn.Linear(6, 20)",
    """h = torch.zeros(x.shape[0], 20, dtype=x.dtype, device=x.device)
ys = []
for t in range(x.shape[1]):
    f = torch.sigmoid(self.f(x[:, t]))
    h = f * h + (1 - f) * torch.tanh(self.c(x[:, t]))
    ys.append(h)
return torch.stack(ys, 1)""",
    "torch.randn(4, 8, 6)",
)
SELECTIVE_SIZES = [(2, 7, 70, 16), (1, 5, 33, 5), (3, 4, 1, 3)]
OTHERS = {
    "a step of two": (
        NOTHING,
        "h = g = x[0]\nfor y in x:\n    h, g = h * 0.5 + g * y, h\nreturn h + 0 * g.sum()",
        "torch.randn(1, 3, 4)",
    ),
    "a wide product of the state": (
        "self.u = nn.Parameter(torch.rand(300, 300) / 9)",
        "h = x[0]\nfor y in x:\n    h = torch.tanh(h @ self.u + y)\nreturn h",
        "torch.randn(7, 3, 300)",
    ),
    "layers of a network": (
        "self.w = nn.ParameterList(nn.Parameter(torch.rand(4)) for _ in range(6))",
        "for w in self.w:\n    x = (x * w).relu()\nreturn x",
        "torch.randn(3, 4)",
    ),
    "the same operators again and again": (
        NOTHING,
        "h = x\nfor _ in range(6):\n    h = torch.tanh(h * 0.5 + x)\nreturn h",
        "torch.randn(7, 4)",
    ),
    "three steps": (
        NOTHING,
        "h = x[0]\nfor t in range(3):\n    h = h * 0.5 + x[t]\nreturn h",
        "torch.randn(3, 4)",
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loop_becomes_one_kernel(make, name):
    made = make(text_of(*LOOPS[name]), "Model")
    assert any("all steps of a loop" in note for note in made.candidate.notes)
    assert_agrees(made)


@pytest.mark.parametrize("name", CELLS)
def test_equations_of_a_cell_become_one_kernel_and_a_product_of_all_inputs(make, name):
    made = make(text_of(*CELLS[name]), "Model")
    assert sum("_loop" in path for path in made.candidate.files) == 1
    module = made.candidate.files["model_new.py"]
    forward = module[module.rindex("def forward") :]
    assert forward.count("F.linear(") + forward.count("aten.matmul") <= 3
    assert_agrees(made)


@pytest.mark.parametrize("name", TORCH_CELLS)
def test_equations_of_a_cell_of_torch_become_its_layer_on_a_gpu(tmp_path, name):
    captured, model, inputs, found = rolled(tmp_path, TORCH_CELLS[name], "cuda")
    assert len(found) == 1
    names = [str(n.target) for n in captured.nodes if n.op == "call_function"]
    assert f"aten.{name}.input" in names
    assert not any("sigmoid" in name or "tanh.default" in name for name in names)
    assert_equal_results(captured, model, inputs)


def test_cell_of_joined_inputs_becomes_a_layer_on_a_gpu(tmp_path):
    captured, model, inputs, found = rolled(tmp_path, JOINED, "cuda")
    assert len(found) == 1
    names = [str(n.target) for n in captured.nodes if n.op == "call_function"]
    assert "aten.rnn_tanh.input" in names
    assert names.count("aten.linear.default") == 1
    assert not any("tanh.default" in name for name in names)
    assert_equal_results(captured, model, inputs)


def test_cell_of_joined_inputs_agrees_on_a_cpu(make):
    assert_agrees(make(text_of(*JOINED), "Model"))


@pytest.mark.parametrize(
    "name", [name for name in CELLS if CELLS[name] not in TORCH_CELLS.values()]
)
def test_equations_of_a_cell_share_their_input_products_on_a_gpu(tmp_path, name):
    captured, model, inputs, found = rolled(tmp_path, CELLS[name], "cuda")
    assert len(found) == 1
    names = [str(n.target) for n in captured.nodes if n.op == "call_function"]
    assert not any("time_loop" in name for name in names)
    steps = inputs[0].shape[0] if "in x:" in CELLS[name][1] else inputs[0].shape[1]
    products = sum(word in name for name in names for word in ("linear", "matmul", "mm"))
    assert products < 5 + 3 * steps
    assert_equal_results(captured, model, inputs)


def test_projections_before_an_elementwise_loop_are_one_product_each(make):
    made = make(text_of(*PROJECTED), "Model")
    assert made.candidate.files["model_new.py"].count("= F.linear(") == 2
    assert_agrees(made)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_cell_keeps_its_state_in_float32(make, dtype):
    gru = CELLS["gru whose reset comes before the product"]
    assert_agrees(make(text_of(*gru, f"torch.{dtype}"), "Model"))


@pytest.mark.parametrize("sizes", SELECTIVE_SIZES)
def test_selective_scan_is_one_kernel_without_its_products(make, sizes):
    made = make(selective(*sizes), "Model")
    assert [path for path in made.candidate.files if path.endswith(".cpp")] == [
        f"kernels/{made.candidate.kernels[0]}.cpp"
    ]
    forward = made.candidate.files["model_new.py"].rpartition("def forward")[2]
    assert forward.count("torch.empty") == 1
    assert_agrees(made)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [*LOOPS, *CELLS])
def test_cuda_loop_agrees_with_reference(make, name, dtype):
    text = text_of(*(LOOPS | CELLS)[name], f"torch.{dtype}")
    assert_agrees(make(text, "Model", Options(), "cuda"), "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [0, 32, 512])
@pytest.mark.parametrize("sizes", SELECTIVE_SIZES)
def test_cuda_selective_scan_agrees_with_reference(make, sizes, threads, dtype):
    made = make(selective(*sizes, dtype), "Model", Options(threads=threads), "cuda")
    assert_agrees(made, "cuda")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_loop_keeps_its_states_in_float32(make, dtype):
    assert_agrees(make(selective(2, 9, 40, 4, dtype), "Model"))
    average = text_of(*LOOPS["moving average"], f"torch.{dtype}")
    assert_agrees(make(average, "Model"))


@pytest.mark.parametrize("name", OTHERS)
def test_other_loop_stays_with_torch(tmp_path, name):
    path = tmp_path / "task.py"
    path.write_text(text_of(*OTHERS[name]))
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    assert with_loops(subject.captured)[1] == ()


@pytest.mark.parametrize("name", LOOPS)
def test_rolled_graph_equals_the_captured_one(tmp_path, name):
    captured, model, inputs, found = rolled(tmp_path, LOOPS[name], "cpu")
    assert found
    calls = [node for node in captured.nodes if node.op == "call_function"]
    assert sum("time_loop" in str(node.target) for node in calls) == len(found)
    assert_equal_results(captured, model, inputs)


def rolled(tmp_path, loop, device):
    """Return (captured graph with loops, model, inputs, loops found) of a task."""
    path = tmp_path / "task.py"
    path.write_text(text_of(*loop))
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    captured, found = with_loops(subject.captured, device)
    namespace = runpy.run_path(str(path))
    return captured, namespace["Model"]().eval(), namespace["get_inputs"](), found


def test_option_leaves_loops_to_torch(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(text_of(*LOOPS["moving average"]))
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    candidate = make_candidate(subject, Options(recurrences=False))
    assert candidate is None or not any("_loop" in path for path in candidate.files)


def test_repeats_are_the_longest_parts_with_the_shortest_period():
    assert repeats("xababababay")[0] == Repeat(1, 2, 9)
    assert repeats("aaaa") == [Repeat(0, 1, 4)]
    assert repeats("abcabc") == []
