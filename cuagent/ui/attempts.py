"""The table of attempts: a row for each baseline and each judged attempt, and the best over time.

Rows are printed one by one as measurements come, and all together at the end, so every column has
a width of its own that depends on nothing but the columns of the terminal. When these are few, the
less important figures are left out; those of a person's first question (is it right, is it faster)
never are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from cuagent.measure.timing import Effort, Ratio, Standing, Timing
from cuagent.ui.table import baseline_name
from cuagent.ui.text import UNICODE, Glyphs, clip, duration, ratio, times
from cuagent.verify.verdict import Reason

if TYPE_CHECKING:
    from cuagent.judge import Judgement

CANDIDATE = "candidate"
MOST_ROWS = 12
"""Attempts in the table at the end."""
MOST_BARS = 40
_COLOURS = {Standing.FASTER: "green", Standing.SLOWER: "red", Standing.INCONCLUSIVE: "yellow"}
_UNJUDGED = (Reason.INFRASTRUCTURE, Reason.NOT_CERTIFIABLE)


@dataclass(frozen=True)
class Row:
    """One line of the table. What is not known is None or empty."""

    name: str
    sign: str = ""
    """`yes`, `no` or `unsure`: an attribute of `Glyphs`; nothing for a baseline."""
    seconds: float | None = None
    over_eager: Ratio | None = None
    over_compile: Ratio | None = None
    share: float | None = None
    """Of the roofline."""
    precision: str = ""
    said: str = ""
    """In place of the figures: why there are none."""


@dataclass
class Board:
    """The table as it grows: what is known of the baselines and of each attempt by now."""

    baselines: list[Row] = field(default_factory=list)
    attempts: dict[int, Row] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    """Of attempts, by digest."""

    def keep(self, number: int, judgement: Judgement) -> Row:
        """The row of an attempt, from now on in the table."""
        self.numbers[judgement.attempt] = number
        row = self.attempts[number] = attempt_row(number, judgement)
        if not row.said:
            self.baselines = baseline_rows(judgement)
        return row

    def news(
        self, number: int, judgement: Judgement, width: int, glyphs: Glyphs = UNICODE
    ) -> list[Text]:
        """What is to be printed of an attempt that was just judged."""
        known = [row.name for row in self.baselines]
        row = self.keep(number, judgement)
        line = row_line(row, width, glyphs)
        if row.said:
            return [line]
        # those of record are fresh, and the ones that the claim rests on
        fresh = judgement.timing is not None and judgement.timing.effort is Effort.RECORD
        shown = self.baselines if fresh or known != [b.name for b in self.baselines] else []
        return [head_line(width), *(row_line(b, width, glyphs) for b in shown), line]

    def ladder(
        self, times: Mapping[str, float], width: int, glyphs: Glyphs = UNICODE
    ) -> list[Text]:
        """Baselines that were timed before any attempt, in seconds: the first rows."""
        self.baselines = [Row(name, seconds=seconds) for name, seconds in times.items()]
        return [head_line(width), *(row_line(b, width, glyphs) for b in self.baselines)]

    def whole(self, width: int, glyphs: Glyphs = UNICODE, fewest: int = 1) -> list[Text]:
        """All attempts and how the best one grew, where there are as many as `fewest`."""
        rows = [row for _, row in sorted(self.attempts.items())]
        if len(rows) < fewest:
            return []
        lines = table_lines(self.baselines, rows, width, glyphs)
        if grown := trend(rows, width - 8, glyphs):
            lines.append(Text.assemble(("  best ", "dim"), (grown, "green")))
        return lines


def attempt_row(number: int, judgement: Judgement) -> Row:
    """An attempt as it was judged last."""
    verdict, timing = judgement.verdict, judgement.timing
    name = f"attempt {number}"
    if not verdict.accepted:
        sign = "unsure" if verdict.reason in _UNJUDGED else "no"
        return Row(name, sign, said=str(verdict.reason))
    arm = timing.arm(CANDIDATE) if timing is not None else None
    if timing is None or arm is None or arm.failed:
        return Row(name, "yes", said="right, not timed")
    return Row(
        name,
        "yes",
        arm.median,
        timing.ratios.get("eager"),
        timing.ratios.get("compile"),
        _share(arm.median, timing),
        str(verdict.precision or ""),
    )


def baseline_rows(judgement: Judgement) -> list[Row]:
    """What the attempt was timed against: eager first, as it came."""
    timing = judgement.timing
    return [
        Row(arm.name, said=f"failed: {arm.failed}")
        if arm.failed
        else Row(arm.name, seconds=arm.median, share=_share(arm.median, timing))
        for arm in (timing.arms if timing is not None else ())
        if arm.name != CANDIDATE
    ]


class Column(NamedTuple):
    """`cell` gives the text of a row in it; numbers stand to the right."""

    title: str
    width: int
    right: bool = False


def columns_for(width: int) -> list[Column]:
    """The columns that `width` has room for; the first two are always there."""
    name, time = Column("", 15), Column("time", 7, right=True)
    eager, compile = Column("over eager", 18), Column("over torch.compile", 18)
    roof, precision = Column("roof", 4, right=True), Column("math", 5)
    if width >= 80:
        return [name, time, eager, compile, roof, precision]
    if width >= 66:
        return [name, time, eager, compile]
    if width >= 52:
        return [name, time, Column("eager", 6, right=True), compile]
    return [Column("", 12), time, Column("eager", 6, right=True), Column("comp.", 6, right=True)]


def head_line(width: int) -> Text:
    """The titles of the columns."""
    return Text(_join([(c.title, c) for c in columns_for(width)]), "dim")


def row_line(row: Row, width: int, glyphs: Glyphs = UNICODE) -> Text:
    """One row in at most `width` columns."""
    columns = columns_for(width)
    sign = getattr(glyphs, row.sign) if row.sign else " "
    label = baseline_name(row.name, width)
    colour = {"yes": "green", "no": "red", "unsure": "yellow"}.get(row.sign, "dim")
    line = Text(f"{sign:<2}", f"bold {colour}")
    if row.said:
        room = width - cell_len(line.plain)
        text = f"{label:<{columns[0].width - 2}}  {row.said}"
        return line.append(clip(text, room, glyphs.more), "" if row.sign else "dim")
    line.append(_pad(label, columns[0].width - cell_len(line.plain), right=False))
    for column in columns[1:]:
        text, style = _cell(row, column)
        line.append("  " + _pad(text, column.width, column.right), style)
    line.rstrip()
    line.truncate(width)
    return line


def table_lines(
    baselines: Sequence[Row],
    attempts: Sequence[Row],
    width: int,
    glyphs: Glyphs = UNICODE,
) -> list[Text]:
    """The whole table; of many attempts the first ones are counted only."""
    left_out = max(len(attempts) - MOST_ROWS, 0)
    lines = [head_line(width), *(row_line(row, width, glyphs) for row in baselines)]
    if left_out:
        lines.append(Text(f"  {glyphs.more} {left_out} attempts", "dim"))
    return lines + [row_line(row, width, glyphs) for row in attempts[left_out:]]


def trend(attempts: Sequence[Row], width: int, glyphs: Glyphs = UNICODE) -> str:
    """The best ratio over the better baseline, attempt by attempt: `▁▁▄▇ 1.05x to 1.43x`.

    Empty where the best one never grew.
    """
    best: list[float | None] = []
    for row in attempts:
        before = best[-1] if best else None
        worth = row_worth(row)
        best.append(worth if before is None else max(before, worth or before))
    known = [value for value in best if value is not None]
    if not known or known[-1] <= known[0]:
        return ""
    words = f"{times(known[0])} to {times(known[-1])}"
    room = max(min(width - cell_len(words) - 2, MOST_BARS), 1)
    low, high = known[0], known[-1]
    top = len(glyphs.bars) - 1
    bars = [
        " " if value is None else glyphs.bars[round(top * (value - low) / (high - low))]
        for value in best[-room:]
    ]
    return f"{''.join(bars)} {words}"


def row_worth(row: Row) -> float | None:
    """What an attempt is worth over the better of the baselines."""
    return min((r.value for r in (row.over_eager, row.over_compile) if r), default=None)


def _cell(row: Row, column: Column) -> tuple[str, str]:
    match column.title:
        case "time":
            return ("" if row.seconds is None else duration(row.seconds)), ""
        case "over eager" | "eager":
            return _worth(row.over_eager, column)
        case "over torch.compile" | "comp.":
            return _worth(row.over_compile, column)
        case "roof":
            return ("" if row.share is None else f"{row.share:.0%}"), ""
        case _:
            return row.precision, "dim"


def _worth(worth: Ratio | None, column: Column) -> tuple[str, str]:
    if worth is None:
        return "", ""
    text = ratio(worth) if column.width >= 18 else times(worth.value)
    return text, _COLOURS[worth.standing]


def _share(seconds: float, timing: Timing | None) -> float | None:
    floor = timing.floor if timing is not None else None
    return floor.share(seconds) if floor is not None and seconds > 0 else None


def _join(cells: Sequence[tuple[str, Column]]) -> str:
    return "  ".join(_pad(text, column.width, column.right) for text, column in cells).rstrip()


def _pad(text: str, width: int, right: bool) -> str:
    blanks = " " * max(width - cell_len(text), 0)
    return blanks + text if right else text + blanks
