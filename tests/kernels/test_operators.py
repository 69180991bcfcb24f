"""Launchers as operators of torch: schema, registration, and one call inside torch.compile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuagent.kernels import load
from cuagent.kernels.operators import schema
from cuagent.kernels.prototypes import parse

SCALE = """
extern "C" void scale(float* y, const float* x, float factor, long n, bool negate) {
  for (long i = 0; i < n; ++i) y[i] = (negate ? -factor : factor) * x[i];
}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "scale.cpp"
    path.write_text(SCALE)
    return path


def test_schema_marks_pointers_that_are_written():
    (prototype,) = parse(SCALE, "scale.cpp")
    assert schema(prototype) == (
        "scale(Tensor(a0!)? a0, Tensor? a1, float a2, int a3, bool a4) -> ()"
    )


def test_operator_runs_the_launcher(source):
    scale = load(source).operator("scale")
    x = torch.randn(10)
    y = torch.empty_like(x)
    scale(y, x, 3.0, 10, True)
    assert torch.equal(y, -3 * x)


def test_operator_is_registered_once(source):
    assert load(source).operator("scale") is load(source).operator("scale")


def test_operator_keeps_its_contract_with_torch(source):
    scale = load(source).operator("scale")
    x = torch.randn(8)
    torch.library.opcheck(scale, (torch.empty_like(x), x, 2.0, 8, False))


@pytest.mark.slow
def test_compiled_function_calls_the_operator_between_its_own_kernels(source):
    scale = load(source).operator("scale")

    def plain(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        scale(y, x * 2, 3.0, x.numel(), False)
        return y.relu() + 1

    x = torch.randn(64)
    compiled = torch.compile(plain, fullgraph=True)
    assert torch.allclose(compiled(x), (x * 6).relu() + 1)


@pytest.mark.slow
def test_transposed_argument_arrives_contiguous_in_a_compiled_function(source):
    scale = load(source).operator("scale")

    @torch.compile(fullgraph=True)
    def compiled(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(8, 4)
        scale(y, (x.t() + 1).contiguous(), 2.0, x.numel(), False)
        return y

    x = torch.randn(4, 8)
    assert torch.allclose(compiled(x), (x.t() + 1) * 2)


def test_unknown_function_is_named(source):
    with pytest.raises(AttributeError, match=r"it has scale"):
        load(source).operator("shrink")
