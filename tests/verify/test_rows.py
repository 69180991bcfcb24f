"""Strict rule for each line of a prefix sum."""

from __future__ import annotations

from collections.abc import Callable

import torch
from regimes import Regime

from cuagent.verify import Verdict
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.rules.rows import worst_line
from cuagent.verify.trace.reductions import Terms, terms

REGIME = Regime(
    "torch.randn(48, 512)",
    "return x.cumsum(1)",
    """
    parts = x.view(48, 16, 32).cumsum(2)
    carry = parts[:, :, -1].cumsum(1) - parts[:, :, -1]
    return (parts + carry[:, :, None]).view(48, 512)
    """,
    {
        "one sum over all lines, minus the sum of earlier lines": """
        whole = x.reshape(-1).cumsum(0).view(48, 512)
        return whole - torch.cat([whole.new_zeros(1), whole[:-1, -1]])[:, None]
        """,
    },
)


def test_prefix_sum_that_cancels_between_lines_is_rejected(
    regime_verdict: Callable[[Regime, str], Verdict],
) -> None:
    verdict = regime_verdict(REGIME, REGIME.honest)
    assert verdict.accepted, verdict.detail
    for forward in REGIME.wrong.values():
        assert not regime_verdict(REGIME, forward).accepted


def test_bound_of_a_line_scales_with_the_line() -> None:
    y = torch.randn(8, 256, dtype=torch.float64).cumsum(1)
    y[3] *= 1e-4
    spread = 2.0**-24 * y.abs()
    known = Terms(256, 256, 256)
    wrong = y.clone()
    wrong[3] += 1e-4
    for kind, low, high in ((Inputs.NORMAL, 1, 1e6), (Inputs.NAN, -1, 1)):
        given = [wrong.float(), y.float(), y, spread]
        ratio, line = worst_line(given, kind, known, 2.0**-24)
        assert low < ratio < high
        assert line == (3 if low > 0 else 0)
    assert worst_line([y.float(), y.float(), y, spread], Inputs.NORMAL, known, 2.0**-24)[0] < 1
    assert (
        worst_line([wrong.float(), y.float(), y, spread], Inputs.NORMAL, Terms(256, 256), 0)[0] == 0
    )


def test_length_of_prefix_sums_is_counted() -> None:
    assert terms(lambda: torch.ones(40, 30).cumsum(0)).prefix == 40
    assert terms(lambda: torch.ones(40, 30).sum(0)).prefix == 0
