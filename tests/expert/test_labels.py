"""Losses of labels and gathers of single elements: one kernel with what surrounds them."""

from __future__ import annotations

import re

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

LABELS = "torch.randint(0, 12, (40,))"
BODIES = {
    "transposed logits": ("F.cross_entropy(x, y) + F.cross_entropy((x @ w).t(), z)", "40, 12", ""),
    "label smoothing": ("F.cross_entropy(x * 3, y, label_smoothing=0.1)", "40, 12", ""),
    "smoothing, weights, ignored": (
        "F.cross_entropy(x, y, self.w, label_smoothing=0.2, ignore_index=3)", "40, 12", "",
    ),
    "weights": ("F.cross_entropy(x + 100, y, self.w)", "40, 12", ""),
    "weights without reduction": ("F.cross_entropy(x, y, self.w, reduction='none')", "40, 12", ""),
    "segmentation": ("F.cross_entropy(x, y)", "2, 12, 5, 7", "2, 5, 7"),
    "segmentation, weights, sum": (
        "F.cross_entropy(x, y, self.w, reduction='sum', ignore_index=0)", "2, 12, 5, 7", "2, 5, 7",
    ),
    "probabilities": ("F.cross_entropy(x, x.flip(0).softmax(1))", "40, 12", ""),
    "smoothed probabilities, weights": (
        "F.cross_entropy(x, x.flip(0).softmax(1), self.w, label_smoothing=0.3)", "9, 12, 4", "",
    ),
    "log-likelihood": ("F.nll_loss(F.log_softmax(x, 1), y)", "40, 12", ""),
    "log-likelihood of images": (
        "F.nll_loss(F.log_softmax(x, 1), y, self.w, ignore_index=2)", "2, 12, 5, 7", "2, 5, 7",
    ),
    "cosine of pairs": (
        "F.cosine_embedding_loss(x, x.flip(0) * w[0, 0] + 1, y.clamp(max=1) * 2 - 1, 0.1)",
        "40, 12", "",
    ),
    "a gather": ("x.gather(1, y[:, None])", "40, 12", ""),
    "several of each row": ("x.gather(1, y.view(20, 2).repeat(2, 1)) * 2", "40, 12", ""),
    "a gather of fewer rows": ("(x * 2).gather(1, y.view(20, 2)) + 1", "40, 12", ""),
    "a gather along rows": ("x.gather(0, y.view(4, 10)).exp() + 1", "12, 10", ""),
    "log-probability of a token": (
        "(x / 0.7).log_softmax(-1).gather(-1, y[..., None]).squeeze(-1)", "4, 10, 12", "4, 10",
    ),
    "the next token": (
        "F.cross_entropy(x[:, :-1].float().reshape(-1, 12), y[:, 1:].reshape(-1))",
        "4, 10, 12", "4, 10",
    ),
    "the next token of one sequence": (
        "F.cross_entropy((x[:, :-1] * 2).view(-1, 12), y[:, 1:].view(-1), ignore_index=3)",
        "1, 10, 12", "1, 10",
    ),
    "a gather along a reshaped dimension": (
        "(x * 2).view(4, 12, 10).gather(1, y.view(4, 1, 10)) + 1", "4, 10, 12", "4, 10",
    ),
    "a policy's ratio": (
        "((x.log_softmax(-1).gather(-1, y[:, None]) - x[:, :1]).exp() * x).sum()", "40, 12", "",
    ),
    "chosen weights in their places": (
        "(lambda v, i: torch.zeros_like(x).scatter(-1, i, v / v.sum(-1, keepdim=True)) * 2 + 1)"
        "(*x.softmax(-1).topk(2, -1))", "40, 12", "",
    ),
    "a hard choice": (
        "torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), 1.0) - x.detach() + x",
        "40, 12", "",
    ),
    "the last of equal places wins": (
        "x.scatter(1, y.view(20, 2).repeat(2, 1) * 0 + 3, x[:, :2] * 3).exp() + 1", "40, 12", "",
    ),
    "one-hot numbers": ("(F.one_hot(y, 12).float() * x).sum(0) + 1", "40, 12", ""),
    "one-hot images": (
        "(F.one_hot(y, 12).permute(0, 3, 1, 2).float() * x.softmax(1)).sum((2, 3)) * 2",
        "2, 12, 5, 7", "2, 5, 7",
    ),
    "one-hot cast": ("(F.one_hot(y, 12).to(x.dtype) * x).sum(1) + 1", "40, 12", ""),
    "a gather of a kernel's result": ("x.cumsum(1).gather(1, y[:, None]) * 2 + x", "40, 12", ""),
}  # fmt: skip

EMULATED = [
    "log-probability of a token", "segmentation, weights, sum", "smoothing, weights, ignored",
    "a hard choice",
]  # fmt: skip


def text_of(name: str, dtype: str = "float32") -> str:
    body, shape, places = BODIES[name]
    return f"""
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.rand(12) + 0.5)
        self.to(torch.{dtype})
    def forward(self, x, y, z, w):
        return {body}
def get_inputs():
    y = torch.randint(0, 12, ({places or "40,"}))
    t = torch.{dtype}
    return [torch.randn({shape}).to(t), y, torch.randint(0, 40, (40,)), torch.randn(12, 40).to(t)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize("name", BODIES)
def test_candidate_agrees_with_reference(make, name):
    made = make(text_of(name), "Model")
    assert_agrees(made)
    forward = made.candidate.files["model_new.py"].split("def _fits")[1]
    left = ("cross_entropy", "nll_loss", "gather", "scatter", "one_hot", "cosine_embedding_loss")
    assert not [word for word in left if f"aten.{word}." in forward]


@pytest.mark.parametrize(
    "name",
    ["label smoothing", "a gather", "log-probability of a token", "the next token", "one-hot cast"],
)
def test_candidate_agrees_with_reference_in_half_precision(make, name):
    made = make(text_of(name, "bfloat16"), "Model")
    assert_agrees(made)
    assert "aten.one_hot." not in made.candidate.files["model_new.py"].split("def _fits")[1]


def test_log_probability_of_a_token_stores_no_other_probability(make):
    """The kernel reads the logits and writes one number for each row."""
    candidate = make(text_of("log-probability of a token"), "Model").candidate
    assert len(candidate.kernels) == 1
    assert "float32[4, 10, 12]" not in candidate.files["model_new.py"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["the next token", "the next token of one sequence"])
def test_loss_of_reshaped_logits_stores_no_logits(make, name, dtype):
    """The kernels read a slice, a cast and a reshape of the logits, and store numbers of rows."""
    forward = make(text_of(name, dtype), "Model").candidate.files["model_new.py"]
    stored = set(re.findall(r"\w+\[[\d, ]+\]", forward.split("kernels = ")[-1]))
    assert not [shape for shape in stored if "36, 12" in shape or "9, 12" in shape]


def test_label_out_of_range_gives_nan(make):
    import torch

    made = make(text_of("weights without reduction"), "Model")
    x, y, *rest = made.inputs()
    y[1], y[2] = 99, -100
    with torch.no_grad():
        loss = made.cls().eval()(x, y, *rest)
    assert loss.isnan().tolist() == [k == 1 for k in range(40)]
    assert loss[2] == 0


def test_rows_of_one_reduction_are_columns_of_the_next(make):
    """Two groups that each agree within themselves were joined into a kernel of wrong results."""
    text = """
import torch
class Model(torch.nn.Module):
    def forward(self, a, t, e, m):
        for k in range(2):
            n = torch.logsumexp(a[:, :, None] + t[None] + e[:, k, None], 1)
            a = torch.where(m[:, k, None], n, a)
        return torch.logsumexp(a, 1)
def get_inputs():
    m = torch.rand(16, 2) > 0.3
    return [torch.randn(16, 12), torch.randn(12, 12), torch.randn(16, 2, 12), m]
def get_init_inputs(): return []
"""
    assert_agrees(make(text, "Model"))
