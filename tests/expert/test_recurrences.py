"""Loops over cells and recurrent layers: which are found, and that kernels equal the reference."""

from __future__ import annotations

import runpy

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]
from captured_graphs import assert_equal_results  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import open_subject
from cuagent.expert.recurrences.match import with_recurrences
from cuagent.task import load_task

pytestmark = pytest.mark.slow


def text_of(init: str, forward: str, inputs: str, dtype: str = "torch.float32") -> str:
    lines = "\n        ".join(forward.split("\n"))
    return f"""
import torch
from torch import nn
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


CELL_LOOP = """h = x.new_zeros(x.shape[1], 20)
out = []
for t in range(x.shape[0]):
    h = self.cell(x[t], h)
    out.append(h)
return torch.stack(out), h"""
LOOPS = {
    "gru": ("self.cell = nn.GRUCell(6, 20)", CELL_LOOP, "torch.randn(7, 3, 6)"),
    "rnn": ("self.cell = nn.RNNCell(6, 20)", CELL_LOOP, "torch.randn(7, 3, 6)"),
    "rnn with relu, without biases": (
        "self.cell = nn.RNNCell(6, 20, bias=False, nonlinearity='relu')",
        CELL_LOOP,
        "torch.randn(7, 3, 6) / 4",
    ),
    "lstm, batch first, given states named as variables of the kernel": (
        "self.cell = nn.LSTMCell(6, 16)",
        """state, old = more
out = []
for t in range(x.shape[1]):
    state, old = self.cell(x[:, t], (state, old))
    out.append(state.unsqueeze(1))
return torch.cat(out, dim=1), old""",
        "torch.randn(13, 5, 6), torch.randn(13, 16), torch.randn(13, 16)",
    ),
    "inputs that are no slices": (
        "self.cell = nn.GRUCell(6, 20)",
        """h = more[0]
for y in x.split(2, 1):
    h = self.cell(y[:, 0] * y[:, 1], h)
return h""",
        "torch.randn(4, 8, 6), torch.randn(4, 20)",
    ),
    "the result of the last step alone": (
        "self.cell = nn.LSTMCell(6, 17)",
        """h = c = x.new_zeros(x.shape[1], 17)
for t in range(x.shape[0]):
    h, c = self.cell(x[t], (h, c))
return h * 2""",
        "torch.randn(7, 3, 6)",
    ),
}
TWO_CELLS = """h = g = x.new_zeros(x.shape[1], 20)
for t in range(x.shape[0]):
    h = self.first(x[t], h)
    g = self.second(h, g)
return g"""
LAYERS = {
    "lstm": ("self.r = nn.LSTM(6, 20)", "return self.r(x)", "torch.randn(7, 3, 6)"),
    "gru, both directions, two layers, batch first": (
        "self.r = nn.GRU(6, 20, 2, batch_first=True, bidirectional=True)",
        "return self.r(x)",
        "torch.randn(3, 7, 6)",
    ),
    "lstm, both directions, given states": (
        "self.r = nn.LSTM(6, 20, bidirectional=True, bias=False)",
        "y, (h, c) = self.r(x, more)\nreturn y.relu(), h, c",
        "torch.randn(7, 3, 6), torch.randn(2, 3, 20), torch.randn(2, 3, 20)",
    ),
    "rnn, one row": ("self.r = nn.RNN(6, 20, 2)", "return self.r(x)[1]", "torch.randn(7, 1, 6)"),
    "one step, one unit": ("self.r = nn.GRU(1, 1)", "return self.r(x)", "torch.randn(1, 2, 1)"),
    "many rows": ("self.r = nn.LSTM(6, 33)", "return self.r(x)[0]", "torch.randn(5, 29, 6)"),
}
OTHERS = {
    "results fed back through another operator": (
        "self.cell = nn.GRUCell(20, 20)",
        "h = x\nfor _ in range(3):\n    h = self.cell(h * 2, h)\nreturn h",
        "torch.randn(3, 20)",
    ),
    "states changed between steps": (
        "self.cell = nn.GRUCell(6, 20)",
        "h = more[0]\nfor t in range(3):\n    h = self.cell(x[t], h * 0.5)\nreturn h",
        "torch.randn(3, 2, 6), torch.randn(2, 20)",
    ),
    "weights of each step": (
        "self.cells = nn.ModuleList(nn.GRUCell(6, 20) for _ in range(3))",
        "h = more[0]\nfor t in range(3):\n    h = self.cells[t](x[t], h)\nreturn h",
        "torch.randn(3, 2, 6), torch.randn(2, 20)",
    ),
    "wide lstm": ("self.r = nn.LSTM(6, 257)", "return self.r(x)[0]", "torch.randn(3, 2, 6)"),
    "projected lstm": (
        "self.r = nn.LSTM(6, 20, proj_size=5)",
        "return self.r(x)[0]",
        "torch.randn(3, 2, 6)",
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loop_over_cells_becomes_one_kernel(make, name):
    made = make(text_of(*LOOPS[name]), "Model")
    text = made.candidate.files["model_new.py"]
    assert "_cell.default" not in text
    assert sum("_loop" in path for path in made.candidate.files) == 1
    assert_agrees(made)


def test_loops_over_two_layers_of_cells_become_two_kernels(make):
    init = "self.first, self.second = nn.GRUCell(6, 20), nn.RNNCell(20, 20)"
    made = make(text_of(init, TWO_CELLS, "torch.randn(7, 3, 6)"), "Model")
    assert sum("_loop" in path for path in made.candidate.files) == 2
    assert_agrees(made)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_become_kernels(make, name):
    made = make(text_of(*LAYERS[name]), "Model")
    text = made.candidate.files["model_new.py"]
    assert ".input(" not in text
    assert_agrees(made)


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16"])
@pytest.mark.parametrize("name", ["lstm", "gru, both directions, two layers, batch first"])
def test_half_precision_layers_keep_states_in_float32(make, name, dtype):
    assert_agrees(make(text_of(*LAYERS[name], dtype), "Model"))


@pytest.mark.parametrize("name", OTHERS)
def test_other_recurrence_stays_with_torch(tmp_path, name):
    path = tmp_path / "task.py"
    path.write_text(text_of(*OTHERS[name]))
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    assert with_recurrences(subject.captured, "cpu")[1] == ()


@pytest.mark.parametrize("name", LOOPS)
def test_loop_is_the_library_s_layer_on_a_gpu(tmp_path, name):
    """The graph for CUDA, run here, equals the reference; `nn` layers stay as they are."""
    path = tmp_path / "task.py"
    path.write_text(text_of(*LOOPS[name]))
    task = load_task(f"{path}:Model", device="cpu")
    subject = open_subject(task)
    captured, found = with_recurrences(subject.captured, "cuda")
    assert len(found) == 1
    names = [str(node.target) for node in captured.nodes if node.op == "call_function"]
    assert sum(name.endswith(".input") for name in names) == 1
    assert not any("_cell" in name for name in names)
    namespace = runpy.run_path(str(path))
    model, inputs = namespace["Model"]().eval(), namespace["get_inputs"]()
    assert_equal_results(captured, model, inputs)


def test_wide_loop_is_the_library_s_layer_on_the_cpu_too(make):
    init, forward, inputs = (part.replace("20", "260") for part in LOOPS["gru"])
    made = make(text_of(init, forward, inputs), "Model")
    assert not any(path.endswith(".cpp") for path in made.candidate.files)
    assert "gru.input(" in made.candidate.files["model_new.py"]
    assert_agrees(made)


def test_changed_weights_are_packed_again(make):
    made = make(text_of(*LAYERS["lstm"]), "Model")
    new, (x,) = assert_agrees(made), made.inputs()
    with torch.no_grad():
        new(x)
        new.r.weight_hh_l0.mul_(-0.5)
        expected = made.reference.forward(new, x)
        torch.testing.assert_close(new(x)[0], expected[0])


@pytest.mark.parametrize(
    "case", [*LAYERS.values(), LOOPS[next(iter(LOOPS))]], ids=[*LAYERS, "loop"]
)
def test_left_out_recurrence_is_a_call_of_torch(tmp_path, case):
    init, forward, inputs = case
    forward = forward.replace("return ", "return x.exp() * 2, ")
    path = tmp_path / "task.py"
    path.write_text(text_of(init, forward, inputs))
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    first = make_candidate(subject, Options())
    assert first is not None
    for origins in first.origins:
        left = make_candidate(subject, Options(keep=origins))
        if left is not None:
            compile(left.files["model_new.py"], "model_new.py", "exec")
            assert "<function" not in left.files["model_new.py"]


def test_option_leaves_recurrences_to_torch(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(text_of(*LAYERS["lstm"]))
    subject = open_subject(load_task(f"{path}:Model", device="cpu"))
    assert make_candidate(subject, Options(recurrences=False)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*LOOPS, *LAYERS])
def test_cuda_recurrence_agrees_with_reference(make, name):
    text = text_of(*(LOOPS | LAYERS)[name])
    assert_agrees(make(text, "Model", Options(), "cuda"), "cuda")
