"""Reductions over any set of dimensions, with kept ones between and behind the reduced ones."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options

pytestmark = pytest.mark.slow

BODIES = {
    "the first and third of three": "return (x * x).mean(dim=(0, 2)) + 1",
    "the first and third of four": "return x.exp().sum(dim=(0, 2), keepdim=True) * 2",
    "every second": "return (x * 2 + y).amax(dim=(1, 3)) - 1",
    "all but the second, and their norm": (
        "m = x.mean((0, 2, 3), keepdim=True)\n"
        "        d = x - m\n"
        "        return d * torch.rsqrt((d * d).mean((0, 2, 3), keepdim=True) + 1e-5)"
    ),
    "softmax over the first and third": "return torch.softmax(x.flatten(1), 0) * 2 + 1",
    "a log of sums of every second": (
        "m = x.amax((1, 3), keepdim=True)\n"
        "        return (x - m).exp().sum((1, 3), keepdim=True).log() + m"
    ),
    "sums of each pair of rows": (
        "s = (x * y).flatten(1).sum(-1)\n"
        "        return torch.relu(s[:, None] + (x - y).flatten(1).sum(-1)[None])"
    ),
    "sums of each pair of rows by channel": (
        "s = (x * y).flatten(2).sum(-1)\n        return (s[:, None] + s[None]).softmax(1)"
    ),
    "two results": "h = x * y; return h.sum((0, 2)), h.amin((0, 2)), h.tanh()",
}
SHAPES = {
    "the first and third of three": ["5, 7, 33", "70, 3, 1031", "3, 2, 40000"],
    "softmax over the first and third": ["5, 3, 2, 7", "130, 3, 1, 1"],
}
DEFAULT = ["3, 5, 4, 7", "9, 70, 3, 64"]
CASES = [(name, shape) for name in BODIES for shape in SHAPES.get(name, DEFAULT)]
FIRST = [(name, SHAPES.get(name, DEFAULT)[0]) for name in BODIES]
COLUMNS = ["200, 3", "20000, 8", "100003, 5", "4000, 3, 70"]


def text_of(body: str, shape: str, dtype: str = "float32") -> str:
    return f"""
import torch
class Model(torch.nn.Module):
    def forward(self, x, y):
        {body}
def get_inputs(): return [torch.randn({shape}).to(torch.{dtype}) for _ in range(2)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_candidate_agrees_with_reference(make, name, shape):
    assert_agrees(make(text_of(BODIES[name], shape), "Model"))


@pytest.mark.parametrize(("name", "shape"), FIRST)
def test_candidate_agrees_with_reference_in_half_precision(make, name, shape):
    assert_agrees(make(text_of(BODIES[name], shape, "bfloat16"), "Model"))


@pytest.mark.parametrize("shape", COLUMNS)
def test_long_columns_agree_with_reference(make, shape):
    made = make(text_of("return (x * y + 1).sum(0) * 2 + 1, (x * y).amax(0)", shape), "Model")
    assert len(made.candidate.kernels) == 1
    assert_agrees(made)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [Options(), Options(threads=128), Options(vector=False)])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_cuda_candidate_agrees_with_reference(make, name, shape, options, dtype):
    assert_agrees(make(text_of(BODIES[name], shape, dtype), "Model", options, "cuda"), "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", COLUMNS)
def test_long_columns_agree_with_reference_on_cuda(make, shape):
    body = "return (x * y + 1).sum(0) * 2 + 1, (x * y).amax(0)"
    assert_agrees(make(text_of(body, shape), "Model", device="cuda"), "cuda")


def test_reduction_with_a_kept_dimension_between_is_one_kernel(make):
    made = make(text_of(BODIES["the first and third of three"], "5, 7, 33"), "Model")
    assert len(made.candidate.kernels) == 1
    assert "torch.mean" not in made.candidate.files["model_new.py"].split("def _fits")[1]


EXTREMES = "v, i = torch.max(x * 2, DIM); w, j = x.min(DIM, True); return v + 1, i, w, j"
INDICES = "return x.argmax(DIM), x.argmin(DIM, keepdim=True), (x * 2).argmax()"


def extremes_text(body: str, dim: int) -> str:
    """Return a task whose rounded inputs have equal values and NaNs."""
    return f"""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        {body.replace("DIM", str(dim))}
def get_inputs():
    x = torch.randn(21, 19, 37).round()
    x[3, 5, 7] = x[3, 5, 9] = x[20, 18, 36] = float("nan")
    return [x]
def get_init_inputs(): return []
"""


def assert_equal(made, device: str = "cpu") -> None:
    import torch

    x = made.inputs()[0].to(device)
    with torch.no_grad():
        expected, got = made.reference()(x), made.cls().eval()(x)
    for a, b in zip(expected, got, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        assert torch.equal(a.nan_to_num(7e7), b.nan_to_num(7e7))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("body", [EXTREMES, INDICES])
def test_first_of_equal_values_and_nan_win(make, body, dim):
    made = make(extremes_text(body, dim), "Model")
    assert "torch.ops" not in made.candidate.files["model_new.py"]
    assert_equal(made)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [Options(), Options(threads=128), Options(vector=False)])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("body", [EXTREMES, INDICES])
def test_first_of_equal_values_and_nan_win_on_cuda(make, body, dim, options):
    assert_equal(make(extremes_text(body, dim), "Model", options, "cuda"), "cuda")


@pytest.mark.parametrize("shape", ["3000001", "3, 100001"])
def test_extremes_of_long_rows_agree_with_reference(make, shape):
    body = "return (x * 2 + 1).argmax(-1), x.max(), y.min(-1)[1]"
    assert_agrees(make(text_of(body, shape), "Model"))


@pytest.mark.parametrize("op", ["amax", "amin"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_extremes_keep_a_nan(make, op, dim):
    text = f"""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return (x * 2).{op}({dim}) + 1
def get_inputs():
    x = torch.randn(21, 19, 37)
    x[3, 5, 7] = float("nan"); x[20, 18, 36] = float("nan"); x[0, 0, 0] = float("nan")
    return [x]
def get_init_inputs(): return []
"""
    import torch

    made = make(text, "Model")
    (x,) = made.inputs()
    with torch.no_grad():
        assert torch.equal(
            made.cls().eval()(x).nan_to_num(7e7), made.reference()(x).nan_to_num(7e7)
        )


TOPS = {
    "of rows": ("v, i = torch.topk(x * 2, 3); return v + 1, i", "9, 5, 37"),
    "smallest of columns": ("v, i = x.topk(2, 1, largest=False); return v, i", "7, 33, 6"),
    "one": ("v, i = x.topk(1, 0); return v, i", "40, 3"),
    "of a router": (
        "v, i = torch.softmax(x, -1).topk(2); return v / v.sum(-1, keepdim=True), i",
        "70, 8",
    ),
    "all": ("return x.topk(4)[1]", "6, 4"),
}


@pytest.mark.parametrize("name", TOPS)
def test_topk_agrees_with_reference(make, name):
    made = make(text_of(*TOPS[name]), "Model")
    assert "topk.default(" not in made.candidate.files["model_new.py"]
    assert_agrees(made)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TOPS)
def test_topk_agrees_with_reference_on_cuda(make, name):
    assert_agrees(make(text_of(*TOPS[name]), "Model", device="cuda"), "cuda")


def test_topk_of_a_large_part_of_a_row_stays_with_torch_on_a_cpu(make):
    made = make(text_of("v, i = (x.exp() + 1).topk(30); return v, i", "2, 900"), "Model")
    assert "topk.default(" in made.candidate.files["model_new.py"]
    assert_agrees(made)


def test_topk_takes_no_element_twice(make):
    made = make(text_of("return x.topk(3)[1]", "4, 7"), "Model")
    x, y = made.inputs()
    x[:, 2:] = -torch.inf
    x[1, :] = torch.nan
    with torch.no_grad():
        places = made.cls().eval()(x, y)
    assert all(len(set(row.tolist())) == 3 for row in places)
