"""Vectorizable functions of the CPU kernels, compared with fp64 and at special values."""

from __future__ import annotations

import importlib.resources

import pytest
import torch

from cuagent.kernels import load

CASES = {
    "exponential": (torch.exp, -87, 88, 2),
    "exponential_minus_one": (torch.expm1, -20, 20, 3),
    "logarithm": (torch.log, 1e-38, 1e30, 2),
    "logarithm_one_plus": (torch.log1p, -0.9, 1e6, 4),
    "hyperbolic_tangent": (torch.tanh, -12, 12, 3),
    "error_function": (torch.erf, -5, 5, 3),
    "sigmoid": (torch.sigmoid, -40, 40, 4),
    "sine": (torch.sin, -1e7, 1e7, 2),
    "cosine": (torch.cos, -1e7, 1e7, 2),
    "round_to_even": (torch.round, -40, 40, 0),
    "round_to_zero": (torch.trunc, -40, 40, 0),
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pointwise")
    header = (
        importlib.resources.files("cuagent.expert.streaming").joinpath("pointwise.h").read_text()
    )
    (folder / "pointwise.h").write_text(header)
    source = '#include "pointwise.h"\n'
    for name in CASES:
        source += (
            f'extern "C" void apply_{name}(float* y, const float* x, long n) {{\n'
            "#pragma omp simd\n"
            f"  for (long i = 0; i < n; ++i) y[i] = {name}(x[i]);\n}}\n"
        )
    (folder / "apply.cpp").write_text(source)
    return load(folder / "apply.cpp")


@pytest.mark.parametrize("name", CASES)
def test_function_error_is_within_few_ulp(kernels, name):
    exact, low, high, units = CASES[name]
    even = torch.linspace(low, high, 200_001)
    near = torch.linspace(max(low, -1.5), min(high, 1.5), 200_001)
    for x in (even, near):
        y = torch.empty_like(x)
        getattr(kernels, f"apply_{name}")(y, x, x.numel())
        right = exact(x.double())
        ulp = torch.finfo(torch.float32).eps * right.abs().clamp_min(1.2e-38)
        assert ((y.double() - right).abs() / ulp).max() <= units


@pytest.mark.parametrize("name", CASES)
def test_function_agrees_with_torch_at_infinities_and_nan(kernels, name):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1e-30, -1e-30])
    y = torch.empty_like(x)
    getattr(kernels, f"apply_{name}")(y, x, x.numel())
    torch.testing.assert_close(y, CASES[name][0](x), equal_nan=True)


@pytest.mark.parametrize(("name", "exact"), [("sine", torch.sin), ("cosine", torch.cos)])
def test_angles_up_to_a_trillion_are_reduced_exactly(kernels, name, exact):
    x = torch.logspace(0, 12, 100_001) * torch.tensor([1.0, -1.0]).repeat(50_001)[:100_001]
    y = torch.empty_like(x)
    getattr(kernels, f"apply_{name}")(y, x, x.numel())
    assert (y.double() - exact(x.double())).abs().max() <= 1.2e-7


@pytest.mark.parametrize("name", ["sine", "cosine"])
def test_larger_angles_give_a_number_within_one(kernels, name):
    x = torch.tensor([1e14, -1e20, 3e38])
    y = torch.empty_like(x)
    getattr(kernels, f"apply_{name}")(y, x, x.numel())
    assert (y.abs() <= 1).all()
