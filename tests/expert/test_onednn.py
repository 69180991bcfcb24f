"""Products on a CPU by oneDNN: form, agreement with fp64, and which products stay with torch."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees

from cuagent.expert.options import Options
from cuagent.expert.products import onednn

TEXT = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
        self.to(torch.{dtype})
    def forward(self, x):
        {body}
def get_inputs(): return [torch.randn({shape}).to(torch.{dtype})]
def get_init_inputs(): return []
"""
LINEAR = "torch.ops.mkldnn._linear_pointwise("
LAYER = ("self.c = nn.Linear(128, 192)", "return F.gelu(self.c(x))")
BARE = ("self.c = nn.Linear(128, 192, bias=False)", "return F.gelu(self.c(x))")
MATRIX = ("self.register_buffer('w', torch.randn(128, 192))", "return F.gelu(x @ self.w)")
OWN_ROWS = ("self.c = nn.Linear(128, 64)", "y = self.c(x[0]); return F.gelu(y @ y.t())")
POINTWISE = ("self.c = nn.Conv2d(32, 48, 1)", "return F.gelu(self.c(x))")
UNBIASED = ("self.c = nn.Conv1d(32, 48, 1, bias=False)", "return F.gelu(self.c(x))")
STRIDED = ("self.c = nn.Conv2d(32, 48, 1, stride=2)", "return F.gelu(self.c(x))")


def text_of(form: tuple[str, str], shape: str, dtype: str = "float32") -> str:
    return TEXT.format(init=form[0], body=form[1], shape=shape, dtype=dtype)


CASES = {
    "linear layer": (LAYER, "2, 96, 128", "float32", LINEAR),
    "linear layer without bias": (BARE, "192, 128", "float32", LINEAR),
    "product with a matrix": (MATRIX, "2, 96, 128", "float32", LINEAR),
    "product of computed operands": (OWN_ROWS, "1, 192, 128", "float32", LINEAR),
    "pointwise convolution of one image": (POINTWISE, "1, 32, 40, 40", "float32", LINEAR),
    "linear layer in bf16": (LAYER, "5, 128", "bfloat16", LINEAR),
    "pointwise convolution in bf16": (POINTWISE, "2, 32, 6, 7", "bfloat16", "torch.baddbmm("),
    "pointwise convolution in bf16 without bias": (
        UNBIASED, "2, 32, 21", "bfloat16", "torch.matmul(",
    ),
}  # fmt: skip
OTHERS = {
    "small product": (LAYER, "32, 128", "float32"),
    "pointwise convolution of two images": (POINTWISE, "2, 32, 40, 40", "float32"),
    "strided convolution": (STRIDED, "1, 32, 80, 80", "float32"),
    "strided convolution in bf16": (STRIDED, "1, 32, 8, 8", "bfloat16"),
    "linear layer in bf16 without bias": (BARE, "32, 128", "bfloat16"),
    "pointwise convolution of an image without a batch": (POINTWISE, "32, 6, 7", "bfloat16"),
}


@pytest.fixture(autouse=True)
def slow_mkl(monkeypatch, request):
    if "makers" not in request.node.name:
        monkeypatch.setattr(onednn, "has_slow_mkl", lambda: True)
    if not onednn.has_onednn() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no calls of oneDNN in half precision")


def _forward(made) -> str:
    return made.candidate.files["model_new.py"].rpartition("def forward")[2]


@pytest.mark.parametrize("name", CASES)
def test_product_by_onednn_agrees_with_fp64(make, name):
    form, shape, dtype, call = CASES[name]
    made = make(text_of(form, shape, dtype), "Model")
    assert call in _forward(made)
    assert "F.conv" not in _forward(made)
    assert_agrees(made)


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_stay_with_torch(make, name):
    form, shape, dtype = OTHERS[name]
    made = make(text_of(form, shape, dtype), "Model")
    assert "mkldnn" not in _forward(made)
    assert "bmm" not in _forward(made)
    assert "F.linear(" in _forward(made) or "F.conv2d(" in _forward(made)


def test_compiled_rest_keeps_calls_that_torch_compile_takes(make):
    made = make(text_of(LAYER, "192, 128"), "Model", Options(compile="default"))
    assert "mkldnn" not in made.candidate.files["model_new.py"]


def test_processors_of_other_makers_keep_mkl(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("vendor_id : GenuineIntel\nflags : fpu avx512f\n")
    assert not onednn.has_slow_mkl.__wrapped__(info)
    info.write_text("vendor_id : AuthenticAMD\nflags : fpu avx2\n")
    assert not onednn.has_slow_mkl.__wrapped__(info)
    info.write_text("vendor_id : AuthenticAMD\nflags : fpu avx512f\n")
    assert onednn.has_slow_mkl.__wrapped__(info)
    assert not onednn.has_slow_mkl.__wrapped__(tmp_path / "missing")


def test_module_of_one_layer_is_a_candidate(make):
    text = text_of(("self.c = nn.Linear(128, 192)", "return self.c(x)"), "192, 128")
    made = make(text, "Model")
    assert made.candidate.kernels == ()
    assert "computed by oneDNN: linear" in made.candidate.files["model_new.py"]
