"""torch's cached GPU memory goes back to the GPU only if much of it is unused."""

from __future__ import annotations

import pytest
import torch

from cuagent.worker.memory.heap import KEPT_BYTES, give_back_surplus

GIB = 1 << 30


@pytest.mark.parametrize(
    ("unused", "kept", "share", "budget", "returned"),
    [
        (GIB // 2, KEPT_BYTES, 0.0, None, False),
        (2 * GIB, KEPT_BYTES, 0.0, None, True),
        (2 * GIB, KEPT_BYTES, 1 / 16, None, False),  # 1/16 of 100 GiB is more
        (7 * GIB, KEPT_BYTES, 1 / 16, None, True),
        (2 * GIB, KEPT_BYTES, 1 / 16, 4 * GIB, True),  # 1/16 of the budget is less
        (1, 0, 0.0, None, True),
        (0, 0, 0.0, None, False),
        (6 * GIB, 0, 1 / 16, None, False),
    ],
)
def test_unused_memory_is_kept_as_far_as_there_is_much_free(
    monkeypatch: pytest.MonkeyPatch,
    unused: int,
    kept: int,
    share: float,
    budget: int | None,
    returned: bool,
) -> None:
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 3 * GIB + unused)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 3 * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100 * GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    give_back_surplus(kept, share, budget)
    assert bool(emptied) is returned
