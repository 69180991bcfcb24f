"""Tests of the oracle's perturbations, which are applied in blocks."""

from __future__ import annotations

import pytest
import torch

from cuagent.verify.oracle import perturb, sensitivity
from cuagent.verify.oracle.perturb import perturbed


@pytest.mark.parametrize("wide", [False, True])
def test_perturbing_in_blocks_gives_the_same_result(
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


def test_position_computed_in_floating_point_causes_no_jump() -> None:
    """Between the knots of a table the answer is continuous, however the position was computed."""
    knots, generator = torch.randn(12), torch.Generator().manual_seed(1)
    x = torch.rand(50, dtype=torch.float64) * 10 + 0.5

    def interpolated(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        place = tensors[0].floor()
        part, at = tensors[0] - place, place.long()
        return [knots[at] * (1 - part) + knots[at + 1] * part]

    again = lambda: interpolated([x])  # noqa: E731
    moved = torch.full_like(x, 7.0)
    reference = sensitivity.PerturbedReference(interpolated, [x], {}, generator, again)
    sensitivity.measure_change(reference, 1e-6, 1e-7, 4, [moved])
    assert 0 < float(moved.max()) < 1e-3
    assert sensitivity.carried(reference, 2)[0] < 100
