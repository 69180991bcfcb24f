"""Large pools on a GPU: a thread computes several results (`pooling.cuda_strips`)."""

from __future__ import annotations

import emulation  # type: ignore[import-not-found]
import pytest
import test_emulated_cuda as emulated_cuda  # type: ignore[import-not-found]
import test_pooling as pooling  # type: ignore[import-not-found]
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options
from cuagent.expert.capture.subject import Target
from cuagent.expert.pooling import cuda_strips

HOPPER = Target("cuda", (9, 0), 132)
TASK = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, x, y):
        {body}
def get_inputs(): return [torch.randn({shape}).to(torch.{dtype}) for _ in range(2)]
def get_init_inputs(): return []
"""
LINE, PLANE, LAST = "3, 2, 88", "2, 3, 16, 23", "2, 3, 8, 5, 6"
STRIPS = {
    "max": (PLANE, "return F.max_pool2d(x, 3, 1, 1)"),
    "between operations": (PLANE, "return F.max_pool2d(x * 2 + y, 3, 1, 1).tanh() - y"),
    "means of what is inside": (PLANE, "return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)"),
    "dilated": (PLANE, "return F.max_pool2d(x, (4, 2), (3, 1), (2, 1), (2, 3))"),
    "no overlap": (PLANE, "return F.max_pool2d(x, 2) + 1"),
    "a solid": (LAST, "return F.max_pool3d(x, (3, 2, 1), (1, 2, 1), (1, 1, 0))"),
    "channels last": (PLANE, "return F.max_pool2d(x.permute(0, 3, 1, 2), 3, 1, 1)"),
}
VECTORS = {
    "max": (LINE, "return F.max_pool1d(x, 8, 1, 4, 3)"),
    "mean": (LINE, "return F.avg_pool1d(x, 8, 1, 4) * 2"),
    "mean of what is inside": (LINE, "return F.avg_pool1d(x, 5, 1, 2, count_include_pad=False)"),
    "strides": (LINE, "return F.max_pool1d(x, 3, 2, 1)"),
    "operations after": ("3, 2, 256", "return F.max_pool1d(x, 7, 1, 3) - y"),
    "a part": ("4, 3, 96", "return F.max_pool1d(x[1:, :, 8:], 3, 1)"),
    "no padding": ("1, 2, 512", "return F.avg_pool1d(x, 4, 1)"),
}
MEANINGS = {"strips": STRIPS, "vectors": VECTORS}
CASES = [(form, name) for form, tasks in MEANINGS.items() for name in tasks]


def text_of(form: str, name: str, dtype: str = "float32") -> str:
    shape, body = MEANINGS[form][name]
    return TASK.format(body=body, shape=shape, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("form", "name"), CASES)
def test_emulated_results_agree_with_reference(tmp_path, monkeypatch, form, name, dtype):
    monkeypatch.setattr(cuda_strips, "LEAST_RESULTS", 0)
    monkeypatch.setattr(cuda_strips, "MOST_WASTE", 99)
    text = text_of(form, name, dtype)
    candidate = emulated_cuda.check(tmp_path, monkeypatch, text, Options(), HOPPER)
    assert ("strip" if form == "strips" else "RESULTS") in emulation.cuda_text(candidate)


def test_shared_results_are_aligned_for_vectors(monkeypatch, generate):
    monkeypatch.setattr(cuda_strips, "LEAST_RESULTS", 0)
    monkeypatch.setattr(cuda_strips, "MOST_WASTE", 99)
    text = emulation.cuda_text(generate(text_of("vectors", "max"), HOPPER))
    assert "alignas(16) __shared__ float results[" in text
    assert "store_shared(results" in text


@pytest.mark.parametrize("place", [0, 8, 87])
@pytest.mark.slow
def test_emulated_maximum_of_a_window_with_nan_is_nan(tmp_path, monkeypatch, place):
    monkeypatch.setattr(cuda_strips, "LEAST_RESULTS", 0)
    monkeypatch.setattr(cuda_strips, "MOST_WASTE", 99)
    inputs = "return [x.index_fill(-1, torch.tensor([PLACE]), float('nan'))] * 2"
    text = text_of("vectors", "max").replace("def get_inputs(): return", "def given(): return")
    text += f"\ndef get_inputs():\n    x = given()[0]\n    {inputs.replace('PLACE', str(place))}\n"
    text = text.replace("F.max_pool1d(x, 8, 1, 4, 3)", "F.max_pool1d(x, 8, 1, 4, 3).isnan()")
    emulated_cuda.check(tmp_path, monkeypatch, text, Options(), HOPPER)


def test_small_pools_have_a_thread_for_each_result(generate):
    for form, name in (("strips", "max"), ("vectors", "max")):
        text = emulation.cuda_text(generate(text_of(form, name), HOPPER))
        assert "strip" not in text
        assert "RESULTS" not in text


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("form", "name"), CASES)
def test_results_agree_with_reference_on_cuda(make, monkeypatch, form, name, dtype):
    monkeypatch.setattr(cuda_strips, "LEAST_RESULTS", 0)
    monkeypatch.setattr(cuda_strips, "MOST_WASTE", 99)
    made = make(text_of(form, name, dtype), "Model", Options(), "cuda")
    assert ("strip" if form == "strips" else "RESULTS") in emulation.cuda_text(made.candidate)
    assert_agrees(made, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", pooling.BODIES)
def test_all_pools_agree_with_reference_on_cuda(make, monkeypatch, name):
    monkeypatch.setattr(cuda_strips, "LEAST_RESULTS", 0)
    monkeypatch.setattr(cuda_strips, "MOST_WASTE", 99)
    assert_agrees(make(pooling.text_of(name), "Model", Options(), "cuda"), "cuda")
