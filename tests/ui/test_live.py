"""Both sides of a wide terminal: never wider or higher than told, the newest always in sight."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import ConsoleDimensions
from samples import LADDER, ON_TOP, REJECTED

from cuagent.events import LadderMeasured, RunEnded, TextDelta
from cuagent.judgement import Judgement
from cuagent.ui.attempts import AttemptTable
from cuagent.ui.growth import growth_lines
from cuagent.ui.live import panel_lines, two_sided
from cuagent.ui.status import Status
from cuagent.ui.terminal import Terminal
from cuagent.ui.text import ASCII

STATUS = Status(12, 1.25, 120_000, 0.5, "bash: nvcc -O3 -arch=sm_90a kernels/softmax.cu")
HEARD = ["kernels/softmax.cu(12): warning: variable declared but never used", "linking"]


def attempt_table(attempts: int) -> AttemptTable:
    """Return a table with the ladder and `attempts` attempts; every other one is rejected."""
    made = AttemptTable()
    made.measure_ladder(LADDER)
    for n in range(1, attempts + 1):
        made.add(n, REJECTED if n % 2 == 0 else scaled(1 + n / 10), 20.0 * n)
    return made


def scaled(factor: float) -> Judgement:
    timing = ON_TOP.timing
    assert timing is not None
    ratios = {
        name: replace(r, value=r.value * factor, low=r.low * factor, high=r.high * factor)
        for name, r in timing.ratios.items()
    }
    return replace(ON_TOP, timing=replace(timing, ratios=ratios))


@pytest.mark.parametrize("attempts", [0, 1, 3, 40])
@pytest.mark.parametrize(("width", "height"), [(118, 20), (120, 30), (150, 50), (220, 24)])
def test_it_keeps_its_bounds(attempts: int, width: int, height: int) -> None:
    for glyphs in ({}, {"glyphs": ASCII}):
        lines = panel_lines(
            STATUS, HEARD, attempt_table(attempts), 3723.0, width, height, tick=3, **glyphs
        )
        assert len(lines) <= height // 2
        assert all(line.cell_len <= width for line in lines)


def test_the_newest_attempt_is_always_in_sight() -> None:
    text = "\n".join(
        line.plain for line in panel_lines(STATUS, (), attempt_table(40), 900.0, 120, 24)
    )
    assert "attempt 40" in text
    assert "attempts" in text, "those left out are counted"


def test_it_looks_as_before(assert_looks_as_before: Callable[[str, str], None]) -> None:
    lines = panel_lines(STATUS, HEARD, attempt_table(5), 123.0, 120, 40, tick=3)
    assert_looks_as_before("panel_120", "\n".join(line.plain.rstrip() for line in lines) + "\n")


def test_two_sides_need_room_and_something_to_show() -> None:
    assert two_sided(attempt_table(0), 120, 30)
    assert not two_sided(AttemptTable(), 120, 30)
    assert not two_sided(attempt_table(0), 100, 30)
    assert not two_sided(attempt_table(0), 120, 15)


def test_the_chart_begins_at_one_and_rises_when_the_best_did() -> None:
    lines = growth_lines([(30.0, 1.5), (60.0, 2.0)], 120.0, 40, 2)
    low = lines[1].partition("│")[2]
    high = lines[0].partition("│")[2]
    assert lines[0].startswith("2.00x │")
    assert lines[1].startswith("1.00x │")
    assert low.index("█") < high.rindex(" ") < high.index("█")
    assert lines[2].split() == ["0:00", "2:00"]
    assert growth_lines([], 10.0, 40, 2) == []


def test_an_inconclusive_best_is_marked() -> None:
    assert "best 1.25x?" in replace(STATUS, sure=False).line(10, 80)
    assert "best 1.25x ·" in STATUS.line(10, 80)


def test_a_session_has_both_sides_above_its_prompt_and_the_status_last() -> None:
    show = Terminal(io.StringIO(), footer=True)
    show.console.size = ConsoleDimensions(130, 40)
    show(LadderMeasured(LADDER))
    show(TextDelta("Rows of 4096 fit"))
    lines = show.footer_lines(129)
    assert "CUDA graphs" in "\n".join(lines[:-1])
    assert any(line.startswith("Rows of 4096") for line in lines), "what is being said"
    assert lines[-1].endswith("0:00")
    assert len(show.footer_lines(80)) == 2


def test_pause_message_is_complete_in_a_narrow_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    summary = "no accepted kernel (0 attempts); nothing that is free was found either"
    Terminal(stream, footer=True)(RunEnded("answered", None, summary))
    rows = stream.getvalue().splitlines()
    assert " ".join(" ".join(rows).split()) == f"answered: {summary}"
    assert max(map(len, rows)) <= 40
