"""Complex arithmetic, such as a rotary embedding by complex numbers, becomes one kernel."""

from __future__ import annotations

import pytest
from agreement import assert_agrees

TEXT = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        angles = torch.outer(torch.arange(24).float(), 0.01 ** (torch.arange(8) / 8))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
    def forward(self, x, y):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        {body}
def get_inputs(): return [torch.randn(2, 3, 24, 16){half}, torch.randn(2, 3, 24, 8)]
def get_init_inputs(): return []
"""
BODIES = {
    "rotation": "return torch.view_as_real(z * self.turns).flatten(3).type_as(x)",
    "broadcast rotation": (
        "t = self.turns[None, None, :20]\n"
        "        return torch.view_as_real(z[:, :, :20] * t.expand(2, 3, 20, 8)).flatten(3) * 2"
    ),
    "size and angle": "w = z * y - z.conj(); return w.abs() * 2, w.angle() * 2",
    "parts": (
        "w = torch.complex(y, y.exp()) + z.transpose(-1, 0).transpose(0, -1)\n"
        "        return w.real * w.imag"
    ),
    "rotation by computed angles": (
        "t = torch.polar(torch.ones_like(y), y); return torch.view_as_real(z * t).flatten(3) + 1"
    ),
}


def text_of(body: str, half: str = "") -> str:
    return TEXT.format(body=body, half=half)


@pytest.mark.parametrize("name", BODIES)
def test_arithmetic_on_pairs_agrees_with_fp64(make, name):
    made = make(text_of(BODIES[name]), "Model")
    assert_agrees(made)
    forward = made.candidate.files["model_new.py"].rpartition("def forward")[2]
    assert "complex" not in forward.partition("def _prepare")[0]
    assert len(made.candidate.kernels) == 1


def test_rotation_of_a_half_type_rounds_once(make):
    assert_agrees(make(text_of(BODIES["rotation"], ".bfloat16()"), "Model"))


def test_other_complex_operations_stay_with_torch(make):
    body = "w = torch.exp(z) * 2; return torch.view_as_real(w).sum(-1) * y"
    assert_agrees(make(text_of(body), "Model"))
