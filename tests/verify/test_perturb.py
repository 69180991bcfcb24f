"""The oracle's small changes, made in stretches."""

from __future__ import annotations

import pytest
import torch

from cuagent.verify import perturb
from cuagent.verify.perturb import perturbed


@pytest.mark.parametrize("wide", [False, True])
def test_stretches_are_of_one_piece_and_leave_the_original(
    monkeypatch: pytest.MonkeyPatch, wide: bool
) -> None:
    x = torch.arange(1.0, 321).view(8, 40).t()  # not contiguous
    kept = x.clone()

    def moved() -> torch.Tensor:
        return perturbed(x, torch.Generator().manual_seed(3), 1e-3, wide=wide)

    whole = moved()
    monkeypatch.setattr(perturb, "BLOCK", {"cpu": 64})
    assert torch.equal(moved(), whole)
    assert torch.equal(x, kept)
    assert whole.dtype is (torch.float64 if wide else torch.float32)
    apart = (whole.double() / x.double() - 1) / 1e-3
    assert 0.8 < float(apart.std()) < 1.2
