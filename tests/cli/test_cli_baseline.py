"""The ladder as a table: it fits the terminal, and no gain stands there without its interval."""

from __future__ import annotations

import time
from dataclasses import replace

from cuagent.cli.baseline import lines
from cuagent.measure.roofline.model import ABOVE
from cuagent.measure.rungs import Ladder, Rung
from cuagent.timing import Floor, Ratio

EAGER = Rung("eager", 4e-3, Ratio(1.0, 1.0, 1.0), 1e-7, True, 0.1, None, True)
TUNED = replace(
    EAGER, name="max-autotune-no-cudagraphs", seconds=2e-3, over_eager=Ratio(2.0, 1.8, 2.2)
)
TF32 = replace(TUNED, name="compile+tf32", admitted=False)
FLOOR = Floor(1e-3, "memory", 0.0)


def made(*rungs: Rung) -> Ladder:
    return Ladder("task", "match", "a device", {"torch": "2"}, rungs, 1.0, floor=FLOOR)


def test_the_table_fits_the_terminal_and_what_does_not_stands_below_its_row() -> None:
    found = made(EAGER, TUNED, TF32)
    wide, narrow = lines(found, 80), lines(found, 60)
    assert max(map(len, wide[:5])) <= 80
    assert wide[0].split() == ["rung", "time", "over", "eager", "roof", "error", "start"]
    assert max(map(len, narrow[:5])) <= 60
    assert narrow[2] == "  1.0e-07 error, 0.1 s to start"
    assert "2.00x [1.80, 2.20]   50%" in narrow[3]
    assert narrow[7] == "  precision differs from the task's"
    phone = lines(found, 40)
    assert phone[2] == "  25% of the roofline, 1.0e-07 error, 0.1 s to start"
    assert phone[4].startswith("  2.00x [1.80, 2.20] over eager, 50% of")


def test_times_in_a_row_are_a_column_and_name_the_exported_rung() -> None:
    torchs = replace(TUNED, name="reduce-overhead", in_a_row_s=5e-3)
    own = replace(TUNED, name="compile+cuda_graph", seconds=2.01e-3, in_a_row_s=2.2e-3)
    text = lines(made(EAGER, torchs, own))
    assert text[0].split()[4:7] == ["in", "a", "row"]
    assert text[3].split()[6:8] == ["2.2", "ms"]
    assert "--out exports compile+cuda_graph, which is as fast and quicker in a row" in text
    assert not any("--out exports" in line for line in lines(made(EAGER, torchs)))


def test_a_rung_above_the_roofline_is_explained() -> None:
    above = replace(TUNED, seconds=FLOOR.seconds / 2)
    assert ABOVE in lines(made(EAGER, above))
    assert ABOVE not in lines(made(EAGER, TUNED))


def test_best_rung_line_has_an_interval_except_for_eager() -> None:
    over = "best at precision match: max-autotune-no-cudagraphs, 2.00x [1.80, 2.20] over eager"
    assert over in lines(made(EAGER, TUNED))
    assert "best at precision match: eager" in lines(made(EAGER))
    assert not any("[1.00, 1.00]" in line for line in lines(made(EAGER)))


def test_missing_eager_rung_is_the_reported_reason() -> None:
    text = "\n".join(lines(made(replace(TUNED, over_eager=None))))
    assert "eager, the baseline of the ratios, was not timed" in text
    assert "strict rule" not in text


def test_cached_measurement_shows_its_age() -> None:
    old = replace(made(EAGER), when=time.time() - 3 * 3600)
    assert lines(old)[-1] == "measured 3 h ago; --fresh measures again"
    assert "ago" not in lines(replace(old, when=time.time()))[-1]
