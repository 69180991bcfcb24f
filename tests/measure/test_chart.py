"""Charts of a profile, as SVG and for a terminal."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from cuagent.measure.profile.profile import Cost, Profile
from cuagent.measure.roofline.ceilings import Ceilings
from cuagent.measure.roofline.model import Roofline, Work
from cuagent.ui.roofline_chart import COLUMNS, roofline, svg

NAME = "void fused<float, 4>(float*)"
SPACE = "{http://www.w3.org/2000/svg}"


def made(work: Work, seconds: float) -> Profile:
    costs = (Cost(NAME, 1, seconds * 0.75, 0.75), Cost("other", 1, seconds * 0.25, 0.25))
    roof = Roofline(work, Ceilings("a device", 1e12, 1e13, 0, 0), "fp32")
    return Profile("task", seconds, costs, (), roof, work, None, 1.0, 1, None)


def test_svg_bars_have_the_length_of_their_shares() -> None:
    root = ElementTree.fromstring(svg(made(Work(10**9, 10**9, 10**10, 0), 4e-3)))
    long, short = (
        float(bar.attrib["width"]) for bar in root.iter(f"{SPACE}rect") if "class" in bar.attrib
    )
    assert long == pytest.approx(3 * short, rel=0.01)
    words = [text.text or "" for text in root.iter(f"{SPACE}text")]
    assert NAME in words
    assert "50% of the roofline" in words


def test_svg_of_a_task_without_arithmetic_has_bars_only() -> None:
    root = ElementTree.fromstring(svg(made(Work(0, 0, 0, 0), 1e-3)))
    assert not list(root.iter(f"{SPACE}polyline"))


@pytest.mark.parametrize("width", [40, 100])
def test_terminal_chart_spans_the_width_with_the_model_below_the_roof(width: int) -> None:
    lines = roofline(made(Work(10**9, 10**9, 10**10, 0), 4e-3), width)
    columns = min(width, COLUMNS)
    assert max(map(len, lines)) <= columns
    assert sum(line.count("╱") + line.count("─") for line in lines) == columns
    at, dot = next((line.index("●"), row) for row, line in enumerate(lines) if "●" in line)
    assert "● 50%" in lines[dot]
    above = [row for row, line in enumerate(lines) if line[at : at + 1] in ("╱", "─")]
    assert above
    assert above[0] < dot
    assert "5 FLOP a byte, the ridge at 10" in lines[-1]


def test_terminal_chart_is_empty_without_arithmetic() -> None:
    assert not roofline(made(Work(0, 0, 0, 0), 1e-3), 80)
