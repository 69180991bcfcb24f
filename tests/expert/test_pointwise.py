"""Vectorizable functions of the CPU kernels, compared with fp64 and at special values."""

from __future__ import annotations

import importlib.resources
import subprocess

import pytest
import torch
import torch.nn.functional as F
from shares import slow_except

from cuagent.kernels import load
from cuagent.kernels.toolchain import CPU_FLAGS

CASES = {
    "exponential": (torch.exp, -87, 88, 2),
    "exponential_minus_one": (torch.expm1, -20, 20, 3),
    "logarithm": (torch.log, 1e-38, 1e30, 2),
    "logarithm_one_plus": (torch.log1p, -0.9, 1e6, 4),
    "hyperbolic_tangent": (torch.tanh, -12, 12, 3),
    "error_function": (torch.erf, -5, 5, 3),
    "sigmoid": (torch.sigmoid, -40, 40, 4),
    "softplus": (F.softplus, -87, 40, 4),
    "log_sigmoid": (F.logsigmoid, -40, 87, 4),
    "sine": (torch.sin, -1e7, 1e7, 2),
    "cosine": (torch.cos, -1e7, 1e7, 2),
    "arc_tangent": (torch.atan, -40, 40, 3),
    "arc_sine": (torch.asin, -1, 1, 3),
    "arc_cosine": (torch.acos, -1, 0.99, 3),
    "exponential_of_two": (torch.exp2, -125, 127, 2),
    "round_to_even": (torch.round, -40, 40, 0),
    "round_to_zero": (torch.trunc, -40, 40, 0),
}

OF_TWO = {"power": torch.pow, "arc_tangent_of_point": torch.atan2}
LIMITS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e30, -1e30, 1e-40, 150.0]
LIMITS += [float("inf"), -float("inf"), float("nan")]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pointwise")
    header = (
        importlib.resources.files("cuagent.expert.streaming").joinpath("pointwise.h").read_text()
    )
    (folder / "pointwise.h").write_text(header)
    source = '#include "pointwise.h"\n'
    for name in OF_TWO:
        source += (
            f'extern "C" void apply_{name}(float* z, const float* x, const float* y, long n) {{\n'
            "#pragma omp simd\n"
            f"  for (long i = 0; i < n; ++i) z[i] = {name}(x[i], y[i]);\n}}\n"
        )
    for name in (*CASES, "gelu_half"):
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


def test_gelu_of_halves_is_within_a_tenth_of_their_rounding(kernels):
    x = torch.cat([torch.linspace(-9, 9, 36_001), torch.tensor([-300.0, 300.0, 0.0])])
    y = torch.empty_like(x)
    kernels.apply_gelu_half(y, x, x.numel())
    error = (y.double() - F.gelu(x.double())).abs()
    assert (error <= 5e-5 * x.abs()).all()
    ends = torch.tensor([float("inf"), float("nan")])
    kernels.apply_gelu_half(y, ends, 2)
    assert y[0] == float("inf")
    assert y[1].isnan()


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


@pytest.mark.parametrize("name", OF_TWO)
def test_functions_of_two_have_the_limits_of_torch(kernels, name):
    x, y = (t.flatten() for t in torch.meshgrid(*[torch.tensor(LIMITS)] * 2, indexing="ij"))
    x, y = x.contiguous(), y.contiguous()
    z = torch.empty_like(x)
    getattr(kernels, f"apply_{name}")(z, x, y, x.numel())
    right = OF_TWO[name](x, y)
    torch.testing.assert_close(z, right, equal_nan=True, rtol=1e-6, atol=1e-38)
    assert torch.equal(torch.signbit(z[right == 0]), torch.signbit(right[right == 0]))


@pytest.mark.parametrize("name", OF_TWO)
def test_error_of_functions_of_two_is_within_few_ulp(kernels, name):
    torch.manual_seed(0)
    x, y = torch.rand(100_000) * 20 + 0.05, (torch.randn(100_000) * 9).clamp(-28, 28)
    x = x if name == "power" else x - 10
    z = torch.empty_like(x)
    getattr(kernels, f"apply_{name}")(z, x, y, x.numel())
    right = OF_TWO[name](x.double(), y.double())
    ulp = torch.finfo(torch.float32).eps * right.abs().clamp_min(1.2e-38)
    assert ((z.double() - right).abs() / ulp).max() <= 3


CHAINS = {
    "log of a clamped value": "logarithm(minimum(maximum(x[i], 1e-6f), 0.5f))",
    "clamped log": "relu6(logarithm(x[i]))",
    "log of one plus a clamped value": "logarithm_one_plus(relu6(x[i]))",
    "power of a size": "power(absolute(x[i]), 1.7f)",
    "angle": "arc_tangent_of_point(x[i], 0.3f)",
    "log of a softplus": "logarithm(softplus(x[i]) + 1e-3f)",
}


@pytest.mark.parametrize("name", slow_except(CHAINS, "log of a clamped value", "power of a size"))
def test_chain_of_functions_with_choices_is_vectorized(tmp_path, name):
    header = importlib.resources.files("cuagent.expert.streaming").joinpath("pointwise.h")
    (tmp_path / "pointwise.h").write_text(header.read_text())
    source = tmp_path / "chain.cpp"
    source.write_text(
        '#include "pointwise.h"\n'
        'extern "C" void chain(float* y, const float* x, long n) {\n'
        "#pragma omp simd\n"
        f"  for (long i = 0; i < n; ++i) y[i] = {CHAINS[name]};\n}}\n"
    )
    flags = [*CPU_FLAGS, "-fopt-info-vec-optimized", "-o", str(tmp_path / "chain.so")]
    done = subprocess.run(["g++", *flags, str(source)], capture_output=True, text=True, check=True)
    if "optimized:" not in done.stderr and "clang" in _version():
        pytest.skip("this compiler does not report its vectorized loops")
    assert "loop vectorized" in done.stderr


def _version() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("name", "expected"), [("maximum", torch.maximum), ("minimum", torch.minimum)]
)
def test_extreme_of_two_keeps_nan_and_infinities(tmp_path, name, expected):
    header = importlib.resources.files("cuagent.expert.streaming").joinpath("pointwise.h")
    (tmp_path / "pointwise.h").write_text(header.read_text())
    (tmp_path / "extreme.cpp").write_text(
        '#include "pointwise.h"\n'
        'extern "C" void extreme(float* y, const float* a, const float* b, long n) {\n'
        f"  for (long i = 0; i < n; ++i) y[i] = {name}(a[i], b[i]);\n}}\n"
    )
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -2.0, 0.0, 3.5, 1e-40])
    a, b = (t.flatten().contiguous() for t in torch.meshgrid(special, special, indexing="ij"))
    y = torch.empty_like(a)
    load(tmp_path / "extreme.cpp").extreme(y, a, b, a.numel())
    torch.testing.assert_close(y, expected(a, b), rtol=0, atol=0, equal_nan=True)
