"""Pools with all options, adaptive means and interpolation, with what surrounds them."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options

pytestmark = pytest.mark.slow

PLANE, LINE, SOLID = "2, 3, 13, 17", "3, 4, 37", "2, 2, 5, 7, 9"
BODIES = {
    "max": (PLANE, "F.max_pool2d(x, 3, 2, 1)"),
    "max of unequal sides": (PLANE, "F.max_pool2d(x, (2, 5), (1, 3), (1, 2))"),
    "max with dilation": (PLANE, "F.max_pool2d(x, 3, 2, 1, dilation=2)"),
    "max with ceil mode": (PLANE, "F.max_pool2d(x, 3, 3, 1, ceil_mode=True)"),
    "max of a line": (LINE, "F.max_pool1d(x, 5, 3, 2)"),
    "max of a solid": (SOLID, "F.max_pool3d(x, 3, 2, 1)"),
    "max between elementwise operations": (PLANE, "F.max_pool2d(F.relu(x * 2), 2).tanh() + 1"),
    "max of large windows": (LINE, "F.max_pool1d(x, 21, 1, 10)"),
    "max without its indices": (PLANE, "F.max_pool2d(x, 3, 2, 1, return_indices=True)[0]"),
    "adaptive max": (PLANE, "F.adaptive_max_pool2d(x.relu(), (5, 7)) + 1"),
    "adaptive max of a line": (LINE, "F.adaptive_max_pool1d(x, 5)"),
    "adaptive max of all": (PLANE, "F.adaptive_max_pool2d(x * 2, 1)"),
    "mean": (PLANE, "F.avg_pool2d(x, 3, 2, 1)"),
    "mean of what is inside": (PLANE, "F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)"),
    "mean with ceil mode": (PLANE, "F.avg_pool2d(x, 4, 3, 2, ceil_mode=True)"),
    "mean inside with ceil mode": (
        PLANE,
        "F.avg_pool2d(x, 4, 3, 2, ceil_mode=True, count_include_pad=False)",
    ),
    "sum over a divisor": (PLANE, "F.avg_pool2d(x, 3, 2, divisor_override=5)"),
    "mean of a line": (LINE, "F.avg_pool1d(x, 4, 2, 1) * 2"),
    "mean of a solid": (SOLID, "F.avg_pool3d(x, 2, 2, ceil_mode=True).exp()"),
    "smoothing": (PLANE, "x - F.avg_pool2d(x, 3, 1, 1)"),
    "adaptive mean": (PLANE, "F.adaptive_avg_pool2d(x, (5, 7))"),
    "adaptive mean of equal windows": ("2, 3, 14, 16", "F.adaptive_avg_pool2d(x, (7, 4)).relu()"),
    "adaptive mean of a line": (LINE, "F.adaptive_avg_pool1d(x, 5)"),
    "adaptive mean of all": (PLANE, "F.adaptive_avg_pool2d(x, 1) + 1"),
    "nearest": (PLANE, "F.interpolate(x, scale_factor=2)"),
    "nearest by three": (LINE, "F.interpolate(x, scale_factor=3) + 1"),
    "nearest to a size": (PLANE, "F.interpolate(x, size=(9, 29)).tanh()"),
    "nearest and a skip": (PLANE, "F.interpolate(x * 2, scale_factor=2) + s"),
    "linear": (LINE, "F.interpolate(x, scale_factor=2, mode='linear')"),
    "bilinear": (PLANE, "F.interpolate(x, scale_factor=2, mode='bilinear')"),
    "bilinear to a size": (PLANE, "F.interpolate(x, size=(7, 31), mode='bilinear').relu()"),
    "bilinear between corners": (
        PLANE,
        "F.interpolate(x, scale_factor=2, mode='bilinear', align_corners=True) * s",
    ),
    "bilinear along rows": (PLANE, "F.interpolate(x, size=(13, 31), mode='bilinear').relu()"),
    "bilinear along columns": (PLANE, "F.interpolate(x, size=(31, 17), mode='bilinear').relu()"),
    "bilinear of equal size": (PLANE, "F.interpolate(x, scale_factor=1.04, mode='bilinear') * 2"),
    "trilinear": (SOLID, "F.interpolate(x, scale_factor=2, mode='trilinear')"),
    "long rows": ("2, 1, 9001", "F.max_pool1d(x, 3, 1, 1) + F.avg_pool1d(x, 3, 1, 1)"),
}
HALF = ["max", "mean of what is inside", "smoothing", "bilinear to a size", "nearest and a skip"]


def text_of(name: str, dtype: str = "float32") -> str:
    shape, body = BODIES[name]
    return f"""
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, x, s):
        return {body}
def get_inputs():
    return [torch.randn({shape}).to(torch.{dtype}), torch.randn(2, 3, 26, 34).to(torch.{dtype})]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize("name", BODIES)
def test_candidate_agrees_with_reference(make, name):
    made = make(text_of(name), "Model")
    forward = made.candidate.files["model_new.py"].split("def _fits")[1]
    assert "torch.ops" not in forward
    assert_agrees(made)


@pytest.mark.parametrize("name", HALF)
def test_candidate_agrees_with_reference_in_half_precision(make, name):
    assert_agrees(make(text_of(name, "bfloat16"), "Model"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", BODIES)
def test_cuda_candidate_agrees_with_reference(make, name, dtype):
    assert_agrees(make(text_of(name, dtype), "Model", Options(), "cuda"), "cuda")


def test_pool_with_its_neighbours_is_one_kernel(make):
    made = make(text_of("max between elementwise operations"), "Model")
    assert len(made.candidate.kernels) == 1


@pytest.mark.parametrize("place", [0, 8, 16])
def test_max_pool_keeps_a_nan(make, place):
    import torch

    made = make(text_of("max"), "Model")
    x, s = made.inputs()
    x[0, 1, 6, place] = float("nan")
    with torch.no_grad():
        expected, got = made.reference()(x, s), made.cls().eval()(x, s)
    assert expected.isnan().any()
    assert torch.equal(got.nan_to_num(7e7), expected.nan_to_num(7e7))


OVERLAPPING = {
    "peaks": "s = x.sigmoid(); return s * (F.max_pool2d(s, 3, 1, 1) == s)",
    "strided": "return F.max_pool2d(F.relu(x), 3, 2, 1)",
    "dilated": "return F.max_pool2d(x.tanh(), 3, 1, 1, dilation=2)",
    "the last window reaches beyond the border": "return F.max_pool2d(x, 3, 2, ceil_mode=True) * 2",
    "means without padding": "return F.avg_pool2d(x.exp(), 3, 1, 1, count_include_pad=False)",
    "means": "return F.avg_pool2d(x, (5, 3), (2, 1), (2, 0)) - 1",
    "rows that no window reads": "return F.max_pool2d(x[:, :, :20, :19], 4, 3) + 1",
    "three dimensions": "return F.max_pool3d(x.view(2, 4, 2, 23, 30).exp(), (2, 3, 3), 1, 1)",
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_overlapping_windows_are_read_from_a_copy_with_a_border(make, name):
    text = f"""
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, x):
        {OVERLAPPING[name]}
def get_inputs():
    x = torch.randn(2, 8, 23, 30)
    return [x]
def get_init_inputs(): return []
"""
    made = make(text, "Model")
    new = assert_agrees(made)
    assert any("plane[" in t for t in made.candidate.files.values())
    x = made.inputs()[0]
    x[0, 0, 5, 7] = torch.nan
    with torch.no_grad():
        assert torch.equal(new(x).isnan(), made.reference().eval()(x).isnan())
