"""`cuagent baseline`: what is free, before any kernel is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuagent.cli import options
from cuagent.cli.exits import Refused

if TYPE_CHECKING:
    from cuagent.measure.ladder import Ladder, Rung
    from cuagent.measure.timing import Floor


def baseline(
    task: options.TaskSpec,
    inputs: options.Inputs = None,
    init: options.Init = None,
    device: options.Device = None,
    precision: options.Precision = None,
    rungs: Annotated[
        str, typer.Option(metavar="NAMES", help="Only these, e.g. eager,compile,compile+tf32.")
    ] = "",
    record: Annotated[
        bool, typer.Option("--record", help="Fresh processes, several rounds: a claim.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Export the best rung there.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Time every way to run a module quicker without a kernel of one's own.

    Eager, torch.compile's modes, memory formats and precisions, in one interleaved run. With --out
    the best becomes a package: a function that makes your module run that way, and a check.
    """
    if out is not None:
        options.refuse_full(out)
    only = _named(rungs)
    from cuagent.config import resolve

    settings = resolve({"device": device, "precision": precision})
    opened = options.open_task(task, inputs, init, settings)
    from cuagent.measure.ladder import ladder
    from cuagent.measure.timing import Effort
    from cuagent.verify.referee import Referee

    with (
        options.activity(f"timing {opened.name} on {opened.device}", silent=json) as emit,
        Referee(opened, settings.isolation) as referee,
    ):
        effort = Effort.RECORD if record else Effort.QUICK
        found = ladder(referee, effort=effort, only=only, fresh=fresh, emit=emit)
    if json:
        from json import dumps

        from cuagent.record import plain

        print(dumps(plain(found.to_json()), indent=2))
    else:
        print("\n".join(lines(found)))
    if out is not None:
        from cuagent.cli.export import write_result

        print(write_result(opened, None, found, {}, out), file=sys.stderr)


def _named(rungs: str) -> tuple[str, ...]:
    """The rungs that were asked for. Raises Refused for one that there cannot be."""
    from cuagent.worker.arms import MODES, OPTIONS

    names = tuple(name.strip() for name in rungs.split(",") if name.strip())
    for name in names:
        mode, *behind = name.split("+")
        if mode not in MODES or not set(behind) <= set(OPTIONS):
            known = f"{', '.join(MODES)}, with +{', +'.join(OPTIONS)} behind them"
            raise Refused(f"--rungs: no {name!r}; there are {known}")
    return names


def lines(found: Ladder) -> list[str]:
    """The ladder as a table, its best rung named."""
    width = max(len(rung.name) for rung in found.rungs)
    head = (
        f"{'rung':<{width}} {'time':>9}  {'over eager':<22} {'roof':>5} {'error':>7} "
        f"{'start':>7} {'memory':>7}"
    )
    text = [head, *(_line(rung, width, found.floor) for rung in found.rungs), ""]
    best = found.best
    if best is None:
        text.append("no rung is admissible: the reference itself does not pass the strict rule")
    else:
        gain = "" if best.over_eager is None else f", {best.over_eager.value:.2f}x over eager"
        text.append(f"best at precision {found.precision}: {best.name}{gain}")
    text += [f"{found.device}; torch {found.versions.get('torch', '?')}", *found.notes]
    return text


def _line(rung: Rung, width: int, floor: Floor | None) -> str:
    from cuagent.measure.roofline import amount, seconds_text

    if rung.failed:
        return f"{rung.name:<{width}} {'failed':>9}  {rung.failed[:60]}"
    over = rung.over_eager
    gain = "" if over is None else f"{over.value:.3f}x ({over.low:.3f}-{over.high:.3f})"
    roof = "" if floor is None else f"{floor.share(rung.seconds):.0%}"
    error = "?" if rung.error is None else f"{rung.error:.1e}"
    start = "?" if rung.opened_s is None else f"{rung.opened_s:.1f} s"
    memory = "" if rung.memory is None else f"{amount(rung.memory)}B"
    why = "" if rung.admissible else "  " + _refusal(rung)
    return (
        f"{rung.name:<{width}} {seconds_text(rung.seconds):>9}  {gain:<22} {roof:>5} {error:>7} "
        f"{start:>7} {memory:>7}{why}"
    )


def _refusal(rung: Rung) -> str:
    return "other precision than the task's" if not rung.admitted else "fails the strict rule"
