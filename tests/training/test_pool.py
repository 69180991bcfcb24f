"""The owner of a processor."""

from __future__ import annotations

import os

import pytest
import torch

from cuagent.training.pool import stay_on


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
