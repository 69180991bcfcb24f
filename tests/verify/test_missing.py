"""NaN inputs for references that test for NaN: candidates must give the same result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from regimes import Regime

from cuagent.verify import Verdict
from cuagent.verify.trace.reference_trace import trace_reference

REGIMES = {
    "mean without NaN": Regime(
        "torch.randn(24, 60)",
        "return torch.nanmean(x, 1)",
        """
        known = ~x.isnan()
        return torch.where(known, x, 0).sum(1) / known.sum(1)
        """,
        {
            "NaN included": "return x.mean(1)",
            "divided by the number of all": "return torch.where(x.isnan(), 0, x).mean(1)",
        },
    ),
    "filled": Regime(
        "torch.randn(24, 60)",
        "return torch.nan_to_num(x, nan=1.0).cumsum(1)",
        "return torch.where(x != x, 1.0, x).cumsum(1)",
        {"filled with another number": "return torch.nan_to_num(x).cumsum(1)"},
    ),
    "largest known": Regime(
        "torch.randn(24, 60)",
        "return x.masked_fill(x.isnan(), -math.inf).amax(-1)",
        "return x.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).amax(-1)",
        {
            "NaN included": "return x.amax(-1)",
            "NaN as zero": "return x.nan_to_num().amax(-1)",
            "a row of NaN as a large number": ("return x.masked_fill(x.isnan(), -1e30).amax(-1)"),
        },
    ),
    "finite ones": Regime(
        "torch.randn(24, 60)",
        "return torch.where(x.isfinite(), x, 0).sum(-1)",
        "return x.masked_fill((x - x) != 0, 0).sum(-1)",
        {"infinities included": "return torch.where(x.isnan(), 0, x).sum(-1)"},
    ),
    "tested by comparison": Regime(
        "torch.randn(24, 60), torch.randn(24, 60)",
        "return torch.where(x != x, y, x * 2)",
        "return torch.where(x.isnan(), y, x + x)",
        {"not tested": "return x * 2 + 0 * y"},
        arguments="x, y",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REGIMES)
def test_wrong_handling_of_nan_is_rejected(
    name: str, regime_verdict: Callable[[Regime, str], Verdict]
) -> None:
    regime = REGIMES[name]
    verdict = regime_verdict(regime, regime.honest)
    assert verdict.accepted, verdict.detail
    for wrong, forward in regime.wrong.items():
        assert not regime_verdict(regime, forward).accepted, wrong


@pytest.mark.parametrize(
    ("run", "tests_nan"),
    [
        (lambda x: x.isnan(), True),
        (lambda x: x.nan_to_num(), True),
        (lambda x: x.nanmean(), True),
        (lambda x: x.nansum(), True),
        (lambda x: x.isfinite(), True),
        (lambda x: x != x, True),
        (lambda x: torch.fmax(x, x * 2), True),
        (lambda x: x != x * 1, False),
        (lambda x: x.relu(), False),
    ],
)
def test_reference_that_tests_for_nan_is_recognized(
    run: Callable[[torch.Tensor], torch.Tensor], tests_nan: bool
) -> None:
    x = torch.randn(4, 5)
    assert trace_reference(lambda: [run(x)]).handles_nan is tests_nan
