"""Judgements as lines: snapshots at three widths, and nothing wider than allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from samples import BROKEN, BUILT, GAIN, REJECTED, SLOWER

from cuagent.ui.attempts import (
    Board,
    attempt_row,
    baseline_rows,
    row_line,
    table_lines,
    trend,
)
from cuagent.ui.table import build_lines, judgement_lines, least_ratio
from cuagent.ui.text import ASCII

EVERY = (GAIN, REJECTED, BROKEN, SLOWER)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_judgements_look_as_before(width: int, same_as_before: Callable[[str, str], None]) -> None:
    blocks = [judgement_lines(judgement, width) for judgement in EVERY]
    blocks.append(build_lines(BUILT, width))
    text = "\n\n".join("\n".join(line.plain for line in block) for block in blocks)
    same_as_before(f"judgements_{width}", text + "\n")


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
            line.plain.encode("ascii")


def test_worth_is_over_the_better_baseline() -> None:
    assert least_ratio(GAIN.timing) == 1.43
    assert least_ratio(None) is None


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_table_of_attempts_looks_as_before(
    width: int, same_as_before: Callable[[str, str], None]
) -> None:
    rows = [attempt_row(n, judgement) for n, judgement in enumerate(EVERY, 1)]
    text = "\n".join(line.plain for line in table_lines(baseline_rows(GAIN), rows, width))
    same_as_before(f"attempts_{width}", text + "\n")


@pytest.mark.parametrize("width", range(28, 130, 7))
def test_no_row_is_wider_than_allowed(width: int) -> None:
    rows = [attempt_row(n, judgement) for n, judgement in enumerate(EVERY, 98)]
    for row in [*rows, *baseline_rows(SLOWER)]:
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


def test_baselines_come_first_and_are_not_repeated_with_each_attempt() -> None:
    board = Board()
    first = [line.plain.split() for line in board.ladder({"eager": 2e-3, "compile": 1e-3}, 80)]
    assert first[1:] == [["eager", "2.00", "ms"], ["torch.compile", "1.00", "ms"]]
    news = [line.plain for line in board.news(1, GAIN, 80)]
    assert len(news) == 2, "a head and the attempt"
    assert news[1].startswith("✓ attempt 1")
    assert len(board.news(2, REJECTED, 80)) == 1
    whole = [line.plain.strip() for line in board.whole(80)]
    assert [line.split("  ")[0] for line in whole[1:]] == [
        "eager",
        "torch.compile",
        "✓ attempt 1",
        "✗ attempt 2",
    ]
