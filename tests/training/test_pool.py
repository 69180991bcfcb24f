"""The owner of a processor, and what the pool keeps on disk."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from cuagent.training.pool import kept, stay_on


def test_one_processor_means_one_thread_whoever_imported_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.setenv(name, "4")
    before = os.sched_getaffinity(0)
    torch.set_num_threads(4)
    try:
        stay_on(min(before))
        assert os.sched_getaffinity(0) == {min(before)}
        assert torch.get_num_threads() == 1
        assert os.environ["OMP_NUM_THREADS"] == "1"
    finally:
        os.sched_setaffinity(0, before)


def test_judgements_follow_those_of_a_run_that_was_killed_while_it_wrote(tmp_path: Path) -> None:
    file = tmp_path / "judgements.pickle"
    whole = [pickle.dumps((("task", name), name)) for name in "abc"]
    file.write_bytes(whole[0] + whole[1][:-5])
    assert [key for key, _ in kept(file)] == [("task", "a")]
    with file.open("ab") as more:
        more.write(whole[2])
    assert [key for key, _ in kept(file)] == [("task", "a"), ("task", "c")]
