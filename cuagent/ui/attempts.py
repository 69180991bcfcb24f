"""Format the table of attempts: the ladder's rungs, a row for each judged attempt, the best over
time.

Rows are printed one by one during the run and all together at its end, so the width of each column
depends only on the width of the terminal. A narrow terminal omits the less important figures, but
never the verdict and the speedup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from cuagent.measure.roofline.model import ABOVE
from cuagent.measure.rungs import over_eager
from cuagent.task.memory import shortage
from cuagent.timing import Effort, Ratio, Standing, Timing
from cuagent.ui.console import UNCUT
from cuagent.ui.table import baseline_name
from cuagent.ui.text import UNICODE, Glyphs, clip, duration, ratio, times, wrap
from cuagent.verdict import Reason

if TYPE_CHECKING:
    from cuagent.judgement import Judgement
    from cuagent.measure.rungs import Ladder

CANDIDATE = "candidate"
EAGER, COMPILE = "eager", "compile"
RECORD_TITLE = "record timing, in fresh processes"
POSTPONED = "record timing"
"""Note at a rung that is only timed with the attempts at record effort."""
"""Title of the table if its attempts were timed at record effort."""
ALL_TITLE = "all attempts, each by its latest timing"
MOST_ROWS = 12
"""Largest number of attempts in the table at the end of a run."""
MOST_BARS = 40
_COLOURS = {Standing.FASTER: "green", Standing.SLOWER: "red", Standing.INCONCLUSIVE: "yellow"}
_UNJUDGED = (Reason.INFRASTRUCTURE, Reason.NOT_CERTIFIABLE)


@dataclass(frozen=True)
class Row:
    """One row of the table, for a baseline or an attempt; unknown values are None or empty."""

    name: str
    sign: str = ""
    """Sign before the name, as an attribute name of `Glyphs`: `yes`, `no`, `unsure`, or `best` (for
    a rung); "" for none."""
    seconds: float | None = None
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    """Speedup over each baseline, by the baseline's name."""
    share: float | None = None
    """Share of the roofline: the task's floor divided by the measured time."""
    precision: str = ""
    note: str = ""
    """Text that replaces the figures, such as the reason of a rejection."""
    rank: tuple[int, bool, float] = (-1, False, 0.0)
    """Rank of an attempt (`Judgement.rank`)."""


@dataclass
class AttemptTable:
    """Rows of the ladder and of the attempts, updated during a run."""

    baselines: list[Row] = field(default_factory=list)
    attempts: dict[int, Row] = field(default_factory=dict)
    recorded: set[int] = field(default_factory=set)
    """Numbers of the attempts whose latest timing is at record effort."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Number of each attempt, by its digest."""
    has_ladder: bool = False
    """True if the baselines come from a ladder, False if from the timing of an attempt."""
    rung: str = ""
    """Name of the best rung; "" if that is eager or default torch.compile."""
    best_over_time: list[tuple[float, float]] = field(default_factory=list)
    """Improvements during the run: (seconds into the run, best speedup from then on)."""

    def measure_ladder(self, found: Ladder) -> None:
        """Replace or add the ladder's rungs in `baselines`; keep rows of other baselines."""
        self.has_ladder = True
        before = {row.name: replace(row, sign="") for row in self.baselines}
        self.baselines = list((before | {row.name: row for row in ladder_rows(found)}).values())
        best = found.best.name if found.best is not None else ""
        self.rung = best if best not in (EAGER, COMPILE) else ""

    def add(self, number: int, judgement: Judgement, seconds: float = 0.0) -> Row:
        """Add the attempt `number`, judged `seconds` into the run, and return its row."""
        self.numbers[judgement.attempt] = number
        row = self.attempts[number] = attempt_row(number, judgement)
        timing = judgement.timing
        # a quick timing does not replace the ladder's figures of the baselines
        of_record = timing is not None and timing.effort is Effort.RECORD and not row.note
        (self.recorded.add if of_record else self.recorded.discard)(number)
        quick = self.has_ladder and timing is not None and timing.effort is not Effort.RECORD
        if timing is not None and not row.note and not quick:
            self.baselines = updated_baselines(self.baselines, timing)
        gain = row_gain(row)
        if gain is not None and (not self.best_over_time or gain > self.best_over_time[-1][1]):
            self.best_over_time.append((seconds, gain))
        return row

    @property
    def best(self) -> Ratio | None:
        """Speedup over its best baseline of the attempt with the highest rank."""
        timed = [row for row in self.attempts.values() if row.ratios and not row.note]
        best = max(timed, key=lambda row: row.rank, default=None)
        return min(best.ratios.values(), key=lambda r: r.value) if best is not None else None

    @property
    def title(self) -> str:
        """Title of the table, which says at which effort the attempts were timed."""
        timed = {number for number, row in self.attempts.items() if not row.note}
        if self.recorded and timed <= self.recorded:
            return RECORD_TITLE
        if self.recorded:
            names = ", ".join(map(str, sorted(self.recorded)))
            return f"attempt {names}: {RECORD_TITLE}; others: latest timing"
        return ALL_TITLE

    def new_lines(self, number: int, width: int, glyphs: Glyphs = UNICODE) -> list[Text]:
        """Return the lines to print for an attempt that was just added; [] if it was timed at
        record effort.

        An attempt timed at record effort is shown at the end of the run, in the table of all
        attempts, together with the baselines of the same timing.
        """
        row = self.attempts[number]
        line = row_line(row, width, glyphs, self.rung)
        if row.note:
            return [line]
        if number in self.recorded:
            return []
        first = sum(not other.note for other in self.attempts.values()) == 1
        shown = self.baselines if first and not self.has_ladder else []
        above = [row_line(b, width, glyphs, self.rung) for b in shown]
        return [head_line(width, self.rung), *above, line]

    def ladder_lines(self, width: int, glyphs: Glyphs = UNICODE) -> list[Text]:
        """Return the titles of the columns and the rows of the baselines."""
        return ladder_table(self.baselines, width, glyphs)

    def all_lines(self, width: int, glyphs: Glyphs = UNICODE, fewest: int = 1) -> list[Text]:
        """Return the table of all attempts and the trend of the best speedup.

        Returns [] if there are fewer than `fewest` attempts.
        """
        rows = [row for _, row in sorted(self.attempts.items())]
        if len(rows) < fewest:
            return []
        most = len(rows) if width == UNCUT else MOST_ROWS
        title = [Text(piece, "bold") for piece in wrap(self.title, width)]
        above = [replace(b, note="not timed") if b.note == POSTPONED else b for b in self.baselines]
        lines = [*title, *table_lines(above, rows, width, glyphs, self.rung, most)]
        if best_over_time := trend(rows, width - 8, glyphs):
            lines.append(Text.assemble(("  best ", "dim"), (best_over_time, "green")))
        return lines


def attempt_row(number: int, judgement: Judgement) -> Row:
    """Return the table row of attempt `number` with this judgement."""
    verdict, timing = judgement.verdict, judgement.timing
    name = f"attempt {number}"
    if not verdict.accepted:
        sign = "unsure" if verdict.reason in _UNJUDGED else "no"
        return Row(name, sign, note=str(verdict.reason))
    arm = timing.arm(CANDIDATE) if timing is not None else None
    if timing is None or arm is None or arm.failed:
        return Row(name, "yes", note="correct, not timed")
    sign = "unsure" if timing.suspect else "yes"
    precision = str(verdict.precision or "")
    return Row(name, sign, arm.median, timing.ratios, timing.share, precision, rank=judgement.rank)


def baseline_rows(timing: Timing | None) -> list[Row]:
    """Return the rows of the baselines in an attempt's timing, eager first."""
    return [
        Row(arm.name, note=f"failed: {arm.failed}")
        if arm.failed
        else Row(arm.name, seconds=arm.median, share=_share(arm.median, timing))
        for arm in (timing.arms if timing is not None else ())
        if arm.name != CANDIDATE
    ]


def ladder_rows(found: Ladder) -> list[Row]:
    """Return a row for each rung, with a sign at the best rung and a note at those not timed
    yet."""
    best = found.best
    rows = []
    for rung in found.rungs:
        if rung.failed:
            why = shortage(RuntimeError(rung.failed)) or rung.failed
            rows.append(Row(rung.name, note=f"failed: {why}"))
            continue
        if math.isnan(rung.seconds):
            rows.append(Row(rung.name, note="not timed"))
            continue
        over = {EAGER: rung.over_eager} if rung.over_eager and rung.name != EAGER else {}
        share = found.floor.share(rung.seconds) if found.floor and rung.seconds > 0 else None
        sign = "best" if best is not None and rung.name == best.name else ""
        options = rung.name.split("+")[1:]
        own = "fp32" if found.precision == "fp32" else "match"
        # In old records, without settings, all rungs had the precision of the task.
        own = next((o for o in options if o in ("tf32", "bf16")), own) if found.settings else ""
        shown = (own or found.precision) if rung.right else "wrong"
        rows.append(Row(rung.name, sign, rung.seconds, over, share, shown))
    return [*rows, *(Row(name, note=POSTPONED) for name in found.later)]


def settings_lines(found: Ladder, width: int) -> list[Text]:
    """Return the lines below a ladder: its torch settings, which old records do not have, and a
    remark on times below the roofline."""
    texts = [f"torch settings: {found.settings}"] if found.settings else []
    texts += [ABOVE] if found.beats_floor else []
    return [Text(f"  {piece}", "dim") for text in texts for piece in wrap(text, max(width - 2, 8))]


def updated_baselines(rows: Sequence[Row], timing: Timing) -> list[Row]:
    """Return the baseline rows with the figures of a newer timing.

    Rows of baselines that are not in the timing stay as they are.
    """
    fresh = {row.name: row for row in baseline_rows(timing)}
    kept = []
    for row in rows:
        new = fresh.pop(row.name, None)
        if new is not None:
            timed = row.ratios and {EAGER, row.name} <= timing.ratios.keys()
            ratios = {EAGER: over_eager(timing, row.name, row.ratios[EAGER])} if timed else {}
            row = replace(row, seconds=new.seconds, share=new.share, note=new.note, ratios=ratios)
        kept.append(row)
    return kept + list(fresh.values())


class Column(NamedTuple):
    """A column of the table. `over` is the baseline's name in a column of ratios; `right` aligns to
    the right."""

    title: str
    width: int
    right: bool = False
    over: str = ""


OVER_EAGER = Column("over eager", 18, over=EAGER)
NARROW_LADDER = 44
"""Least width in columns at which a table of rungs shows the intervals over eager."""


def columns_for(width: int, rung: str = "") -> list[Column]:
    """Return the columns that fit into `width` characters, at least name, time and two ratios.

    `rung` is the name of the best rung, which gets a separate column; "" for none.
    """
    first = [Column("", 34 if width == UNCUT else 15), Column("time", 7, right=True)]
    last = [Column("roof", 4, right=True), Column("math", 5)]
    eager, compile = OVER_EAGER, Column("over torch.compile", 18, over=COMPILE)
    named = "over eager" if 56 <= width < 66 and not rung else "eager"
    short = [Column(named, max(len(named), 7), True, EAGER), Column("comp.", 7, True, COMPILE)]
    best = Column("over best rung", 18, over=rung)
    if width < 52:
        lean = Column("best", 7, True, rung) if rung else short[1]
        return [Column("", 12), first[1], short[0], lean]
    if rung:
        columns = [eager, compile, best] if width >= 100 else [*short, best]
        columns = columns if width >= 66 else [short[0], best]
    else:
        columns = [eager if width >= 66 else short[0], compile]
    return [*first, *columns, *(last if width >= 80 else [])]


def ladder_table(rows: Sequence[Row], width: int, glyphs: Glyphs = UNICODE) -> list[Text]:
    """Return the header and the rows of a table of rungs only: ratios over eager alone."""
    columns = [c for c in columns_for(width) if c.over in ("", EAGER)]
    if width >= NARROW_LADDER:  # the room of the missing column is enough for the interval
        columns = [OVER_EAGER if c.over else c for c in columns]
    head = Text(_join([(c.title, c) for c in columns]), "dim")
    head.truncate(width)
    return [head, *(_cells_line(row, columns, width, glyphs) for row in rows)]


def head_line(width: int, rung: str = "") -> Text:
    """Return the line with the titles of the columns."""
    line = Text(_join([(c.title, c) for c in columns_for(width, rung)]), "dim")
    line.truncate(width)
    return line


def row_line(row: Row, width: int, glyphs: Glyphs = UNICODE, rung: str = "") -> Text:
    """Return one row as a line of at most `width` characters."""
    return _cells_line(row, columns_for(width, rung), width, glyphs)


def _cells_line(row: Row, columns: Sequence[Column], width: int, glyphs: Glyphs) -> Text:
    sign = getattr(glyphs, row.sign) if row.sign else " "
    colour = {"yes": "green", "no": "red", "unsure": "yellow"}.get(row.sign, "dim")
    room = columns[0].width - 2
    label = clip(baseline_name(row.name, room), room, glyphs.more)
    line = Text.assemble((f"{sign:<2}", f"bold {colour}"))
    if row.note:
        text = f"{_pad(label, room, right=False)}  {row.note}"
        style = "" if row.sign else "dim"
        return line.append(clip(text, width - cell_len(line.plain), glyphs.more), style)
    line.append(_pad(label, room, right=False))
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
    rung: str = "",
    most: int = MOST_ROWS,
) -> list[Text]:
    """Return the whole table as lines.

    If there are more than `most` attempts, the first ones are replaced by a line with their number.
    """
    left_out = max(len(attempts) - most, 0)
    lines = [head_line(width, rung), *(row_line(row, width, glyphs, rung) for row in baselines)]
    if left_out:
        lines.append(Text(f"  {glyphs.more} {left_out} attempts", "dim"))
    return lines + [row_line(row, width, glyphs, rung) for row in attempts[left_out:]]


def trend(attempts: Sequence[Row], width: int, glyphs: Glyphs = UNICODE) -> str:
    """Return the best speedup after each attempt as small bars: `▁▁▄▇ 1.05x to 1.43x`.

    Returns "" if the best speedup never grew.
    """
    best: list[float | None] = []
    for row in attempts:
        before = best[-1] if best else None
        gain = row_gain(row)
        best.append(gain if before is None else max(before, gain or before))
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


def row_gain(row: Row) -> float | None:
    """Return an attempt's speedup over its best baseline, which is the smallest of its ratios; None
    if it was not timed."""
    return min((r.value for r in row.ratios.values()), default=None)


def _cell(row: Row, column: Column) -> tuple[str, str]:
    match column.title:
        case "time":
            return ("" if row.seconds is None else duration(row.seconds)), ""
        case "roof":
            return ("" if row.share is None else f"{row.share:.0%}"), ""
        case "math":
            return row.precision, "dim"
    gain = row.ratios.get(column.over)
    if gain is None:
        return "", ""
    if column.width >= 18:
        return ratio(gain), _COLOURS[gain.standing]
    unsure = "?" if gain.standing is Standing.INCONCLUSIVE else ""
    return times(gain.value) + unsure, _COLOURS[gain.standing]


def _share(seconds: float, timing: Timing | None) -> float | None:
    floor = timing.floor if timing is not None else None
    return floor.share(seconds) if floor is not None and seconds > 0 else None


def _join(cells: Sequence[tuple[str, Column]]) -> str:
    return "  ".join(_pad(text, column.width, column.right) for text, column in cells).rstrip()


def _pad(text: str, width: int, right: bool) -> str:
    blanks = " " * max(width - cell_len(text), 0)
    return blanks + text if right else text + blanks
