"""Complex arithmetic, such as a rotary embedding by complex numbers, becomes one kernel."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees

pytestmark = pytest.mark.slow

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


PLAIN = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("turns", torch.randn(4, dtype=torch.complex64).conj())
    def forward(self, x, y):
        return {expression}
def get_inputs(): return [{inputs}]
def get_init_inputs(): return []
"""
NUMBERS = "torch.randn(3, 4, dtype=torch.complex64)"
EDGES = {
    "parts of different shapes": (
        "torch.complex(x, y).abs() * 2", "torch.randn(3, 1), torch.ones(4)"
    ),
    "parts of different ranks": (
        "torch.complex(x, y).abs() * 2", "torch.randn(3, 4), torch.ones(())"
    ),
    "float64 number": (
        "torch.view_as_real(x * y).exp() * 2",
        f"{NUMBERS}, torch.tensor(0.3, dtype=torch.float64)",
    ),
    "imaginary part of a conjugate": ("x.conj().imag * 2 + y", f"{NUMBERS}, torch.ones(4)"),
    "conjugate input": ("x.imag * 3 + y", f"{NUMBERS}.conj(), torch.ones(4)"),
    "conjugate buffer": ("(x * self.turns).imag * 2 + y", f"{NUMBERS}, torch.ones(4)"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_complex_values_agree_with_torch(make, name):
    expression, inputs = EDGES[name]
    made = make(PLAIN.format(expression=expression, inputs=inputs), "Model")
    reference, new = made.reference(), made.cls().eval()
    new.load_state_dict(reference.state_dict())
    given = made.inputs()
    with torch.no_grad():
        torch.testing.assert_close(new(*given), reference(*given))


def test_negated_view_of_torch_is_stored_before_a_kernel_reads_it(make):
    text = PLAIN.format(
        expression="torch._neg_view(x.exp()).sort()[0] * y",
        inputs="torch.randn(3, 4), torch.ones(4)",
    )
    assert_agrees(make(text, "Model"))
