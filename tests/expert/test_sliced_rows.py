"""Rows that exceed the memory of a cluster, computed in slices (`streaming.cuda_sliced`)."""

from __future__ import annotations

import emulation  # type: ignore[import-not-found]
import pytest
import test_emulated_cuda as emulated_cuda  # type: ignore[import-not-found]
import test_reductions as reductions  # type: ignore[import-not-found]
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options
from cuagent.expert.capture.subject import Target
from cuagent.expert.streaming import cuda, cuda_kept, cuda_sliced, fuse

AMPERE = Target("cuda", (8, 0), 108)
HOPPER = Target("cuda", (9, 0), 132)
SOFTMAX = "return torch.softmax(x * 2 + y, -1)"
GROUPS = "return torch.group_norm(x + 300, 2) * y[:, :, :1, :1] + y"
MASKED = "return torch.softmax(torch.where(x.cumsum(-1) * 0 + y > 2.2, x, -torch.inf), -1)"
TASKS = {
    "softmax": (SOFTMAX, "3, 4096", "float32"),
    "softmax of rows without alignment": (SOFTMAX, "3, 2051", "float32"),
    "softmax in bfloat16": (SOFTMAX, "3, 4096", "bfloat16"),
    "logarithms": ("return torch.log_softmax(x * 1000, -1) + y", "3, 2060", "float32"),
    "group norm far from zero": (GROUPS, "3, 4, 12, 66", "float32"),
    "group norm of odd planes": (GROUPS, "3, 4, 31, 23", "float32"),
    "layer norm in float16": (
        "return torch.layer_norm(x, x.shape[1:], y[0], y[1])", "4, 3000", "float16"
    ),
    "division by a norm": ("return x / torch.norm(x, p=2, dim=1, keepdim=True)", "5, 2049", ""),
    "slices without a finite element": (MASKED, "3, 3000", "float32"),
    "results of rows": (
        "m = x.mean(-1, True); d = x - m; v = (d * d).mean(-1, True)\n"
        "        return d * torch.rsqrt(v + 1e-5) + y, m, v, (x + y).amax(-1)", "3, 2500", ""
    ),
    "stored powers": (
        "e = (x - x.amax(-1, True)).exp(); return e, e / e.sum(-1, True)", "3, 3000", ""
    ),
    "operands of all rows": ("return torch.layer_norm(x, x.shape[1:], y[0], y[1])", "11, 2060", ""),
    "a scale of all rows without alignment": ("return x.softmax(-1) * y[0]", "9, 2051", ""),
    "elements before the last pass": (
        "h = x * y; return h, h - h.mean(-1, True)", "3, 2500", "float32"
    ),
}  # fmt: skip


@pytest.fixture
def short(monkeypatch):
    """Let short rows be sliced, and not kept."""
    monkeypatch.setattr(cuda_kept, "LEAST_COLUMNS", 1 << 40)
    monkeypatch.setattr(cuda_sliced, "LEAST_COLUMNS", 0)


FEW = {
    "layer norm": "return torch.layer_norm(x + 300, x.shape[1:], y[0], y[-1])",
    "softmax": "return torch.softmax(x, -1) * 2",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("shape", ["3, 2050", "1, 5, 451"])
def test_emulated_few_rows_are_read_in_one_kernel(tmp_path, monkeypatch, short, name, shape):
    monkeypatch.setattr(cuda_sliced, "SLICE_THREADS", 64)
    monkeypatch.setattr(fuse, "LONG_ROW", 2000)
    body = FEW[name].replace("torch.softmax(x, -1)", "torch.softmax(x.flatten(1), -1)")
    candidate = emulated_cuda.check(
        tmp_path, monkeypatch, reductions.text_of(body, shape), Options(), HOPPER
    )
    assert emulation.cuda_text(candidate).count("extern") == 1
    assert "_device_elements" in emulation.cuda_text(candidate)


@pytest.mark.parametrize("target", [AMPERE, HOPPER])
@pytest.mark.parametrize("name", FEW)
def test_few_long_rows_are_sliced(generate, target, name):
    text = emulation.cuda_text(generate(reductions.text_of(FEW[name], "5, 70000"), target))
    assert text.count("extern") == 1
    assert "_device_elements" in text


def test_operands_of_all_rows_are_read_once_for_several(generate):
    text = emulation.cuda_text(
        generate(reductions.text_of(FEW["layer norm"], "16, 1048576"), HOPPER)
    )
    assert "TOGETHER = 8" in text
    few = emulation.cuda_text(generate(reductions.text_of(FEW["layer norm"], "2, 65536"), HOPPER))
    assert "TOGETHER" not in few


@pytest.mark.parametrize(
    ("body", "least"),
    [
        ("n = torch.layer_norm(x, x.shape[1:]); return n / (n * n).sum(-1, True)", 4),
        ("d = (x - x.mean(-1, True)).abs(); return d / d.sum(-1, True)", 3),
    ],
    ids=["three levels", "distances"],
)
def test_few_long_rows_without_slices_fill_the_gpu(generate, body, least):
    text = emulation.cuda_text(generate(reductions.text_of(body, "5, 70000"), HOPPER))
    assert text.count("extern") >= least
    # No kernel computes a row with one block.
    assert "ITEMS" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_emulated_sliced_rows_agree_with_reference(tmp_path, monkeypatch, short, name):
    monkeypatch.setattr(cuda_sliced, "SLICE_THREADS", 64)
    body, shape, dtype = TASKS[name]
    text = reductions.text_of(body, shape, dtype or "float32")
    candidate = emulated_cuda.check(tmp_path, monkeypatch, text, Options(), HOPPER)
    assert "_device_elements" in emulation.cuda_text(candidate)


@pytest.mark.slow
@pytest.mark.parametrize("target", [AMPERE, HOPPER])
def test_rows_larger_than_a_clusters_memory_are_sliced(generate, target):
    text = reductions.text_of("return torch.group_norm(x, 2)", "70, 2, 1024, 1024")
    assert "_device_elements" in emulation.cuda_text(generate(text, target))
    assert "_device_elements" not in emulation.cuda_text(
        generate(text, target, Options(vector=False))
    )


@pytest.mark.parametrize(
    "body",
    [
        "d = x - x.mean(-1, True); return d, y * (d * d).mean(-1, True)",
        "d = (x - x.mean(-1, True)).abs(); return x / d.sum(-1, True)",
        "d = x - y.mean(-1, True); return x / (d * d).sum(-1, True)",
        "d = x - x.sum(-1, True); return x / (d * d).sum(-1, True)",
        "d = x - x.mean(-1, True); v = (d * d).mean(-1, True); n = d / v; "
        "return n / (n * n).sum(-1, True)",
    ],
    ids=["stored distances", "distances", "another mean", "a sum", "three levels"],
)
def test_other_reductions_are_not_sliced(generate, short, body):
    text = reductions.text_of(body, "70, 4096")
    assert "_device_elements" not in emulation.cuda_text(generate(text, HOPPER))


@pytest.mark.parametrize("most", ["columns", "rows"])
def test_more_elements_than_an_int_counts_are_left_to_torch(generate, monkeypatch, most):
    monkeypatch.setattr(cuda, "MOST_INDICES", 3000)
    shape = "70, 3000" if most == "columns" else "3000, 70"
    candidate = generate(reductions.text_of(SOFTMAX, shape), HOPPER)
    assert candidate is None or "Max::join" not in emulation.cuda_text(candidate)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TASKS)
def test_small_sliced_rows_agree_with_reference_on_cuda(make, short, name):
    body, shape, dtype = TASKS[name]
    made = make(reductions.text_of(body, shape, dtype or "float32"), "Model", device="cuda")
    assert_agrees(made, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ["65, 2, 1024, 1030", "66, 2, 1021, 1023"])
@pytest.mark.parametrize("body", ["return torch.group_norm(x, 1) * 2", "return x.softmax(3)"])
def test_sliced_rows_agree_with_reference_on_cuda(make, body, shape, dtype):
    body = body.replace("x.softmax(3)", "x.flatten(1).softmax(1)")
    made = make(reductions.text_of(body, shape, dtype), "Model", device="cuda")
    assert_agrees(made, "cuda")
