"""Ties of roundings: half to even, half up and half away from zero must be distinguished."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from regimes import Regime

from cuagent.verify import Verdict
from cuagent.verify.trace.halves import cases, halves

UP = "torch.floor({} + 0.5)"
AWAY = "torch.trunc({0} + 0.5 * torch.sign({0}))"
EVEN = "torch.round({})"


def rounded(inputs: str, forward: str, honest: str, construct: str = "pass") -> Regime:
    """Return a task that rounds; `R(...;)` in its text stands for the rounding."""

    def put(text: str, by: str) -> str:
        head, _, rest = text.partition("R(")
        inner, _, tail = rest.partition(";)")
        return head + by.format(f"({inner})") + tail

    wrong = {"half up": put(honest, UP), "half away": put(honest, AWAY)}
    return Regime(inputs, put(forward, EVEN), put(honest, EVEN), wrong, construct)


REGIMES = {
    "by the largest of a row": rounded(
        "torch.randn(24, 100)",
        """
        scale = x.abs().amax(1, keepdim=True) / 127
        return R(x / scale;).clamp(-128, 127) * scale
        """,
        """
        largest = torch.maximum(x.amax(1, keepdim=True), -x.amin(1, keepdim=True))
        return R(x * (127 / largest);).clamp(-128, 127) * (largest / 127)
        """,
    ),
    "by the range of the tensor": rounded(
        "torch.randn(24, 100)",
        """
        low = x.min()
        scale = (x.max() - low) / 15
        return R((x - low) / scale;) * scale + low
        """,
        """
        low, high = x.aminmax()
        scale = (high - low) / 15
        return R((x - low) / scale;) * scale + low
        """,
    ),
    "by a power of two": rounded(
        "torch.randn(24, 100)",
        "return R(x * 16;) / 16",
        "return R(x / 0.0625;) * 0.0625",
    ),
    "by a learned step": rounded(
        "torch.randn(24, 100)",
        "return R(x / self.step;) * self.step",
        "return R(x / self.step;) * self.step",
        "self.step = torch.nn.Parameter(torch.tensor(0.1))",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REGIMES)
def test_other_tie_rounding_is_rejected(
    name: str, regime_verdict: Callable[[Regime, str], Verdict]
) -> None:
    regime = REGIMES[name]
    verdict = regime_verdict(regime, regime.honest)
    assert verdict.accepted, verdict.detail
    for wrong, forward in regime.wrong.items():
        assert not regime_verdict(regime, forward).accepted, wrong


def test_planted_scale_is_the_largest_number_or_the_range_of_each_row() -> None:
    generator = torch.Generator().manual_seed(1)
    assert cases(()) == [(1.0, 0)]
    for scale, case in cases((127.0, 16.0)):
        drawn = halves(torch.empty(12, 60), scale, case, generator)
        if case == 3:
            assert (drawn.abs().amax(1) == scale).all()
            assert drawn.abs().amax() == scale
        if case == 4:
            assert (drawn.amax(1) - drawn.amin(1) == scale).all()
        if case != 1:
            assert (drawn % 1 == 0.5).any() or scale == 16.0
