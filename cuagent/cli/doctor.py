"""`cuagent doctor`: report which required and optional parts the machine has, and how to fix it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cuagent.cli import options

if TYPE_CHECKING:
    from cuagent.measure.machine import Finding


HEAD = 27
"""Width in characters of the columns before the text of a finding."""


def doctor(
    device: options.Device = None,
    timing: Annotated[
        bool,
        typer.Option(
            "--timing", help="Also measure the smallest difference that timing can resolve."
        ),
    ] = False,
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="Timings of each kind.")] = 5,
    json: options.Json = False,
) -> None:
    """Report what this machine has and lacks, and how to fix it.

    Exit code 1 if a required part is missing.
    """
    from cuagent.config import resolve
    from cuagent.measure.machine import examine
    from cuagent.task import Device

    asked = resolve({"device": device}).device

    with options.activity("examining this machine", silent=json) as emit:
        found = examine()
        measured = None
        if timing:
            from cuagent.measure.timing.self_check import self_check

            has_gpu = any(x.name == "GPU" and x.good for x in found)
            chosen = "cuda" if asked == "auto" and has_gpu else asked.replace("auto", "cpu")
            measured = self_check(Device(chosen), runs=runs, emit=emit)
    if json:
        from dataclasses import asdict
        from json import dumps

        about = {"machine": [asdict(x) for x in found]}
        print(dumps(about | ({"timing": asdict(measured)} if measured else {}), indent=2))
    else:
        for line in options.fitted(map(_line, found), indent=HEAD):
            print(line)
        for line in options.fitted(measured.lines() if measured else [], indent=4):
            print(line)
    raise typer.Exit(1 if any(x.needed and not x.good for x in found) else 0)


def _line(finding: Finding) -> str:
    sign = "ok" if finding.good else "MISSING" if finding.needed else "absent"
    advice = f"; {finding.advice}" if finding.advice and not finding.good else ""
    return f"{f'{sign:<8}{finding.name}':<{HEAD}}{finding.said}{advice}"
