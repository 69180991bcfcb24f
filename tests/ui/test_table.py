"""Judgements as lines: snapshots at three widths, and nothing wider than allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from samples import (
    BROKEN,
    BUILT,
    DOUBTFUL,
    GAIN,
    LADDER,
    ON_TOP,
    REJECTED,
    SLOWER,
    UNSURE,
)

from cuagent.timing import Effort, Ratio
from cuagent.ui.attempts import (
    AttemptTable,
    attempt_row,
    baseline_rows,
    row_line,
    table_lines,
    trend,
)
from cuagent.ui.table import build_lines, judgement_lines, smallest_ratio, why_lines
from cuagent.ui.text import ASCII
from cuagent.verdict import Reason

EVERY = (GAIN, REJECTED, BROKEN, SLOWER)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_judgements_look_as_before(
    width: int, assert_looks_as_before: Callable[[str, str], None]
) -> None:
    blocks = [judgement_lines(judgement, width) for judgement in EVERY]
    blocks.append(build_lines(BUILT, width))
    text = "\n\n".join("\n".join(line.plain for line in block) for block in blocks)
    assert_looks_as_before(f"judgements_{width}", text + "\n")


@pytest.mark.parametrize("width", range(28, 130, 7))
def test_no_line_is_wider_than_allowed(width: int) -> None:
    for judgement in EVERY:
        assert all(line.cell_len <= width for line in judgement_lines(judgement, width))


@pytest.mark.parametrize("width", [30, 40, 60])
def test_the_ratio_is_shown_at_any_width(width: int) -> None:
    text = "\n".join(line.plain for line in judgement_lines(GAIN, width))
    assert "2.00x" in text
    assert "1.43x" in text


def test_ascii_lines_are_ascii() -> None:
    for judgement in EVERY:
        for line in judgement_lines(judgement, 60, ASCII):
            assert line.plain.isascii()


def test_worth_is_over_the_better_baseline() -> None:
    best = smallest_ratio(GAIN.timing)
    assert best is not None
    assert best.value == 1.43
    assert smallest_ratio(None) is None


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_table_of_attempts_looks_as_before(
    width: int, assert_looks_as_before: Callable[[str, str], None]
) -> None:
    rows = [attempt_row(n, judgement) for n, judgement in enumerate(EVERY, 1)]
    text = "\n".join(line.plain for line in table_lines(baseline_rows(GAIN.timing), rows, width))
    assert_looks_as_before(f"attempts_{width}", text + "\n")


@pytest.mark.parametrize("width", range(28, 130, 7))
def test_no_row_is_wider_than_allowed(width: int) -> None:
    rows = [attempt_row(n, judgement) for n, judgement in enumerate(EVERY, 98)]
    for row in [*rows, *baseline_rows(SLOWER.timing)]:
        assert row_line(row, width).cell_len <= width


def test_the_rows_stand_under_each_other() -> None:
    first, second = (row_line(attempt_row(n, GAIN), 80).plain for n in (9, 10))
    assert first.index("2.00x") == second.index("2.00x")
    assert first.index("12.3 us") == second.index("12.3 us")


def test_the_trend_rises_with_the_best_and_never_falls() -> None:
    rows = [attempt_row(n, judgement) for n, judgement in enumerate((REJECTED, SLOWER, GAIN), 1)]
    assert trend(rows, 40) == " ▁█ 0.90x to 1.43x"
    assert trend([*rows, attempt_row(4, SLOWER)], 40) == " ▁██ 0.90x to 1.43x"
    assert trend(rows, 20).endswith("0.90x to 1.43x")
    assert trend(rows[:2], 40) == ""


def test_baselines_come_with_the_first_attempt_and_are_not_repeated() -> None:
    attempt_table = AttemptTable()
    attempt_table.add(1, GAIN)
    news = [line.plain.split()[0] for line in attempt_table.new_lines(1, 80)[1:]]
    assert news == ["eager", "torch.compile", "✓"]
    attempt_table.add(2, REJECTED)
    assert len(attempt_table.new_lines(2, 80)) == 1
    attempt_table.add(3, GAIN)
    assert len(attempt_table.new_lines(3, 80)) == 2, "a head and the attempt"
    whole = [line.plain.strip() for line in attempt_table.all_lines(80)]
    assert whole[0] == "all attempts, each by its latest timing"
    assert [line.split("  ")[0] for line in whole[2:]] == [
        "eager",
        "torch.compile",
        "✓ attempt 1",
        "✗ attempt 2",
        "✓ attempt 3",
    ]


def _recorded(attempts: AttemptTable, number: int) -> None:
    assert GAIN.timing is not None
    attempts.add(number, replace(GAIN, timing=replace(GAIN.timing, effort=Effort.RECORD)))


def test_a_submitted_attempt_has_one_table_with_a_title() -> None:
    attempt_table = AttemptTable()
    attempt_table.measure_ladder(LADDER)
    _recorded(attempt_table, 1)
    assert attempt_table.new_lines(1, 80) == [], "the end of the run shows it"
    lines = [line.plain for line in attempt_table.all_lines(80)]
    assert lines[0] == "record timing, in fresh processes"
    assert sum("attempt 1" in line for line in lines) == 1


def test_the_title_of_the_table_names_the_recorded_attempts() -> None:
    attempt_table = AttemptTable()
    attempt_table.add(1, GAIN)
    _recorded(attempt_table, 2)
    assert attempt_table.title.startswith("attempt 2: record timing, in fresh processes; others")
    attempt_table.add(2, GAIN)
    assert attempt_table.title == "all attempts, each by its latest timing"


def test_a_timing_of_record_replaces_a_lucky_earlier_one() -> None:
    attempt_table = AttemptTable()
    attempt_table.add(1, GAIN)
    assert GAIN.timing is not None
    slow = {name: Ratio(0.8, 0.7, 0.9) for name in GAIN.timing.ratios}
    attempt_table.add(1, replace(GAIN, timing=replace(GAIN.timing, ratios=slow)))
    assert attempt_table.best is not None
    assert attempt_table.best.value == 0.8


def test_the_ladder_is_the_first_rows_its_best_rung_marked() -> None:
    attempt_table = AttemptTable()
    attempt_table.measure_ladder(LADDER)
    lines = [line.plain for line in attempt_table.ladder_lines(80)]
    assert lines[0].split("  ")[-1] == "math"
    assert lines[1].startswith("  eager ")
    assert "1.40x [1.36, 1.44]" in lines[2]
    assert lines[3].startswith("▸ CUDA graphs ")
    assert "2.00x" in lines[3]
    assert "record timing" in lines[4]
    attempt_table.add(1, ON_TOP)
    news = [line.plain for line in attempt_table.new_lines(1, 80)]
    assert len(news) == 2, "the ladder stands above already"
    assert "over best rung" in news[0]
    assert "1.25x [1.22, 1.28]" in news[1]


@pytest.mark.parametrize("width", range(28, 130, 7))
def test_no_row_of_a_ladder_is_wider_than_allowed(width: int) -> None:
    attempt_table = AttemptTable()
    attempt_table.measure_ladder(LADDER)
    attempt_table.add(1, ON_TOP)
    assert all(line.cell_len <= width for line in attempt_table.all_lines(width))


def test_record_timing_updates_only_its_own_rungs() -> None:
    attempt_table = AttemptTable()
    attempt_table.measure_ladder(LADDER)
    attempt_table.add(1, ON_TOP)
    assert {row.name: row.seconds for row in attempt_table.baselines}["reduce-overhead"] == 15e-6
    timing = ON_TOP.timing
    assert timing is not None
    arms = tuple(replace(arm, median=arm.median * 2) for arm in timing.arms)
    attempt_table.add(1, replace(ON_TOP, timing=replace(timing, arms=arms, effort=Effort.RECORD)))
    rows = {row.name: row for row in attempt_table.baselines}
    assert rows["reduce-overhead"].seconds == 30e-6
    assert rows["reduce-overhead"].ratios["eager"].value == pytest.approx(2.5 / 1.25)


def test_an_inconclusive_ratio_is_marked_where_its_limits_do_not_fit() -> None:
    assert "1.01x?" in row_line(attempt_row(1, UNSURE), 40).plain
    assert "1.01x [0.97, 1.05]" in row_line(attempt_row(1, UNSURE), 80).plain


def test_a_timing_is_shown_with_its_doubts_and_its_share_of_the_roofline() -> None:
    text = "\n".join(line.plain for line in judgement_lines(DOUBTFUL, 80))
    assert "SUSPECT: 12.3 us a call" in text
    assert "machine busy: 40 % by others" in text
    assert "49% of the roofline (floor 6.00 us, memory)" in text
    assert attempt_row(1, DOUBTFUL).sign == "unsure"


def test_verdict_notes_appear_only_with_the_record_timing() -> None:
    assert GAIN.timing is not None
    noted = replace(GAIN, verdict=replace(GAIN.verdict, notes=("NaN: not judged",)))

    def told(effort: Effort) -> str:
        timed = replace(noted, timing=replace(GAIN.timing, effort=effort))
        return "\n".join(line.plain for line in why_lines(timed, 80))

    assert "NaN: not judged" in told(Effort.RECORD)
    assert "NaN: not judged" not in told(Effort.QUICK)


@pytest.mark.parametrize("reason", [Reason.WRONG_FORM, Reason.TOO_SLOW])
def test_details_of_a_rejection_do_not_repeat_its_reason(reason: Reason) -> None:
    verdict = replace(GAIN.verdict, accepted=False, reason=reason, detail="why")
    shown = [line.plain for line in why_lines(replace(GAIN, verdict=verdict), 40)]
    assert shown[0].strip() == "why"


def test_title_and_reason_fit_a_narrow_terminal() -> None:
    table = AttemptTable()
    table.add(1, GAIN)
    assert GAIN.timing is not None
    table.add(2, replace(GAIN, timing=replace(GAIN.timing, effort=Effort.RECORD)))
    table.add(3, GAIN)
    words = " ".join(line.plain.strip() for line in table.all_lines(60)[:3])
    assert "others: latest timing" in words
    slow = replace(GAIN, verdict=replace(GAIN.verdict, accepted=False, reason=Reason.TOO_SLOW))
    assert row_line(attempt_row(3, slow), 60).plain.endswith(str(Reason.TOO_SLOW))
