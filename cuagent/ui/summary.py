"""The last block of a run: what was gained, on what evidence, where it lies and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from cuagent.events import RunEnded, RunStarted
from cuagent.ui.table import NARROW, baseline_name, label_lines
from cuagent.ui.text import UNICODE, Glyphs, one_line, ratio

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
    rows: list[tuple[str, str]] = []
    if best is None:
        head = Text.assemble(
            (f"{glyphs.unsure} no gain", "bold yellow"),
            (": no accepted attempt is faster than what is there", "yellow"),
        )
    else:
        number = attempts.get(best.attempt_digest)
        name = f"attempt {number}" if number is not None else best.attempt_digest[:12]
        head = Text(f"{glyphs.yes} best: {name}", "bold green")
        rows += _worth_rows(best, width)
        verdict = best.verdict
        if verdict.precision is not None:
            rows.append(("precision", str(verdict.precision)))
        rows.append(("isolation", verdict.tier))
    if ended.summary:
        rows.append(("said", one_line(ended.summary)))
    rows.append(("stopped", one_line(ended.stop)))
    if run is not None:
        rows.append(("run", str(run.folder)))
        rows.append(("look", f"cuagent show {run.run_id}"))
        if best is not None:
            rows.append(("next", f"cuagent export {run.run_id} --out DIR"))
    return [head, *label_lines(rows, width)]


def _worth_rows(best: Judgement, width: int) -> list[tuple[str, str]]:
    if best.timing is None:
        return [("worth", "not timed")]
    return [
        (
            f"over {baseline_name(name, width)}",
            ratio(worth) + (f" {worth.standing}" if width >= NARROW else ""),
        )
        for name, worth in best.timing.ratios.items()
    ] + [("on", one_line(best.timing.device))]
