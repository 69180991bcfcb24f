"""Contexts are made in processes of their own, so many at a time, and what fails says so."""

from __future__ import annotations

import time

import contexts
import pytest


def test_what_is_made_at_once_takes_less_time_and_all_of_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def context() -> list[float]:
        time.sleep(0.1)
        return [0.25, 0.75]

    monkeypatch.setattr(contexts, "context", context)
    with contexts.held(2):
        alone, together = contexts.made(1, 4), contexts.made(4, 4)
    assert (alone["initializing"], alone["context"]) == (0.25, 0.75)
    assert alone["a second"] < 10 < together["a second"]


def test_a_context_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def context() -> list[float]:
        raise RuntimeError("the CUDA driver says 2")

    monkeypatch.setattr(contexts, "context", context)
    with pytest.raises(SystemExit, match="could not be made"):
        contexts.made(1, 1)
