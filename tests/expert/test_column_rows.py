"""Reductions over other dimensions than the innermost on a GPU (`streaming.cuda_columns`)."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import emulation  # type: ignore[import-not-found]
import pytest
import test_emulated_cuda as emulated_cuda  # type: ignore[import-not-found]
import test_reductions as reductions  # type: ignore[import-not-found]
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options
from cuagent.expert.capture.subject import Target
from cuagent.expert.streaming import cuda_columns
from cuagent.expert.streaming.cuda_columns import WIDE, WIDE_LANES, ColumnLayout, layout

HOPPER = Target("cuda", (9, 0), 132)
NORM = "return x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-5)"
SOFTMAX = "return torch.softmax(x * 2 + y, 1)"
VECTORS = {
    "norm": (NORM, "2, 20, 3, 12", ""),
    "norm of few channels": (NORM, "5, 3, 4", ""),
    "softmax": (SOFTMAX, "3, 37, 8", ""),
    "softmax in bfloat16": (SOFTMAX, "3, 37, 24", "bfloat16"),
    "softmax of long rows": (SOFTMAX, "2, 1100, 8", ""),
    "row values from other rows": (
        "return x * y[:, :1] - (x * y).sum(1, True) / (y[:, :1].abs() + 2)", "3, 9, 20", ""
    ),
    "results of rows": ("return x.amax(1) + y[:, 0], (x * y).sum(1) * 2", "3, 70, 36", ""),
    "places in a row": (
        "return x - (x * torch.arange(9, device=x.device).view(9, 1)).sum(1, True)", "3, 9, 8", ""
    ),
}  # fmt: skip
SCALARS = {
    "wide sums": ("return (x * y).sum(1) * 2, x.amin(1)", "3, 70, 67", ""),
    "norm without alignment": (NORM, "3, 20, 5, 7", ""),
    "index of the extreme": ("v, i = (x * 2).max(1); return v + 1, i", "3, 70, 8", ""),
}


def text_of(case: tuple[str, str, str]) -> str:
    body, shape, dtype = case
    return reductions.text_of(body, shape, dtype or "float32")


@pytest.fixture
def busy(monkeypatch):
    """Let few rows fill the GPU."""
    monkeypatch.setattr(cuda_columns, "BUSY_BLOCKS", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", VECTORS)
def test_emulated_vectors_of_rows_agree_with_reference(tmp_path, monkeypatch, busy, name):
    candidate = emulated_cuda.check(
        tmp_path, monkeypatch, text_of(VECTORS[name]), Options(), HOPPER
    )
    assert re.search(r"int LANES = \d+;(.|\n)*int VECTOR = [48];", emulation.cuda_text(candidate))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCALARS)
def test_emulated_single_rows_agree_with_reference(tmp_path, monkeypatch, busy, name):
    candidate = emulated_cuda.check(
        tmp_path, monkeypatch, text_of(SCALARS[name]), Options(), HOPPER
    )
    text = emulation.cuda_text(candidate)
    assert not re.search("VECTOR = [248];", text)
    assert (f"WIDTH = {WIDE};" in text) == (name == "wide sums")


def test_an_element_that_two_passes_read_is_loaded_once(generate):
    text = emulation.cuda_text(generate(reductions.text_of(NORM, "2, 64, 256, 256"), HOPPER))
    assert text.count("load_vector(") == 1
    assert text.count("store_vector(") == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_stores_are_vectors(generate, tmp_path, dtype):
    """Divisions in a conditional block do not make the compiler store each element alone."""
    folder = files("cuagent.expert.streaming")
    candidate = generate(reductions.text_of(NORM, "2, 64, 256, 256", dtype), HOPPER)
    (source,) = (tmp_path / Path(f).name for f in candidate.files if f.endswith(".cu"))
    source.write_text(emulation.cuda_text(candidate))
    for name in ("pointwise_cuda.h", "half_cuda.h"):
        (tmp_path / name).write_text((folder / name).read_text("utf-8"))
    options = ["-ptx", "-O3", "-std=c++17", "-arch=sm_90", "-o", str(tmp_path / "code.ptx")]
    subprocess.run(["nvcc", *options, str(source)], check=True, timeout=300)
    stores = re.findall(r"st\.global[.\w]*", (tmp_path / "code.ptx").read_text())
    assert set(stores) == {"st.global.v4.b32"}


def test_vectors_are_an_option(generate):
    text = reductions.text_of(NORM, "2, 64, 256, 256")
    assert "load_vector(" not in emulation.cuda_text(generate(text, HOPPER, Options(vector=False)))


MANY = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((MANY, 64, 4, 1, False, False), ColumnLayout(4, 32, 8, True)),
        ((MANY, 256, 4, 1, False, False), ColumnLayout(2, 32, 16, True)),
        ((MANY, 512, 4, 1, False, False), ColumnLayout(1, 32, 16, True)),
        ((MANY, 4096, 4, 1, False, False), ColumnLayout(4, 32, 8, False)),
        ((MANY, 64, 1, 2, False, False), ColumnLayout(1, 32, 8, True)),
        ((MANY, 4096, 4, 0, True, False), ColumnLayout(4, 32, 8, False)),
        ((MANY, 4096, 4, 0, True, True), ColumnLayout(1, 32, 8, False)),
        ((MANY, 4096, 1, 0, True, False), ColumnLayout(1, WIDE, WIDE_LANES, False)),
        ((1 << 13, 4096, 4, 0, True, False), ColumnLayout(1, 32, 32, False)),
        ((1 << 13, 3, 4, 1, False, False), ColumnLayout(1, 32, 1, True)),
    ],
)
def test_layout_fills_the_gpu_and_keeps_elements(sizes, expected):
    *numbers, one_pass, narrow = sizes
    assert layout(*numbers, one_pass=one_pass, narrow=narrow) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*VECTORS, *SCALARS])
def test_columns_agree_with_reference_on_cuda(make, busy, name):
    made = make(text_of((VECTORS | SCALARS)[name]), "Model", device="cuda")
    assert_agrees(made, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ["9, 64, 128, 128", "9, 1000, 4095"])
@pytest.mark.parametrize("body", [NORM, SOFTMAX, "return x.sum(1) + 1"])
def test_many_columns_agree_with_reference_on_cuda(make, body, shape):
    assert_agrees(make(reductions.text_of(body, shape), "Model", device="cuda"), "cuda")
