"""Loops over the equations of recurrent cells: one kernel, a layer of torch, or joined products."""

from __future__ import annotations

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]
from captured_graphs import assert_equal_results  # type: ignore[import-not-found]
from test_loops import rolled, text_of  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options

pytestmark = pytest.mark.slow

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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CELLS)
def test_cuda_cell_agrees_with_reference(make, name, dtype):
    text = text_of(*CELLS[name], f"torch.{dtype}")
    assert_agrees(make(text, "Model", Options(), "cuda"), "cuda")
