"""Contexts are made in processes of their own, so many at a time, and what fails says so."""

from __future__ import annotations

import os
import time
from pathlib import Path

import contexts
import pytest


@pytest.mark.parametrize("at_once", [1, 3])
def test_so_many_are_made_at_once_and_all_are_counted(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def context() -> list[float]:
        """Until as many are under way as there should be; how many that are, at most."""
        mine, seen = tmp_path / str(os.getpid()), 0
        mine.touch()
        deadline = time.monotonic() + 30
        while seen < at_once and time.monotonic() < deadline:
            time.sleep(0.01)
            seen = len(list(tmp_path.iterdir()))
        time.sleep(0.2)  # let the others see it, or one too many come
        seen = max(seen, len(list(tmp_path.iterdir())))
        mine.unlink()
        return [seen, 0.75]

    monkeypatch.setattr(contexts, "context", context)
    found = contexts.made(at_once, at_once)
    assert (found["initializing"], found["context"]) == (at_once, 0.75)
    assert found["a second"] > 0


def test_held_ones_stay_until_they_are_no_longer_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "context", lambda: [0.0, 0.0])
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = len(children.read_text().split())
    with contexts.held(2):
        assert len(children.read_text().split()) == before + 2
    assert len(children.read_text().split()) == before


def test_a_context_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def context() -> list[float]:
        raise RuntimeError("the CUDA driver says 2")

    monkeypatch.setattr(contexts, "context", context)
    with pytest.raises(SystemExit, match="could not be made"):
        contexts.made(1, 1)
