"""A profile traces few calls of a module that launches many operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuagent.measure.profile import child
from cuagent.task import Device


@pytest.mark.parametrize(("events", "traced"), [(6, [1, 20]), (4000, [1, 2]), (9000, [1])])
def test_calls_are_limited_by_their_events(
    events: int, traced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def trace(call: Any, device: Device, count: int) -> tuple[dict[str, Any], int]:
        asked.append(count)
        return {"count": count}, events * count

    monkeypatch.setattr(child, "_traced", trace)
    assert child._profiled(lambda: None, Device.CPU, 20) == {"count": traced[-1]}
    assert asked == traced


def test_figures_are_those_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(100)
    for most in (child.MOST_EVENTS, 4):
        monkeypatch.setattr(child, "MOST_EVENTS", most)
        figures = child._profiled(lambda: x.add(1).mul(2), Device.CPU, 5)
        calls = {one["name"]: one["calls"] for one in figures["operators"]}
        assert calls["aten::add"] == calls["aten::mul"] == 1.0
