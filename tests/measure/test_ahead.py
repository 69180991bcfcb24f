"""Baselines that start in the background: none of their processes outlives a failure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.measure.timing.ahead import OpenedAhead


@pytest.mark.parametrize("fails_in", ["first call", "callback"])
def test_session_is_closed_if_anything_fails_while_it_opens(fails_in: str) -> None:
    closed: list[bool] = []
    session: Any = SimpleNamespace(
        pid=-1, close=lambda: closed.append(True), pause=lambda: True, unpause=lambda: None
    )

    def first_call(name: str, opened: object) -> None:
        if fails_in == "first call":
            raise RuntimeError(fails_in)

    def opened(name: str, seconds: float) -> None:
        if fails_in == "callback":
            raise RuntimeError(fails_in)

    ahead = OpenedAhead(lambda name: session, first_call, 1, opened)
    ahead.start(["compile"])
    with pytest.raises(RuntimeError, match=fails_in):
        ahead.take("compile")
    assert closed == [True]
    ahead.end()
