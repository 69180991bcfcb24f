"""Show a benchmark: a live table of the problems in progress, and the result tables at the end.

The result tables have the form of Table 1 of CUDA Agent (arXiv 2602.24286), with a row for each
rule in place of each model. In a pipe one line is printed for each finished problem.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cuagent.bench.columns import (
    OVERALL,
    RULES,
    Mean,
    Row,
    device_seconds,
    family_of,
    group_of,
    lock_seconds,
    rows_by,
    stage_seconds,
    statuses,
)
from cuagent.bench.record_form import FREE, KERNEL, RESULTS
from cuagent.bench.scheduler import Finished, Progressed, Started
from cuagent.timing import Ratio
from cuagent.ui.console import make_console

if TYPE_CHECKING:
    from cuagent.bench.compare import Change, Comparison
    from cuagent.bench.results import Record

NARROW = 80
"""Width in characters below which tables leave out their less important columns."""
BASELINE_NAMES = {"eager": "eager", "compile": "torch.compile", "best_rung": "best rung"}
SHORT_NAMES = {"eager": "eager", "compile": "compile", "best_rung": "rung"}
"""Names of the baselines in narrow terminals."""
STYLES = {
    KERNEL: "green",
    FREE: "green",
    "failed": "red",
    "not certifiable": "yellow",
    "no gain": "yellow",
    "no kernel": "yellow",
}

LOCK_FIGURES = {
    "kept_s": "seconds that timings of others waited for a problem",
    "drain_s": "seconds that a problem's timings waited for others",
}
"""Figures of the device lock in the summary, with their descriptions."""


class BenchView:
    """Context manager that shows the progress of a benchmark of `total` problems on `stream`.

    Only one thread may call `observe` at a time.
    """

    def __init__(self, stream: TextIO, total: int) -> None:
        self.console = make_console(stream)
        self.total = total
        self.records: list[Record] = []
        self.earlier = 0
        self._running: dict[int, tuple[str, float, dict[str, Any]]] = {}
        self._started = time.monotonic()
        self._stack = ExitStack()
        self._live: Live | None = None

    def __enter__(self) -> BenchView:
        if self.console.is_terminal:
            live = Live(get_renderable=self._panel, console=self.console, refresh_per_second=4)
            self._live = self._stack.enter_context(live)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def observe(self, event: Started | Progressed | Finished) -> None:
        """Show an event of `cuagent.bench.scheduler`."""
        match event:
            case Started(problem=problem, slot=slot):
                self._running[slot] = (problem, time.monotonic(), {"phase": "starting"})
            case Progressed(slot=slot, report=report):
                if slot in self._running:
                    self._running[slot][2].update(report)
            case Finished(record=record, slot=slot, earlier=earlier):
                self._running.pop(slot, None)
                self.records.append(record)
                self.earlier += earlier
                if not earlier:
                    line = f"{len(self.records)}/{self.total} {problem_line(record)}"
                    style = STYLES.get(record["status"], "") if self._live else ""
                    self.console.print(Text(line, style))

    def interrupted(self) -> str:
        """Return text with the number of problems that are done, and the names, seconds and phases
        of those that an interrupt ended."""
        text = f"{len(self.records)} of {self.total} problems are done"
        if not self._running:
            return text
        now = time.monotonic()
        ended = ", ".join(
            f"{problem} ({now - since:.0f} s, {report.get('phase', 'running')})"
            for problem, since, report in self._running.values()
        )
        again = "begins" if len(self._running) == 1 else "begin"
        return f"{text}, {len(self._running)} in flight {again} again: {ended}"

    def _panel(self) -> Group:
        width = self.console.width
        running = Table(box=None, pad_edge=False, show_header=False, expand=False)
        running.add_column(no_wrap=True)
        running.add_column(no_wrap=True, justify="right")
        running.add_column(no_wrap=True, overflow="ellipsis", max_width=max(10, width - 26))
        for problem, since, report in self._running.values():
            ratio = report.get("ratio")
            best = f"{ratio:.2f}x " if ratio else ""
            seconds = f"{time.monotonic() - since:.0f} s"
            running.add_row(problem, seconds, f"{best}{report.get('phase', '')}")
        return Group(Text(self._progress(), "bold"), running)

    def _progress(self) -> str:
        done = len(self.records)
        found = ", ".join(f"{n} {name}" for name, n in statuses(self.records).items())
        return f"{done}/{self.total}{self._left()}" + (f"  {found}" if found else "")

    def _left(self) -> str:
        """Return text with the estimated time left; "" until a problem is done in this session."""
        fresh = len(self.records) - self.earlier
        if not fresh or len(self.records) >= self.total:
            return ""
        seconds = (time.monotonic() - self._started) / fresh * (self.total - len(self.records))
        return f", about {_span(seconds)} left"


def problem_line(record: Record) -> str:
    """Return one line about a finished problem."""
    name, ratios = record["problem"], record.get("ratios") or {}
    free, rung = record["status"] == FREE, record.get("best_rung")
    seconds = record.get("seconds", {}).get("total_s", 0.0)
    if record["status"] not in RESULTS:
        return f"{name}: {record['status']} ({record['reason']}), {_span(seconds)}"
    parts = [
        f"{ratios[key]['value']:.2f}x over {label}{_doubt(ratios[key])}"
        for key, label in BASELINE_NAMES.items()
        if ratios.get(key)
        and not (key == "best_rung" and (free or rung in ratios))
        and not (free and key == rung)
    ]
    shown = f"{FREE} {BASELINE_NAMES.get(str(rung), rung)}, " * free
    return f"{name}: {shown}{', '.join(parts) or 'accepted, not timed'}, {_span(seconds)}"


def _doubt(ratio: dict[str, float]) -> str:
    """Return a note in parentheses if the ratio is inconclusive or about 1, else ""."""
    return Ratio(ratio["value"], ratio["low"], ratio["high"]).doubt


def print_results(records: Sequence[Record], stream: TextIO) -> None:
    """Print the result tables of a benchmark on `stream`."""
    console = make_console(stream)
    width = min(console.width, 100)
    for part in result_tables(records, width):
        console.print(part, width=width)


def result_tables(records: Sequence[Record], width: int) -> Iterator[Any]:
    """Yield the result tables for a terminal of `width` characters."""
    yield Text()
    yield _table1(rows_by(records, group_of), width)
    yield Text()
    yield _fast_table(rows_by(records, group_of), width)
    yield Text()
    families = rows_by(records, family_of, ("strict",))
    if len(families) > 3:
        yield _family_table(families, width)
        yield Text()
    found = ", ".join(f"{n} {name}" for name, n in statuses(records).items())
    yield Text(f"{len(records)} problem{'s' * (len(records) != 1)}: {found}")
    if held := device_seconds(records):
        yield Text(f"device held alone: median {statistics.median(held):.1f} s a problem")
    if stages := stage_seconds(records):
        parts = (f"{name.replace('_', ' ')} {seconds:.1f}" for name, seconds in stages.items())
        yield Text(f"seconds a problem by stage, medians: {', '.join(parts)}")
    for figure, text in LOCK_FIGURES.items():
        if lock := lock_seconds(records, figure):
            parts = (f"{name.replace('_', ' ')} {seconds:.1f}" for name, seconds in lock.items())
            yield Text(f"{text}, means by stage: {', '.join(parts)}")
    yield Text(
        "lax: best attempt, 5 inputs, atol = rtol = 1e-2, ratio of medians; strict: kernel or, "
        "except under kernels-only, free option; cuagent's rule, faster if the lower limit is "
        "above the threshold; clean: strict without degenerate and algebra-only problems. "
        "Speedups: geometric means over the problems that pass, 95 % intervals."
    )


def _table1(rows: Sequence[Row], width: int) -> Table:
    """Return the results as a table in the form of the paper's Table 1."""
    table = Table(
        box=None, pad_edge=False, show_edge=False, padding=(0, 1 + (width >= NARROW), 0, 0)
    )
    for name, justify in (("subset", "left"), ("rule", "left"), ("n", "right"), ("pass", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    wide = width >= NARROW
    names = SHORT_NAMES | ({"best_rung": "best rung"} if wide else {})
    for name in names.values():
        if wide:
            table.add_column(f"faster vs {name}", justify="right", min_width=9)
    for name in names.values():
        table.add_column(f"x over {name}", justify="right")
    for group in dict.fromkeys(row.group for row in rows):
        for rule in RULES:
            chosen = [row for row in rows if (row.group, row.rule) == (group, rule)]
            first = chosen[0]
            faster = [_percent(row.fast[1.0]) for row in chosen] if wide else []
            speedups = [_mean(row.speedup, short=True) for row in chosen]
            subset = group if rule == RULES[0] else ""
            cells = [subset, rule, str(first.problems), _percent(first.fast[0.0])]
            table.add_row(*cells, *faster, *speedups)
    return table


def _fast_table(rows: Sequence[Row], width: int) -> Table:
    table = Table(
        box=None, pad_edge=False, show_edge=False, padding=(0, 1 + (width >= NARROW), 0, 0)
    )
    names = BASELINE_NAMES if width >= NARROW else SHORT_NAMES
    for name in ("rule", "against", "fast_0", "fast_1", "fast_1.05", "fast_2"):
        table.add_column(name, justify="left" if name in ("rule", "against") else "right")
    if width >= NARROW:
        table.add_column("geometric mean", justify="right")
    for row in rows:
        if row.group == OVERALL and (row.rule, row.baseline) != ("lax", "best_rung"):
            shares = [_percent(share) for share in row.fast.values()]
            mean = [_mean(row.speedup)] if width >= NARROW else []
            table.add_row(row.rule, names[row.baseline], *shares, *mean)
    return table


def _family_table(rows: Sequence[Row], width: int) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("family, strict")
    table.add_column("n", justify="right")
    table.add_column("pass", justify="right")
    names = BASELINE_NAMES if width >= NARROW else SHORT_NAMES
    for baseline in ("compile", "best_rung"):
        table.add_column(f"x over {names[baseline]}", justify="right")
    for group in dict.fromkeys(row.group for row in rows if row.group != OVERALL):
        chosen = {row.baseline: row for row in rows if row.group == group}
        first = chosen["compile"]
        means = [
            _mean(chosen[name].speedup, short=width < NARROW) for name in ("compile", "best_rung")
        ]
        table.add_row(group, str(first.problems), _percent(first.fast[0.0]), *means)
    return table


def print_comparison(found: Comparison, stream: TextIO) -> None:
    """Print what changed between two benchmarks."""
    console = make_console(stream)
    parts: list[tuple[str, Sequence[Change]]] = [
        ("newly accepted", found.newly_accepted),
        ("newly failing", found.newly_failing),
        ("faster", found.faster),
        ("slower", found.slower),
    ]
    for note in found.notes:
        console.print(Text(note, "yellow"))
    for name, changes in parts:
        console.print(Text(f"{name}: {len(changes)}", "bold"))
        for change in changes:
            console.print(Text(f"  {change.problem}  {change.text}"))
    console.print(Text(f"no sure difference: {found.unchanged}"))
    if found.speedup is not None:
        count = found.speedup.count
        both = (
            f"{_mean(found.speedup)} over {count} problem{'s' * (count != 1)} with a result in both"
        )
        console.print(Text(f"speedup over eager, after over before: {both}"))
    if found.missing:
        console.print(Text(f"in one of the two only: {', '.join(found.missing)}"))


def _mean(mean: Mean | None, *, short: bool = False) -> str:
    if mean is None:
        return "-"
    if short or mean.low is None:
        return f"{mean.value:.2f}"
    return f"{mean.value:.2f} ({mean.low:.2f} to {mean.high:.2f})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _span(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
