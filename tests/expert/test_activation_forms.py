"""The forms of GELU and Mish in generated kernels are as precise as their results' dtypes."""

from __future__ import annotations

import ctypes
import importlib.resources
import importlib.util
import subprocess
from pathlib import Path

import pytest
import torch

from cuagent.expert.products.expressions import expression, functions_of

HEADER = importlib.resources.files("cuagent.expert.streaming") / "pointwise_cuda.h"
WHOLE, HALF = 3e-7, 5e-5
"""Largest errors in float32 and in half precision, relative to |x| (`HALF` also relative to the
result)."""
TAIL = 4e-6
"""Largest error of Mish in float32 relative to the result, above -20: that of the exponential."""
NAMES = ("gelu", "gelu_half", "gelu_tanh", "mish")


def points() -> torch.Tensor:
    ends = torch.tensor([0.0, -0.0, 1e30, -1e4, 60.0, -60.0])
    near = torch.linspace(-9, 9, 24_762)
    return torch.cat([near, torch.linspace(-130, 130, 8_000), ends])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the CUDA functions, compiled for the CPU."""
    folder = tmp_path_factory.mktemp("forms")
    text = HEADER.read_text("utf-8")
    loops = "".join(
        f'extern "C" void {name}_all(float* y, const float* x, long n) '
        f"{{ for (long i = 0; i < n; ++i) y[i] = {name}(x[i]); }}\n"
        for name in NAMES
    )
    emulated = Path(__file__).with_name("emulated.h")
    (folder / "forms.cpp").write_text(f'#include "{emulated}"\n{text}\n{loops}')
    command = ["g++", "-O1", "-w", "-std=c++17", "-fPIC", "-shared", "-o", "forms.so", "forms.cpp"]
    subprocess.run(command, cwd=folder, check=True, timeout=600)
    return ctypes.CDLL(str(folder / "forms.so"))


@pytest.mark.parametrize("name", NAMES)
def test_cuda_function_is_precise(library: ctypes.CDLL, name: str) -> None:
    x = points()
    y = torch.empty_like(x)
    pointers = (ctypes.c_void_p(t.data_ptr()) for t in (y, x))
    library[f"{name}_all"](*pointers, ctypes.c_long(len(x)))
    check(x, y, name)


@pytest.mark.parametrize(
    ("name", "operator", "dtype"),
    [
        ("gelu", "gelu", "float32"),
        ("gelu_half", "gelu", "bfloat16"),
        ("gelu_half", "gelu", "float16"),
        ("gelu_tanh", "gelu_tanh", "float32"),
        ("mish", "mish", "float32"),
    ],
)
def test_triton_function_is_precise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, operator: str, dtype: str
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    call = expression(operator, dtype, ["x"])
    lines = ["import triton", "import triton.language as tl", *functions_of([call])]
    lines += ["@triton.jit", "def kernel(out, source, SIZE: tl.constexpr):"]
    lines += ["    k = tl.arange(0, SIZE)", "    x = tl.load(source + k)"]
    lines += [f"    tl.store(out + k, {call})"]
    (tmp_path / "written.py").write_text("\n".join(lines))
    spec = importlib.util.spec_from_file_location("written", tmp_path / "written.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = points()
    y = torch.empty_like(x)
    module.kernel[(1,)](y, x, SIZE=len(x))
    check(x, y, name)


def check(x: torch.Tensor, y: torch.Tensor, name: str) -> None:
    right = exact(x.double(), name)
    error = (y.double() - right).abs()
    assert (error <= (HALF if name == "gelu_half" else WHOLE) * x.abs()).all()
    if name == "gelu_half":
        values = right.abs() > 1e-6  # of which half precision keeps three digits
        assert (error[values] <= HALF * right.abs()[values]).all()
    if name == "mish":
        values = x > -20
        assert (error[values] <= TAIL * right.abs()[values]).all()
    assert not torch.isnan(y).any()


def exact(x: torch.Tensor, name: str) -> torch.Tensor:
    if name == "mish":
        return torch.nn.functional.mish(x)
    form = "tanh" if name == "gelu_tanh" else "none"
    return torch.nn.functional.gelu(x, approximate=form)
