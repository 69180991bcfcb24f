"""Tests of draws that fail by no more than honest roundoff moves the answer: extra draws decide."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from cuagent.verify import Verdict
from cuagent.verify.context import VerifyContext
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.rules.tolerance import strict
from cuagent.verify.rules.types import Expected, Finding, Sensitivity
from cuagent.verify.trace.reductions import Terms

HONEST = "return self.honest(x)"


@pytest.mark.parametrize(("error", "steep"), [(1e-4, True), (3e-4, False)])
def test_finding_is_within_sensitivity_if_no_error_exceeds_it(error: float, steep: bool) -> None:
    y = torch.linspace(1, 2, 1000, dtype=torch.float64)
    spread, moved = torch.full_like(y, 1e-8), torch.full_like(y, 1e-7)
    # Twelve times the gate, and in proportion to the spread, so it is not a jump.
    spread[7], moved[7] = 1e-5, 2e-4
    declared = y.float()
    x = declared.clone()
    x[7] += error
    expected = Expected([declared], [y], [spread], sensitivity=Sensitivity([moved], [0.0]))
    found = strict([x], expected, Inputs.NORMAL, Terms(4, 4))
    assert not found.passed
    assert found.within_sensitivity is steep


@pytest.mark.parametrize(("often", "accepted"), [(2, True), (math.inf, False)])
def test_two_extra_draws_decide_about_a_steep_draw(
    often: float,
    accepted: bool,
    judged: Callable[[str], Verdict],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, calls = VerifyContext.judged, []

    def steep(
        self: VerifyContext,
        outputs: Any,
        expected: Any,
        kind: Inputs,
        sensitivity: Any = None,
        **more: Any,
    ) -> Finding:
        found = honest(self, outputs, expected, kind, sensitivity, **more)
        if kind is not Inputs.OFFSET or len(calls) >= often:
            return found
        calls.append(kind)  # once without the spread and once with it
        return replace(found, passed=False, ratio=6.0, note="far", within_sensitivity=True)

    monkeypatch.setattr(VerifyContext, "judged", steep)
    verdict = judged(HONEST)
    of_kind = [draw for draw in verdict.draws if draw.kind.startswith(Inputs.OFFSET)]
    assert verdict.accepted is accepted, verdict.detail
    assert len(of_kind) == 3
    assert len({draw.seed for draw in of_kind}) == 3
    assert [draw.passed for draw in of_kind] == [True, accepted, accepted]
    assert any("2 other draws decide" in note for note in verdict.notes)
