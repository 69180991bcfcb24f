"""Moderate tails: errors that a mean or a loss over many elements would hide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from regimes import Regime

from cuagent.verify import Verdict

SOFTPLUS = Regime(
    "torch.randn(64, 512)",
    "return F.softplus(x).mean()",
    "return (x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))).sum() / x.numel()",
    {
        "linear above 6": "return torch.where(x > 6, x, F.softplus(x)).mean()",
        "zero below -5": "return torch.where(x < -5, 0 * x, F.softplus(x)).mean()",
    },
)
SOFT_MARGIN = Regime(
    "torch.randn(64, 128), torch.randint(0, 2, (64, 128)) * 2 - 1",
    "return F.soft_margin_loss(x, y)",
    "return F.softplus(-x * y).mean()",
    {
        "exponential below": """
        return torch.where(x * y > 3, (-x * y).exp(), F.softplus(-x * y)).mean()
        """
    },
    arguments="x, y",
)
REGIMES = {"softplus": SOFTPLUS, "soft margin": SOFT_MARGIN}


@pytest.mark.parametrize("name", REGIMES)
def test_honest_forward_is_accepted(
    name: str, regime_verdict: Callable[[Regime, str], Verdict]
) -> None:
    verdict = regime_verdict(REGIMES[name], REGIMES[name].honest)
    assert verdict.accepted, verdict.detail


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name in REGIMES for wrong in REGIMES[name].wrong]
)
def test_error_in_the_tails_is_rejected(
    name: str, wrong: str, regime_verdict: Callable[[Regime, str], Verdict]
) -> None:
    verdict = regime_verdict(REGIMES[name], REGIMES[name].wrong[wrong])
    assert not verdict.accepted
