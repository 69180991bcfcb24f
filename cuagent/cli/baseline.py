"""`cuagent baseline`: time every way to run a module faster without a custom kernel."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from cuagent.cli import options
from cuagent.cli.exits import Refused
from cuagent.cli.trust import resolve_settings

if TYPE_CHECKING:
    from cuagent.measure.rungs import Ladder, Rung
    from cuagent.timing import Floor

WIDTH = 100
"""Width in characters of the table in a file or a pipe."""
LEFT = (0, 2)
"""Indices of the left-aligned columns (names and ratios); the others are right-aligned."""
HEAD = ("rung", "time", "over eager", "in a row", "roof", "error", "start", "memory")
BELOW = (
    "",
    "",
    "over eager",
    "a call in a row",
    "of the roofline",
    "error",
    "to start",
    "of memory",
)
"""Label of each column, written after a figure that is printed below its row for lack of width."""


def baseline(
    task: options.TaskSpec,
    inputs: options.Inputs = None,
    init: options.Init = None,
    device: options.Device = None,
    precision: options.Precision = None,
    backward: options.Backward = False,
    rungs: Annotated[
        str, typer.Option(metavar="NAMES", help="Time only these, e.g. eager,compile,compile+tf32.")
    ] = "",
    record: Annotated[
        bool,
        typer.Option("--record", help="Time in several fresh processes, for a result to publish."),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Export the best rung there.")
    ] = None,
    trust: options.Trust = False,
    json: options.Json = False,
) -> None:
    """Time every way to run a module faster without a custom kernel.

    Eager, torch.compile's modes, memory formats and admitted precisions, in one interleaved run,
    under the torch settings that your module has in your own process. With --out
    the best is exported as a package: a function that sets up your module so, and a check.
    """
    if out is not None:
        options.refuse_full(out)
    only = _named(rungs)
    settings = resolve_settings({"device": device, "precision": precision}, trust)
    opened = options.open_task(task, inputs, init, settings, backward=backward)
    from cuagent.measure.ladder import time_rungs
    from cuagent.timing import Effort
    from cuagent.verify.referee import Referee

    with (
        options.activity(f"timing {opened.name} on {opened.device}", silent=json) as emit,
        Referee(opened, settings.isolation, compiler=True) as referee,
    ):
        effort = Effort.RECORD if record else Effort.QUICK
        found = time_rungs(referee, effort=effort, only=only, fresh=fresh, emit=emit)
    if json:
        from json import dumps

        from cuagent.record import result

        print(dumps(result("baseline", found), indent=2))
    else:
        from cuagent.ui.console import say

        width = get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        for line in options.fitted(lines(found, width)):
            say(line)
    if out is not None:
        from cuagent.cli.export import write_result

        print(write_result(opened, None, found, {}, out), file=sys.stderr)


def _named(rungs: str) -> tuple[str, ...]:
    """Return the rungs in the text of `--rungs`. Raises Refused for an unknown name."""
    from cuagent.arms import MODES, OPTIONS

    names = tuple(dict.fromkeys(name.strip() for name in rungs.split(",") if name.strip()))
    for name in names:
        mode, *behind = name.split("+")
        if mode not in MODES or not set(behind) <= set(OPTIONS):
            known = f"{', '.join(MODES)}, with +{', +'.join(OPTIONS)} behind them"
            raise Refused(f"--rungs: no {name!r}; there are {known}")
    return names


def lines(found: Ladder, width: int = WIDTH) -> list[str]:
    """Format the ladder as a table of at most `width` characters, and name its best rung.

    Empty columns are left out; figures of columns that do not fit are printed below their row.
    """
    from cuagent.measure.roofline.model import ABOVE

    rows = [_row(rung, found.floor) for rung in found.rungs]
    shown = [at for at in range(len(HEAD)) if any(row[at] for row in rows)]
    wide = {at: max(len(row[at]) for row in (HEAD, *rows)) for at in shown}
    below: list[int] = []
    while sum(wide[at] + 2 for at in shown) - 2 > width and len(shown) > 2:
        below.insert(0, shown.pop())

    def across(row: Sequence[str]) -> str:
        cells = [row[at].ljust(wide[at]) if at in LEFT else row[at].rjust(wide[at]) for at in shown]
        return "  ".join(cells).rstrip()

    text = [across(HEAD)]
    for row, rung in zip(rows, found.rungs, strict=True):
        rest = ", ".join(f"{row[at]} {BELOW[at]}" for at in below if row[at] not in ("", "1"))
        text += [across(row), *(f"  {line}" for line in (rest, _note(rung)) if line)]
    text += ["", _best(found), *_exported(found)]
    text += [ABOVE] if found.beats_floor else []
    text += [found.contract] if found.contract else []
    text += [f"{found.device}; torch {found.versions.get('torch', '?')}", *found.notes]
    if age := found.age():
        text.append(f"{age}; --fresh measures again")
    return text


def _best(found: Ladder) -> str:
    from cuagent.arms import EAGER

    best, eager = found.best, found.rung(EAGER)
    if (unsure := found.undecided) is not None:
        gain = _gain(unsure, "", " over eager")
        return (
            f"could not tell whether {unsure.name} beats eager: {gain}; time it again with --fresh"
        )
    if best is not None:
        return f"best at precision {found.precision}: {best.name}{_gain(best, ', ', ' over eager')}"
    if eager is None:
        return "no best rung: eager, the baseline of the ratios, was not timed; add it to --rungs"
    return "no rung is admissible: the reference itself fails the strict rule; see cuagent check"


def _exported(found: Ladder) -> list[str]:
    """Return [line] if another rung than the best one is exported, else []."""
    chosen = found.chosen
    if chosen is None or chosen is found.best:
        return []
    return [f"--out exports {chosen.name}, which is as fast and quicker in a row"]


def _gain(rung: Rung, before: str = "", behind: str = "") -> str:
    from cuagent.arms import EAGER
    from cuagent.ui.text import ratio

    over = rung.over_eager
    if over is None or rung.name == EAGER or rung.failed:
        return ""
    return f"{before}{ratio(over)}{behind}"


def _row(rung: Rung, floor: Floor | None) -> list[str]:
    from cuagent.measure.roofline.model import amount, seconds_text

    if rung.failed:
        return [rung.name, "failed", *[""] * (len(HEAD) - 2)]
    return [
        rung.name,
        seconds_text(rung.seconds),
        _gain(rung) or ("1" if rung.over_eager else ""),
        "" if rung.in_a_row_s is None else seconds_text(rung.in_a_row_s),
        "" if floor is None or not floor.seconds else f"{floor.share(rung.seconds):.0%}",
        "?" if rung.error is None else f"{rung.error:.1e}",
        "?" if rung.opened_s is None else f"{rung.opened_s:.1f} s",
        "" if rung.memory is None else f"{amount(rung.memory)}B",
    ]


def _note(rung: Rung) -> str:
    """Return the settings that a rung needs and the reason why it cannot be the best rung, as
    text."""
    if rung.failed:
        return rung.failed[:60]
    needs = f"needs {rung.settings}" if rung.settings else ""
    return ": ".join(filter(None, [needs, "" if rung.admissible else _refusal(rung)]))


def _refusal(rung: Rung) -> str:
    return "precision differs from the task's" if not rung.admitted else "fails the strict rule"
