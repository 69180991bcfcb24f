"""Forms of single operations that are faster on a CPU: biases, cells, extremes, short loops."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = {layer}
    def forward(self, x):
        {body}
def get_inputs(): return [{inputs}]
def get_init_inputs(): return []
"""
CONV = "nn.Conv2d(6, 9, 3, padding=1)"
CASES = {
    "bias of a convolution": (CONV, "return F.silu(self.layer(x)) * 2", "torch.randn(2, 6, 9, 9)"),
    "bias of a linear layer": (
        "nn.Linear(9, 7)", "return F.silu(self.layer(x)) * 2", "torch.randn(20, 9)",
    ),
    "bias before a reshape": (
        "nn.Linear(9, 6)",
        "return (self.layer(x).unsqueeze(1) + x[:, :6, None]).softmax(-1)",
        "torch.randn(20, 9)",
    ),
    "few rows": (
        "nn.Linear(9, 7)", "return self.layer(x).tanh(), self.layer(x.exp())", "torch.randn(5, 9)",
    ),
    "gru cell": (
        "nn.GRUCell(5, 7)", "return self.layer(x, x.repeat(1, 2)[:, :7] * 2)", "torch.randn(3, 5)",
    ),
    "gru cell without bias": (
        "nn.GRUCell(5, 5, bias=False)", "return self.layer(x, x * 2)", "torch.randn(3, 5)",
    ),
    "lstm cell": (
        "nn.LSTMCell(5, 5)", "return self.layer(x, (x * 2, x.tanh()))", "torch.randn(3, 5)",
    ),
    "rnn cell": (
        "nn.RNNCell(5, 5, nonlinearity='relu')", "return self.layer(x, x - 1)", "torch.randn(3, 5)",
    ),
    "maximum without its index": (
        "nn.Identity()", "return x.max(1)[0], x.min(2)[0]", "torch.randn(3, 40, 50)",
    ),
    "one output feature": (
        "nn.Linear(40, 1)", "return self.layer(x.tanh()).squeeze(-1).softmax(-1)",
        "torch.randn(6, 30, 40)",
    ),
    "shuffled pixels": (
        "nn.Identity()", "return F.pixel_shuffle(x, 3).clamp(0, 1)", "torch.randn(1, 9, 20, 20)",
    ),
    "pairs, one loop": (
        "nn.Identity()", "return torch.stack((x * 2, x[:100] - 1), -1)[::3].exp()",
        "torch.randn(100)",
    ),
    "last dimension of three": (
        "nn.Identity()", "return (x.transpose(0, 1) * 2 + x[:3, :3].sum()).contiguous().exp()",
        "torch.randn(3, 4000)",
    ),
    "expensive groups of three": (
        "nn.Identity()",
        "return torch.sin(x[:, None] * torch.tensor([1.0, 2.0, 4.0, 8.0, 3.0, 5.0])[:, None])",
        "torch.randn(77, 3)",
    ),
    "expensive groups of five in an outer loop": (
        "nn.Identity()",
        "return torch.exp(x[:, :, None] * x[:, None, :, :1] + 1).tanh()",
        "torch.randn(5, 90, 5)",
    ),
    "padding of short rows": (
        "nn.Identity()", "return F.pad(x.exp(), (1, 0)).sigmoid() * 2", "torch.randn(300, 4)",
    ),
    "rolled halves of short rows": (
        "nn.PReLU().bfloat16()",
        "a, b = x\n"
        "        t = torch.where(b > b, b, b * 0.1)\n"
        "        u = self.layer(a) + t\n"
        "        return u, t * 0.5 + a, torch.roll(b, 1, 1) + u",
        "torch.randn(2, 6, 16, 3).bfloat16()",
    ),
    "sum of short rows": (
        "nn.Identity()",
        "return (x[0].sigmoid() * F.one_hot(x[1, :, 0].abs().long(), 20).float()).sum() + x.mean()",
        "torch.randn(2, 3000, 20)",
    ),
    "sum of broken rows": (
        "nn.Identity()", "return (x[:, 1:38] * 2 - 1).sum((0, 1)) * 3", "torch.rand(3000, 40)",
    ),
    "loss of a transposed matrix": (
        "nn.Identity()",
        "return F.cross_entropy(x.t() * 3, torch.arange(70), reduction='none')",
        "torch.randn(90, 70)",
    ),
    "leaky ReLU with slopes": (
        "nn.PReLU(6)", "return self.layer(x * 2 - 1) + x", "torch.randn(3, 6, 20)",
    ),
    "leaky ReLU with one slope": (
        "nn.PReLU()", "return self.layer(x * 2 - 1) + x", "torch.randn(3, 6, 20)",
    ),
    "pairs by constant indices": (
        "nn.Identity()\n"
        "        self.register_buffer('i', torch.tril_indices(9, 9, -1)[0])\n"
        "        self.register_buffer('j', torch.tril_indices(9, 9, -1)[1] - 9)",
        "return (x @ x.mT)[:, self.i, self.j].relu() * 2",
        "torch.randn(30, 9, 5)",
    ),
    "bags of a few rows": (
        "nn.EmbeddingBag(40, 12, mode='sum')",
        "return self.layer(x.abs().mul(8).long().clamp(0, 39)) * 2",
        "torch.randn(33, 4)",
    ),
    "small concatenation": (
        "nn.Linear(8, 4)", "return self.layer(torch.cat((x[:, 4:], x[:, :4]), 1))",
        "torch.randn(5, 8)",
    ),
}  # fmt: skip
"""(Layer, body of forward, expressions of the inputs) of each case, by its name."""


def made_of(make, name: str):
    layer, body, inputs = CASES[name]
    return make(HEAD.format(layer=layer, body=body, inputs=inputs), "Model")


def forward_of(made) -> str:
    return str(made.candidate.files["model_new.py"].split("def _fits")[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_form_agrees_with_the_reference(make, name):
    assert_agrees(made_of(make, name))


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        *((name, ", bias=") for name in CASES if name.startswith("bias")),
        *((name, "_cell.") for name in CASES if name.endswith("cell")),
        ("maximum without its index", "aten.m"),
        ("one output feature", "F.linear"),
        ("few rows", "F.linear"),
        ("small concatenation", "aten.cat"),
        ("leaky ReLU with slopes", "aten.prelu"),
        ("pairs by constant indices", "aten.index"),
    ],
)
def test_call_of_torch_is_left_out(make, name, absent):
    assert absent not in forward_of(made_of(make, name))


def test_bias_of_a_half_type_stays_in_the_layer(make):
    layer, body, inputs = CASES["bias of a linear layer"]
    text = HEAD.format(layer=f"{layer}.bfloat16()", body=body, inputs=f"{inputs}.bfloat16()")
    text = text.replace("nn.Linear(9, 7)", "nn.Linear(64, 64)").replace("(20, 9)", "(64, 64)")
    made = make(text, "Model")
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        calls = forward_of(made)
        assert "_linear_pointwise(x, self._modules" in calls or ", bias=" in calls
    assert_agrees(made)


def test_transposed_weights_are_shared(make):
    assert forward_of(made_of(make, "few rows")).count(".t().contiguous()") == 1


def kernels_of(made) -> str:
    return "".join(t for path, t in made.candidate.files.items() if path.endswith(".cpp"))


@pytest.mark.parametrize(
    "name",
    [
        "expensive groups of three",
        "expensive groups of five in an outer loop",
        "padding of short rows",
        "sum of short rows",
    ],
)
def test_expensive_elements_of_short_rows_are_copied_to_one_loop(make, name):
    assert "flat < width" in kernels_of(made_of(make, name))


def test_vectors_run_across_rows_that_are_adjacent_in_memory(make):
    text = kernels_of(made_of(make, "loss of a transposed matrix"))
    assert "const long width" in text
    assert "staged" not in text


def test_long_sums_of_short_rows_are_added_up_in_double(make):
    made = made_of(make, "sum of broken rows")
    assert "double" in kernels_of(made)
    assert_agrees(made)


@pytest.mark.parametrize("name", ["shuffled pixels", "pairs, one loop"])
def test_vectors_run_over_groups_of_a_few_elements(make, name):
    made = made_of(make, name)
    (text,) = [t for path, t in made.candidate.files.items() if path.endswith(".cpp")]
    assert "GCC unroll" in text


SHORT_PRODUCTS = {
    "small matrices": "p = x[:, :9].view(-1, 3, 3); return (p @ p @ self.layer.weight.t()).exp()",
    "points": "return (2 - 2 * x[:, :3] @ x[:, :3].t()).exp()",
    "a batch": "p = x[:, :8].reshape(5, -1, 2); return torch.bmm(p, p.transpose(1, 2)).sum(-1)",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT_PRODUCTS)
def test_a_product_of_few_terms_is_computed_by_elementwise_operations(make, name):
    text = HEAD.format(
        layer="nn.Linear(3, 3)", body=SHORT_PRODUCTS[name], inputs="torch.randn(20, 9)"
    )
    made = make(text, "Model")
    assert_agrees(made)
    calls = made.candidate.files["model_new.py"].split("class ModelNew")[1]
    assert not any(f"torch.{word}(" in calls for word in ("matmul", "mm", "bmm"))
    assert "F.linear(" not in calls


@pytest.mark.slow
def test_padding_of_three_dimensions_by_their_own_elements_is_left_to_torch(make):
    body = "return F.pad(x * 2 + 1, (1, 1, 1, 1, 1, 1), mode='circular').exp() + 1"
    made = make(HEAD.format(layer="None", body=body, inputs="torch.randn(1, 2, 5, 5, 5)"), "Model")
    assert_agrees(made)
    assert len(made.candidate.kernels) <= 2
