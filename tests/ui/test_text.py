"""Quantities, foreign text, and lines that fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from cuagent.timing import Ratio
from cuagent.ui import text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0.00 ns"),
        (1.5e-9, "1.50 ns"),
        (9.996e-7, "1.00 us"),
        (1.234e-5, "12.3 us"),
        (9.996e-3, "10.0 ms"),
        (0.1234, "123 ms"),
        (0.99949, "999 ms"),
        (0.99951, "1.00 s"),
        (61.0, "61.0 s"),
    ],
)
def test_a_time_has_three_digits_and_its_unit(seconds: float, shown: str) -> None:
    assert text.duration(seconds) == shown


def test_a_ratio_shows_its_limits() -> None:
    assert text.ratio(Ratio(1.4321, 1.379, 1.494)) == "1.43x [1.38, 1.49]"


def test_counts_clocks_and_money_are_short() -> None:
    assert [text.count(n) for n in (950, 12_340, 1_200_000)] == ["950", "12.3k", "1.2M"]
    assert [text.clock(s) for s in (7.9, 754, 3723)] == ["0:07", "12:34", "1:02:03"]
    assert [text.money(d) for d in (0, 0.0412, 1.5)] == ["$0.00", "$0.041", "$1.50"]


@pytest.mark.parametrize(
    ("foreign", "safe"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[H\x1b[?1049hcleared", "cleared"),
        ("10 %\r50 %\r100 %\r\ndone", "100 %\ndone"),
        ("a\tb\x07\x08\x00c", "a   bc"),
        ("\x9b31mred", "red"),
    ],
)
def test_no_control_sequence_of_another_program_gets_through(foreign: str, safe: str) -> None:
    assert text.clean(foreign) == safe


@given(st.text(), st.integers(1, 60))
def test_any_text_is_safe_and_fits(foreign: str, width: int) -> None:
    line = text.one_line(foreign)
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in line)
    assert cell_len(text.clip(line, width)) <= width
    if width > 1:  # a wide character does not fit one column
        assert all(cell_len(piece) <= width for piece in text.wrap(line, width))


@given(st.text(alphabet="ab c\n", max_size=200), st.integers(2, 30))
def test_wrapping_keeps_every_word(words: str, width: int) -> None:
    line = " ".join(words.split())
    assert "".join("".join(text.wrap(line, width)).split()) == "".join(line.split())


def test_folding_says_how_much_is_left_out() -> None:
    rows = "\n".join(map(str, range(10)))
    assert text.fold(rows, 2, 1) == ["0", "1", "… 7 more lines", "9"]
    assert text.fold("0\n1\n2\n3", 2, 1) == ["0", "1", "2", "3"]


def test_an_encoding_without_the_signs_gets_ascii() -> None:
    assert text.glyphs_for("utf-8") is text.UNICODE
    assert text.glyphs_for("latin-1") is text.ASCII
    assert text.glyphs_for(None) is text.ASCII
    "".join(vars(text.ASCII).values()).encode("ascii")
