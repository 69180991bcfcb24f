"""Integers among floating operands, and images of bytes."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]
from modules import leaves  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

BODIES = {
    "integer division": "return (i / 2 + x) * (i * x)",
    "a number over integers": "return (1 / (i + x) + torch.exp(i * 0.1)) * x",
    "powers of integers": "return (x + 2) * torch.exp(-i / 4) + i",
    "an integer where a mask holds": "return torch.where(i > 3, x, i / 5) * 2",
    "a row's integer mean": "return x * (i / i.sum(-1, keepdim=True)) + 1",
    "tests of bytes": "return b.bool().all(1), b.any(1), (b > 3).all(1), x.exp() * 2",
    "bytes": "return (b / 255 - 0.5) * x + b.float()",
    "an image": "return ((b.permute(1, 0).float() / 255) * x.t()).exp().sum(0) * 2",
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_candidate_agrees_with_reference(make, name):
    text = f"""
import torch
class Model(torch.nn.Module):
    def forward(self, i, b, x):
        {BODIES[name]}
def get_inputs():
    b = torch.randint(0, 256, (24, 33), dtype=torch.uint8)
    return [torch.randint(1, 9, (24, 33)), b, torch.rand(24, 33) + 1]
def get_init_inputs(): return []
"""
    assert_agrees(make(text, "Model"))


def test_bytes_are_read_by_the_kernel(make):
    text = """
import torch
class Model(torch.nn.Module):
    def forward(self, b):
        return (b.float() / 255 - 0.5) / 0.25
def get_inputs(): return [torch.randint(0, 256, (24, 33), dtype=torch.uint8)]
def get_init_inputs(): return []
"""
    made = make(text, "Model")
    assert_agrees(made)
    assert "aten._to_copy" not in made.candidate.files["model_new.py"]


ARITHMETIC = {
    "a hash": "return (i * 31 + i[:, :1] * 7 + 1) % 4096, (i * 2654435761) ^ 5",
    "quotients of negative numbers": "return (i // 10) * (i % 10) - i // 8, 5 - i % 8",
    "a choice": "return torch.where(i > 3, i * 2, -7), i.masked_fill(i < 0, -100).clamp(max=50)",
    "requantisation": "return ((n * 12345 + 16384) >> 15).clamp(-100, 100).to(torch.int8)",
    "a type of another tensor": "return (i.cumsum(1).type_as(n) * 3 + n[:33]) * n[:33]",
    "bits": "return (n & 255) | (n << 3), n ^ 12",
    "a mask as numbers": "m = i > 3; return m.long() + i, (m.to(torch.int32) - 3) * n[:24, None]",
    "bytes that wrap around": "return (b + 200) * b - 9",
    "indices of a lookup": "return x[(i * 7 + 3) % 24] * 2 + 1, (i % 24 + 1) * 2",
}  # fmt: skip
INTEGERS = """
import torch
class Model(torch.nn.Module):
    def forward(self, i, n, b, x):
        {body}
def get_inputs():
    edges = torch.tensor([-2**62, 2**62, -8, -10, -1, 0, 10])
    i = torch.randint(-2**40, 2**40, (24, 33))
    i[0, :7] = edges
    n = torch.randint(-2**31, 2**31 - 1, (777,), dtype=torch.int32)
    return [i, n, torch.randint(0, 256, (24, 33), dtype=torch.uint8), torch.rand(24, 5)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize("name", ARITHMETIC)
def test_integer_arithmetic_is_exact_and_wraps_around(make, name):
    made = make(INTEGERS.format(body=ARITHMETIC[name]), "Model")
    reference, candidate, inputs = made.reference().eval(), made.cls().eval(), made.inputs()
    with torch.no_grad():
        pairs = zip(leaves(reference(*inputs)), leaves(candidate(*inputs)), strict=True)
    for expected, got in pairs:
        assert got.dtype is expected.dtype
        assert torch.equal(got, expected)
    assert made.candidate.kernels


def test_sums_of_a_hash_are_not_rounded_between_passes_of_a_kernel(make):
    body = "h = ((i * 31 + 7) ^ 12345) * 3; return h, (h % 1024).float().softmax(-1) * x[:, :1]"
    made = make(INTEGERS.format(body=body), "Model")
    inputs = made.inputs()
    with torch.no_grad():
        expected, got = made.reference().eval()(*inputs), made.cls().eval()(*inputs)
    assert torch.equal(got[0], expected[0])
    torch.testing.assert_close(got[1], expected[1])


REMAINDERS = [6, 0.7, -3, 1e-3]


@pytest.mark.parametrize("divisor", REMAINDERS)
def test_float_remainders_equal_those_of_torch(make, divisor):
    text = f"""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return (x % {divisor}) * 1.0 + 0.0, (x * 1e9) % {divisor}
def get_inputs():
    x = torch.randn(4000) * 20
    x[:8] = torch.tensor([6.0, -6.0, 12.0, 0.7, -0.7, 0.0, float("inf"), float("nan")])
    return [x]
def get_init_inputs(): return []
"""
    made = make(text, "Model")
    inputs = made.inputs()
    with torch.no_grad():
        pairs = zip(made.reference().eval()(*inputs), made.cls().eval()(*inputs), strict=True)
    for expected, got in pairs:
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert "aten.remainder" not in made.candidate.files["model_new.py"]
