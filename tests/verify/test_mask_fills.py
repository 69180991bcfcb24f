"""Mask fills are detected, and so are inputs near their size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cuagent.verify.trace import mask_fills

HIDDEN = torch.ones(5, 5, dtype=torch.bool).triu(1)
TABLE = torch.arange(2048.0)


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.zeros(5, 5).masked_fill(HIDDEN, -1e9))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.mask).softmax(-1)


class Run(nn.Module):
    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


@pytest.mark.parametrize(
    ("model", "marked"),
    [
        (Buffered(), True),
        (Run(lambda x: x.masked_fill(HIDDEN, -1e4).softmax(-1)), True),
        (Run(lambda x: torch.where(HIDDEN, -1e9, x).argmax(-1)), True),
        (Run(lambda x: (x + HIDDEN.to(x.dtype) * -1e9).softmax(-1)), True),
        (Run(lambda x: (x + HIDDEN * -1e9).softmax(-1)), True),
        (Run(lambda x: x.clamp(-1e4, 1e4)), False),
        (Run(lambda x: TABLE[(x > 0) * 1000 + 7]), False),
        (Run(lambda x: TABLE[(x.sigmoid() * 2047).long()]), False),
        (Run(lambda x: (x * 5e3).sin()), False),
        (Run(lambda x: torch.where(x > 1e3, 1.0, x)), False),
        (Run(lambda x: x.masked_fill(HIDDEN, float("-inf")).softmax(-1)), False),
    ],
)
def test_mask_fill_is_a_constant_whose_size_does_not_matter(model: nn.Module, marked: bool) -> None:
    x = torch.randn(3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def run(given: Tensor = x) -> list[Tensor]:
        return [model(given)]

    assert mask_fills.has_mask_fills(run, model) is marked
    if marked:
        large = 1e10 * x
        with mask_fills.enlarged_fills(model):
            beyond = run(large)
        assert not mask_fills.equal_up_to_roundoff(beyond, run(large))
    assert mask_fills.equal_up_to_roundoff(run(), run())
