"""Writes at few indices of each row, and the gradients of gathers, become choices by index."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]
from emulation import emulated  # type: ignore[import-not-found]
from importing import imported  # type: ignore[import-not-found]

from cuagent import kernels
from cuagent.expert.candidate import Candidate, Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.rules import writes
from cuagent.task import load_task
from cuagent.task.step import as_step, training_step

HOPPER = Target("cuda", (9, 0), 132)
FORWARDS = {
    "a sum into zeros": "torch.zeros_like(x).scatter_add(-1, y[:, None], x[:, :1] * 2) * w + 1",
    "a sum into rows": "(x * 2).scatter_add(1, y[:, None], x[:, :1].exp()).tanh()",
    "equal indices": "x.scatter_add(1, y.view(20, 2).repeat(2, 1) * 0 + 3, x[:, :2]) * 2",
    "along columns": "torch.zeros_like(x).scatter_add(0, z[None], w[:1] * 3) * x + 1",
    "the largest": "x.scatter_reduce(1, y[:, None], x[:, :1] * 9, 'amax') * 2",
    "the smallest": "(x + 1).scatter_reduce(1, y[:, None], x[:, :1] - 1, 'amin') * 2",
    "added at a place of each row": (
        "torch.zeros_like(x).index_put((torch.arange(40), y - 12), x[:, 0], accumulate=True) * x"
    ),
    "one number added at a place of each row": (
        "x.index_put((torch.arange(40), y), w[0, 0], accumulate=True) * 2"
    ),
    "the place of each element": "(torch.arange(12) <= y[:, None]).float() * x",
    "a mask that is padded": "F.pad((torch.arange(12) < y[:, None]).float() * x, (3, 2))",
    "a mask that is joined": "torch.cat([(torch.arange(12) < y[:, None]).float(), x * 2, w], 1)",
    "a mask whose columns are cut": "((torch.arange(12) == y[:, None]).float() + x)[:, 3:] * 2",
    "a mask that is rolled": "((torch.arange(12) == y[:, None]).float() + x).roll(5, 1) * 2",
    "a mask that is reflected": (
        "F.pad(((torch.arange(12) == y[:, None]) + x)[None], (2, 3), 'reflect')"
    ),
    "slices that are replaced": "(x * 2).slice_scatter(w[:, 3:9].exp(), 1, 3, 9) * x",
    "a slice that is replaced": "(x * 2).select_scatter(w[:, 3].exp(), 1, -4) * x",
    "assigned slices": "(lambda z: (z[:, 2:5].copy_(w[:, 3:6] * 2), z[7].copy_(w[3]), z * x))"
    "(x.exp())[-1]",
    "slices in zeros": "torch.zeros_like(x).slice_scatter(w[:7] * 3 + 1, 0, -33, -26) + 1",
    "places of rows": "(z < torch.arange(40)[:, None]).float() * x",
}  # fmt: skip
LOSSES = {
    "z-loss": (
        "((t := torch.logsumexp(x.float(), -1)) - x.float().gather(-1, y[:, None])[:, 0]"
        " + 0.1 * (t - x.float().mean(-1)) + 1e-4 * t.square()).mean()"
    ),
    "log-likelihood": "F.nll_loss(F.log_softmax(x, -1), y, ignore_index=3)",
    "picked by rows": "-F.log_softmax(x, -1)[torch.arange(7), y].mean()",
    "cross-entropy": "F.cross_entropy(x.float(), y, ignore_index=2, label_smoothing=0.2)",
    "chosen twice": "(x.softmax(-1).gather(1, torch.stack([y, y.flip(0)], 1)) * x[:, :2]).sum(-1)",
    "weights of classes": "F.cross_entropy(x, y, self.w, ignore_index=5, label_smoothing=0.1)",
    "weights without reduction": "F.nll_loss(x, y, self.w, reduction='none', ignore_index=1) * 2",
    "sum of weights": "F.cross_entropy(x, y, self.w, reduction='sum')",
    "one-hot": "-(x.log_softmax(-1) * F.one_hot(y, 13).to(x.dtype)).sum(-1).mean()",
}
LEFT = (
    "nll_loss_backward",
    "nll_loss_forward",
    "scatter",
    "scatter_add",
    "slice_scatter",
    "select_scatter",
    "scatter_reduce",
    "index_put",
    "zeros",
    "full",
    "arange",
)
"""Operators that write or read tensors of the size of the logits."""


def forward_text(body: str, dtype: str = "float32") -> str:
    return f"""
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, x, y, z, w):
        return {body}
def get_inputs():
    t = torch.{dtype}
    return [torch.randn(40, 12).to(t), torch.randint(0, 12, (40,)), torch.randint(0, 40, (12,)),
            torch.randn(40, 12).to(t)]
def get_init_inputs(): return []
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", FORWARDS)
def test_write_agrees_with_reference(make, name):
    made = make(forward_text(FORWARDS[name]), "Model")
    assert_agrees(made)
    text = made.candidate.files["model_new.py"].split("def _fits")[1]
    assert not [word for word in (*LEFT, "copy") if f"aten.{word}." in text]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a sum into rows", "the largest"])
def test_write_agrees_with_reference_in_half_precision(make, name):
    assert_agrees(make(forward_text(FORWARDS[name], "bfloat16"), "Model"))


@pytest.mark.slow
def test_extremes_keep_nan_and_infinity(make):
    made = make(forward_text(FORWARDS["the largest"]), "Model")
    x, y, z, w = made.inputs()
    x[0], x[1, 0], x[2] = torch.nan, torch.nan, -torch.inf
    got, expected = made.cls().eval()(x, y, z, w), made.reference()(x, y, z, w)
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.slow
def test_index_out_of_range_writes_nothing(make):
    made = make(forward_text(FORWARDS["a sum into zeros"]), "Model")
    x, y, z, w = made.inputs()
    y[:4] = torch.tensor([-1, 12, 1 << 40, -(1 << 62)])
    with torch.no_grad():
        assert (made.cls().eval()(x, y, z, w)[:4] == 1).all()


def test_many_indices_and_long_rows_are_left_to_torch(generate, monkeypatch):
    many = "x.scatter_add(1, y.view(4, 10).repeat(10, 1), w[:, :10]) * 2"
    text = generate(forward_text(f"({many}).softmax(-1)"), HOPPER).files["model_new.py"]
    assert "aten.scatter_add." in text
    monkeypatch.setattr(writes, "MAX_INDEX", 11)
    body = f"({FORWARDS['a sum into rows']}).softmax(-1)"
    text = generate(forward_text(body), HOPPER).files["model_new.py"]
    assert "aten.scatter_add." in text


def loss_text(body: str, dtype: str, labels: str) -> str:
    return f"""
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.arange(1.0, 14.0).to(torch.{dtype}) / 8)
    def forward(self, x, y):
        return {body}
def get_inputs(): return [torch.randn(7, 13).to(torch.{dtype}) * 3, torch.tensor({labels})]
def get_init_inputs(): return []
"""


def gradients(
    folder: Path, text: str, target: Target
) -> tuple[Candidate, list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Generate a training step; return the candidate, its results, and the reference's in the
    task's precision and in fp64."""
    (folder / "task.py").write_text(text)
    step = training_step(load_task(folder / "task.py", device="cpu"))
    subject = replace(open_subject(step), target=target)
    candidate = make_candidate(subject, Options())
    assert candidate is not None
    for path, content in candidate.files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(content)
    (folder / "step.py").write_text(step.source)
    reference_file = imported(folder / "step.py")
    reference, new = reference_file.ModelStep(), imported(folder / "model_new.py").ModelNew()
    torch.manual_seed(1)
    given = reference_file.get_inputs()
    with torch.no_grad():
        got = as_step(new.eval(), 2)(*given)
        expected = reference(*given)
        exact = reference.double()(*[t.double() if t.is_floating_point() else t for t in given])
    return candidate, list(got), list(expected), list(exact)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradient_of_a_loss_agrees_with_fp64(tmp_path, monkeypatch, name, device, dtype):
    """On `cuda` the kernels are emulated."""
    if device == "cuda":
        monkeypatch.setattr(kernels, "load", emulated)
    text = loss_text(LOSSES[name], dtype, "[0, 2, 5, 12, 2, 1, 3]")
    target = HOPPER if device == "cuda" else Target("cpu")
    candidate, got, expected, exact = gradients(tmp_path, text, target)
    backward = candidate.files["model_new.py"].split("def _fits_backward")[1]
    assert not [word for word in LEFT if f"aten.{word}." in backward]
    for value, wanted, right in zip(got, expected, exact, strict=True):
        assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
        scale = right.double().norm() + 1e-30
        error, bound = ((t.double() - right.double()).norm() / scale for t in (value, wanted))
        assert error <= 4 * bound + (4e-7 if dtype == "float32" else 4e-3)
