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
@pytest.mark.parametrize("name", LOOPS)
def test_cuda_loop_agrees_with_reference(make, name, dtype):
    text = text_of(*LOOPS[name], f"torch.{dtype}")
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
