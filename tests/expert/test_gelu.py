"""The forms of GELU in generated kernels are as precise as their results' dtypes."""

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
"""Largest errors of GELU in float32 and in half precision, relative to |x| (`HALF` also relative to
the result)."""


def points() -> torch.Tensor:
    ends = torch.tensor([0.0, -0.0, 1e30, -1e4, 60.0, -60.0])
    return torch.cat([torch.linspace(-9, 9, 36_001), ends])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the CUDA functions of GELU, compiled for the CPU."""
    folder = tmp_path_factory.mktemp("gelu")
    text = HEADER.read_text("utf-8")
    loops = "".join(
        f'extern "C" void {name}_all(float* y, const float* x, long n) '
        f"{{ for (long i = 0; i < n; ++i) y[i] = {name}(x[i]); }}\n"
        for name in ("gelu", "gelu_half", "gelu_tanh")
    )
    emulated = Path(__file__).with_name("emulated.h")
    (folder / "gelu.cpp").write_text(f'#include "{emulated}"\n{text}\n{loops}')
    command = ["g++", "-O1", "-w", "-std=c++17", "-fPIC", "-shared", "-o", "gelu.so", "gelu.cpp"]
    subprocess.run(command, cwd=folder, check=True, timeout=600)
    return ctypes.CDLL(str(folder / "gelu.so"))


@pytest.mark.parametrize("name", ["gelu", "gelu_half", "gelu_tanh"])
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
    x = points()[: 1 << 15]
    y = torch.empty_like(x)
    module.kernel[(1,)](y, x, SIZE=len(x))
    check(x, y, name)


def check(x: torch.Tensor, y: torch.Tensor, name: str) -> None:
    form = "tanh" if name == "gelu_tanh" else "none"
    right = torch.nn.functional.gelu(x.double(), approximate=form)
    error = (y.double() - right).abs()
    assert (error <= (HALF if name == "gelu_half" else WHOLE) * x.abs()).all()
    if name == "gelu_half":
        values = right.abs() > 1e-6  # of which half precision keeps three digits
        assert (error[values] <= HALF * right.abs()[values]).all()
    assert not torch.isnan(y).any()
