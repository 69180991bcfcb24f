"""Long rows that are adjacent but not aligned are reduced in parts (`streaming.cuda_wide`)."""

from __future__ import annotations

import re

import pytest
import test_emulated_cuda as emulated_cuda  # type: ignore[import-not-found]
import test_reductions as reductions  # type: ignore[import-not-found]
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]
from emulation import emulated  # type: ignore[import-not-found]
from importing import imported  # type: ignore[import-not-found]

from cuagent import kernels
from cuagent.expert.candidate import Options
from cuagent.expert.capture.subject import Target
from cuagent.expert.streaming import cuda_wide

HOPPER = Target("cuda", (9, 0), 132)
CASES = {
    "sums and extremes": ("return (x * y).sum(1) * 2 + 1, x.amin(1)", "3, 70, 67"),
    "index of the extreme": ("v, i = (x * 2).max(1); return v + 1, i", "3, 70, 67"),
    "stored elements": ("h = x * y; return h, h.mean(1, keepdim=True)", "2, 67, 45"),
    "several reduced dimensions": ("return x.sum((1, 3))", "3, 9, 35, 7, 5"),
}
MANY = "return x.sum(1)", "9, 4100, 4095"


@pytest.fixture
def short(monkeypatch):
    """Let short rows have parts, and few rows be enough."""
    monkeypatch.setattr(cuda_wide, "PART", 16)
    monkeypatch.setattr(cuda_wide, "LEAST_ROWS", 64)


def source_of(candidate) -> str:
    return "".join(t for f, t in candidate.files.items() if f.endswith(".cu"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_emulated_parts_agree_with_reference(tmp_path, monkeypatch, short, name):
    text = reductions.text_of(*CASES[name])
    candidate = emulated_cuda.check(tmp_path, monkeypatch, text, Options(), HOPPER)
    assert re.search(r"int PARTS = [234];", source_of(candidate))


@pytest.mark.slow
def test_parts_keep_nan_and_the_first_extreme(tmp_path, monkeypatch, short):
    text = reductions.text_of("return x.max(1)", "1, 70, 67")
    emulated_cuda.check(tmp_path, monkeypatch, text, Options(), HOPPER)
    monkeypatch.setattr(kernels, "load", emulated)
    x, y = imported(tmp_path / "task.py").get_inputs()
    x[0, 40, 0] = x[0, 60, 0] = torch.nan
    x[0, :, 1], x[0, 20:, 2], x[0, :, 3] = 7, torch.inf, -torch.inf
    with torch.no_grad():
        values, places = imported(tmp_path / "model_new.py").ModelNew().eval()(x, y)
    expected = x.max(1)
    torch.testing.assert_close(values, expected.values, equal_nan=True)
    assert torch.equal(places, expected.indices)
    assert places[0, :4].tolist() == [40, 0, 20, 0]


@pytest.mark.parametrize(
    ("body", "shape", "wide"),
    [
        (*MANY, True),
        ("return x.sum(1)", "9, 900, 4095", False),
        *(
            pytest.param(*case, False, marks=pytest.mark.slow)
            for case in (
                ("return x.sum(1)", "9, 4100, 4096"),
                ("return x.sum(1)", "8, 4100, 4095"),
                ("return x - x.mean(1, keepdim=True)", "9, 4100, 4095"),
            )
        ),
    ],
)
def test_many_long_rows_without_alignment_have_parts(generate, body, shape, wide):
    assert ("PARTS" in source_of(generate(reductions.text_of(body, shape), HOPPER))) == wide


@pytest.mark.gpu
@pytest.mark.parametrize("body", [MANY[0], "return x.argmax(1)", "return x.mean(1), x.amax(1)"])
def test_parts_agree_with_reference_on_cuda(make, body):
    assert_agrees(make(reductions.text_of(body, MANY[1]), "Model", device="cuda"), "cuda")
