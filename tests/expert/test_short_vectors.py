"""A thread stores each of many short rows at once, even where it loads single elements (GPU)."""

from __future__ import annotations

import re

import pytest
import test_emulated_cuda as emulated_cuda  # type: ignore[import-not-found]
import test_reductions as reductions  # type: ignore[import-not-found]
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options
from cuagent.expert.capture.subject import Target
from cuagent.expert.streaming import cuda

HOPPER = Target("cuda", (9, 0), 132)
SHIFTED = "h = torch.cat((x[..., 1:], y[..., :1]), -1); "
CASES = {
    "state of a convolution": (SHIFTED + "return h, (h * y[:1]).sum(-1)", "70, 3, 4", "bfloat16"),
    "softmax of shifted rows": (SHIFTED + "return torch.softmax(h, -1)", "70, 3, 4", "float32"),
    "parts of longer rows": (
        "h = x[..., 1:5]; return h - h.mean(-1, keepdim=True)", "70, 3, 7", "float16"
    ),
    "rows of two": (
        "h = torch.cat((x[..., 1:], y[..., :1]), -1); return h / h.abs().amax(-1, True)",
        "70, 3, 2",
        "float32",
    ),
}  # fmt: skip


@pytest.fixture
def few(monkeypatch):
    """Let few rows be enough."""
    monkeypatch.setattr(cuda, "MANY_ROWS", 1)


def source_of(candidate) -> str:
    return "".join(t for f, t in candidate.files.items() if f.endswith(".cu"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_emulated_short_rows_agree_with_reference(tmp_path, monkeypatch, few, name):
    text = reductions.text_of(*CASES[name])
    candidate = emulated_cuda.check(tmp_path, monkeypatch, text, Options(), HOPPER)
    assert re.search("int VECTOR = [24];", source_of(candidate))


@pytest.mark.parametrize("name", CASES)
def test_short_rows_are_stored_at_once(generate, few, name):
    text = source_of(generate(reductions.text_of(*CASES[name]), HOPPER))
    assert "store_vector(" in text
    assert "first_element + v" in text


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (CASES["softmax of shifted rows"][0], "70, 3, 3"),
        ("h = x[..., 1:]; return h - h.mean(-1, keepdim=True)", "70, 3, 4"),
    ],
)
def test_rows_that_are_no_aligned_vectors_are_stored_by_element(generate, few, body, shape):
    assert "store_vector(" not in source_of(generate(reductions.text_of(body, shape), HOPPER))


def test_few_short_rows_have_more_threads(generate):
    text = source_of(generate(reductions.text_of(*CASES["softmax of shifted rows"]), HOPPER))
    assert "first_element + v" not in text


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_short_rows_agree_with_reference_on_cuda(make, few, name):
    assert_agrees(make(reductions.text_of(*CASES[name]), "Model", device="cuda"), "cuda")
