"""Candidates of modules in half precision: stored in half types, computed in float32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.products import onednn
from cuagent.task import load_task

pytestmark = pytest.mark.slow

MODULES = {
    "rms_norm_in_float32": (
        "self.weight = nn.Parameter(torch.ones(48, dtype=DTYPE))",
        "h = x.float(); h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)\n"
        "        return self.weight * h.to(x.dtype)",
        "torch.randn(6, 48)",
    ),
    "gated_activation": (
        "pass",
        "return F.silu(x) * y",
        "torch.randn(5, 40), torch.randn(5, 40)",
    ),
    "softmax_with_mixed_types": (
        "pass",
        "return torch.softmax(x * 0.5 + y.float(), -1).to(x.dtype)",
        "torch.randn(3, 7, 33), torch.randn(7, 33)",
    ),
    "layer_norm_of_a_sum": (
        "self.norm = nn.LayerNorm(64).to(DTYPE)",
        "h = x + y\n        return h, self.norm(h)",
        "torch.randn(9, 64), torch.randn(9, 64)",
    ),
    "sum_over_the_first_dimension": ("pass", "return (x * x).sum(0) + 1", "torch.randn(33, 65)"),
    "linear_layers": (
        "self.a = nn.Linear(32, 48).to(DTYPE); self.b = nn.Linear(48, 32).to(DTYPE)",
        "return x + self.b(F.gelu(self.a(x)))",
        "torch.randn(4, 5, 32)",
    ),
    "convolution_and_batch_norm": (
        "self.conv = nn.Conv2d(3, 4, 3).to(DTYPE); self.norm = nn.BatchNorm2d(4).to(DTYPE)",
        "return F.relu(self.norm(self.conv(x)))",
        "torch.randn(2, 3, 9, 9)",
    ),
}
MODULES["batch_norm_of_a_convolution_without_bias"] = (
    "self.conv = nn.Conv2d(3, 4, 3, bias=False).to(DTYPE); self.norm = nn.BatchNorm2d(4).to(DTYPE)",
    *MODULES["convolution_and_batch_norm"][1:],
)
HALVES = ["torch.bfloat16", "torch.float16"]


def text_of(name: str, dtype: str) -> str:
    init, forward, inputs = MODULES[name]
    return f"""
import torch
import torch.nn.functional as F
from torch import nn
DTYPE = {dtype}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x{", y" if "), torch" in inputs else ""}):
        {forward}
def get_inputs(): return [t.to(DTYPE) for t in ({inputs},)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", MODULES)
def test_candidate_agrees_with_reference_in_half_precision(make, name, dtype):
    assert_agrees(make(text_of(name, dtype), "Model"))


@pytest.mark.gpu
@pytest.mark.parametrize("options", [Options(), Options(vector=False), Options(threads=128)])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", MODULES)
def test_cuda_candidate_agrees_with_reference_in_half_precision(make, name, dtype, options):
    assert_agrees(make(text_of(name, dtype), "Model", options, "cuda"), "cuda")


def test_half_types_are_read_and_written_sixteen_bytes_at_a_time_on_cuda(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(text_of("gated_activation", HALVES[0]))
    subject = replace(
        open_subject(load_task(f"{path}:Model", device="cpu")), target=Target("cuda", (9, 0), 132)
    )
    candidate = make_candidate(subject, Options())
    assert candidate is not None
    text = next(text for name, text in candidate.files.items() if name.endswith(".cu"))
    assert "constexpr int VECTOR = 8;" in text
    assert text.count("load_vector(") == 2
    assert text.count("store_vector(") == 1
    assert "kernels/half_cuda.h" in candidate.files


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_conversions_round_as_torch_does(tmp_path, dtype):
    import importlib.resources

    from cuagent.kernels import load

    word = "half" if dtype is torch.float16 else "bf16"
    header = importlib.resources.files("cuagent.expert.streaming") / "pointwise.h"
    (tmp_path / "pointwise.h").write_text(header.read_text())
    (tmp_path / "convert.cpp").write_text(
        f"""#include "pointwise.h"
extern "C" void widen(float* y, const {word}* x, long n) {{
  for (long i = 0; i < n; ++i) y[i] = to_float(x[i]);
}}
extern "C" void narrow({word}* y, const float* x, long n) {{
  for (long i = 0; i < n; ++i) y[i] = to_{word}(x[i]);
}}
"""
    )
    kernels = load(tmp_path / "convert.cpp")
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    wide = torch.empty(every.numel())
    kernels.widen(wide, every, every.numel())
    assert torch.equal(wide.isnan(), every.isnan())
    assert torch.equal(wide.nan_to_num(), every.float().nan_to_num())
    halfway = (every.float() + every.float().nextafter(torch.tensor(torch.inf))) / 2
    values = torch.cat([every.float(), halfway, torch.randn(1 << 16) * 1e-7, torch.randn(1 << 16)])
    narrow = torch.empty(values.numel(), dtype=dtype)
    kernels.narrow(narrow, values, values.numel())
    assert torch.equal(narrow.isnan(), values.isnan())
    assert torch.equal(narrow.nan_to_num(), values.to(dtype).nan_to_num())


@pytest.mark.parametrize("name", ["linear_layers", "convolution_and_batch_norm"])
def test_widened_products_are_computed_in_float32(make, name):
    made = make(text_of(name, HALVES[0]), "Model", Options(widen=True))
    module = made.candidate.files["model_new.py"]
    assert "weight_wide" in module
    assert ".to(torch.float32)" in module
    assert_agrees(made)


def test_products_stay_in_half_precision_without_widening(make):
    made = make(text_of("linear_layers", HALVES[0]), "Model", Options(widen=False))
    assert "_wide" not in made.candidate.files["model_new.py"]
    assert_agrees(made)


def test_products_stay_with_torch_where_onednn_has_no_bfloat16(make, monkeypatch):
    monkeypatch.setattr(onednn, "has_bf16", lambda: False)
    made = make(text_of("linear_layers", HALVES[0]), "Model", Options(widen=False))
    assert "mkldnn" not in made.candidate.files["model_new.py"]
