"""Report the gain of the user's script: all recorded shapes, share, measured time."""

from __future__ import annotations

import sys
from json import dumps
from typing import TYPE_CHECKING

from cuagent.cli.exits import print_stderr

if TYPE_CHECKING:
    from cuagent.agent import Run
    from cuagent.config import Settings

RESULT = "script.json"
"""File in the run's folder with the results on the script."""


def report_on_script(run: Run, settings: Settings, *, time_script: bool) -> None:
    """Judge the result of a captured task on all its shapes, print the lines and keep the figures.

    Nothing happens for a task that was not captured.
    """
    from cuagent.capture.shapes import judge_shapes, lines, manifest_of
    from cuagent.events import Phase
    from cuagent.record import write_file
    from cuagent.ui.terminal import Terminal

    result = run.result
    manifest = manifest_of(run.task)
    if result is None or manifest is None:
        return
    with Terminal(sys.stderr) as show:
        show(Phase("judging the recorded shapes"))
        found = judge_shapes(run.task, result.attempt, result.judgement, settings.isolation, show)
    assert found is not None
    kept = found.to_json() | {"attempt": result.n}
    text = lines(found)
    if time_script:
        from cuagent.capture.swap import SwapRefused, time_swapped

        try:
            timed = time_swapped(run.task, manifest, result.attempt, found)
            kept["timed"] = timed.to_json()
            text += timed.lines()
        except SwapRefused as error:
            text.append(f"the script was not timed: {error}")
    for line in text:
        print_stderr(line)
    write_file(run.folder.path, RESULT, (dumps(kept, indent=1) + "\n").encode())
