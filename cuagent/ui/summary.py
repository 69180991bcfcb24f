"""The last block of a run: what was gained, on what evidence, where it lies and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from cuagent.events import RunEnded, RunStarted
from cuagent.measure.timing import Effort, Standing
from cuagent.record import RUNS
from cuagent.ui.table import NARROW, baseline_name, label_lines
from cuagent.ui.text import UNICODE, Glyphs, one_line, ratio, wrap

if TYPE_CHECKING:
    from cuagent.judge import Judgement


def summary_lines(
    ended: RunEnded,
    run: RunStarted | None,
    attempts: Mapping[str, int],
    width: int,
    glyphs: Glyphs = UNICODE,
) -> list[Text]:
    """`attempts` gives the number of an attempt by its digest."""
    best: Judgement | None = ended.best
    if best is None:
        head, rows = f"{glyphs.unsure} no gain: {one_line(ended.summary)}", []
    else:
        number = attempts.get(best.attempt)
        name = f"attempt {number}" if number is not None else best.attempt[:12]
        if best.gains:
            head = f"{glyphs.yes} best: {name}"
        elif best.standing is Standing.INCONCLUSIVE:
            head = f"{glyphs.unsure} no sure gain: {name} is right; the times do not tell it apart"
        else:
            head = f"{glyphs.unsure} no gain: {name} is right, but not faster than eager"
        rows = _evidence(best, width)
    colour = "green" if best is not None and best.gains else "yellow"
    lines = [Text(line, f"bold {colour}") for line in wrap(head, width)]
    return lines + label_lines([*rows, *_whereabouts(ended, run)], width)


def short_path(path: Path) -> str:
    """As seen from the current folder, where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def handle(run: RunStarted) -> str:
    """What a command takes for this run here: its ID, or its path where it lies elsewhere."""
    return run.run_id if run.folder.parent == RUNS.resolve() else short_path(run.folder)


def _evidence(best: Judgement, width: int) -> list[tuple[str, str]]:
    rows = []
    if best.timing is None:
        rows.append(("worth", "not timed"))
    else:
        for name, worth in best.timing.ratios.items():
            word = f" {worth.standing}" if width >= NARROW else ""
            rows.append((f"over {baseline_name(name, width)}", ratio(worth) + word))
        afresh = best.timing.effort is Effort.RECORD
        how = "measured afresh in several processes" if afresh else "measured in the loop only"
        rows.append(("timing", f"{how}, on {one_line(best.timing.device)}"))
    if best.verdict.precision is not None:
        rows.append(("precision", str(best.verdict.precision)))
    return [*rows, ("isolation", best.verdict.tier)]


def _whereabouts(ended: RunEnded, run: RunStarted | None) -> list[tuple[str, str]]:
    rows = [("stopped", one_line(str(ended.stop)))]
    if run is not None:
        rows.append(("run", short_path(run.folder)))
        rows.append(("look", f"cuagent show {handle(run)}"))
        if ended.best is not None:
            rows.append(("apply", f"cuagent apply {handle(run)}"))
            rows.append(("export", f"cuagent export {handle(run)} --out DIR"))
    return rows
