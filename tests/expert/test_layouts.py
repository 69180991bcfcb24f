"""Inputs in channels-last and other permuted layouts: results have the values and the layout."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options
from cuagent.expert.capture.output_layouts import correct_outputs
from cuagent.expert.capture.subject import open_subject
from cuagent.expert.graph.orders import inverse, order_of
from cuagent.task import load_task
from cuagent.task.reference import open_reference

LAST = "torch.randn(3, 10, 7, 9).to(memory_format=torch.channels_last)"
VOLUME = "torch.randn(2, 6, 5, 4, 7).to(memory_format=torch.channels_last_3d)"
MOVED = "torch.randn(9, 5, 7).permute(1, 2, 0)"
PLAIN = "torch.randn(3, 10, 7, 9)"
TURNED = "torch.randn(1, 10, 1, 9).permute(0, 3, 2, 1)"
POINT = "torch.randn(4, 8, 1, 1).to(memory_format=torch.channels_last)"
IMAGE = "torch.randn(1, 1, 5, 6).to(memory_format=torch.channels_last)"
BODIES = {
    "elementwise": ("", "return (x * 2).tanh() + x, F.gelu(x)", LAST),
    "a scale for each channel": (
        "self.w = nn.Parameter(torch.ones(10, 1, 1))",
        "return (x * self.w).sigmoid() * x",
        LAST,
    ),
    "a contiguous operand": ("", "return (x + y).exp() * y", f"{LAST}, {PLAIN}"),
    "a contiguous operand first": ("", "return (y + x).exp() * y", f"{LAST}, {PLAIN}"),
    "a large contiguous operand": (
        "",
        "return (x * y).exp() + 1",
        f"{TURNED}, torch.randn(4, 9, 6, 10)",
    ),
    "sums": (
        "",
        "return (x * x).sum(1) + 1, (x * 2).mean((2, 3)) + 1, x.exp().sum((0, 2, 3)) * 2",
        LAST,
    ),
    "kept sums": (
        "",
        "return x - x.mean(1, keepdim=True), (x * 2).amax((2, 3), keepdim=True) + 1",
        LAST,
    ),
    "softmax over channels": ("", "return torch.softmax(x * 2, 1)", LAST),
    "softmax over a row": ("", "return torch.softmax(x * 2, -1)", LAST),
    "batch norm": ("self.n = nn.BatchNorm2d(10)", "return F.relu(self.n(x)) + x", LAST),
    "group norm": ("self.n = nn.GroupNorm(2, 10)", "return F.silu(self.n(x))", LAST),
    "instance norm": ("self.n = nn.InstanceNorm2d(10)", "return F.relu(self.n(x))", LAST),
    "layer norm of channels": (
        "self.n = nn.LayerNorm(10)",
        "return self.n(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) * 2 + x",
        LAST,
    ),
    "flattened positions": ("", "return (x.flatten(2) * 2).exp().sum(-1) + 1", LAST),
    "flattened samples": ("", "return (x * 2).exp().flatten(1) + 1", LAST),
    "a call of torch between kernels": (
        "self.n = nn.RMSNorm(66)",
        "h = self.n(F.avg_pool1d(x, 3)); return F.cosine_similarity(torch.sinc(h), h, dim=-1)",
        "torch.randn(2, 200, 4).mT",
    ),
    "a call of torch behind a kernel": (
        "self.n = nn.RMSNorm(66)",
        "return torch.sinc(self.n(F.avg_pool1d(x, 3)))",
        "torch.randn(2, 200, 4).mT",
    ),
    "max pool": ("", "return F.max_pool2d(F.relu(x) + 1, 3, 2, 1)", LAST),
    "mean pool": ("", "return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False) * 2", LAST),
    "adaptive mean": ("", "return F.adaptive_avg_pool2d(x, 3) * 2 + 1", LAST),
    "mean of all positions": ("", "return F.adaptive_avg_pool2d(x * 2, 1).flatten(1) + 1", LAST),
    "bilinear": ("", "return F.interpolate(x, scale_factor=2, mode='bilinear') * 2", LAST),
    "nearest": ("", "return F.interpolate(x, scale_factor=2) * 2", LAST),
    "volumes": ("", "return F.max_pool3d(x * 2, 2) + 1, x.sigmoid() * x", VOLUME),
    "moved dimensions": ("", "return (x * 2).tanh() + x, x.sum(1) * 2 + 1", MOVED),
    "two layouts": (
        "",
        "return (x + y).tanh() * 2",
        f"{MOVED}, torch.randn(7, 5, 9).transpose(0, 1)",
    ),
    "a concatenation": ("", "return torch.cat([x * 2, y], 1).relu() + 1", f"{LAST}, {LAST}"),
    "padding": ("", "return F.pad(x, (1, 2, 0, 1)).exp() * 2", LAST),
    "a slice": ("", "return x[:, 2:8, 1:].relu() * 3", LAST),
    "halves": ("", "a, b = x.chunk(2, 1); return a.sigmoid() * b", LAST),
    "a cumulative sum": ("", "return (x * 2).cumsum(1) + 1", LAST),
    "a contiguous copy": ("", "return (x * 2).exp().contiguous() + 1", LAST),
    "a convolution": (
        "self.c, self.n = nn.Conv2d(10, 6, 3), nn.BatchNorm2d(6)",
        "return F.relu(self.n(self.c(x))), F.gelu(self.c(x)).sum((2, 3))",
        LAST,
    ),
    "a linear layer": (
        "self.n, self.l = nn.LayerNorm(10), nn.Linear(10, 20)",
        "return F.gelu(self.l(self.n(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)",
        LAST,
    ),
    "views of a computed output": (
        "",
        "y = (x.transpose(1, 2) * 2).tanh(); return y[:, 1], y.permute(2, 0, 1, 3), y.sum(-1)",
        PLAIN,
    ),
    "a slice of a computed output": ("", "return (x.transpose(1, 2) * 2).tanh()[:, 2:6]", PLAIN),
    "halves of a computed output": (
        "",
        "a, b = (x.transpose(1, 2) * 2).tanh().chunk(2, 2); return a, b",
        PLAIN,
    ),
    "a slice of a permuted output": ("", "return (x * 2).tanh()[:, 2:6]", LAST),
    "a copy of a slice": ("", "return (x * 2).tanh()[:, 2:6].contiguous() + 1", LAST),
    "indices of a row": ("", "return (x * torch.arange(9, device=x.device)).relu() + x", LAST),
    "one position": ("", "return (x * 2).tanh() + x", POINT),
    "one sample and channel": ("", "return (x * 2).tanh() + x.mean(1, True)", IMAGE),
}
SLICED = [name for name in BODIES if "slice" in name or "halves" in name]
"""Cases whose results or operands are slices."""


def text_of(name: str, dtype: str = "float32") -> str:
    fields, body, inputs = BODIES[name]
    arguments = ", ".join("xyz"[: inputs.count("torch.randn(")])
    return f"""
import torch
import torch.nn as nn
import torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {fields or "pass"}
        self.to(torch.{dtype})
    def forward(self, {arguments}):
        {body}
def get_inputs(): return [t.to(torch.{dtype}) for t in [{inputs}]]
def get_init_inputs(): return []
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_candidate_agrees_with_reference(make, name):
    made = make(text_of(name), "Model")
    assert made.candidate.kernels
    assert_agrees(made)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["group norm", "max pool", "a contiguous operand", "kept sums"])
def test_half_precision_candidate_agrees_with_reference(make, name, dtype):
    assert_agrees(make(text_of(name, dtype), "Model"))


@pytest.mark.gpu
@pytest.mark.parametrize("options", [Options(), Options(vector=False)])
@pytest.mark.parametrize("name", BODIES)
def test_cuda_candidate_agrees_with_reference(make, name, options):
    assert_agrees(make(text_of(name), "Model", options, "cuda"), "cuda")


@pytest.mark.parametrize("name", ["bilinear", "a convolution"])
def test_layout_of_an_output_is_that_of_a_call_where_the_trace_differs(tmp_path, name):
    # As on a GPU, whose kernels follow other rules than the trace.
    path = tmp_path / "task.py"
    path.write_text(text_of(name))
    task = load_task(f"{path}:Model", device="cpu")
    subject, reference = open_subject(task), open_reference(task)
    (node, *_), strides = subject.captured.outputs, []
    for traced in (node.meta["val"], node.meta["val"].contiguous()):
        node.meta["val"] = traced
        correct_outputs(subject.captured, reference.model(), reference.inputs())
        strides.append(node.meta["val"].stride())
    assert strides[0] == strides[1] != traced.stride()


def test_other_layouts_run_the_reference(make):
    new = assert_agrees(make(text_of("elementwise"), "Model"))
    x = torch.randn(3, 10, 7, 9)
    with torch.no_grad():
        first, second = new(x)
    assert first.is_contiguous()
    torch.testing.assert_close(second, torch.nn.functional.gelu(x))


def test_elementwise_work_in_channels_last_layout_is_one_loop_without_copies(make):
    made = make(text_of("a scale for each channel"), "Model")
    text = next(t for n, t in made.candidate.files.items() if n.endswith(".cpp"))
    assert "Loop nest: 189 x 10." in text
    assert ".contiguous()" not in made.candidate.files["model_new.py"].split("def forward")[1]


def test_elementwise_call_of_torch_keeps_the_layout_of_its_argument(make):
    text = text_of("layer norm of channels").replace("* 2 + x", "* 2 + F.gelu(x * 3)")
    made = make(text, "Model", Options(keep=frozenset({"gelu"})))
    forward = made.candidate.files["model_new.py"].rpartition("def forward")[2]
    assert "F.gelu(mul_1)  # float32[3, 7, 9, 10]" in forward
    assert_agrees(made)


def test_layer_norm_over_channels_reads_adjacent_elements(make):
    made = make(text_of("layer norm of channels"), "Model")
    assert len(made.candidate.kernels) == 1
    text = next(t for n, t in made.candidate.files.items() if n.endswith(".cpp"))
    assert "Loop nest: 189 x 10 (reduced)." in text


@pytest.mark.parametrize(
    ("shape", "strides", "order"),
    [
        ((2, 3, 4), (12, 4, 1), ()),
        ((2, 3, 4, 5), (60, 1, 15, 3), (0, 2, 3, 1)),
        ((4, 1, 6), (6, 1, 1), ()),
        ((3, 4), (1, 3), (1, 0)),
        ((3, 4), (8, 1), None),
        ((3, 4), (0, 1), None),
        ((), (), ()),
    ],
)
def test_order_of_dimensions(shape, strides, order):
    assert order_of(shape, strides) == order
    assert order is None or inverse(inverse(order)) == order


RETURNED = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(128, 512), nn.Linear(512, 128)
        self.half()
    def forward(self, x):
        y = x.permute(0, 2, 3, 1)
        y = y + F.layer_norm(y, (128,))
        return (y + self.b(F.gelu(self.a(F.layer_norm(y, (128,)))))).permute(0, 3, 1, 2)
def get_inputs(): return [torch.randn(1, 128, 14, 14, dtype=torch.float16)]
def get_init_inputs(): return []
"""


def test_view_of_a_product_has_the_strides_of_the_reference(generate, monkeypatch):
    """torch adds the product to a permuted value, so that its result is contiguous after the
    permutation back."""
    for name in ("LEAST_OPERATIONS", "LEAST_OCCUPIED"):
        monkeypatch.setattr(f"cuagent.expert.products.qualify.{name}", 0)
    text = generate(RETURNED).files["model_new.py"]
    assert "linear_add_kernel" in text
    (last,) = (line for line in text.splitlines() if "torch.permute(add" in line)
    assert ".contiguous()" in last
