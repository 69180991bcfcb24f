"""`cuagent check`: examine if a task can be certified, before any other work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cuagent.cli import options
from cuagent.cli.exits import Exit
from cuagent.cli.trust import resolve_settings

if TYPE_CHECKING:
    from cuagent.verify.admission import Admission


def check(
    task: options.TaskSpec,
    inputs: options.Inputs = None,
    init: options.Init = None,
    device: options.Device = None,
    precision: options.Precision = None,
    backward: options.Backward = False,
    trust: options.Trust = False,
    json: options.Json = False,
) -> None:
    """Check if a verdict can certify an answer to the task.

    Exit code 0 if it can be certified, 1 if not, 2 usage, 3 infrastructure.
    """
    settings = resolve_settings({"device": device, "precision": precision}, trust)
    opened = options.open_task(task, inputs, init, settings, backward=backward)
    from cuagent.verify.admission import admit
    from cuagent.verify.referee import Referee

    with (
        options.activity(f"examining {opened.name} on {opened.device}", silent=json),
        Referee(opened, settings.isolation) as referee,
    ):
        admission = admit(referee)
    _report(admission, json)
    raise typer.Exit(Exit.OK if admission.certifiable else Exit.NO)


def _report(admission: Admission, json: bool) -> None:
    if json:
        from json import dumps

        from cuagent.record import result

        certifiable = admission.certifiable
        print(dumps(result("check", admission, certifiable=certifiable), indent=2))
        return
    from cuagent.ui.console import say

    text = [
        *(admission.refusal or "certifiable").split("\n"),
        *(f"note: {note}" for note in admission.notes),
    ]
    if admission.certifiable:
        text.append(f"torch settings: {admission.settings}")
        kinds = ", ".join(admission.kinds)
        text.append(f"judged on: {kinds}; longest sum {admission.longest_sum}")
    for line in options.fitted(text):
        say(line)
