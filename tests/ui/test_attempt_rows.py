"""Rows of the ladder: rungs that failed, and rungs that no timing reached."""

from __future__ import annotations

import math

from cuagent.measure.rungs import Ladder, Rung
from cuagent.timing import Ratio
from cuagent.ui.attempts import ladder_rows


def rung(name: str, seconds: float, failed: str = "") -> Rung:
    over = Ratio(1.0, 1.0, 1.0) if name == "eager" else None
    return Rung(name, seconds, over, 1e-7, True, None, None, True, failed)


def test_rung_without_a_time_or_without_memory_says_so() -> None:
    lack = "raised: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.01 GiB. GPU 0"
    rungs = (rung("eager", 0.1), rung("max-autotune", math.nan), rung("compile", math.nan, lack))
    found = Ladder("task", "match", "GPU", {}, rungs, 1.0)
    notes = {row.name: row.note for row in ladder_rows(found)}
    assert notes == {
        "eager": "",
        "max-autotune": "not timed",
        "compile": "failed: needs 2.01 GiB of GPU memory, more than is free",
    }
