"""Rows of the ladder: rungs that failed, and rungs that no timing reached."""

from __future__ import annotations

import math
from dataclasses import replace

from samples import FAST, GAIN, LADDER

from cuagent.measure.rungs import Ladder, Rung
from cuagent.score import Score
from cuagent.timing import Floor, Ratio
from cuagent.ui.attempts import AttemptTable, ladder_rows, ladder_table, settings_lines


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


def test_the_best_is_the_attempt_of_the_highest_rank() -> None:
    lost = {"eager": Ratio(0.55, 0.09, 3.5), "compile": Ratio(0.21, 0.05, 0.82)}
    open_ = {"eager": Ratio(2.33, 0.11, 47.7), "compile": Ratio(0.47, 0.05, 4.87)}
    wide = {"eager": Ratio(3.0, 0.01, 90.0), "compile": Ratio(2.0, 0.01, 50.0)}
    slow, unsure, wild = (
        replace(GAIN, attempt=name, timing=replace(FAST, ratios=ratios), score=Score(1), gain=None)
        for name, ratios in (("a", lost), ("b", open_), ("c", wide))
    )
    assert unsure.rank > slow.rank, "certainly slower than torch.compile"
    table = AttemptTable()
    for number, judgement in enumerate((slow, unsure, wild), 1):
        table.add(number, judgement)
    assert table.best == open_["compile"], "the attempt that submit would take"


def test_a_table_of_rungs_has_intervals_over_eager_also_on_narrow_terminals() -> None:
    for width in (50, 60, 80, 120):
        head, _, row, *_ = (line.plain for line in ladder_table(ladder_rows(LADDER), width))
        assert "over eager" in head
        assert "torch.compile" not in head, "an empty column"
        assert "[1.36, 1.44]" in row
        assert len(row) <= width


def test_a_time_below_the_roofline_is_explained() -> None:
    said = " ".join(line.plain.strip() for line in settings_lines(LADDER, 40))
    assert "roofline" not in said
    busy = replace(LADDER, floor=Floor(20e-6, "compute", 1e-6))
    said = " ".join(line.plain.strip() for line in settings_lines(busy, 40))
    assert "over 100% of the roofline: the machine was busy" in said
