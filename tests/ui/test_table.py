"""Judgements as lines: snapshots at three widths, and nothing wider than allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from samples import BROKEN, BUILT, GAIN, REJECTED, SLOWER

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
