"""Generated backward passes: captured by autograd, compiled by g++ and compared with fp64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from importing import imported  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import open_subject
from cuagent.task import load_task
from cuagent.task.step import as_step, training_step

pytestmark = pytest.mark.slow

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
"""
MODULES = {
    "rms norm and gelu": (
        "self.w = nn.Parameter(torch.ones(24))",
        "F.gelu((h := x + r) * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w)",
        "torch.randn(6, 24), torch.randn(6, 24)",
    ),
    "layer norm": (
        "self.n = nn.LayerNorm(24)",
        "torch.sigmoid(self.n(x + r)) * r",
        "torch.randn(2, 3, 24), torch.randn(2, 3, 24)",
    ),
    "group norm": (
        "self.n = nn.GroupNorm(2, 4)",
        "F.silu(self.n(x)) + r",
        "torch.randn(2, 4, 5, 3), torch.randn(2, 4, 5, 3)",
    ),
    "softmax": ("", "torch.softmax(x * 0.3, -1) * r", "torch.randn(6, 24), torch.randn(6, 24)"),
    "cross-entropy": (
        "",
        "F.cross_entropy(x, r, ignore_index=2) + 1e-3 * torch.logsumexp(x, -1).square().mean()",
        "torch.randn(7, 11), torch.tensor([0, 2, 5, 10, 2, 1, 3])",
    ),
    "label smoothing": (
        "",
        "F.cross_entropy(x, r, label_smoothing=0.1, reduction='sum')",
        "torch.randn(7, 11), torch.tensor([0, 2, 5, 10, 2, 1, 3])",
    ),
    "a network": (
        "self.a = nn.Linear(24, 40); self.b = nn.Linear(40, 24)",
        "r + self.b(F.gelu(self.a(x), approximate='tanh'))",
        "torch.randn(6, 24), torch.randn(6, 24)",
    ),
    "attention": (
        "self.a = nn.Linear(24, 24)",
        "F.gelu(F.scaled_dot_product_attention(self.a(x), r, r, is_causal=True)) * x",
        "torch.randn(2, 3, 40, 24), torch.randn(2, 3, 40, 24)",
    ),
    "a table that is changed in place": (
        "self.t = nn.Embedding(9, 24)",
        "(x + self.t(torch.arange(6).add_(torch.arange(6) // 3))) * r",
        "torch.randn(6, 24), torch.randn(6, 24)",
    ),
    "huber loss": ("", "F.huber_loss(x, r)", "torch.randn(6, 24), torch.randn(6, 24)"),
}


@pytest.mark.parametrize("name", MODULES)
def test_generated_gradients_agree_with_fp64(name: str, tmp_path: Path) -> None:
    init, forward, inputs = MODULES[name]
    text = (
        f"{HEAD}        {init or 'pass'}\n    def forward(self, x, r):\n        return {forward}\n"
        f"def get_inputs(): return [{inputs}]\ndef get_init_inputs(): return []\n"
    )
    (tmp_path / "task.py").write_text(text)
    step = training_step(load_task(tmp_path / "task.py", device="cpu"))
    candidate = make_candidate(open_subject(step), Options())
    assert candidate is not None
    for path, content in candidate.files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    (tmp_path / "step.py").write_text(step.source)
    reference_file = imported(tmp_path / "step.py")
    torch.manual_seed(0)
    reference = reference_file.ModelStep().eval()
    new = imported(tmp_path / "model_new.py").ModelNew().eval()
    with torch.no_grad():
        for tensor in reference.parameters():
            tensor.uniform_(0.25, 1.25)
    new.load_state_dict(reference.state_dict())
    given = reference_file.get_inputs()
    with torch.no_grad():
        taken = as_step(new, 2)
        taken(*given)
        got = taken(*given)  # the first call changes no input of the second
        expected = reference(*given)
        exact = reference.double()(*[t.double() if t.is_floating_point() else t for t in given])
    assert len(got) == len(expected)
    for right, value, wanted in zip(exact, got, expected, strict=True):
        assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
        scale = right.norm() + 1e-30
        error, bound = ((t.double() - right).norm() / scale for t in (value, wanted))
        assert error <= 4 * bound + 4e-7
