"""Contexts are created in separate processes, with a limit on parallel ones."""

from __future__ import annotations

import os
import time
from pathlib import Path

import contexts
import pytest


@pytest.mark.parametrize("at_once", [1, 3])
def test_create_contexts_runs_at_most_at_once_in_parallel(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def context() -> list[float]:
        """Wait until `at_once` processes have run together, and note the largest number seen."""
        running, done = tmp_path / "running" / str(os.getpid()), tmp_path / "done"
        running.touch()
        seen = len(list(running.parent.iterdir()))
        deadline = time.monotonic() + 60
        while not done.exists() and seen < at_once and time.monotonic() < deadline:
            time.sleep(0.01)
            seen = len(list(running.parent.iterdir()))
        time.sleep(0.2)  # time for one too many to start
        seen = max(seen, len(list(running.parent.iterdir())))
        done.touch()
        running.unlink()
        (tmp_path / f"{os.getpid()}.seen").write_text(str(seen))
        return [0.0, 0.75]

    (tmp_path / "running").mkdir()
    monkeypatch.setattr(contexts, "context", context)
    found = contexts.create_contexts(at_once, at_once + 2)
    assert max(int(file.read_text()) for file in tmp_path.glob("*.seen")) == at_once
    assert (found["initializing"], found["context"]) == (0.0, 0.75)
    assert found["a second"] > 0


def test_idle_contexts_end_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "context", lambda: [0.0, 0.0])
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = set(children.read_text().split())
    with contexts.idle_contexts(2):
        idle = set(children.read_text().split()) - before
        assert len(idle) == 2
    assert not idle & set(children.read_text().split())


def test_failed_context_ends_the_program_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def context() -> list[float]:
        raise RuntimeError("the CUDA driver says 2")

    monkeypatch.setattr(contexts, "context", context)
    with pytest.raises(SystemExit, match="could not be made"):
        contexts.create_contexts(1, 1)
