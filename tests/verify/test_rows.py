"""Strict rule for each line of a prefix sum."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from regimes import Regime

from cuagent.verify import Verdict
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.rules.bounds import COARSE_GATE, sequential
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


@pytest.mark.parametrize(
    ("kind", "factor"),
    [(Inputs.NORMAL, 1.0), (Inputs.OWN, 1.5), (Inputs.OFFSET, 12.5)],
)
def test_bound_of_a_line_is_the_documented_formula(kind: Inputs, factor: float) -> None:
    y = torch.randn(4, 256, dtype=torch.float64)
    error = torch.zeros_like(y)
    error[2] = 0.01
    spread, u = torch.full_like(y, 1e-3), 2.0**-24
    rms_y, rms_own = float(y[2].square().mean().sqrt()), 2e-5
    terms = Terms(256, 16, 256)
    relative = sequential(256, kind) + 2.0**-24

    def ratio(own: float, moved: float | None = None) -> float:
        given = [(y + error).double(), y + own, y, spread]
        given += [torch.full_like(y, moved)] if moved is not None else []
        # The formula takes the roundoff of the output's dtype from x.
        given[0] = given[0].float()
        return worst_line(given, kind, terms, u)[0]

    spread_part = factor * 8 * math.sqrt(16) * 1e-3
    by_spread = 0.01 / (2 * (spread_part + relative * rms_y))
    assert ratio(rms_own) == pytest.approx(by_spread, rel=1e-3)
    by_sensitivity = 0.01 / (2 * (factor * 0.25 + relative * rms_y))
    assert ratio(rms_own, 0.25) == pytest.approx(by_sensitivity, rel=1e-3)
    assert ratio(rms_own, 1e-9) == pytest.approx(by_spread, rel=1e-3)
    own = 3 * spread_part
    assert ratio(own) == pytest.approx(0.01 / (2 * 3 * own), rel=1e-3)


def test_roundoff_of_the_output_and_of_long_sums_counts() -> None:
    y = torch.ones(2, 256, dtype=torch.float64)
    x = (y * (1 + 2.0**-7)).bfloat16()
    assert float(x[0, 0]) == 1 + 2.0**-7
    exact = torch.zeros_like(y)
    worst, _ = worst_line([x, y, y, exact], Inputs.NORMAL, Terms(256, 1, 256), 2.0**-24)
    relative = sequential(256, Inputs.NORMAL) + 2.0**-8
    assert worst == pytest.approx(2.0**-7 / (2 * relative), rel=1e-6)


def test_coarser_arithmetic_widens_the_gate() -> None:
    y = torch.zeros(2, 256, dtype=torch.float64)
    x, spread, unit = (y + 0.5).float(), torch.full_like(y, 1e-6), 2.0**-9
    worst, _ = worst_line([x, y, y, spread], Inputs.NORMAL, Terms(256, 16, 256), unit)
    gate = 8 * math.sqrt(16) + COARSE_GATE * unit / 2.0**-24
    assert worst == pytest.approx(0.5 / (2 * gate * 1e-6), rel=1e-6)


def test_line_without_any_scale_admits_no_error() -> None:
    y = torch.zeros(3, 256, dtype=torch.float64)
    x = y.clone()
    given = [y.float(), y, y, y]
    assert worst_line(given, Inputs.NORMAL, Terms(256, 1, 256), 2.0**-24) == (0.0, 0)
    x[2] = 1e-20
    given = [x.float(), y, y, y]
    worst, line = worst_line(given, Inputs.NORMAL, Terms(256, 1, 256), 2.0**-24)
    assert worst > 1
    assert line == 2


def test_worst_line_is_found_in_later_blocks_and_along_any_axis() -> None:
    y = torch.randn(600, 1024, dtype=torch.float64)
    x = y.clone()
    x[100] += 1.0
    x[513] += 10.0
    for turned in (False, True):
        given = [x.float(), y, y, torch.full_like(y, 1e-8)]
        given = [tensor.t().contiguous() if turned else tensor for tensor in given]
        assert worst_line(given, Inputs.NORMAL, Terms(1024, 32, 1024), 2.0**-24)[1] == 513


def test_elements_that_are_not_finite_are_left_out() -> None:
    y = torch.randn(2, 128, dtype=torch.float64)
    x, r = y.float(), y.clone()
    x[0, 3], r[1, 5] = math.nan, math.inf
    spread = torch.full_like(y, 1e-3)
    spread[0, 7] = math.nan
    assert 0 < worst_line([x, r, y, spread], Inputs.NORMAL, Terms(128, 8, 128), 2.0**-24)[0] < 1


def test_spread_and_sensitivity_that_are_not_finite_count_as_zero() -> None:
    y = torch.ones(2, 128, dtype=torch.float64)
    x, unknown = (y * 1.5).float(), torch.zeros_like(y)
    unknown[:, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    bound = 2 * (sequential(128, Inputs.NORMAL) + 2.0**-24)
    for given in ([x, y, y, unknown], [x, y, y, torch.zeros_like(y), unknown]):
        worst, _ = worst_line(given, Inputs.NORMAL, Terms(128, 1, 128), 2.0**-24)
        assert worst == pytest.approx(0.5 / bound, rel=1e-6)


def test_length_of_prefix_sums_is_counted() -> None:
    assert terms(lambda: torch.ones(40, 30).cumsum(0)).prefix == 40
    assert terms(lambda: torch.ones(40, 30).sum(0)).prefix == 0
