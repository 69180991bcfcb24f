"""Many embeddings that are stacked or concatenated, as in recommendation models, are one kernel."""

from __future__ import annotations

import pytest
import test_emulated_cuda as emulated  # type: ignore[import-not-found]
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options
from cuagent.expert.capture.subject import Target

MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(40, 8) for _ in range({tables}))
        self.bottom = nn.Linear(13, 8)
        self.register_buffer("lower", torch.tril_indices(4, 4, -1), persistent=False)
    def forward(self, x, ids):
        rows = [table(ids[:, n]) for n, table in enumerate(self.tables)]
        {body}
def get_inputs(): return [torch.randn(30, 13), torch.randint(40, (30, {tables}))]
def get_init_inputs(): return []
"""
BODIES = {
    "stacked behind a layer": (11, "return torch.stack([self.bottom(x), *rows], 1) * 2"),
    "stacked before the rows": (11, "return torch.stack(rows, 0).relu()"),
    "stacked behind the features": (10, "return torch.stack(rows, 2) + 1"),
    "concatenated": (12, "return torch.cat([self.bottom(x), *rows], 1).tanh()"),
    "stacked alone": (9, "return torch.stack(rows, 1)"),
    "pairs of products": (
        3,
        "f = torch.stack([self.bottom(x), *rows], 1); p = torch.bmm(f, f.transpose(1, 2)); "
        "return torch.cat([f[:, 0], p[:, self.lower[0], self.lower[1]]], 1)",
    ),
}


def text_of(name: str) -> str:
    tables, body = BODIES[name]
    return MODEL.format(tables=tables, body=body)


@pytest.mark.parametrize("name", [name for name in BODIES if name != "stacked behind the features"])
def test_no_lookup_is_a_call_of_torch(generate, name):
    module = generate(text_of(name)).files["model_new.py"]
    forward = module[module.index("def forward") :]
    assert "F.embedding" not in forward
    assert "aten.stack" not in forward
    assert "aten.index" not in forward


def test_all_lookups_of_a_stack_are_one_kernel(generate):
    made = generate(text_of("stacked behind a layer"))
    assert made.kernels == ("stack_mul_kernel",)
    assert made.files["kernels/stack_mul_kernel.cu"].count("checked_slice<40, false>") == 11


def test_many_lookups_are_no_single_kernel_on_a_cpu(generate):
    made = generate(text_of("stacked alone"), Target("cpu"))
    assert made is None or "stack_kernel" not in made.kernels


def test_many_parts_in_memory_stay_with_torch(generate):
    body = "return torch.stack([x * k for k in range(12)], 1)"
    assert generate(MODEL.format(tables=1, body=f"rows.clear(); {body}")) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_emulated_candidate_agrees_with_reference(tmp_path, monkeypatch, name):
    emulated.check(tmp_path, monkeypatch, text_of(name), Options(products=False))


@pytest.mark.gpu
@pytest.mark.parametrize("name", BODIES)
def test_cuda_candidate_agrees_with_reference(make, name):
    assert_agrees(make(text_of(name), "Model", Options(), "cuda"), "cuda")
