"""Concatenations of a large cache and a new entry on a GPU: which get a kernel, and equality."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import test_emulated_cuda as emulated  # type: ignore[import-not-found]

from cuagent.expert import gains
from cuagent.expert.candidate import Candidate, Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.rules import joins
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132)
TEXT = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Linear(32, {width})
    def forward(self, x, cache, scale):
        k = self.k(x).view(2, 1, 4, {width} // 4)
        y = torch.cat({parts}, {dim})
        return y, torch.matmul(y, y.mT)
def get_inputs():
    return [torch.randn(2, 1, 32), torch.randn({cache}), torch.randn(2, 1, 1, {width} // 4)]
def get_init_inputs(): return []
"""
OLD, ROW = "2, 4, 63, 64", "2, 63, 4, 64"


def text_of(parts: str, cache: str = OLD, width: int = 256, dim: int = 2) -> str:
    """Return a task that joins a cache and a new entry of `width` elements in four heads."""
    return TEXT.format(parts=parts, cache=cache, width=width, dim=dim)


def candidate_of(folder: Path, text: str) -> Candidate | None:
    """Return the first candidate for a task on a GPU."""
    path = folder / "task.py"
    path.write_text(text)
    subject = replace(open_subject(load_task(f"{path}:Model", device="cpu")), target=HOPPER)
    return make_candidate(subject, Options(products=False))


@pytest.mark.parametrize(
    ("text", "least", "kernel"),
    [
        (text_of("(cache, k.transpose(1, 2))"), 1 << 12, True),
        (text_of("(k.transpose(1, 2), cache, cache)"), 1 << 12, True),
        (text_of("(cache, k)", ROW, dim=1), 1 << 12, False),  # torch copies vectors
        (text_of("(cache, k.transpose(1, 2))"), 1 << 30, False),  # too small
        pytest.param(
            text_of("(cache, k.transpose(1, 2))", "2, 4, 63, 63", 252),
            1 << 12,
            False,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            text_of("(cache[:, 1:], k[..., 3:].mT)", "2, 2, 61, 4", dim=3),
            1 << 12,
            False,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_large_concatenation_with_a_permuted_part_is_a_kernel(
    tmp_path: Path, monkeypatch, text: str, least: int, kernel: bool
) -> None:
    monkeypatch.setattr(gains, "LEAST_MOVED", least)
    made = candidate_of(tmp_path, text)
    names = made.kernels if made is not None else ()
    assert any(name.startswith("cat") for name in names) is kernel


@pytest.mark.parametrize("large", [True, False])
def test_computed_entry_of_a_large_cache_is_one_kernel(tmp_path, monkeypatch, large: bool):
    """The copy then reads no operand of the entry for the other elements."""
    monkeypatch.setattr(joins, "LEAST_LARGE", 1 << 12 if large else 1 << 30)
    made = candidate_of(tmp_path, text_of("(cache, k.transpose(1, 2) * scale + scale.exp() * 2)"))
    assert made is not None
    text = forward_of(made)
    assert ("torch.ops.aten.mul" not in text) is large
    assert "torch.ops.aten.cat" in text


def forward_of(made: Candidate) -> str:
    """Return the text of a candidate's forward."""
    return made.files["model_new.py"].rpartition("def forward")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [
        "(cache, k.transpose(1, 2))",
        "(k.transpose(1, 2), cache, k.transpose(1, 2) * scale)",
        "(cache * 2, (k.transpose(1, 2) * scale).relu())",
    ],
)
def test_emulated_concatenation_agrees_with_reference(tmp_path, monkeypatch, parts: str):
    monkeypatch.setattr(gains, "LEAST_MOVED", 1 << 12)
    monkeypatch.setattr(joins, "LEAST_LARGE", 1 << 12)
    made = emulated.check(tmp_path, monkeypatch, text_of(parts), Options(products=False))
    assert "torch.ops.aten.cat" not in forward_of(made)
